"""Does what `fredsim verify` and `fredsim compare` do, and tells what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fredsim.config.document import read_document
from fredsim.data.kept import own_data_read_anew
from fredsim.errors import option, warn
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.folder.results import Result, Results, results_of
from fredsim.runs.folder.sweep_tables import check_tables
from fredsim.runs.live.live_csv import first_mismatch
from fredsim.runs.many.runner import check_jobs
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.provenance import changed_provenance
from fredsim.runs.verify.differences import check, difference, reasons
from fredsim.runs.verify.first_event import first_event
from fredsim.runs.verify.sweep import (
    failed_runs,
    has_rows_alone,
    held_runs,
    is_sweep,
    missing_rows,
    recorded_expansion,
    rows_difference,
    stopped_runs,
    sweep_difference,
    verify_rows,
)
from fredsim.runs.verify.verify import changes, verify_all
from fredsim.show.lacking import did_not_end, unended
from fredsim.show.progress import make_monitor
from fredsim.show.terminal import say

__all__ = ["Collector", "Teller", "compare", "verify"]

MODULE_NOTE = (
    "the model is a PyTorch module: its bits are promised on the same machine, device, versions, threads and window"
    " alone (docs/models.md)"
)
PROBLEM_NOTE = (
    "gradients are those of a problem's class: their bits are promised on the same machine and versions alone, and"
    " where they depend on params and draw alone (docs/problems.md)"
)


class Teller:
    """Tells what is found, by printing it; `different`: whether anything differs so far."""

    def __init__(self) -> None:
        self.different = False

    def compared(self, whose: str, found: str | None) -> bool:
        """Tell the difference of two runs, or that there is none (None); return whether there is one."""
        self.different |= found is not None
        say(f"{whose and f'{whose}: '}{'same bits' if found is None else f'different: {found}'}")
        return found is not None

    def more(self, text: str) -> None:
        """Tell more about the last difference."""
        say(f"  {text}")

    def note(self, text: str) -> None:
        """Tell what is no difference."""
        say(text, err=True)

    def monitor(self) -> Monitor:
        """Return what shows the progress of runs."""
        return make_monitor()


class Collector(Teller):
    """Collects what differs as texts, `differences`; notes become warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.differences: list[str] = []

    def compared(self, whose: str, found: str | None) -> bool:
        """Collect the difference of two runs, unless there is none; return whether there is one."""
        if found is not None:
            self.differences.append(f"{whose and f'{whose}: '}{found}")
        return found is not None

    def more(self, text: str) -> None:
        """Add to the last difference."""
        self.differences[-1] += f"; {text}"

    def note(self, text: str) -> None:
        """Warn."""
        warn(text.removeprefix("note: ").removeprefix("warning: "))

    def monitor(self) -> Monitor:
        """Return what shows nothing."""
        return Monitor()


@own_data_read_anew
def verify(tell: Teller, folder: Path, jobs: int, root: Path | None, backend: str | None) -> None:
    """Repeat a run, or the runs of a sweep, and tell for each what differs."""
    check_jobs(jobs)
    stopped: list[Result] = []
    if not is_sweep(folder):
        _verify_runs(tell, results_of(folder, as_found=True), jobs, root, backend)
        return
    expansion = recorded_expansion(folder)
    if has_rows_alone(folder):
        for row, found in verify_rows(folder, expansion, jobs, tell.monitor, root, backend):
            if tell.compared(str(folder / row.name), found) and row.experiment.model.native:
                tell.more(MODULE_NOTE)
        found = rows_difference(folder, expansion)
    else:
        stopped = stopped_runs(folder, [run.folder_name for run in expansion.runs])
        # Where no run has ended yet, but some were stopped, there is something to verify.
        results = [*(Results(folder, as_found=True) if stopped else results_of(folder, as_found=True)), *stopped]
        check(*results)
        found = sweep_difference(folder, expansion)
        _verify_runs(tell, results, jobs, root, backend)
    if found is not None:
        tell.compared(str(folder), found)
    _note_failures(tell, folder, "verified")
    repeated = {result.folder.name for result in stopped}
    if missing := [name for name in missing_rows(folder, expansion) if name not in repeated]:
        what = f"runs.csv lacks runs of the sweep ({len(missing):,}, such as {missing[0]}), which are not verified"
        tell.note(f"note: {folder}: {what}; {option('resume', 'True')} does them")


