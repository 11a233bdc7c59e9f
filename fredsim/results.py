"""Reading results back: one run's folder, or a sweep's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fredsim.document import read_document
from fredsim.errors import OutputError
from fredsim.probe import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Result", "Results", "load"]


class Result:
    """One run, read from its folder when asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"<Result {self.folder}: {self.summary['status']}, digest {self.summary['digest'][:12]}…>"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved experiment."""
        return read_document(self.folder / "config.yaml").data

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        path = self.folder / "summary.json"
        try:
            loaded: Any = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise OutputError(f"{self.folder}: has no summary.json: the run did not end; run it again") from None
        except (OSError, ValueError) as error:
            raise OutputError(f"{path}: is damaged ({error}); run the experiment again") from None
        if not isinstance(loaded, dict):
            raise OutputError(f"{path}: is damaged (it holds no mapping); run the experiment again")
        for key, kind in (("status", str), ("digest", str), ("iterations", int)):
            if not isinstance(loaded.get(key), kind):
                raise OutputError(f"{path}: is damaged ({key} is {loaded.get(key)!r}); run the experiment again")
        return loaded

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The rows of metrics.csv."""
        return _read_csv(self.folder / "metrics.csv", "iteration", "validation_error", "digest")

    @cached_property
    def staleness(self) -> pd.DataFrame:
        """The rows of staleness.csv: how many pushes had each staleness."""
        return _read_csv(self.folder / "staleness.csv", "staleness", "count")

    @cached_property
    def probe(self) -> pd.DataFrame:
        """The rows of probe.csv (fredsim.probe), of an experiment that asks for it: `probe: {every: 100}`.

        There are none where the run diverged before the first.
        """
        path = self.folder / "probe.csv"
        if not path.is_file():
            raise OutputError(f"{self.folder}: has no probe.csv; give the experiment `probe: {{every: 100}}`")
        if path.stat().st_size == 0:
            import pandas as pd

            return pd.DataFrame(columns=[*COLUMNS], dtype=float)
        return _read_csv(path, "iteration", "staleness", "b_staleness")

    @cached_property
    def params(self) -> dict[str, NDArray[np.float32]]:
        """The final parameters, by name."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.folder / "params.safetensors"
        try:
            return dict(load_file(path))
        except (OSError, SafetensorError) as error:
            raise OutputError(f"{path}: cannot be read ({error}); run the experiment again") from None


class Results:
    """The runs of a sweep that have ended with a result, in its order; what failed stands in `runs` alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        failed = {name for name, _ in self.failures}
        self._names: list[str] = [name for name in self.runs["run"] if name not in failed]

    def __iter__(self) -> Iterator[Result]:
        return (Result(self.folder / name) for name in self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Result:
        return Result(self.folder / self._names[index])

    def __repr__(self) -> str:
        return f"<Results {self.folder}: {len(self)} runs>"

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A row a run: the values of the axes, and how it ended."""
        return _read_csv(self.folder / "runs.csv", "run")

    @cached_property
    def best(self) -> pd.DataFrame:
        """What `select` chose: a row for each combination of the other axes. Raises OutputError where there is none."""
        path = self.folder / "best.csv"
        if not path.is_file():
            raise OutputError(
                f"{path}: is not there; give the experiment `select`, and let all its runs end (--resume)"
            )
        return _read_csv(path)

    @property
    def failures(self) -> list[tuple[str, str]]:
        """The runs that failed, and why."""
        rows = self.runs.to_dict("records")
        return [(row["run"], row["error"]) for row in rows if row.get("status") == "failed"]


def load(folder: str | os.PathLike[str]) -> Result | Results:
    """Return what a folder of results holds. Raises OutputError where it holds none."""
    folder = Path(folder)
    if os.path.isfile(folder / "runs.csv"):  # False, too, of a name that no file can have
        results = Results(folder)
        if results.runs.empty:
            raise OutputError(f"{folder / 'runs.csv'}: names no run; run the experiment again")
        return results
    if os.path.isfile(folder / "config.yaml"):
        return Result(folder)
    found = "holds no results (neither config.yaml nor runs.csv)" if os.path.isdir(folder) else "is no folder"
    raise OutputError(f"{folder}: {found}; name the folder of a run or of a sweep")


def _read_csv(path: Path, *columns: str) -> pd.DataFrame:
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read ({error}); run the experiment again") from None
    for column in columns:
        if column not in table:
            raise OutputError(f"{path}: is damaged (it has no column '{column}'); run the experiment again")
    return table
