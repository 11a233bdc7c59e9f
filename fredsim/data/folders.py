"""Data sets in folders of NPY files, `npy:FOLDER`, of which large ones are read sample by sample."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import MOST_CLASSES, Dataset, Split, divided, read_dataset, why_no_labels
from fredsim.data.npy import NpyReader, digest_of_folder, is_small, open_arrays
from fredsim.data.on_demand import MOST_IN_MEMORY, InMemory, OnDemand, Reader
from fredsim.data.sequences import IGNORED
from fredsim.errors import DataError

__all__ = ["load_folder", "of_readers"]


def load_folder(name: str, train: int | None, validation: int | None, root: Path, sha256: str | None = None) -> Dataset:
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
        return read_dataset(name, train, validation, root, sha256)
    return _load(path, digest, train, validation)


@functools.lru_cache(maxsize=4)
def _load(path: str, digest: str | None, train: int | None, validation: int | None) -> Dataset:
    arrays = open_arrays(path)
    parts = [part for part in ("train", "test") if f"x_{part}" in arrays]
    readers: dict[str, Reader] = {part: NpyReader(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in parts}
    return of_readers(path, readers, divided("npy", readers["train"].count, train, validation), f"{digest}")


def of_readers(
    path: str, readers: dict[str, Reader], rows: tuple[int, int], identity: str, classes: int | None = None
) -> Dataset:
    """Return a data set of readers, `train`, `test` and `validation`, of which only the first must be there.

    `rows` are those for training and validation: the first and the last of `train`, or the first of `validation`.
    `identity` tells samples that are read on demand from any others. `classes`, if their number is known, are not
    looked for. `path` begins messages. Targets that are no classes are kept as they are: Split.unfit. Raises DataError
    if classes or tokens are too large.
    """
    first, test = readers["train"], readers.get("test")
    kept = all(isinstance(reader, InMemory) for reader in readers.values())
    ignored: int | None = None
    unused: tuple[int, ...] = ()
    y: dict[str, NDArray[Any] | None] = {}
    unfit = ""
    if first.target and (first.dtype != np.int32 or first.target_dtype != np.int32 or first.target != first.shape):
        what = f"a sample has the shape {first.shape} ({first.dtype}) and its target {first.target}"
        unfit = f"{path}: {what}; expected one class, or for a sequence of tokens one for each"
        y = {part: reader.all_targets() for part, reader in readers.items()}
    elif first.target:
        classes, ignored = _tokens(path, readers, classes)
        y = {part: _targets(reader) for part, reader in readers.items()}
    elif classes is None or kept or first.target_dtype.kind == "f":
        values = {part: reader.all_targets() for part, reader in readers.items()}
        faults = (why_no_labels(path, f"y of {part} rows", each) for part, each in values.items())
        y, unfit = dict(values), next(filter(None, faults), "")
        if not unfit:
            classes, unused = _labels(path, y, classes)
    if unfit:
        classes = 0
    assert classes is not None
    for reader in readers.values():
        known = (0, classes - 1) if classes else reader.range_of(targets=False)
        reader.bounds = known if first.dtype == np.int32 else None
    train, validation = rows
    last = readers.get("validation")
    parts = (
        _split(first, y.get("train"), 0, train, unfit),
        _split(first, y.get("train"), first.count - validation, first.count, unfit)
        if last is None
        else _split(last, y.get("validation"), 0, validation, unfit),
        _split(first, y.get("train"), 0, 0, unfit)
        if test is None
        else _split(test, y.get("test"), 0, test.count, unfit),
    )
    fingerprint = "" if kept else hashlib.sha256(f"{identity} {train} {validation}".encode()).hexdigest()
    return Dataset(*parts, classes, first.shape, unused, ignored, fingerprint=fingerprint)


def _tokens(path: str, readers: dict[str, Reader], classes: int | None) -> tuple[int, int | None]:
    """Return the number of tokens, and the target that does not count, if it may occur. Raises DataError for others."""
    if classes is not None and not all(isinstance(reader, InMemory) for reader in readers.values()):
        return classes, IGNORED
    highest, lowest = 0, 0
    for part, reader in readers.items():
        for targets in (False, True):
            least, most = reader.range_of(targets=targets)
            if least < (IGNORED if targets else 0) or most >= (classes or MOST_CLASSES):
                what = f"{'y' if targets else 'x'} of {part} rows holds integers from {least} to {most}"
                where = f"{IGNORED if targets else 0} to {(classes or MOST_CLASSES) - 1}"
                raise DataError(f"{path}: {what}; tokens must lie in {where}")
            highest, lowest = max(highest, most), min(lowest, least)
    return classes or highest + 1, IGNORED if lowest == IGNORED else None


def _targets(reader: Reader) -> NDArray[Any] | None:
    """Return a reader's targets if they are small; None if they are read on demand."""
    size = reader.count * reader.target_bytes
    return reader.all_targets() if isinstance(reader, InMemory) or size <= MOST_IN_MEMORY else None


def _labels(path: str, y: dict[str, NDArray[Any] | None], classes: int | None) -> tuple[int, tuple[int, ...]]:
    """Return the number of classes, and those that no sample has. Raises DataError if there are too many."""
    labels = np.unique(np.concatenate([np.unique(values) for values in y.values() if values is not None]))
    highest = int(labels[-1])
    if classes is not None and highest >= classes:
        raise DataError(f"{path}: a row has the class {highest}; there are {classes} classes, from 0 on")
    classes = classes or highest + 1
    return classes, tuple(np.setdiff1d(np.arange(classes), labels, assume_unique=True).tolist())


def _split(reader: Reader, y: NDArray[Any] | None, begin: int, end: int, unfit: str = "") -> Split:
    if isinstance(reader, InMemory):
        return Split(reader.x[begin:end], reader.y[begin:end], divisor=reader.divisor, unfit=unfit)
    x = OnDemand(reader, begin, end, samples=True)
    targets: Any = OnDemand(reader, begin, end, samples=False) if y is None else y[begin:end]
    return Split(x, targets, divisor=reader.divisor, unfit=unfit)