def _note_failures(tell: Teller, folder: Path, done: str) -> None:
    if failed := failed_runs(folder):
        what = f"runs that failed by runs.csv ({len(failed):,}, such as {failed[0]}) are not {done}"
        tell.note(f"note: {folder}: {what}: whether one fails may depend on the machine")


def _verify_runs(tell: Teller, results: Sequence[Result], jobs: int, root: Path | None, backend: str | None) -> None:
    """Tell what differs from runs whose folders are kept."""
    check(*results)  # finds damage even in the last one before the first is run
    edited = {result.folder: change for result in results if (change := _edited_order(result))}
    for folder, change in edited.items():
        tell.compared(str(folder), change)
    results = [result for result in results if result.folder not in edited]
    if not results:
        return
    for result in results:
        for change in changes(result, root):
            tell.note(f"warning: {result.folder}: {change}")
    if jobs > len(results) and not any(Checkpoints(result.folder).iterations for result in results):
        what = "no checkpoints were kept (fredsim run … --keep-checkpoints), so a run is verified in one piece"
        tell.note(f"note: {what}")
    for result, found in verify_all(results, jobs, tell.monitor, root, backend):
        if result.live and (event := first_mismatch(result, root)):
            found = event if found is None else f"{found}; {event}"
        if tell.compared(str(result.folder), found):
            if result.summary.get("numerics") == "native" and _may_be_native(result):
                whose = PROBLEM_NOTE if "problem" in result.config else MODULE_NOTE
                for line in (whose, *changed_provenance(result.summary)):
                    tell.more(line)
            elif code := result.summary.get("code"):
                what = "keeps to what has one result, and draws from fredsim's streams alone (docs/own_server.md)"
                tell.more(f"code of its own takes part ({', '.join(code)}): the bits are the same where that {what}")


def _edited_order(result: Result) -> str:
    """Return how the events of a live run, which alone say what to repeat, were changed since; "" if they were not."""
    start = f"{result.folder / 'events.parquet'} "
    return next((change for change in result.changed_files if change.startswith(start)), "") if result.live else ""


def _may_be_native(result: Result) -> bool:
    """Return whether a run is of a problem of the user's own or of a PyTorch module, whatever its summary says."""
    model = result.config.get("model")
    return "problem" in result.config or str(model and model.get("name")).startswith("torch:")


@own_data_read_anew
def compare(tell: Teller, one: Path, other: Path, root: Path | None = None, *, replay: bool = True) -> None:
    """Tell where two runs, or the runs of two sweeps, first differ.

    Runs that were interrupted are compared as far as they got. Those of the same name in two sweeps are compared with
    each other, all others in their order. With `replay`, runs that differ are repeated to find the first event that
    differs.
    """
    left, right = _compared_runs(one), _compared_runs(other)
    if len(left) != len(right):
        tell.compared("", f"{one} holds {len(left)} runs, {other} holds {len(right)}")
        return
    for folder in dict.fromkeys((one, other)):
        if is_sweep(folder):
            check_tables(folder)
            _note_failures(tell, folder, "compared")
            ended = len(failed_runs(folder)) + len(left)
            if others := unended(read_document(folder / "sweep.yaml"), ended):
                tell.note(f"note: {folder}: {did_not_end(others, 'compared')}")
    check(*left, *right, configs=True)  # finds damage even in the last one before anything is printed about the first
    by_name = {result.folder.name: result for result in right}
    rest = iter([b for b in right if b.folder.name not in {a.folder.name for a in left}])
    for a in left:
        b = by_name.get(a.folder.name) or next(rest)
        if tell.compared(f"{a.folder} and {b.folder}", difference(a, b)):
            for reason in reasons(a, b):
                tell.more(reason)
            if replay:
                with tell.monitor() as monitor:
                    event = first_event(a, b, root=root, observer=monitor.observer())
                tell.more(event)


def _compared_runs(folder: Path) -> list[Result]:
    """Return what there is of a run, or of a sweep's runs: those that ended, and then those that were interrupted."""
    stopped = stopped_runs(folder, held_runs(folder)) if is_sweep(folder) else []
    ended = Results(folder, as_found=True) if stopped else results_of(folder, as_found=True)
    names = {result.folder.name for result in ended}
    return [*ended, *(result for result in stopped if result.folder.name not in names)]
