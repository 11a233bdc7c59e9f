"""The processors of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["default_threads"]


def default_threads() -> int:
    """Return the number of processors that this process may use; on macOS of those that are made for speed.

    Threads share every gradient evenly, and would wait for those on processors that are made to save energy.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    count = os.cpu_count() or 1
    return min(count, _fast_processors() or count) if sys.platform == "darwin" else count


def _fast_processors() -> int | None:
    """Return how many processors macOS counts as its fast ones; None where it does not say."""
    try:
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.logicalcpu"], capture_output=True, text=True, check=True
        )
        return int(found.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):  # there are none of different kinds
        return None
