"""Finds where two runs first differ, bit for bit, by comparing the files of their folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.config.document import differing, read_document
from fredsim.config.experiment import FIGURE_KEYS, Affects, irrelevant_to
from fredsim.data.datasets import DEFAULT_ROWS
from fredsim.errors import OutputError, one_line
from fredsim.networks.captured import GRAPH_FILE, INITIAL_FILE
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import file_digest, first_line, read_recorded, requested_files
from fredsim.system.csv_files import read_cells
from fredsim.system.files import read_bytes
from fredsim.system.parquet_files import open_parquet

__all__ = ["check", "difference", "last_common_row", "reasons"]

#: The keys of summary.json that are compared.
NUMBERS = (
    "status", "digest", "iterations", "updates", "validation_loss", "validation_error", "test_error",
    "metrics", "measured_by", "larger_is_better", "gap", "gradient_norm", "time",
    "pushes", "fetches", "bytes_pushed", "bytes_fetched",
)  # fmt: skip
RAW = "params_raw.safetensors"
#: Files that some runs write, with no key that asks for them: of some servers, and of captured modules.
UNASKED = (RAW, GRAPH_FILE, INITIAL_FILE)
#: Keys that are compared if the experiments are the same; from others the same bits may come.
OF_EXPERIMENT = ("experiment", "data", "numerics")


def check(*results: Result, configs: bool = False) -> None:
    """Raise OutputError if a file to be compared is missing or damaged or, with `configs`, a config.yaml was edited."""
    for result in results:
        _ = result.metrics, result.staleness, configs and result.config
        difference(result, result)


def last_common_row(one: Result, other: Result) -> int:
    """Return the iteration of the last row up to which two runs have the same metrics.csv, −1 if there is none."""
    found = -1
    for left, right in zip(*(read_cells(run.folder / "metrics.csv") for run in (one, other)), strict=False):
        if left != right:
            break
        found = int(left["iteration"])
    return found


def reasons(one: Result, other: Result) -> list[str]:
    """Say how the experiments and the code of two recorded runs differ, a line each."""
    ignored = dict.fromkeys(irrelevant_to(Affects.BITS | Affects.TIME))
    left, right = (result.config | ignored for result in (one, other))
    keys = differing(left, right, "{} is {} and {}")
    codes = [result.summary.get("code", {}) for result in (one, other)]
    modules = [name for name in sorted({*codes[0], *codes[1]}) if codes[0].get(name) != codes[1].get(name)]
    return [*([f"config.yaml: {keys}"] if keys else []), *(f"the module {name} differs" for name in modules)]


def difference(one: Result, other: Result, *, again: bool = False) -> str | None:
    """Return where two runs first differ: in metrics.csv, the summary's numbers, the parameters, or the other files.

    If they do not differ, return which file was changed since a run wrote it, or None if none was. `again`: `one` is
    the record, and `other` a repetition of it.
    """
    names = ("the record", "the run now") if again else (one.folder, other.folder)
    both, before = ("{} (recorded) and {} (now)" if again else "{} and {}").format, ""
    rows = (read_cells(run.folder / "metrics.csv") for run in (one, other))
    for line, (left, right) in enumerate(zip_longest(*rows), start=2):
        if left is None or right is None:
            return f"metrics.csv, line {line}: {names[left is not None]} ends here, {before}"
        if left["iteration"] != right["iteration"]:
            return f"metrics.csv, line {line}: iteration is {both(left['iteration'], right['iteration'])}"
        before = f"after iteration {left['iteration']}"
        for key in ("digest", *left):
            if left.get(key) != right.get(key):
                at = f"metrics.csv, line {line}, iteration {left['iteration']}"
                return f"{at}: {key} is {both(left.get(key), right.get(key))}"
    configs = [read_document(result.folder / "config.yaml").data for result in (one, other)]
    for key in (*NUMBERS, *(() if again else _of_experiment(*configs))):  # `record_difference` compares all of a record
        if one.summary.get(key) != other.summary.get(key):
            return f"summary.json: {key} is {both(one.summary.get(key), other.summary.get(key))}"
    for name in {**one.params, **other.params}:
        values, theirs = one.params.get(name), other.params.get(name)
        if (
            values is None
            or theirs is None
            or {(values.shape, np.dtype(np.float32))} != {(array.shape, array.dtype) for array in (values, theirs)}
        ):
            return f"params.safetensors: {name} is not in both with one shape and type"
        unequal = np.flatnonzero(values.view(np.uint32) != other.params[name].view(np.uint32))
        if len(unequal):
            place = tuple(int(i) for i in np.unravel_index(unequal[0], values.shape))
            found = both(repr(values[place]), repr(other.params[name][place]))
            return f"params.safetensors: {name}{list(place)} is {found}"
    one_asks, other_asks = map(requested_files, configs)
    some = [name for name in one_asks if name in other_asks]
    for name in UNASKED if again else (RAW,):
        here = [os.path.lexists(result.folder / name) for result in (one, other)]
        if again and here[0] != here[1]:
            return f"{name}: is not in both folders"
        if all(here):
            some = [*dict.fromkeys([*some, name])]
    for name in ("metrics.csv", "staleness.csv", *(["params.safetensors"] if again else []), *some):
        if name.endswith(".parquet"):
            if found := _first_row(name, [result.folder / name for result in (one, other)], both):
                return found
            continue
        contents = [read_recorded(result.folder / name, read_bytes) for result in (one, other)]
        if contents[0] != contents[1]:
            return first_line(name, contents, both)
    return next((change for result in (one, other) for change in result.changed_files), None)


def _of_experiment(one: Mapping[str, Any], other: Mapping[str, Any]) -> Sequence[str]:
    """Return which entries of OF_EXPERIMENT two runs with these configurations must share."""
    ignored = dict.fromkeys(("name", *FIGURE_KEYS))
    if differing({**one, **ignored}, {**other, **ignored}, "{}"):
        return ()
    data = one.get("data")
    read = isinstance(data, Mapping) and "sha256" in data and str(data.get("name")) not in DEFAULT_ROWS
    # A run fills in the rows of such data, which its experiment may have given or not.
    return [key for key in OF_EXPERIMENT if key != "experiment" or not read]


def _first_row(name: str, paths: Sequence[Path], both: Callable[[str, str], str]) -> str:
    """Say where two Parquet files first differ; they are read in batches, as they may be larger than memory."""
    if read_recorded(paths[0], file_digest) == read_recorded(paths[1], file_digest):
        return ""
    try:
        files = [open_parquet(path) for path in paths]
        if ends := [cut for _, cut in files if cut]:
            return ends[0]
        return _first_difference(name, [file for file, _ in files], both)
    except OutputError as error:
        raise OutputError(f"{error}; run the experiment again") from None
    except (OSError, ValueError) as error:  # pyarrow's: the footer is whole, but not what it refers to
        either = " or ".join(map(str, paths))
        raise OutputError(f"{either}: cannot be read ({one_line(error)}); run the experiment again") from None


def _first_difference(name: str, files: Sequence[Any], both: Callable[[str, str], str]) -> str:
    """Say in which row and column two open Parquet files first differ; "" if their contents are the same.

    How the rows are split into groups, and how they are written, is pyarrow's choice and no content.
    """
    left, right = (_columns(file.schema_arrow) for file in files)
    if left != right:
        return f"{name}: the columns are {both(*(', '.join(map(' '.join, of)) for of in (left, right)))}"
    before = 0
    for one, other in _aligned(*(file.iter_batches() for file in files)):
        for column, _ in left:
            values = one[column], other[column]
            row = next((i for i, (a, b) in enumerate(zip(*map(_bits, values), strict=True)) if a != b), None)
            if row is not None:
                return f"{name}, row {before + row}: {column} is {both(*(str(of[row].as_py()) for of in values))}"
        before += len(one)
    counts = [file.metadata.num_rows for file in files]
    return "" if counts[0] == counts[1] else f"{name}, row {before}: the numbers of rows are {both(*map(str, counts))}"


def _aligned(one: Iterator[Any], other: Iterator[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of two files in pairs of as many rows each, up to the end of the shorter file."""
    left = right = None
    while True:
        while not left:
            if (left := next(one, None)) is None:
                return
        while not right:
            if (right := next(other, None)) is None:
                return
        count = min(len(left), len(right))
        yield left[:count], right[:count]
        left, right = left[count:], right[count:]


def _columns(schema: Any) -> list[tuple[str, str]]:
    """Return the names and types of the columns of a file, as far as they say what its values are."""
    return [(field.name, str(getattr(field.type, "value_type", field.type))) for field in schema]


def _bits(column: Any) -> list[Any]:
    """Return the values of a column as such that are equal if their bits are."""
    return list((column.view("int64") if str(column.type) == "double" else column).to_pylist())
