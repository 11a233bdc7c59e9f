"""The limits that Linux's control groups put on this process, as in a container or a batch job."""

from __future__ import annotations

import math
import os
from functools import lru_cache
from pathlib import Path, PurePosixPath

__all__ = ["memory_limits", "processor_limits"]

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
