"""Verifies that a recorded run is what its experiment gives, by running it again: as a whole, or piece by piece.

A piece begins at one recorded checkpoint and must reach the next one with the same state, byte for byte, and the same
contents of the growing files. The first piece begins at the beginning, and the last one ends as the run did. So if no
piece differs, the whole run is verified.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

from fredsim.config.document import read_document
from fredsim.config.experiment import Experiment, config_digest, exchange_keys
from fredsim.config.models import recorded
from fredsim.config.registry import code_digests
from fredsim.config.resolution import LENGTHS
from fredsim.errors import ConfigError, FredsimError, OutputError
from fredsim.plugins.modules import look_as_recorded
from fredsim.plugins.state.state_arrays import same
from fredsim.plugins.user_code import code_changes
from fredsim.runs.checkpoint.checkpoints import Checkpoint, CheckpointPolicy, Checkpoints, identity_of_run
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import check_config, first_line, read_recorded
from fredsim.runs.folder.summaries import file_changes, record_difference, recorded_module
from fredsim.runs.many.runner import stop_on_interrupt
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.processes.process import ProcessTask
from fredsim.runs.processes.processes import Processes
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import open_experiment
from fredsim.runs.single.preloading import OneRun
from fredsim.runs.single.prepared import made_of_files, prepare
from fredsim.runs.verify.differences import check, difference
from fredsim.system.files import read_bytes, scratch_folder
from fredsim.system.version import fredsim_version

__all__ = [
    "DifferenceError",
    "changes",
    "identity_of",
    "on_backend",
    "recorded_experiment",
    "repeat_all",
    "threads_of",
    "verify",
    "verify_all",
]  # fmt: skip

MOST_THREADS = 1024  # the most that an experiment may give; the summary may be forged
AT_STOP_ONLY = CheckpointPolicy(math.inf, keep=True)


AnyTask = TypeVar("AnyTask", bound=ProcessTask)


class DifferenceError(FredsimError):
    """A run, or a piece of one, was repeated and differs from its record."""


def verify(
    result: Result, *, root: Path | None = None, backend: str | None = None, observer: Observer | None = None
) -> str | None:
    """Run the recorded experiment again and return the first difference, or None if every bit is the same.

    The digests row by row, the summary's numbers, and the bytes of the other files are compared. An interrupted run is
    repeated as far as it got, and the checkpoint from which it would go on is compared, too. `backend`: the one to
    compute on. Raises what running it raises, and OutputError.
    """
    check(result)  # before the run, not after it
    observer = observer or Observer()
    for piece in _in_turn(result, root, backend, observer.note):
        error = piece.do(observer, lambda: False)
        if isinstance(error, DifferenceError):
            return str(error)
        if error is not None:
            raise error
    return None


def _in_turn(result: Result, root: Path | None, backend: str | None, note: Callable[[str], object]) -> list[Piece]:
    """Return the pieces that repeat a run one after the other: one, or two if it would go on from a checkpoint."""
    if _stopped_at(result) is None:
        return [Piece(result.folder, recorded_experiment(result, backend), None, None, root, backend)]
    first, *more = pieces_of(result, root, backend, note)
    return [replace(first, end=more[-1].begin), more[-1]] if more else [first]


def _end_of(result: Result) -> dict[str, Any]:
    """Return how `execute` is told to end where a run did: if it was interrupted, with a checkpoint to go on from."""
    if (stopped := _stopped_at(result)) is None:
        return {}
    # The trace of a live run has no more events: its length is what the run has done.
    return {"most_iterations": stopped} if result.live else {"stop_at": stopped, "policy": AT_STOP_ONLY}


def _difference(result: Result, scratch: Path, again: Callable[..., object]) -> str | None:
    """Return where a record and its repetition first differ: in a file, in an entry of the record, in a checkpoint.

    The repetition is in the folder `scratch`; `again` lets it go on there.
    """
    found = difference(result, Result(scratch), again=True) or record_difference(result, Result(scratch))
    found = found or next(_faults_of_checkpoints(result), None)
    if found is None and (stopped := _stopped_at(result)) is not None:
        return _ended_there(result, stopped, scratch, again)
    return found


def _faults_of_checkpoints(result: Result) -> Iterator[str]:
    """Yield what is wrong with the checkpoints of a run: also one that lies behind its end."""
    checkpoints, end = Checkpoints(result.folder), result.summary["iterations"]
    yield from checkpoints.faults()
    for iteration in checkpoints.iterations:
        if iteration > end:
            yield f"there is a checkpoint at iteration {iteration}, and the record ends at {end}"


def _ended_there(result: Result, stopped: int, scratch: Path, again: Callable[..., object]) -> str | None:
    """Return how a run that says it was interrupted would have ended at this very place; None if it would have gone on.

    An event more shows it: a run that diverges in it, or that its clock ends before it, has ended where it was. But one
    that was interrupted before that has a checkpoint at that place, which one that has ended does not keep; it must be
    the one that the repetition wrote, unless another path or backend keeps other things.
    """
    if result.live:
        limits = [result.config.get(key) for key in ("iterations", "updates")]
        done = [result.summary[key] for key in ("iterations", "updates")]
        whole = any(limit is not None and limit <= at for limit, at in zip(limits, done, strict=True))
        return "summary.json: status is interrupted (recorded), and the run has its full length" if whole else None
    if recorded := _checkpoint_at(stopped, result.folder):
        now, summary = _checkpoint_at(stopped, scratch), Result(scratch).summary
        alike = all(summary[key] == result.summary[key] for key in ("path", "backend"))
        if now is None or not alike:
            return None
        return _between_checkpoints("the checkpoint", (recorded, result.folder), (now, scratch))
    again(stop_at=stopped + 1, policy=AT_STOP_ONLY)
    found = difference(result, Result(scratch), again=True)
    return found if found and found.startswith("summary.json: status ") else None


def verify_all(
    results: Sequence[Result],
    jobs: int,
    new_monitor: Callable[[], Monitor],
    root: Path | None = None,
    backend: str | None = None,
) -> Iterator[tuple[Result, str | None]]:
    """Yield each result with its first difference, or None.

    With one job, results are verified one after another; with more, their pieces in parallel. `new_monitor` returns a
    monitor that shows the progress. Raises what running raises, and KeyboardInterrupt when interrupted.
    """
    if jobs == 1:
        for result in results:
            with new_monitor() as monitor:
                difference = verify(result, root=root, backend=backend, observer=monitor.observer())
            yield result, difference
        return
    with new_monitor() as monitor:
        pieces = {result.folder: pieces_of(result, root, backend, monitor.note) for result in results}
        found = repeat_all(list(chain(*pieces.values())), jobs, monitor)
    for result in results:
        yield result, next((found[piece] for piece in pieces[result.folder] if found[piece] is not None), None)


def repeat_all(tasks: Sequence[AnyTask], jobs: int, monitor: Monitor) -> dict[AnyTask, str | None]:
    """Do all tasks, which repeat recorded runs, `jobs` in parallel; return how each differs from its record, or None.

    If tasks cannot be done, raises the error of the first of them, in order; KeyboardInterrupt when interrupted.
    """
    ended: dict[AnyTask, Exception | None] = {}
    with stop_on_interrupt() as stop:
        Processes(tasks, jobs, monitor, stop, ended.__setitem__).run()
        if stop():
            raise KeyboardInterrupt
    for task in tasks:
        error = ended[task]
        if error is not None and not isinstance(error, DifferenceError):
            raise error
    return {task: None if ended[task] is None else str(ended[task]) for task in tasks}


def pieces_of(result: Result, root: Path | None, backend: str | None, note: Callable[[str], object]) -> list[Piece]:
    """Return the pieces of a run between its checkpoints.

    It is a single piece if this code can continue from none of them, if another backend than the recorded one is to be
    used, or if clients were real: its checkpoints are not of the run of its trace, which repeats it. Checkpoints that
    cannot be continued from are told to `note`.
    """
    experiment = recorded_experiment(result, backend)
    if backend is not None or result.live:
        return [Piece(result.folder, experiment, None, None, root, backend)]
    checkpoints, identity = Checkpoints(result.folder), identity_of(result, root)
    whole: list[int | None] = []
    for iteration in checkpoints.iterations:
        last = iteration == result.summary["iterations"]
        if iteration > result.summary["iterations"] or (last and _stopped_at(result) is not None):
            break  # which is a fault, or what the last piece looks at
        try:
            whole.append(checkpoints.read(iteration, identity).iteration)
        except OutputError as error:
            note(str(error))
    return [Piece(result.folder, experiment, begin, end, root) for begin, end in pairwise([None, *whole, None])]


@dataclass(frozen=True, eq=False)
class Piece(OneRun):
    """A part of a recorded run that is to be repeated, from the checkpoint at iteration `begin` to that at `end`.

    `begin` None is the beginning of the run, `end` None its end.
    """

    folder: Path
    experiment: Experiment
    begin: int | None
    end: int | None
    root: str | os.PathLike[str] | None
    backend: str | None = None

    @property
    def label(self) -> str:
        """The piece's name where its progress is shown."""
        if self.begin is self.end is None:
            return self.folder.name
        return f"{self.folder.name} from {self.begin or 0}{'' if self.end is None else f' to {self.end}'}"

    def do(self, observer: Observer, stop: Callable[[], bool], threads: int | None = None) -> FredsimError | None:
        """Repeat it, on `threads` threads if its experiment gives no number; return what is wrong, or None."""
        try:
            with scratch_folder() as scratch, _of_other_version(Result(self.folder, as_found=True)):
                found = self._difference(scratch, observer, stop, threads)
        except FredsimError as error:
            return error
        return None if found is None else DifferenceError(found)

    def _difference(
        self, scratch: Path, observer: Observer, stop: Callable[[], bool], threads: int | None
    ) -> str | None:
        result, end = Result(self.folder, as_found=True), self.end
        if self.begin is not None:
            Checkpoints(self.folder).copy(self.begin, scratch)
            (scratch / "config.yaml").write_bytes(read_recorded(self.folder / "config.yaml", read_bytes))
        experiment = recorded_experiment(result, self.backend)
        if not result.live and (self.begin is not None or end is not None):  # checkpoints need the recorded path
            experiment = experiment.model_copy(update={"path": result.summary["path"]})
        again = partial(
            execute, experiment, scratch, root=self.root, stop=stop, label=self.label,
            default_threads=threads_of(result) or threads,
        )  # fmt: skip
        ending = _end_of(result) if end is None else {"stop_at": end}
        again(observer=observer, **{"policy": replace(AT_STOP_ONLY, at=end), **ending})
        if stop():
            return None
        if end is None:
            return _difference(result, scratch, again)
        recorded, now = (_checkpoint_at(end, folder) for folder in (self.folder, scratch))
        if now is None or recorded is None:
            return f"the run now does not stop at iteration {end}, where there is a checkpoint"
        between = f"between iterations {self.begin or 0} and {end}"
        return _between_checkpoints(between, (recorded, self.folder), (now, scratch))


