"""Which experiments with own code this user has run on this machine: code is run again unasked for these alone.

A folder of results may come from somebody else, and name any code. It cannot be told from one's own by what it holds.
So each experiment with own code that is run here is noted in a file of the user's: a digest of its configuration, and
the folders in which its modules were looked up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import platformdirs

from fredsim.errors import ConfigError, shown, warn
from fredsim.plugins.private_files import why_not_private

__all__ = ["folders_of", "note_own_run"]


def _file() -> Path:
    """Return the file: in FREDSIM_STATE, else in the user's folder for the state of programs.

    Raises ConfigError for a folder that is another one wherever the user is, and may be somebody else's there.
    """
    folder = Path(os.path.expanduser(os.environ.get("FREDSIM_STATE") or platformdirs.user_state_dir("fredsim")))
    if not folder.is_absolute():
        what = f"the list of your runs with own code would be in {shown(str(folder))}, below the current folder"
        raise ConfigError(f"{what}; let FREDSIM_STATE name one from the root on, or from ~")
    return folder / "own_runs.jsonl"


def _is_ours(file: Path) -> bool:
    """Return whether nobody else can have written the file; say it if somebody can."""
    for path in (file.parent, file):
        if why := why_not_private(path):
            remedy = "remove it, or let FREDSIM_STATE name a folder of your own"
            warn(f"{path} {why}, so that the runs with own code noted there do not count as yours; {remedy}")
            return False
    return True


def note_own_run(config: str, folders: Sequence[Path]) -> None:
    """Note that this user runs an experiment, given by its configuration's digest; modules are looked up in `folders`.

    If that cannot be written, fredsim will ask before it runs the code again.
    """
    if folders_of(config) == list(folders):
        return
    line = json.dumps({"config": config, "folders": [str(folder) for folder in folders]}) + "\n"
    with suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(_file(), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(line)


def folders_of(config: str) -> list[Path] | None:
    """Return where the modules of an experiment were looked up when this user last ran it; None if that never was."""
    found = None
    path = _file()
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file if _is_ours(path) else ():
            with suppress(ValueError, TypeError, KeyError):  # half a line, as a kill may leave it
                entry = json.loads(line)
                if entry["config"] == config:
                    found = [Path(folder) for folder in entry["folders"]]
    return found
