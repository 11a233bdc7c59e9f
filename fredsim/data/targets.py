"""What targets are to a loss: classes, numbers, or whatever a user's own loss takes; and data sets that are fit for it.

A data set as it is read has targets of any real type and shape (n, …). Before a run they become what its loss takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import MOST_CLASSES, Dataset, Split
from fredsim.data.kept import kept_with_data
from fredsim.data.on_demand import OnDemand, why_beyond
from fredsim.errors import DataError

__all__ = ["Targets", "brought_together", "fitted"]

PARTS = ("train", "validation", "test")
HINT = "; for targets that are no classes give a loss: mse, bce or your own (docs/losses.md)"


@dataclass(frozen=True)
class Targets:
    """What a loss takes.

    Attributes:
        kind: `classes`, integers from 0; `numbers`, of any size; `shares`, from 0 to 1; `any`, integers or numbers.
        positions: whether a sample that is no sequence of tokens may have several classes, one at each position.
        ignored: a class that does not count; None: what the data set says.

    """

    kind: Literal["classes", "numbers", "shares", "any"] = "classes"
    positions: bool = False
    ignored: int | None = None

    @property
    def of_numbers(self) -> bool:
        """Whether samples are numbers, too, in any case."""
        return self.kind in {"numbers", "shares"}


@kept_with_data(8)
def fitted(data: Dataset, targets: Targets, name: str) -> Dataset:
    """Return a data set whose targets are what a loss takes: classes int64 or, of tokens, int32; numbers float32.

    `name` is that of the data set, for messages. Raises DataError if targets are of another kind, or not finite.
    """
    where = name.partition(":")[2] or name
    if targets.kind == "classes":
        return _with_classes(data, targets, where)
    if targets.kind == "any" and data.train.y.dtype.kind in "biu" and data.test.y.dtype.kind in "biu":
        return _of_parts(data, lambda split, part: _integers_of(split, f"{where}: y of {part} rows"))
    found = _of_parts(data, lambda split, part: _numbers_of(split, f"{where}: y of {part} rows", targets.kind))
    found = replace(found, classes=0, unused=(), ignored=None)
    return found if targets.kind == "any" else _with_numbers(found)


def _with_classes(data: Dataset, targets: Targets, where: str) -> Dataset:
    if targets.ignored is None and not targets.positions and (data.train.unfit or data.test.unfit):
        raise DataError((data.train.unfit or data.test.unfit) + (_uncounted(data) or HINT))
    if targets.ignored is None and data.classes:
        return data
    if any(split.y.dtype.kind not in "iu" for split in data.parts):
        raise DataError(f"{where}: its targets are {data.train.y.dtype}; cross_entropy takes classes, integers{HINT}")
    ignored = data.ignored if targets.ignored is None else targets.ignored
    changed = replace(_of_parts(data, _integers), ignored=ignored)
    found = data.labels
    if found is None:
        if targets.ignored is not None and (data.declared or (data.sequences and data.ignored == ignored)):
            return replace(changed, classes=data.declared or data.classes)  # each row is checked when it is read
        every = data.every or [split.y for split in data.parts]
        found = np.unique(np.concatenate([np.unique(y[rows]) for y in every for rows in _blocks(y)]))
    counted = found[found != ignored]
    if not len(counted) or counted[0] < 0 or counted[-1] >= MOST_CLASSES:
        known = f"from {counted[0]} to {counted[-1]}" if len(counted) else "that are all ignored"
        what = f"its classes are integers {known}; they must lie in 0 … {MOST_CLASSES - 1}"
        raise DataError(f"{where}: {what}, but for one that loss.ignore_index names")
    largest = max(int(counted[-1]), data.declared - 1)
    unused: tuple[int, ...] = ()
    if data.sequences:
        largest = max(largest, data.classes - 1)
    elif data.train.y.ndim == 1:
        unused = tuple(np.setdiff1d(np.arange(largest + 1), found, assume_unique=True).tolist())
    return replace(changed, classes=largest + 1, unused=unused)


def _uncounted(data: Dataset) -> str:
    """Return what to give if classes have one number below 0, such as the −100 of PyTorch; "" if they have not."""
    known = [split.y for split in data.parts if isinstance(split.y, np.ndarray) and split.y.dtype.kind == "i"]
    below = sorted({int(number) for y in known for number in np.unique(y[y < 0])})
    if len(below) != 1:
        return ""
    return f"; if {below[0]} is for what does not count, give loss: {{name: cross_entropy, ignore_index: {below[0]}}}"


def _of_parts(data: Dataset, change: Any) -> Dataset:
    """Return a data set with other targets in each part: change(split, name of the part)."""
    named = zip(PARTS, data.parts, strict=True)
    train, validation, test = (replace(split, y=change(split, part), unfit="") for part, split in named)
    return replace(data, train=train, validation=validation, test=test)


def _integers(split: Split, part: str) -> Any:
    del part
    return split.y if split.y.dtype in {np.dtype(np.int32), np.dtype(np.int64)} else split.targets.astype(np.int64)


def _integers_of(split: Split, what: str) -> Any:
    """Return a split's targets as int64, or int32. Raises DataError, which begins with `what`, for larger ones."""
    if why := why_beyond(np.arange(len(split)), split.y, np.dtype(np.int64)):
        raise DataError(f"{what}: {why}")
    return _integers(split, "")


