"""The memory of this machine, sizes as messages name them, and what to say when memory runs out all the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fredsim.errors import ConfigError, SimulationError

__all__ = ["SPILL", "byte_unit", "in_bytes", "machine_memory", "refuse_beyond_memory", "short_of_memory"]

#: Where a container says how much its processes may take, in bytes, or `max`.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


#: The remedy for what clients hold.
SPILL = "give `memory`, such as memory: 4GB, beyond which they lie in a file, or lower it"


def machine_memory() -> int:
    """Return the bytes of memory that this process can come to: the machine's, its container's, or its own limit."""
    found = []
    if hasattr(os, "sysconf"):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # there is none, or it is `max`
            continue
    if sys.platform != "win32":
        import resource

        found += [limit for limit in resource.getrlimit(resource.RLIMIT_AS) if limit != resource.RLIM_INFINITY]
    return min((size for size in found if size > 0), default=2**60)


def byte_unit(size: float, most: float = 1000) -> tuple[float, str]:
    """Return the unit in which a number of bytes is less than `most`: what to divide by, and its name."""
    units = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
    power = next((power for power in range(len(units)) if size < most * 1000**power), len(units) - 1)
    return 1000.0**power, units[power]


def in_bytes(size: float) -> str:
    """Return a number of bytes with its unit."""
    unit, name = byte_unit(size, 999.5)  # three digits, rounded
    return f"{size / unit:.3g} {name}"


def refuse_beyond_memory(size: int, what: str, remedy: str) -> None:
    """Raise ConfigError where `size` bytes are more than this machine has. `what` takes them, and begins with a key."""
    if size > (most := machine_memory()):
        raise ConfigError(f"{what} {in_bytes(size)}, and this machine has {in_bytes(most)} of memory; {remedy}")


@contextmanager
def short_of_memory() -> Iterator[None]:
    """Raise SimulationError, naming what takes memory, where there is too little of it."""
    try:
        yield
    except MemoryError as error:
        raise SimulationError(
            f"out of memory ({error or 'nothing is left'}); lower model.hidden, clients.count, clients.batch_size, "
            "clients.local_steps or window, take less data, or end other programs"
        ) from None
