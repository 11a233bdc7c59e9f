"""What this machine is, and at which commit the user's own files are."""

from __future__ import annotations

import functools
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["git_commit", "processor_name"]

GIT_SECONDS = 5.0  # a repository on a slow disk is not waited for


@functools.cache
def processor_name() -> str:
    """Return what the maker calls the processor, else its architecture."""
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name":
                return name.strip()
    return platform.processor() or platform.machine()


@functools.cache
def git_commit(folder: Path) -> str | None:
    """Return the commit of the repository that a folder is in, with `-dirty` behind it where files differ from it.

    None where it is in none, or there is no git.
    """
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
