"""Data sets in folders of NPY files, `npy:FOLDER`, of which large ones are read sample by sample."""

from __future__ import annotations

import functools
import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import MOST_CLASSES, Dataset, Split, divided, load_dataset, why_no_labels
from fredsim.data.npy import NpyFile, NpyReader, digest_of_folder, is_small, open_arrays
from fredsim.data.on_demand import MOST_IN_MEMORY, OnDemand, Reader
from fredsim.data.sequences import IGNORED
from fredsim.errors import DataError

__all__ = ["load_folder", "of_readers"]


def load_folder(name: str, train: int | None, validation: int | None, root: Path, sha256: str | None = None) -> Dataset:
    """Return the data set `npy:FOLDER`, as fredsim.data.datasets.load_dataset does others; a large one on demand.

    Raises ConfigError, DataError.
    """
    path = name.partition(":")[2]
    arrays = open_arrays(path)
    digest = digest_of_folder(path)
    if sha256 is not None and digest != sha256:
        what = f"the files' SHA-256 {digest} is not data.sha256, {sha256}"
        raise DataError(f"{path}: {what}; put the files back, or change the key")
    if is_small(arrays):
        return load_dataset(name, train, validation, root, sha256)
    return _load(path, digest, train, validation)


@functools.lru_cache(maxsize=4)
def _load(path: str, digest: str | None, train: int | None, validation: int | None) -> Dataset:
    arrays = open_arrays(path)
    readers = {part: _reader(arrays, part) for part in ("train", "test") if f"x_{part}" in arrays}
    return of_readers(path, readers, divided("npy", readers["train"].count, train, validation), f"{digest}")


def _reader(arrays: dict[str, NpyFile], part: str) -> NpyReader:
    return NpyReader(arrays[f"x_{part}"], arrays[f"y_{part}"])


def of_readers(path: str, readers: dict[str, NpyReader], rows: tuple[int, int], identity: str) -> Dataset:
    """Return a data set of the first and the last `rows` of a reader, and of those of another to test on.

    `identity` tells its content from any other. Raises DataError if targets are no classes.
    """
    first = readers["train"]
    test = readers.get("test")
    if first.dtype == np.int32:
        classes, ignored, unused = _tokens(path, readers)
    else:
        classes, ignored, unused = 0, None, ()
    y = {part: _targets(reader) for part, reader in readers.items()}
    if first.dtype != np.int32:
        classes, unused = _labels(path, readers, y)
    train, validation = rows
    splits = [
        _split(first, y["train"], 0, train),
        _split(first, y["train"], first.count - validation, first.count),
        _split(first, y["train"], 0, 0) if test is None else _split(test, y["test"], 0, test.count),
    ]
    said = f"{identity} {train} {validation}"
    fingerprint = hashlib.sha256(said.encode()).hexdigest()
    return Dataset(*splits, classes, first.shape, unused, ignored, fingerprint=fingerprint)


def _tokens(path: str, readers: dict[str, NpyReader]) -> tuple[int, int | None, tuple[int, ...]]:
    """Return the number of tokens, and the target that does not count, if one occurs."""
    highest, lowest = 0, 0
    for part, reader in readers.items():
        for name, targets in ((f"x_{part}", False), (f"y_{part}", True)):
            least, most = reader.range_of_tokens(targets=targets)
            if least < (IGNORED if targets else 0) or most >= MOST_CLASSES:
                what = f"{name} holds integers from {least} to {most}"
                where = f"{IGNORED if targets else 0} to {MOST_CLASSES - 1}"
                raise DataError(f"{path}: {what}; tokens must lie in {where}")
            highest, lowest = max(highest, most), min(lowest, least)
    for reader in readers.values():
        reader.bounds = 0, highest
    return highest + 1, IGNORED if lowest == IGNORED else None, ()


def _targets(reader: NpyReader) -> NDArray[Any] | None:
    """Return a reader's targets if they are one a sample, or small; None if they are read on demand."""
    size = reader.count * math.prod(reader.target) * reader.target_dtype.itemsize
    return reader.all_targets() if not reader.target or size <= MOST_IN_MEMORY else None


def _labels(path: str, readers: dict[str, NpyReader], y: dict[str, NDArray[Any] | None]) -> tuple[int, tuple[int, ...]]:
    """Return the number of classes, and those that no sample has. Raises DataError if targets are no classes."""
    found: list[NDArray[Any]] = []
    for part in readers:
        values = y[part]
        if values is None or values.ndim > 1:
            what = f"y_{part} has {math.prod(readers[part].target)} targets a sample"
            raise DataError(f"{path}: {what}; expected one class a sample, or one for each token of x_{part}")
        if why := why_no_labels(path, f"y_{part}", values):
            raise DataError(why)
        found.append(np.unique(values))
    labels = np.unique(np.concatenate(found))
    classes = int(labels[-1]) + 1
    return classes, tuple(np.setdiff1d(np.arange(classes), labels, assume_unique=True).tolist())


def _split(reader: Reader, y: NDArray[Any] | None, begin: int, end: int) -> Split:
    x = OnDemand(reader, begin, end, samples=True)
    targets: Any = OnDemand(reader, begin, end, samples=False) if y is None else y[begin:end]
    return Split(x, targets, divisor=getattr(reader, "divisor", 0))
