"""The memory of this machine: how much there is, sizes in words, and errors where it is too little."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fredsim.errors import ConfigError, SimulationError

__all__ = [
    "byte_unit",
    "in_bytes",
    "machine_memory",
    "memory_errors",
    "refuse_beyond_memory",
    "refuse_what_clients_hold",
]

#: Where Linux says how much the processes of a container may take, in bytes, or `max`.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))

#: What errors advise where clients hold too much.
SPILL_REMEDY = "give `memory`, such as memory: 4GB, beyond which they lie in a file, or lower it"


def machine_memory() -> int:
    """Return how many bytes this process may have: the machine's, its container's or its own limit, the least."""
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
    """Return the smallest unit of which a number of bytes is less than `most`: its bytes, and its name."""
    units = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
    power = next((power for power in range(len(units)) if size < most * 1000**power), len(units) - 1)
    return 1000.0**power, units[power]


def in_bytes(size: float) -> str:
    """Return a number of bytes in words, such as 1.5 GB."""
    unit, name = byte_unit(size, 999.5)  # three digits, rounded
    return f"{size / unit:.3g} {name}"


def refuse_beyond_memory(size: int, what: str, remedy: str) -> None:
    """Raise ConfigError, `what` takes so much and `remedy`, where `size` bytes are more than this machine has."""
    if size > (most := machine_memory()):
        raise ConfigError(f"{what} {in_bytes(size)}, and this machine has {in_bytes(most)} of memory; {remedy}")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn a MemoryError into a SimulationError that names what to lower."""
    try:
        yield
    except MemoryError as error:
        raise SimulationError(
            f"out of memory ({error or 'nothing is left'}); lower model.hidden, clients.count, clients.batch_size, "
            "clients.local_steps or window, take less data, or end other programs"
        ) from None


def refuse_what_clients_hold(clients: int, held: str, size: int, arrays: int, each: int) -> None:
    """Raise ConfigError where what so many clients may hold, `size` bytes, is more than this machine's memory.

    The server keeps for them so many `arrays`, of `each` bytes.
    """
    kept = f" and the {arrays:,} arrays that the server keeps for them" if arrays else ""
    refuse_beyond_memory(size + arrays * each, f"clients.count is {clients}; the {held}{kept} take", SPILL_REMEDY)
