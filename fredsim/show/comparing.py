"""Prints the results of `fredsim verify` and `fredsim compare`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fredsim.config.expansion import Expansion
from fredsim.config.experiment import TorchChoice
from fredsim.runs.checkpoints import Checkpoints
from fredsim.runs.differences import check, difference, reasons
from fredsim.runs.first_event import first_event
from fredsim.runs.live_record import first_mismatch
from fredsim.runs.provenance import changed_provenance
from fredsim.runs.results import Result
from fredsim.runs.runner import check_jobs
from fredsim.runs.sweep_tables import check_tables
from fredsim.runs.verify import changes, results_of, verify_all
from fredsim.runs.verify_rows import has_rows_alone, missing_rows, rows_difference, verify_rows
from fredsim.runs.verify_sweep import is_sweep, recorded_expansion, stopped_runs, sweep_difference
from fredsim.show.progress import make_monitor
from fredsim.show.terminal import PlainConsole, say

__all__ = ["print_compared", "print_verified"]

MODULE_NOTE = (
    "the model is a PyTorch module: its bits are promised on the same machine, device, versions, threads and window"
    " alone (docs/models.md)"
)


def print_verified(folder: Path, jobs: int, root: Path | None, backend: str | None) -> bool:
    """Repeat a run, or the runs of a sweep; print for each what differs, and return whether anything does."""
    check_jobs(jobs)
    if not is_sweep(folder):
        return _print_runs(results_of(folder, as_found=True), jobs, root, backend)
    expansion = recorded_expansion(folder)
    if has_rows_alone(folder):
        different = _print_rows(folder, expansion, jobs, root, backend)
        found = rows_difference(folder)
    else:
        results = results_of(folder, as_found=True) + stopped_runs(folder, expansion)
        check(*results)
        found = sweep_difference(folder, expansion)
        different = _print_runs(results, jobs, root, backend)
    if found is not None:
        different = _print_difference(str(folder), found)
    if missing := missing_rows(folder, expansion):
        what = f"runs.csv lacks runs of the sweep ({len(missing):,}, such as {missing[0]}), which are not verified"
        say(f"note: {folder}: {what}; --resume does them", err=True)
    return different


def _print_rows(folder: Path, expansion: Expansion, jobs: int, root: Path | None, backend: str | None) -> bool:
    """Print what differs from the rows of a sweep of which only runs.csv and sweep.yaml are kept."""
    different = False
    monitor = partial(make_monitor, PlainConsole(stderr=True))
    for row, found in verify_rows(folder, expansion, jobs, monitor, root, backend):
        if _print_difference(str(folder / row.name), found):
            different = True
            if isinstance(row.experiment.model, TorchChoice):
                say(f"  {MODULE_NOTE}")
    return different


def _print_runs(results: Sequence[Result], jobs: int, root: Path | None, backend: str | None) -> bool:
    """Print what differs from runs whose folders are kept."""
    different = False
    check(*results)  # finds damage even in the last one before the first is run
    for result in results:
        for change in changes(result, root):
            say(f"warning: {result.folder}: {change}", err=True)
    if jobs > len(results) and not any(Checkpoints(result.folder).iterations for result in results):
        what = "no checkpoints were kept (fredsim run … --keep-checkpoints), so a run is verified in one piece"
        say(f"note: {what}", err=True)
    for result, found in verify_all(results, jobs, partial(make_monitor, PlainConsole(stderr=True)), root, backend):
        if result.live and (event := first_mismatch(result, root)):
            found = event if found is None else f"{found}; {event}"
        if _print_difference(str(result.folder), found):
            different = True
            if result.summary.get("numerics") == "native":
                for line in (MODULE_NOTE, *changed_provenance(result.summary)):
                    say(f"  {line}")
            elif code := result.summary.get("code"):
                what = "keeps to what has one result, and draws from fredsim's streams alone (docs/own_server.md)"
                say(f"  code of its own takes part ({', '.join(code)}): the bits are the same where that {what}")
    return different


def print_compared(one: Path, other: Path, root: Path | None, *, replay: bool) -> bool:
    """Print where two runs, or the runs of two sweeps, first differ; return whether they do.

    With `replay`, runs that differ are repeated to find the first event that differs.
    """
    left, right = results_of(one, as_found=True), results_of(other, as_found=True)
    if len(left) != len(right):
        say(f"different: {one} holds {len(left)} runs, {other} holds {len(right)}")
        return True
    for folder in dict.fromkeys((one, other)):
        if is_sweep(folder):
            check_tables(folder)
    check(*left, *right, configs=True)  # finds damage even in the last one before anything is printed about the first
    different = False
    for a, b in zip(left, right, strict=True):
        if _print_difference(f"{a.folder} and {b.folder}", difference(a, b)):
            different = True
            for reason in reasons(a, b):
                say(f"  {reason}")
            if replay:
                with make_monitor(PlainConsole(stderr=True)) as monitor:
                    event = first_event(a, b, root=root, observer=monitor.observer())
                say(f"  {event}")
    return different


def _print_difference(whose: str, found: str | None) -> bool:
    """Print the difference between two runs, or that there is none; return whether there is one."""
    say(f"{whose}: {'same bits' if found is None else f'different: {found}'}")
    return found is not None
