"""Every run with a user's own code begins as in a fresh process, whatever was run before.

A user's class may keep something outside its objects: in itself, in its module, anywhere in the process. So a process
does only one such run itself: the first, if no other code has used the user's modules. Any other run is done in a
process of its own. Where processes can be forked, these come from one that never imports a user's module, and beginning
one takes a fraction of a second.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType

from fredsim.config.document import read_document
from fredsim.config.experiment import Experiment, config_digest
from fredsim.config.registry import own_modules
from fredsim.errors import SimulationError, warn
from fredsim.plugins import modules
from fredsim.plugins.modules import folder_kept, has_file, imported_before
from fredsim.plugins.state.fingerprints import fingerprint, used_of
from fredsim.plugins.user_code import named_objects
from fredsim.runs.processes.worker import for_one_task

__all__ = [
    "begin_here",
    "end_here",
    "keep_apart",
    "must_be_apart",
    "note_code",
    "note_opened",
    "note_run",
    "surroundings_kept",
]

_opened: list[str] = []  # the digests of the experiments with own code that this process has opened
_ran: list[str] = []  # and of those that it has run

KEEPING = (type, FunctionType, int, float, complex, str, bytes)  # what may keep something, or be what is kept
_began: dict[str, str] = {}  # what there was in a script or a notebook before a run, by name: its fingerprint
_ended: dict[str, str] = {}  # and when the last run had ended
_left: set[str] = set()  # what runs have changed, and nobody else since


def note_code(file: Path, experiments: Iterable[Experiment]) -> None:
    """Note that the user runs what a file in a folder of results describes, if that has own code."""
    if any(own_modules(experiment.plain()) for experiment in experiments):
        modules.note_run(config_digest(read_document(file).data))


def note_opened(experiment: Experiment) -> None:
    """Note that parts of an experiment are made in this process; they may leave something in it."""
    if own_modules(experiment.plain()):
        _note_beginning(experiment)
        _opened.append(experiment.digest)


def note_run(experiment: Experiment) -> bool:
    """Note that an experiment is run in this process; return whether it should be opened first, as elsewhere it was."""
    if not own_modules(experiment.plain()):
        return False
    _ran.append(experiment.digest)
    return not _opened


def keep_apart() -> None:
    """Let this process do no run with own code itself: it outlives its runs, and must not end with one of them."""
    _ran.append("")


def must_be_apart(experiment: Experiment) -> bool:
    """Return whether a run must have a process of its own.

    So must one of fredsim's own classes, once a user's code has been at work here: it may have changed those classes,
    or a library. A module without a file, such as a notebook's, cannot be imported in another process. Raises
    SimulationError if this process was begun for a run but is not as new: another one would not be, either.
    """
    names = own_modules(experiment.plain())
    if for_one_task():
        if before := sorted(filter(imported_before, names)):
            what = f"{before[0]} is imported in the process that is forked for runs, which must not know it"
            raise SimulationError(f"{what}; this is a fault in fredsim: please report it")
        return False
    if not names:
        return bool(_opened or any(_ran))
    if not all(map(has_file, names)):
        return False
    return bool(_ran) or _opened not in ([], [experiment.digest]) or any(map(imported_before, names))


def _kept(experiment: Experiment) -> dict[str, str]:
    """Return the fingerprints of what an experiment's modules without a file hold, by name.

    These are classes and functions, also those that they have imported, plain values, and whatever else the code of
    the experiment names. Such a module, a script or a notebook, cannot be imported anew.
    """
    plain, found = experiment.plain(), dict[str, str]()
    for module in sorted(name for name in own_modules(plain) if name in sys.modules and not has_file(name)):
        used = used_of(sys.modules[module], named_objects([plain]))
        for name, value in list(vars(sys.modules[module]).items()):
            counts = isinstance(value, KEEPING) or (name in used and not isinstance(value, ModuleType))
            if counts and not name.startswith("__"):
                found[name if module == "__main__" else f"{module}.{name}"] = fingerprint(value)
    return found


def _note_beginning(experiment: Experiment) -> None:
    """Note what there is before anything is made of an experiment's classes."""
    for name, now in _kept(experiment).items():
        if _ended.get(name) == now and _began.get(name, now) != now:
            _left.add(name)
        else:  # the first run, or the user has changed it
            _began[name] = now


def begin_here(experiment: Experiment) -> None:
    """Warn if a run that begins in this process will find what earlier ones have left in a script or a notebook."""
    _note_beginning(experiment)
    if not _left:
        return
    what = f"{', '.join(sorted(_left))} was changed by an earlier run in this process, and this run begins with that"
    _left.clear()
    warn(f"{what}; put the class into a module of its own, which is imported anew for each run, or define it again")


def end_here(experiment: Experiment) -> None:
    """Note what a run in this process has left there."""
    _ended.update(_kept(experiment))


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Leave what later processes begin with as it was: the environment, sys.path, the current folder, the umask."""
    environment, path = dict(os.environ), list(sys.path)
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    try:
        with folder_kept():
            yield
    finally:
        os.umask(umask)
        sys.path[:] = path
        if os.environ != environment:
            os.environ.clear()
            os.environ.update(environment)