def _blocks(y: Any) -> Iterator[slice]:
    """Yield which targets are looked at together: all, unless they are not in memory."""
    return y.blocks() if isinstance(y, OnDemand) else iter([slice(0, len(y))])


def _numbers_of(split: Split, what: str, kind: str) -> Any:
    """Return a split's targets as `_numbers` does; those that are not in memory, and are float32, stay where they are.

    They are looked at now, once.
    """
    if not isinstance(split.y, OnDemand) or split.y.dtype != np.float32:
        return _numbers(split.targets, what, kind)
    for rows in _blocks(split.y):
        _numbers(split.y[rows], what, kind, rows.start)
    return split.y


def _numbers(y: NDArray[Any], what: str, kind: str, first: int = 0) -> NDArray[np.float32]:
    """Return targets as float32. Raises DataError, which begins with `what`, if they are not such numbers.

    `first` is the number of the first one.
    """
    if y.dtype.kind not in "biuf":
        raise DataError(f"{what} holds {y.dtype}; it must hold real numbers")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(y, np.float32)
    if len(places := np.argwhere(~np.isfinite(found))):
        rows = len(np.unique(places[:, 0]))
        more = f"; {rows:,} rows have such targets" if rows > 1 else ""
        value = y[tuple(places[0])]
        raise DataError(
            f"{what}: row {first + places[0, 0]} holds {value}, not finite in float32{more}: remove or replace it"
        )
    if kind == "shares" and found.size and not 0 <= found.min() <= found.max() <= 1:
        remedy = "bce takes targets from 0 to 1; give loss: cross_entropy for classes, mse for other numbers"
        raise DataError(f"{what} holds {y.min()} to {y.max()}; {remedy}")
    return found


def brought_together(output: tuple[int, ...], target: tuple[int, ...]) -> str:
    """Return how outputs and targets of these shapes get one shape, if they differ in axes of length 1 alone; else "".

    NumPy and PyTorch broadcast such arrays: of (n, 1) and (n,) each output meets each target.
    """
    ours, theirs = ([length for length in shape if length > 1] for shape in (output, target))
    if output == target or ours != theirs or not output or not target or output[0] != target[0]:
        return ""
    if output == (*target, 1):
        return f"take output[{':, ' * len(target)}0], or save y as ({', '.join(['n', *map(str, output[1:])])})"
    return "take output.reshape(y.shape)"


def _with_numbers(data: Dataset) -> Dataset:
    """Return a data set whose samples are numbers, not tokens, as they are where targets are numbers."""
    if all(split.x.dtype.kind not in "iu" for split in data.parts):
        return data
    train, validation, test = (replace(split, x=split.x.astype(np.float32)) for split in data.parts)
    return replace(data, train=train, validation=validation, test=test)
