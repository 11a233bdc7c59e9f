"""Reads the folder of one run: its summary, tables and parameters, checked against what the run wrote."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fredsim.config.document import read_document
from fredsim.config.experiment import config_digest
from fredsim.config.sweep.expansion import is_folder_name
from fredsim.errors import OutputError, one_line, shown, visible, warn
from fredsim.runs.folder.per_client import CLIENTS
from fredsim.runs.folder.run_files import (
    FILES,
    check_config,
    file_digest,
    read_recorded,
    summary_text,
    too_large,
    with_digest,
)
from fredsim.runs.folder.summary_types import fault_of_summary
from fredsim.simulation.paths.probe import COLUMNS
from fredsim.simulation.record.recorder import MEASURED, Row
from fredsim.system.csv_files import COUNT, DIGEST, FINITE, NUMBER, OPTIONAL, CellCheck, read_cells, read_table
from fredsim.system.files import LINK, irregular_kind, read_bytes
from fredsim.system.json_files import MOST_BYTES, parse_json
from fredsim.system.memory import fills_memory, format_bytes, machine_memory
from fredsim.system.parquet_files import open_parquet
from fredsim.system.tensor_files import parse_tensors

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NOT_FINITE", "Result", "check_inside", "measure_of", "result_of"]

#: The last words of how a run ended whose parameters are finite, and whose loss is not.
NOT_FINITE = "not finite"
CHANGED = "is not as the run wrote it"

CELLS = {"int": COUNT, "float": NUMBER, "int | None": OPTIONAL, "float | None": OPTIONAL, "str": DIGEST}


def cells_of(row: type[Row]) -> dict[str, CellCheck]:
    """Return the columns that every metrics.csv has, the fields without a default, with the check of their cells."""
    first = [column for column in fields(row) if column.default is MISSING and column.default_factory is MISSING]
    return {column.name: CELLS[str(column.type)] for column in first}


def check_inside(sweep: Path, name: str) -> None:
    """Raise OutputError if a name is none that a run's folder has, or if the folder is a link out of that of its sweep.

    The name may come from a file that anybody has written.
    """
    if not is_folder_name(name):
        what = f"names the run {shown(name)}, and no run's folder has such a name"
        raise OutputError(f"{sweep / 'runs.csv'}: is damaged ({what}); run the experiment again")
    if os.path.islink(sweep / name):
        raise OutputError(f"{sweep / name}: is {LINK}; put the folder itself there, or name it instead of {sweep}")


def result_of(sweep: Path, name: str, *, as_found: bool = False) -> Result:
    """Return the result of the run of this name in a sweep's folder; `as_found` as in `Result`.

    Raises OutputError if the run's folder is not inside the sweep's.
    """
    check_inside(sweep, name)
    return Result(sweep / name, as_found=as_found)


def measure_of(summary: Mapping[str, Any], loss: Any = None) -> str:
    """Return the column that tells how good a run is: its gap, else its error, else its loss, if it has no error.

    That of a problem of the user's own is what its class says. `loss` is the plain loss of its experiment, which tells
    it where neither is a finite number.
    """
    if own := summary.get("measured_by"):
        return str(own)
    if "gap" in summary:
        return "gap"
    if summary.get("validation_error") is None and summary.get("validation_loss") is None:
        name = str(loss.get("name") if isinstance(loss, Mapping) else loss)
        return "validation_loss" if name == "mse" or ":" in name else "validation_error"
    return "validation_loss" if summary.get("validation_error") is None else "validation_error"


class Result:
    """The result of one run; each file of its folder is read when it is first needed.

    Every property raises OutputError if its file is missing, damaged, or not as the run wrote it.
    """

    def __init__(self, folder: Path, *, as_found: bool = False, summary: Mapping[str, Any] | None = None) -> None:
        """Take a folder, and its summary if that has been read.

        `as_found`: also read files that were changed since the run, to find where they differ.
        """
        self.folder, self._as_found = folder, as_found
        if summary is not None:
            self.summary = dict(summary)

    def __repr__(self) -> str:
        return f"<Result {visible(str(self.folder))}: {self.summary['status']}, digest {self.summary['digest'][:12]}…>"

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved experiment, from config.yaml. Raises OutputError if that was edited after the run."""
        path = self.folder / "config.yaml"
        document = read_document(path)
        config = document.data
        if self.has_ended and self.summary.get("config") not in (None, config_digest(config)):
            raise OutputError(
                f"{path}: was edited after the run, whose summary.json has another digest of it; "
                "take the change back, or run the edited experiment into another folder"
            )
        return check_config(path, document, ended=self.has_ended)

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended: whether there is a summary.json, which is written last.

        Once that has been read, this is the result of that run, also if another process does it anew meanwhile: what
        that has written so far is none of its files.
        """
        return "summary" in vars(self) or os.path.lexists(self.folder / "summary.json")  # False for too long a name

    @property
    def has_finished(self) -> bool:
        """Whether the run has finished or diverged, and was not interrupted."""
        try:
            return self.has_ended and self.summary["status"] != "interrupted"
        except OutputError:
            return False

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        path = self.folder / "summary.json"
        try:
            loaded: Any = parse_json(read_bytes(path, most=MOST_BYTES))
        except FileNotFoundError:
            raise OutputError(f"{self.folder}: has no summary.json: the run did not end; run it again") from None
        except OSError as error:
            raise OutputError(f"{path}: cannot be read ({error.strerror}); run the experiment again") from None
        except ValueError as error:
            raise OutputError(f"{path}: is damaged ({error}); run the experiment again") from None
        if fault := fault_of_summary(loaded):
            raise OutputError(f"{path}: is damaged ({fault}); run the experiment again")
        if not self._as_found and loaded.get("sha256") != with_digest(loaded)["sha256"]:
            raise OutputError(f"{path}: {CHANGED}; run the experiment again")
        return dict(loaded)

    @property
    def timed(self) -> bool:
        """Whether the run had a clock: its column `time` is in simulated seconds, or in real ones if it was live."""
        return self.summary.get("time") is not None

    @property
    def live(self) -> bool:
        """Whether the run was live, that is, had real clients."""
        return bool(self.summary.get("path") == "live")

    @property
    def by_the_clock(self) -> bool:
        """Whether rows were recorded at intervals of simulated seconds."""
        return bool(self.config["evaluation"].get("unit") == "seconds")

    @property
    def changed_files(self) -> list[str]:
        """How the folder differs from what the run wrote, one text for each file. Raises OutputError, ConfigError."""
        return [f"{path} {what}" for path, what in self._changes()]

    def check_files(self) -> None:
        """Raise OutputError if a file of a run that has ended is damaged, gone, or not as the run wrote it."""
        if self.has_ended:
            for name in self.summary.get("files", {}).keys() & {"metrics.csv", "staleness.csv"}:
                _ = getattr(self, Path(name).stem)  # whose error names the line
            _ = self.config
            for path, what in self._changes():
                raise OutputError(f"{path}: {what}; run the experiment again")

    def _changes(self) -> Iterator[tuple[Path, str]]:
        """Yield each file that is not as the run wrote it, and how it differs."""
        if name := too_large(self.folder):
            yield self.folder / name, "is larger than this machine's memory"
            return
        recorded = self.summary.get("files", {})
        for name in {**recorded, **dict.fromkeys(FILES)}:
            path = self.folder / name
            try:
                found = file_digest(path)
            except FileNotFoundError:
                if name in recorded:
                    yield path, "is gone"
            except OSError as error:  # one in the place of a file that no run has written is none of its files
                if name in recorded or not irregular_kind(path, follow=False):
                    yield path, f"cannot be read ({error.strerror or error})"
            else:
                if name not in recorded:
                    yield path, "was not written by the run"
                elif found != recorded[name]:
                    yield path, CHANGED
        if self.summary.get("config") != config_digest(read_document(self.folder / "config.yaml").data):
            yield self.folder / "config.yaml", CHANGED
        path = self.folder / "summary.json"
        if read_recorded(path, read_bytes) != summary_text(self.summary).encode():
            yield path, CHANGED

    def check_written(self, name: str) -> None:
        """Raise OutputError if a file is not as the run wrote it."""
        if self._as_found or not self.has_ended:
            return
        recorded, path = self.summary.get("files", {}).get(name), self.folder / name
        if recorded is not None and read_recorded(path, file_digest) != recorded:
            raise OutputError(f"{path}: {CHANGED}; run the experiment again")

    def _path_of(self, name: str, key: str) -> Path:
        """Return the path of a file that a `key` asks for. Raises OutputError if there is none, or none any more."""
        path = self.folder / name
        if os.path.lexists(path):
            return path
        if self.has_ended and name in self.summary.get("files", {}):
            raise OutputError(f"{path}: is gone; run the experiment again")
        if not os.path.lexists(self.folder / "config.yaml"):
            raise OutputError(f"{self.folder}: is no folder of a run, with its config.yaml; name one")
        raise OutputError(f"{self.folder}: has no {name}; give the experiment `{key}`")

    def _table(self, path: Path, columns: Mapping[str, CellCheck], by: str, others: CellCheck | None) -> pd.DataFrame:
        """Return the rows of a CSV file in which the column `by` increases, as the run wrote it: see `read_table`."""
        table = read_table(path, columns, increasing=(by,), others=others)
        self.check_written(path.name)
        return table

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The rows of metrics.csv. Raises OutputError also if the last row does not agree with summary.json."""
        path = self.folder / "metrics.csv"
        checks = cells_of(Row) | {"time": FINITE}
        table = read_table(path, checks, increasing=("time", "iteration"), others=OPTIONAL)
        if self.has_ended:
            ends = (None, None) if table.empty else (int(table["iteration"].iloc[-1]), table["digest"].iloc[-1])
            for key, found in zip(("iterations", "digest"), ends, strict=True):
                if found != self.summary[key]:
                    says = f"{key} is {self.summary[key]} in the one, {found} at the end of the other"
                    what = f"{self.folder}: summary.json and metrics.csv disagree"
                    raise OutputError(f"{what} ({says}); run the experiment again")
        self.check_written(path.name)
        return table

    @cached_property
    def cells(self) -> list[dict[str, str]]:
        """The rows of metrics.csv as text, which tells NaN from an empty cell; there is at least one."""
        if "metrics.csv" in self.summary.get("files", {}):
            self.check_written("metrics.csv")
        else:  # no digest to check it by
            _ = self.metrics
        found = read_cells(self.folder / "metrics.csv")
        if not found or not all(OPTIONAL(cell) for name, cell in found[-1].items() if name != "digest"):
            _ = self.metrics  # whose error names the line
        return found

    def final(self, column: str) -> float | None:
        """Return the last value of a column of metrics.csv, be it finite or not; None if it never had one."""
        values = self.metrics[column]
        if values.isna().iloc[-1] and not self.cells[-1][column]:
            values = values.dropna()
        return float(values.iloc[-1]) if len(values) else None

    @property
    def has_diverged(self) -> bool:
        """Whether the run counts as diverged: if it did, or if it ended with a loss that is not finite."""
        return self.summary["status"] == "diverged" or bool(self._infinite)

    @property
    def not_finite(self) -> str:
        """What was not finite, for people, when the run finished: `loss` or another column; "" if all was."""
        if self.summary["status"] != "finished" or not self._infinite:
            return ""
        first = self._infinite[0]
        return "loss" if first.endswith("_loss") else first.replace("_", " ")

    @cached_property
    def _infinite(self) -> list[str]:
        """The columns that tell how good the run is, and that ended with a value that is not finite."""
        last = self.cells[-1]
        own = self.summary.get("measured_by")  # of a problem, which may be measured by another number than its loss
        losses = dict.fromkeys([*([own] if own else []), "train_loss", "validation_loss", *MEASURED])
        infinite = [name for name in losses if last.get(name) and not math.isfinite(float(last[name]))]
        if infinite == ["validation_loss"] != [own]:
            infinite = [] if own or self.config["data"].get("validation") == 0 else infinite
        return infinite

    @property
    def ending(self) -> str:
        """How the run ended, for people: its status, or which value was not finite."""
        status: str = self.summary["status"]
        return f"{status}, {self.not_finite} {NOT_FINITE}" if self.not_finite else status

    @property
    def outcome(self) -> dict[str, Any]:
        """The summary with NaN and infinity, which summary.json cannot hold, where the run ended with them."""
        found = dict(self.summary) | self.own_metrics
        if self.not_finite:
            last, names = self.cells[-1], ("validation_loss", "validation_error", *MEASURED, *self.own_metrics)
            found |= {name: float(last[name]) for name in names if last.get(name) and self._has(name)}
        return found

    def _has(self, column: str) -> bool:
        """Return whether the run has such a value; one that a loss or a problem does not have is NaN in every row."""
        own = self.summary.get("measured_by")
        if column == own or column not in ("validation_error", "validation_loss" if own else ""):
            return True
        return any(cells[column] != "nan" for cells in self.cells)

    @property
    def own_metrics(self) -> dict[str, float | None]:
        """The final values of `evaluation.metrics`, by column; {} if the experiment has none."""
        return dict(self.summary.get("metrics") or {})

    @cached_property
    def measure(self) -> str:
        """The column that tells how good the run is: `gap`, else `validation_error`, else `validation_loss`.

        That of a problem of the user's own is what its class says.
        """
        return measure_of(self.summary, self.config.get("loss"))

    def larger_is_better(self, column: str) -> bool:
        """Return whether more is better in a column: only where an own problem, or metric, says so."""
        return column in (self.summary.get("larger_is_better") or ())

    def first_row(self, column: str, value: float) -> pd.DataFrame:
        """Return the first row of metrics.csv with at most `value` in a column; an empty table if there is none.

        If more is better in it, the value is the least.
        """
        metrics = self.metrics
        reached = metrics[column] >= value if self.larger_is_better(column) else metrics[column] <= value
        return metrics[reached].iloc[:1]

    @cached_property
    def staleness(self) -> pd.DataFrame:
        """The rows of staleness.csv: how many pushes had each staleness."""
        return self._table(self.folder / "staleness.csv", {"staleness": COUNT, "count": COUNT}, "staleness", None)

    @cached_property
    def probe(self) -> pd.DataFrame:
        """The rows of probe.csv (fredsim.simulation.paths.probe), if the experiment has `probe: {every: …}`.

        There are none if the run diverged before the first one.
        """
        path = self._path_of("probe.csv", "probe: {every: 100}")
        if path.lstat().st_size or irregular_kind(path):
            return self._table(path, dict.fromkeys(COLUMNS, NUMBER), "iteration", OPTIONAL)
        import pandas as pd

        self.check_written(path.name)
        return pd.DataFrame(columns=[*COLUMNS], dtype=float)

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The rows of clients.csv, one per client, if the experiment has `evaluation: {per_client: true}`."""
        path = self._path_of("clients.csv", "evaluation: {per_client: true}")
        return self._table(path, CLIENTS, "client", None)

    @property
    def events(self) -> pd.DataFrame:
        """The rows of events.parquet, if the experiment has `events: true`.

        If the run was killed, these are the rows it had written; a warning says how many if the file's end is damaged.
        """
        path = self._path_of("events.parquet", "events: true")
        try:
            file, cut = open_parquet(path)
            rows, size = file.metadata.num_rows, 8 * file.metadata.num_rows * file.metadata.num_columns
            table: pd.DataFrame | None = None if fills_memory(size) else file.read().to_pandas()
        except (OutputError, OSError, ValueError) as error:  # pyarrow raises subclasses of the last two
            raise OutputError(f"{one_line(error)}; run the experiment again") from None
        if table is None:  # a small file may unpack to billions of rows
            what = f"its {rows:,} rows take {format_bytes(size)}, and this machine has {format_bytes(machine_memory())}"
            raise OutputError(f"{path}: {what} of memory; read a part at a time (iter_batches of pyarrow.parquet)")
        if cut:
            warn(visible(cut))
        else:
            self.check_written(path.name)
        return table

    def events_of(self, columns: Sequence[str]) -> pd.DataFrame:
        """Return `events` if it has these columns, all of integers, as a run of this experiment writes them.

        Raises OutputError, also if the file is not as the run wrote it.
        """
        self.check_written("events.parquet")
        events, clients = self.events, int(self.config["clients"]["count"])
        for name in columns:
            if name not in events:
                raise self.damaged_events(f"it has no column {name}")
            if events[name].dtype.kind not in "iu":
                raise self.damaged_events(f"its column {name} is of {events[name].dtype}, not of integers")
        rows = np.arange(len(events))
        for name, least, most, what in (
            ("client", 0, clients, f"its client is none of {clients}"),
            ("begun", -1, rows, "it was begun after an event that comes later"),
        ):
            found = events[name].to_numpy() if name in columns else np.empty(0, np.int64)
            if name in columns and len(wrong := np.flatnonzero((found < least) | (found >= most))):
                raise self.damaged_events(f"row {wrong[0]}: {what}")
        return events

    def damaged_events(self, what: str) -> OutputError:
        """Return the error for events.parquet, which says what is wrong with it."""
        return OutputError(f"{self.folder / 'events.parquet'}: is damaged ({what}); run the experiment again")

    @cached_property
    def params(self) -> dict[str, NDArray[np.float32]]:
        """The final parameters: float32 arrays by tensor name, each in its tensor's shape."""
        path = self.folder / "params.safetensors"
        try:
            params = parse_tensors(read_recorded(path, read_bytes))
        except ValueError as error:
            raise OutputError(f"{path}: cannot be read ({error}); run the experiment again") from None
        for name, array in params.items():
            if array.dtype != np.float32 and not self._as_found:
                what = f"{shown(name)} has the type {array.dtype}, not float32"
                raise OutputError(f"{path}: is damaged ({what}); run the experiment again")
        self.check_written(path.name)
        return params
