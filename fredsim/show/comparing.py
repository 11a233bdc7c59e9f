"""Prints the results of `fredsim verify` and `fredsim compare`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from fredsim.config.experiment import TorchChoice
from fredsim.runs.checkpoints import Checkpoints
from fredsim.runs.differences import check, difference, reasons
from fredsim.runs.first_event import first_event
from fredsim.runs.live_record import first_mismatch
from fredsim.runs.provenance import changed_provenance
from fredsim.runs.runner import check_jobs
from fredsim.runs.verify import changes, results_of, verify_all
from fredsim.runs.verify_rows import has_rows_alone, missing_rows, verify_rows
from fredsim.show.progress import make_monitor

__all__ = ["print_compared", "print_verified"]

MODULE_NOTE = (
    "  the model is a PyTorch module: its bits are promised on the same machine, device, versions, threads and window"
    " alone (docs/models.md)"
)


def print_verified(folder: Path, jobs: int, root: Path | None, backend: str | None) -> bool:
    """Repeat a run, or the runs of a sweep; print for each what differs, and return whether anything does."""
    check_jobs(jobs)
    different = (_print_rows if has_rows_alone(folder) else _print_runs)(folder, jobs, root, backend)
    if missing := missing_rows(folder):
        what = f"runs.csv lacks runs of the sweep ({len(missing):,}, such as {missing[0]}), which are not verified"
        typer.echo(f"note: {folder}: {what}; --resume does them", err=True)
    return different


def _print_rows(folder: Path, jobs: int, root: Path | None, backend: str | None) -> bool:
    """Print what differs from the rows of a sweep of which only runs.csv and sweep.yaml are kept."""
    different = False
    for row, found in verify_rows(folder, jobs, partial(make_monitor, Console(stderr=True)), root, backend):
        if _print_difference(str(folder / row.name), found):
            different = True
            if isinstance(row.experiment.model, TorchChoice):
                typer.echo(MODULE_NOTE)
    return different


def _print_runs(folder: Path, jobs: int, root: Path | None, backend: str | None) -> bool:
    """Print what differs from a run, or from the runs of a sweep, whose folders are kept."""
    results, different = results_of(folder, as_found=True), False
    check(*results)  # finds damage even in the last one before the first is run
    for result in results:
        for change in changes(result, root):
            typer.echo(f"warning: {result.folder}: {change}", err=True)
    if jobs > len(results) and not any(Checkpoints(result.folder).iterations for result in results):
        what = "no checkpoints were kept (fredsim run … --keep-checkpoints), so a run is verified in one piece"
        typer.echo(f"note: {what}", err=True)
    for result, found in verify_all(results, jobs, partial(make_monitor, Console(stderr=True)), root, backend):
        if result.live and (event := first_mismatch(result, root)):
            found = event if found is None else f"{found}; {event}"
        if _print_difference(str(result.folder), found):
            different = True
            if result.summary.get("numerics") == "native":
                typer.echo("\n".join([MODULE_NOTE, *(f"  {line}" for line in changed_provenance(result.summary))]))
            elif code := result.summary.get("code"):
                what = "keeps to what has one result, and draws from fredsim's streams alone (docs/own_server.md)"
                typer.echo(f"  code of its own takes part ({', '.join(code)}): the bits are the same where that {what}")
    return different


def print_compared(one: Path, other: Path, root: Path | None, *, replay: bool) -> bool:
    """Print where two runs, or the runs of two sweeps, first differ; return whether they do.

    With `replay`, runs that differ are repeated to find the first event that differs.
    """
    left, right = results_of(one, as_found=True), results_of(other, as_found=True)
    if len(left) != len(right):
        typer.echo(f"different: {one} holds {len(left)} runs, {other} holds {len(right)}")
        return True
    check(*left, *right, configs=True)  # finds damage even in the last one before anything is printed about the first
    different = False
    for a, b in zip(left, right, strict=True):
        if _print_difference(f"{a.folder} and {b.folder}", difference(a, b)):
            different = True
            typer.echo("".join(f"  {reason}\n" for reason in reasons(a, b)), nl=False)
            if replay:
                with make_monitor(Console(stderr=True)) as monitor:
                    event = first_event(a, b, root=root, observer=monitor.observer())
                typer.echo(f"  {event}")
    return different


def _print_difference(whose: str, found: str | None) -> bool:
    """Print the difference between two runs, or that there is none; return whether there is one."""
    typer.echo(f"{whose}: {'same bits' if found is None else f'different: {found}'}")
    return found is not None