def _between_checkpoints(what: str, recorded: tuple[Checkpoint, Path], now: tuple[Checkpoint, Path]) -> str | None:
    """Return where a recorded checkpoint and a new one differ, or None; each with its run's folder."""
    for name in {**recorded[0].files, **now[0].files}:
        if recorded[0].files.get(name) != now[0].files.get(name):
            contents = [
                read_recorded(folder / name, read_bytes)[: one.files[name].size] if name in one.files else b""
                for one, folder in (recorded, now)
            ]
            return f"{what}: {first_line(name, contents, '{} (recorded) and {} (now)'.format)}"
    ours, theirs = recorded[0].state, now[0].state
    for name in sorted({*ours, *theirs}):
        if not same(ours.get(name), theirs.get(name)):
            return f"{what}: the state's {name} differs"
    return None


def identity_of(result: Result, root: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the identity that a run's checkpoints must have for this code to continue from them as the run did."""
    experiment, summary = recorded_experiment(result), result.summary
    code, files, made = code_digests(experiment.plain()), dict[str, str](), ""
    if made_of_files(experiment):
        prepared = prepare(experiment, root)
        code, files, made = code | dict(prepared.model.code), prepared.model_files, prepared.model.made
    return identity_of_run(
        experiment, summary["backend"], summary["path"], code, files, summary.get("data"), made=made,
        numerics=summary.get("numerics", "portable"), device=summary.get("device"),
        threads=threads_of(result),
    )  # fmt: skip


def threads_of(result: Result) -> int | None:
    """Return the number of threads on which a run was computed, if its bits depend on it; None for a portable one."""
    native = result.summary.get("numerics") == "native"
    return min(int(result.summary["threads"]), MOST_THREADS) if native else None


def recorded_experiment(result: Result, backend: str | None = None) -> Experiment:
    """Return the experiment of a result; if a backend is given, changed to that one and its fastest path.

    The dispatcher of a live run is replaced by the trace of its events. Raises ConfigError, OutputError.
    """
    config = read_document(result.folder / "config.yaml")
    check_it = partial(check_config, result.folder / "config.yaml", config, ended=result.has_ended)
    look_as_recorded(result.folder, config_digest(config.data))
    changed_keys, data = on_backend(backend), config.data
    if result.has_ended and result.live:
        check_it()  # of others later: what opens them says more
        if not result.summary["iterations"]:
            what = "no client arrived in this live run, so that there is nothing to repeat"
            raise OutputError(f"{result.folder}: {what}; give one with events")
        trace = {"name": "trace", "file": str(result.folder / "events.parquet")}
        changed_keys |= {"dispatcher": exchange_keys(data["dispatcher"]) | trace, "path": "auto"}
        if result.summary.get("numerics") == "native":  # workers compute one gradient at a time
            changed_keys["window"] = 1
        if _stopped_at(result) is not None:  # the trace has no more events
            data = {key: value for key, value in data.items() if key not in LENGTHS}
            changed_keys["iterations"] = result.summary["iterations"]
    with recorded(recorded_module(result, config.data)), _of_other_version(result):
        experiment = open_experiment(data | changed_keys, config.place)
    check_it()
    return experiment


@contextmanager
def _of_other_version(result: Result) -> Iterator[None]:
    """Let a ConfigError about an experiment that another version of fredsim recorded name that version.

    What the message says to give would make another run of it.
    """
    try:
        yield
    except ConfigError as error:
        version = result.summary["versions"].get("fredsim") if result.has_ended else None
        if version in {None, fredsim_version()} or "; fredsim " in str(error):
            raise
        what = f"fredsim {version} recorded it, and may repeat it (docs/verify.md)"
        raise ConfigError(f"{error}; {what}") from None


def on_backend(backend: str | None) -> dict[str, Any]:
    """Return the keys to change for an experiment to run on a backend; {} for None, which keeps the recorded one."""
    return {} if backend is None else {"backend": backend, "path": "auto", "memory": None}


def _stopped_at(result: Result) -> int | None:
    """Return the iteration at which a run was interrupted, or None."""
    return result.summary["iterations"] if result.summary["status"] == "interrupted" else None


def _checkpoint_at(iteration: int, folder: Path) -> Checkpoint | None:
    """Return a folder's checkpoint at an iteration, None if there is none. Raises OutputError."""
    checkpoints = Checkpoints(folder)
    return checkpoints.read(iteration) if iteration in checkpoints.iterations else None


def changes(result: Result, root: Path | None = None) -> list[str]:
    """Say what has changed since the run: the user's modules, the data, and config.yaml.

    Raises ConfigError, DataError.
    """
    experiment = recorded_experiment(result)
    prepared = prepare(experiment, root)
    code = code_digests(experiment.plain()) | dict(prepared.model.code)
    found = code_changes(result.summary.get("code", {}), code)
    found += file_changes(result.summary.get("model_files", {}), prepared.model_files)
    if result.summary.get("data") not in (None, prepared.dataset.digest):
        found.append("the data is another than the run had")
    if result.summary.get("config") not in (None, config_digest(read_document(result.folder / "config.yaml").data)):
        found.append("config.yaml was edited after the run")
    return found
