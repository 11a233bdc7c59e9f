"""The limits that Linux's control groups put on this process, as in a container or a batch job; its processors."""

from __future__ import annotations

import math
import os
import sys
from functools import lru_cache
from pathlib import Path, PurePosixPath

__all__ = ["default_threads", "memory_limits", "processor_limits"]

GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def memory_limits() -> list[int]:
    """Return the limits of memory, in bytes."""
    folders = _folders(_read(GROUPS), MOUNTED, "memory")
    texts = [_read(f"{folder}/memory.max") or _read(f"{folder}/memory.limit_in_bytes") for folder in folders]
    return [int(text) for text in texts if text.isdigit()]


def processor_limits() -> list[int]:
    """Return the limits of processors, rounded up: a quota of time per period."""
    found = []
    for folder in _folders(_read(GROUPS), MOUNTED, "cpu"):
        quota, _, period = _read(f"{folder}/cpu.max").partition(" ")
        if not period:
            quota, period = (_read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period):
            found.append(max(1, math.ceil(int(quota) / int(period))))
    return found


@lru_cache(maxsize=8)  # every reading of a file asks for the limits
def _folders(groups: str, mounted: Path, controller: str) -> tuple[str, ...]:
    """Return the folders of a process's control groups for a controller, each before those around it.

    `groups` is the text of the file GROUPS; they are mounted at `mounted`.
    """
    folders = []
    for line in groups.splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        within = mounted / controllers if controllers else mounted  # version 1, or version 2
        path = PurePosixPath(group)
        folders += [str(within / part.relative_to("/")) for part in (path, *path.parents)]
    return tuple(folders)


def _read(path: str | os.PathLike[str]) -> str:
    """Return the text of a file, without white space at its ends; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
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
