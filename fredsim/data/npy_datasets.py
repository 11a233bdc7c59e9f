"""Data sets in folders of NPY files, `npy:FOLDER`, of which large ones are read sample by sample."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import MOST_CLASSES, Dataset, Split, Wanted, divided, read_dataset, why_no_labels
from fredsim.data.npy import NpyReader, digest_of_folder, is_small, open_arrays
from fredsim.data.on_demand import MOST_IN_MEMORY, InMemory, OnDemand, Reader
from fredsim.data.sequences import IGNORED
from fredsim.errors import DataError

__all__ = ["load_folder", "of_readers"]


def load_folder(
    name: str,
    train: int | None,
    validation: int | None,
    root: Path,
    sha256: str | None = None,
    ignored: int | None = None,
    *,
    numbers: bool = False,
) -> Dataset:
    """Return the data set `npy:FOLDER`, as fredsim.data.datasets.read_dataset does others; a large one on demand.

    Raises ConfigError, DataError.
    """
    path = name.partition(":")[2]
    arrays = open_arrays(path)
    digest = digest_of_folder(path)
    if sha256 is not None and digest != sha256:
        what = f"the files' SHA-256 {digest} is not data.sha256, {sha256}"
        raise DataError(f"{path}: {what}; put the files back, or change the key")
    if is_small(arrays):
        return read_dataset(name, train, validation, root, sha256, ignored=ignored, numbers=numbers)
    states = tuple(file.state for file in arrays.values())
    return _load(path, digest, states, Wanted(train, validation, ignored, numbers))


@functools.lru_cache(maxsize=4)
def _load(path: str, digest: str | None, states: tuple[tuple[int, int], ...], wanted: Wanted) -> Dataset:
    del states  # only part of the cache's key: files that were written again are opened again
    arrays = open_arrays(path)
    parts = [part for part in ("train", "test") if f"x_{part}" in arrays]
    pairs = {part: (arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in parts}
    readers: dict[str, Reader] = {part: NpyReader(*pair, numbers=wanted.numbers) for part, pair in pairs.items()}
    rows = divided("npy", readers["train"].count, wanted.train, wanted.validation)
    return of_readers(path, readers, rows, f"{digest}", ignored_index=wanted.ignored)


def of_readers(
    path: str,
    readers: dict[str, Reader],
    rows: tuple[int, int],
    identity: str,
    classes: int | None = None,
    ignored_index: int | None = None,
) -> Dataset:
    """Return a data set of readers, `train`, `test` and `validation`, of which only the first must be there.

    `rows` are those for training and validation: the first and the last of `train`, or the first of `validation`.
    `identity` tells samples that are read on demand from any others. `classes`, if their number is known, are not
    looked for. `ignored_index` is the target that does not count; None: −1 of tokens. `path` begins messages. Targets
    may be no classes: see Split.unfit. Raises DataError for tokens that are out of range.
    """
    first, test = readers["train"], readers.get("test")
    kept = all(isinstance(reader, InMemory) for reader in readers.values())
    ignored: int | None = None
    declared, unused = classes or 0, tuple[int, ...]()
    y: dict[str, NDArray[Any] | None] = {}
    labels, unfit = None, ""
    sequences = first.dtype == np.int32 and first.target == first.shape and first.target_dtype.kind == "i"
    if sequences:
        classes, ignored = _tokens(path, readers, classes, ignored_index)
        y = {part: _targets(reader) for part, reader in readers.items()}
    elif first.target:
        what = f"a sample has the shape {first.shape} ({first.dtype}) and its target {first.target}"
        unfit = f"{path}: {what}; expected one class, or for a sequence of tokens one for each"
        y, classes = {part: _targets(reader) for part, reader in readers.items()}, 0
    elif classes is None or kept or first.target_dtype.kind == "f":
        y = {part: reader.all_targets() for part, reader in readers.items()}
        classes, labels, unfit = _labels(path, y, classes, ignored_index)
        if not unfit and labels is not None:
            unused = tuple(np.setdiff1d(np.arange(classes), labels, assume_unique=True).tolist())
    if first.dtype == np.int32 and not kept:
        found = (0, classes - 1) if sequences else _range(readers)
        for reader in readers.values():
            reader.bounds = found
    train, validation = rows
    last = readers.get("validation")
    parts = [
        _split(first, y.get("train"), 0, train),
        _split(first, y.get("train"), first.count - validation, first.count)
        if last is None
        else _split(last, y.get("validation"), 0, validation),
        _split(first, y.get("train"), 0, 0) if test is None else _split(test, y.get("test"), 0, test.count),
    ]
    one, two, three = (replace(part, unfit=unfit) for part in parts)
    fingerprint = "" if kept else hashlib.sha256(f"{identity} {train} {validation}".encode()).hexdigest()
    every = () if labels is not None else tuple(_every(reader, y.get(part)) for part, reader in readers.items())
    more: dict[str, Any] = {"fingerprint": fingerprint, "labels": labels, "every": every, "declared": declared}
    return Dataset(one, two, three, classes, first.shape, unused, ignored, **more)


def _tokens(path: str, readers: dict[str, Reader], classes: int | None, ignored: int | None) -> tuple[int, int | None]:
    """Return the number of tokens, and the target that does not count, if it may occur. Raises DataError for others."""
    if classes is not None and not all(isinstance(reader, InMemory) for reader in readers.values()):
        return classes, IGNORED if ignored is None else ignored
    highest, lowest = 0, 0
    for part, reader in readers.items():
        for targets in (False, True):
            least, most = reader.range_of(targets=targets, ignored=ignored if targets else None)
            lowest_allowed = IGNORED if targets and ignored is None else 0
            if least < lowest_allowed or most >= (classes or MOST_CLASSES):
                what = f"{'y' if targets else 'x'} of {part} rows holds integers from {least} to {most}"
                where = f"{lowest_allowed} to {(classes or MOST_CLASSES) - 1}"
                raise DataError(f"{path}: {what}; tokens must lie in {where}")
            highest, lowest = max(highest, most), min(lowest, least)
    none = IGNORED if lowest == IGNORED else None
    return classes or highest + 1, none if ignored is None else ignored


def _range(readers: dict[str, Reader]) -> tuple[int, int]:
    lows, highs = zip(*(reader.range_of(targets=False) for reader in readers.values()), strict=True)
    return min(lows), max(highs)


def _targets(reader: Reader) -> NDArray[Any] | None:
    """Return a reader's targets if they are small; None if they are read on demand."""
    size = reader.count * reader.target_bytes
    return reader.all_targets() if isinstance(reader, InMemory) or size <= MOST_IN_MEMORY else None


