"""Recorded runs for other tools: `fredsim export`. Exporting the same runs again changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fredsim.errors import ConfigError, OutputError, nearest
from fredsim.runs.results import Result, Results, load
from fredsim.show.export.recorded import Recorded, recorded_run

__all__ = ["TARGETS", "export"]

#: Where runs may go, and what is written unless another path is given.
TARGETS = {"tensorboard": "tensorboard", "mlflow": "mlflow.db"}


def export(folders: Sequence[Path], to: str, output: Path | None = None) -> Iterator[tuple[str, str]]:
    """Write the runs and sweeps in some folders for another tool, with that tool's own library.

    Args:
        folders: of runs or sweeps; runs that failed are left out.
        to: one of TARGETS.
        output: TensorBoard's folder, which gets one for each run; or MLflow's SQLite file. None: that of TARGETS.

    Yields each run's name and what became of it: new, unchanged, or replaced, where a run of this name was there that
    differs. Raises ConfigError for another target, where its library is missing, and where two runs have one name;
    OutputError where results cannot be read, or the output not be written.

    """
    if to not in TARGETS:
        raise ConfigError(f"--to: is '{to}'{nearest(to, TARGETS)} (known: {', '.join(TARGETS)})")
    write = _writer(to)
    runs: dict[str, Recorded] = {}
    for name, result in _named(folders):
        if name in runs:
            where = f"{runs[name].folder} and {result.folder}"
            raise ConfigError(f"two runs would be named {name}: {where}; rename a folder, or export it elsewhere")
        runs[name] = recorded_run(name, result)
    yield from write(list(runs.values()), output or Path(TARGETS[to]))


def _named(folders: Sequence[Path]) -> Iterator[tuple[str, Result]]:
    """Yield each run with its name: that of its folder, below that of its sweep's."""
    for folder in folders:
        loaded, name = load(folder), folder.resolve().name
        if isinstance(loaded, Results):
            if not len(loaded):
                raise OutputError(f"{folder}: all its runs failed; {folder / 'runs.csv'} says why")
            yield from ((f"{name}/{result.folder.name}", result) for result in loaded)
        else:
            yield name, loaded


def _writer(to: str) -> Callable[[Sequence[Recorded], Path], Iterator[tuple[str, str]]]:
    """Return what writes runs for a target. Raises ConfigError where its library is missing."""
    try:
        if to == "tensorboard":
            from fredsim.show.export.to_tensorboard import write
        else:
            from fredsim.show.export.to_mlflow import write
    except ImportError as error:
        raise ConfigError(
            f"fredsim export --to {to} needs {to}, which cannot be imported ({error}); run pip install 'fredsim[{to}]'"
        ) from None
    return write
