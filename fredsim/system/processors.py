"""The processors of this machine."""

from __future__ import annotations

import os
import subprocess
import sys

from fredsim.system.limits import processor_limits

__all__ = ["default_threads"]


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
    try:
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "hw.perflevel0.logicalcpu"], capture_output=True, text=True, check=True
        )
        return int(found.stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):  # all cores are of one kind
        return None