def _every(reader: Reader, y: NDArray[Any] | None) -> Any:
    """Return all targets of a reader; `y` if they are in memory."""
    return OnDemand(reader, 0, reader.count, samples=False) if y is None else y


def _labels(
    path: str, y: dict[str, NDArray[Any] | None], classes: int | None, ignored: int | None
) -> tuple[int, NDArray[np.int64] | None, str]:
    """Return the number of classes, those that occur, and why targets are no classes; "" if they are."""
    found = {part: values for part, values in y.items() if values is not None}
    labels = None
    if all(values.dtype.kind == "i" for values in found.values()):
        labels = np.unique(np.concatenate([np.unique(values) for values in found.values()])).astype(np.int64)
    for part, values in found.items():
        if why := why_no_labels(path, f"y of {part} rows", values):
            return 0, labels, why
    assert labels is not None
    highest = int(labels[labels != ignored].max(initial=0))
    if classes is not None and highest >= classes:
        raise DataError(f"{path}: a row has the class {highest}; there are {classes} classes, from 0 on")
    return classes or highest + 1, labels, ""


def _split(reader: Reader, y: NDArray[Any] | None, begin: int, end: int) -> Split:
    if isinstance(reader, InMemory):
        return Split(reader.x[begin:end], reader.y[begin:end], divisor=reader.divisor)
    x = OnDemand(reader, begin, end, samples=True)
    targets: Any = OnDemand(reader, begin, end, samples=False) if y is None else y[begin:end]
    return Split(x, targets, divisor=reader.divisor)
