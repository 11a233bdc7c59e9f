"""The limits that Linux's control groups put on this process, as in a container or a batch job; its processors."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["default_threads", "memory_limits", "processor_limits"]

GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def memory_limits() -> list[int]:
    """Return the limits of memory, in bytes."""
    texts = [_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes") for folder in _folders("memory")]
    return [int(text) for text in texts if text.isdigit()]


def processor_limits() -> list[int]:
    """Return the limits of processors, rounded up: a quota of time per period."""
    found = []
    for folder in _folders("cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if not period:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(max(1, math.ceil(int(quota) / int(period))))
    return found


def _folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups for a controller, each before those around it."""
    for line in _read(GROUPS).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mounted = MOUNTED / controllers if controllers else MOUNTED  # version 1, or version 2
        path = PurePosixPath(group)
        for part in (path, *path.parents):
            yield mounted / part.relative_to("/")


def _read(path: Path) -> str:
    """Return the text of a file, without white space at its ends; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def default_threads() -> int:
    """Return the number of processors that this process may use, at most its quota; on macOS, of performance cores.

    Threads share every gradient evenly, so all of them would wait for those on the slower efficiency cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return min([len(os.sched_getaffinity(0)), *processor_limits()])
    count = os.cpu_count() or 1
    return min(count, _fast_processors() or count) if sys.platform == "darwin" else count


def _fast_processors() -> int | None:
    """Return the number of performance cores on macOS; None if the system does not report it."""
    import subprocess

    try:
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.logicalcpu"], capture_output=True, text=True, check=True
        )
        return int(found.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):  # all cores are of one kind
        return None
