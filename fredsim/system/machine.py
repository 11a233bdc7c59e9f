"""The name of this machine's processor, and the git commit of the user's own files."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["current_commit", "git_commit", "processor_name"]

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


def current_commit() -> str | None:
    """Return `git_commit` of the current folder, None also if that was removed."""
    try:
        return git_commit(Path.cwd())
    except OSError:
        return None


@functools.cache  # asking takes as long as a small run; each command clears it
def git_commit(folder: Path) -> str | None:
    """Return the commit of the git repository that a folder is in, followed by `-dirty` if files differ from it.

    Return None if the folder is in no repository, or if git is not installed. The repository may be somebody else's:
    git runs none of the programs that the repository itself names.
    """
    try:
        commit = _git(folder, "rev-parse", "--verify", "HEAD").strip()
        changed = _git(folder, *_own_filters(folder), "status", "--porcelain", "-uno", "--ignore-submodules=dirty")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *words: str) -> str:
    """Return what git prints. Raises OSError, CalledProcessError."""
    settings = ("core.fsmonitor=false", f"core.hooksPath={os.devnull}", "protocol.allow=never")
    command = ["git", "-C", str(folder), *(word for setting in settings for word in ("-c", setting)), *words]
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_SECONDS,
        check=True,
    ).stdout  # fmt: skip


def _filters(folder: Path, *scope: str) -> dict[str, str]:
    """Return the settings of filters, programs that files pass before they are compared, by name."""
    with suppress(subprocess.CalledProcessError):  # there are none
        found = _git(folder, "config", *scope, "--includes", "-z", "--get-regexp", r"^filter\.")
        return dict(entry.split("\n", 1) for entry in found.split("\0") if "\n" in entry)
    return {}


def _own_filters(folder: Path) -> list[str]:
    """Return options for git by which filters are those of this user and system, whatever the repository says.

    Raises ValueError for a name that no option can have.
    """
    if not (named := _filters(folder)):
        return []
    ours = _filters(folder, "--system") | _filters(folder, "--global")
    drivers = sorted({name.rpartition(".")[0] for name in named})
    if any("=" in name or "\n" in name for name in drivers):
        raise ValueError("a filter with such a name")
    usual = {"clean": "", "smudge": "", "process": "", "required": "false"}
    wanted = [
        f"{driver}.{key}={ours.get(f'{driver}.{key}', value)}" for driver in drivers for key, value in usual.items()
    ]
    return [word for setting in wanted for word in ("-c", setting)]
