"""Paths that a user gives: none is empty, and ~ is the home folder wherever it stands, as after a space in a shell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fredsim.errors import ConfigError, shown

__all__ = ["at_home", "given_path", "real_path", "separator_remedy", "why_unread"]


def at_home(path: str | os.PathLike[str]) -> Path:
    """Return a path, whose ~ at the beginning is replaced by the user's home folder.

    A shell leaves it in `--out=~/results`, and nobody else replaces it in Python or in a variable of the environment.
    """
    return Path(os.path.expanduser(path))


def given_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return a path that is given in Python; `what` names the argument.

    Raises ConfigError if it is of another type, or no file can have it: an empty one Path takes for the current folder.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{what} is {shown(path)}; it must be a path, such as 'results/mine'")
    if not os.fspath(path):
        raise ConfigError(f"{what} is empty; name a folder or a file (`.` is the current folder)")
    if "\0" in os.fspath(path):
        raise ConfigError(f"{what} is {shown(os.fspath(path))}; no name of a file has the character \\0: leave it out")
    return at_home(path)


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return a path from the root on and without links, as `Path.resolve`, which raises for links in a circle."""
    return Path(os.path.realpath(path))


def separator_remedy(header: Sequence[object]) -> str:
    """Return what to do where a CSV file has something else than commas between its cells, after a semicolon; or ""."""
    found = len(header) == 1 and any(separator in str(header[0]) for separator in ";\t|")
    return "; put commas between cells, and points into numbers" if found else ""


def why_unread(path: str | os.PathLike[str], error: OSError) -> str:
    """Return why a file that an experiment names cannot be read. There ~ stays: one file is the same for all users."""
    why = error.strerror or str(error)
    return f"{why}; ~ is no home folder in an experiment: write it out" if os.fspath(path).startswith("~") else why
