"""The name of this machine's processor, and the git commit of the user's own files."""

from __future__ import annotations

import functools
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["git_commit", "processor_name"]

GIT_SECONDS = 5.0  # give up after this time, as for a large repository on a slow disk


@functools.cache
def processor_name() -> str:
    """Return the processor's model name; if the system does not give one, its architecture."""
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name":
                return name.strip()
    return platform.processor() or platform.machine()


@functools.cache
def git_commit(folder: Path) -> str | None:
    """Return the commit of the git repository that a folder is in, followed by `-dirty` if files differ from it.

    Return None if the folder is in no repository, or if git is not installed.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
