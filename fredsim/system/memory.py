"""The memory of this machine: how much there is, sizes as text, errors if it is too little; garbage."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fredsim.errors import ConfigError, DeviceMemoryError, NoMemoryError
from fredsim.system.limits import memory_limits

__all__ = [
    "byte_unit",
    "fills_memory",
    "format_bytes",
    "importing",
    "machine_memory",
    "memory_errors",
    "peak_memory",
    "refuse_beyond_memory",
    "refuse_what_clients_hold",
    "reset_peak_memory",
    "uncollected",
]

FEW = 2**20  # bytes that every machine has
#: The remedy in errors about what clients hold.
SPILL_REMEDY = "give `memory`, such as memory: 4GB, beyond which they lie in a file, or lower it"

ends_after_command = False  # whether this process does one command (fredsim.__main__)


def machine_memory() -> int:
    """Return how many bytes this process may use: the smallest of the machine's memory and the limits on it."""
    found = []
    if hasattr(os, "sysconf"):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found += memory_limits()
    if sys.platform != "win32":
        import resource

        found += resource.getrlimit(resource.RLIMIT_AS)  # where there is none, −1, or more than any machine has
    return min((size for size in found if size > 0), default=2**60)


def fills_memory(size: int) -> bool:
    """Return whether so many bytes are as many as this process may use, or more.

    Few are not compared: reading the limits takes longer than reading such a file.
    """
    return size >= FEW and size >= machine_memory()


def reset_peak_memory() -> None:
    """Let `peak_memory` count from now on, if the system can do so (Linux)."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had at once; 0 if the system does not say it."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def byte_unit(size: float, most: float = 1000) -> tuple[float, str]:
    """Return the smallest unit in which a number of bytes is less than `most`: its size in bytes, and its name."""
    units = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
    power = next((power for power in range(len(units)) if size < most * 1000**power), len(units) - 1)
    return 1000.0**power, units[power]


def format_bytes(size: float) -> str:
    """Return a number of bytes as text, such as 1.5 GB."""
    unit, name = byte_unit(size, 999.5)  # three digits, rounded
    return f"{size / unit:.3g} {name}"


def refuse_beyond_memory(size: int, what: str, remedy: str) -> None:
    """Raise ConfigError if `size` bytes are more than this machine has.

    The message begins with `what`, which needs the bytes, such as `data.size is 9; it takes`, and ends with `remedy`.
    Few bytes are not compared, as by `fills_memory`.
    """
    if size >= FEW and size > (most := machine_memory()):
        raise ConfigError(f"{what} {format_bytes(size)}, and this machine has {format_bytes(most)} of memory; {remedy}")


@contextmanager
def memory_errors() -> Iterator[None]:
    """Turn a MemoryError, or PyTorch's error for a device's memory, into a NoMemoryError that names what to lower."""
    failure = None
    try:
        yield
    except _out_of_memory() as error:
        what = str(error).partition("\n")[0]
        on_device = isinstance(error, DeviceMemoryError) or not isinstance(error, MemoryError)
        if on_device:  # what was asked for, and what is left; PyTorch then lists every process on the device
            what = ". ".join(what.split(". ")[:3])
        what = what.rstrip(".") or "nothing is left"
        failure = NoMemoryError(
            f"out of memory{' on the device' * on_device} ({what}); lower model.hidden, clients.count, "
            "clients.batch_size, clients.local_steps or window, take less data, or "
            f"{'choose backend numba, or ' * on_device}end other programs"
        )
    if failure is not None:  # raised here, so that it does not keep alive what the other error's frames have
        raise failure


def _out_of_memory() -> tuple[type[Exception], ...]:
    torch: Any = sys.modules.get("torch")  # if it is not imported, no device is used
    return (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)


def refuse_what_clients_hold(clients: int, held: str, size: int, arrays: int, each: int) -> None:
    """Raise ConfigError if what the clients may hold at once does not fit into this machine's memory.

    It is `size` bytes of what `held` names, and `arrays` arrays of `each` bytes that the server keeps for the clients.
    """
    kept = f" and the {arrays:,} arrays that the server keeps for them" if arrays else ""
    refuse_beyond_memory(size + arrays * each, f"clients.count is {clients}; the {held}{kept} take", SPILL_REMEDY)


@contextmanager
def uncollected() -> Iterator[None]:
    """Search for no garbage in a `with` block, where nothing may be freed, or where there is none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Search for no garbage in a `with` block, nor, if the process does one command, later in what it imports.

    All of that stays as long as the process; Python would search through it several times, the last time at its end.
    """
    with uncollected():
        yield
        if ends_after_command:  # in another process it might be garbage, such as earlier runs
            gc.freeze()
