"""Data sets by a user's own class, `python:package.module:Class`, or PyTorch's, `torch:package.module:Dataset`.

Whatever it gives is checked when it is given. Small sets are read once, into memory; of others, minibatches are read
when they are needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import MOST_CLASSES, Dataset, Wanted, divided
from fredsim.data.kept import kept_with_data
from fredsim.data.npy_datasets import of_readers
from fredsim.data.on_demand import MOST_IN_MEMORY, InMemory, Reader, why_beyond
from fredsim.data.sequences import IGNORED
from fredsim.errors import ConfigError, DataError, FredsimError, shown
from fredsim.numerics.arrays import Integers
from fredsim.plugins.failures import failing, line_of, message_of
from fredsim.plugins.guarded import array_of, is_integer
from fredsim.plugins.modules import check_torch, import_callable
from fredsim.plugins.named_files import own_files
from fredsim.plugins.seeding import seeded
from fredsim.system.files import content_digest, digest_of_digests, digests_of_files, files_named

__all__ = ["PREFIXES", "digest_of_named", "find_own", "load_own"]

PREFIXES = ("python:", "torch:")
PARTS = ("train", "validation", "test")
NEEDED = ("shape", "dtype", "len", "rows")
FORM = "a data set needs shape, dtype, len(part) and rows(part, numbers)"


def find_own(name: str) -> Any:
    """Return the class or function that a name refers to. Raises ConfigError if there is none, or no PyTorch."""
    prefix = next(one for one in PREFIXES if name.startswith(one))
    if prefix == "torch:":
        check_torch("data.name", name)
    return import_callable(name, f"{prefix}package.module:Class", "data.name", "a class, or a function", prefix=prefix)


def digest_of_named(hyper: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the file that keys name; of several, that of the lines `sha256sum` prints of them."""
    try:
        digests = {file: content_digest(file) for file in files_named(hyper)}
    except ValueError:  # a name that no file can have
        return None
    if len(digests) < 2:
        return next(iter(digests.values()), None)
    return digest_of_digests(digests)


def load_own(
    name: str,
    hyper: Mapping[str, Any],
    train: int | None,
    validation: int | None,
    ignored: int | None = None,
    *,
    numbers: bool = False,
) -> Dataset:
    """Return the data set of a user's class, made with these keyword arguments.

    `ignored` is the target that does not count; None: −1 where a sample has several, else none. `numbers`: samples are
    no tokens, and their targets no classes.
    Raises ConfigError if there is no such class, or it cannot be made; DataError if what it gives is no data set.
    """
    own, digest = find_own(name), digest_of_named(hyper)
    try:
        key = json.dumps(hyper, sort_keys=True)
    except TypeError:
        key = repr(hyper)
    return _load(name, own, key, digest, Given(dict(hyper)), Wanted(train, validation, ignored, numbers))


@dataclass(frozen=True)
class Given:
    """Keyword arguments, which are all equal: the text beside them in a cache's key tells them apart."""

    arguments: dict[str, Any] = field(compare=False)


@kept_with_data(4, reads_own=True)
def _load(name: str, own: Any, key: str, digest: str | None, given: Given, wanted: Wanted) -> Dataset:
    del digest  # only part of the cache's key
    with _failing(name, "cannot be made", ConfigError), seeded(0):
        if name.startswith("torch:"):
            from fredsim.data.torch_rows import TorchRows

            made: Any = TorchRows(name, own, given.arguments)
        else:
            made = own(**given.arguments)
        missing = [attribute for attribute in NEEDED if not hasattr(made, attribute)]

    def refused(what: str) -> DataError:
        return DataError(f"{name}: {what}")

    files = digests_of_files([*files_named(given.arguments), *own_files(made, refused)], refused)
    if missing:
        raise ConfigError(f"data.name: {name} has no {missing[0]}; {FORM}")
    readers: dict[str, Reader] = {}
    for part in PARTS:
        if count := _length(name, made, part):
            readers[part] = OwnReader(name, made, part, count, readers.get("train"), files, wanted)
    if "train" not in readers:
        raise DataError(f"{name}: len('train') is 0; training needs one row at least")
    total = sum(4 * reader.count * math.prod(reader.shape) for reader in readers.values())
    if total <= MOST_IN_MEMORY:
        readers = {part: InMemory(reader) for part, reader in readers.items()}
    classes = _classes(name, made)
    kept = [*files.values()]  # not where they are: a folder may be moved
    identity = json.dumps([name, key, kept, {part: _identity(reader) for part, reader in readers.items()}])
    rows = _rows(readers, wanted.train, wanted.validation)
    found = of_readers(name, readers, rows, identity, None if wanted.numbers else classes, wanted.ignored)
    return replace(found, files=tuple(files.items()))


def _rows(readers: Mapping[str, Reader], train: int | None, validation: int | None) -> tuple[int, int]:
    """Return how many rows are for training and validation. Raises ConfigError for too many."""
    if "validation" not in readers:
        return divided("own", readers["train"].count, train, validation)
    counts = []
    for part, wanted in (("train", train), ("validation", validation)):
        count = readers[part].count
        if wanted is not None and wanted > count:
            raise ConfigError(f"data.{part} is {wanted}; there are {count} such rows: lower it")
        counts.append(count if wanted is None else wanted)
    return counts[0], counts[1]


def _identity(reader: Reader) -> list[Any]:
    """Return what tells a reader's samples from others without reading them all: some rows of it."""
    if isinstance(reader, InMemory):
        return []
    some = np.unique(np.linspace(0, reader.count - 1, 16).astype(np.int64))
    x, y = reader.rows(some)
    return [reader.count, reader.shape, hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()]


def _failing(name: str, what: str, kind: type[ConfigError | DataError]) -> AbstractContextManager[None]:
    """Turn an exception of the user's code in a `with` block into one error; `what` failed."""

    def made(error: BaseException) -> FredsimError:
        where = f"data.name: {name}" if kind is ConfigError else name
        return kind(f"{where}: {what} ({type(error).__name__}: {message_of(error)}){line_of(error)}")

    return failing(made, ConfigError, DataError, MemoryError)


def _length(name: str, made: Any, part: str) -> int:
    with _failing(name, f"len('{part}') failed", DataError):
        count = made.len(part)
    if not is_integer(count) or not 0 <= count < 2**31:
        raise DataError(f"{name}: len('{part}') is {shown(count)}; it must be a whole number from 0 to 2³¹ − 1")
    return int(count)


def _classes(name: str, made: Any) -> int | None:
    with _failing(name, "its classes cannot be had", DataError):
        found = getattr(made, "classes", None)
    if found is None or (is_integer(found) and 0 < found <= MOST_CLASSES):
        return None if found is None else int(found)
    raise DataError(f"{name}: its classes are {shown(found)}; give their number, or leave it out")


class OwnReader(Reader):
    """Reads rows of one part by a user's object, and checks each."""

    def __init__(
        self,
        name: str,
        made: Any,
        part: str,
        count: int,
        train: Reader | None,
        files: Mapping[str, str],
        wanted: Wanted,
    ) -> None:
        """Try some rows; those of a part after `train` must be like its rows. `files` must stay as they are.

        Raises DataError if the object's rows are no samples, or differ the second time.
        """
        self.name, self.count, self._made, self._part = name, count, made, part
        self._digests, self._files = files, {file: _state(file) for file in files}
        with _failing(name, "its shape and dtype are no shape and type", DataError):
            shape = tuple(made.shape)
            self._given = np.dtype(made.dtype)
        if not shape or not all(is_integer(length) and length > 0 for length in shape):
            what = "it must be of whole numbers above 0, such as (28, 28)"
            raise DataError(f"{name}: its shape is {shown(shape)}; {what}")
        self.shape = tuple(map(int, shape))
        if self._given.kind not in "biuf":
            raise DataError(f"{name}: its dtype is {self._given}; samples must be real numbers")
        self._target_given: tuple[tuple[int, ...], np.dtype[Any]] | None = None
        y = self._try([0, count - 1][:count])
        if count > 2:  # several at once, the last first
            self._try(np.unique(np.linspace(0, count - 1, 8).astype(int))[::-1].tolist())
        self.target = y.shape[1:]
        is_bytes, whole = self._given == np.uint8, y.dtype.kind in "iu"
        one_each = whole and self.target == self.shape  # a label for each value, as tokens have
        tokens = (
            not wanted.numbers and self._given.kind in "iu" and (not is_bytes or (one_each and len(self.shape) == 1))
        )
        self.dtype = np.dtype(np.int32 if tokens else np.float32)
        self.divisor = 255 if is_bytes and not tokens else 0
        labels = np.int32 if self.target and tokens else np.int64
        self.target_dtype = np.dtype(np.float32 if wanted.numbers or y.dtype.kind == "f" else labels)
        self._classes = None if wanted.numbers else _classes(name, made)
        self._tokens = self._classes if one_each else None  # those of which each sample has one are no tokens
        self._ignored = IGNORED if wanted.ignored is None and self.target else wanted.ignored
        if train is not None and (train.target != self.target or train.target_dtype != self.target_dtype):
            what = f"{part} rows have targets {self.target_dtype} {self.target}"
            raise DataError(f"{name}: {what}, and train rows {train.target_dtype} {train.target}; they must agree")

    def _try(self, numbers: Sequence[int]) -> NDArray[Any]:
        """Return the targets of some rows. Raises DataError if rows are others alone, or the second time."""
        found = self._raw(np.array(numbers))
        for place, number in enumerate(numbers):
            for together, alone in zip(found, self._raw(np.array([number])), strict=True):
                if not np.array_equal(together[place], alone[0], equal_nan=together.dtype.kind == "f"):
                    what = f"row {number} of {self._part} is another the second time"
                    remedy = "it must always be the same; change samples at random by data.augment"
                    raise DataError(f"{self.name}: {what}; {remedy}")
        return found[1]

    def _raw(self, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return rows as the object gives them. Raises DataError unless they have the right shapes and types."""
        for file, state in [*self._files.items()]:
            if (present := _state(file)) == state:
                continue
            if content_digest(file) != self._digests[file]:
                raise DataError(f"{file}: has changed since the run began; leave it as it is, and run it again")
            self._files[file] = present  # it was written again, as it was
        what = f"rows('{self._part}', …)"
        with _failing(self.name, f"{what} failed for the rows {_shortly(numbers)} of {self.count}", DataError):
            given = self._made.rows(self._part, numbers.copy())
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise DataError(f"{self.name}: {what} gave a {type(given).__name__}; it must give x and y")
        with _failing(self.name, f"{what} gave no arrays", DataError):
            masked = [letter for letter, one in zip("xy", given, strict=True) if isinstance(one, np.ma.MaskedArray)]
            x, y = (array_of(one) for one in given)
        if masked:
            remedy = "give .filled(0), or another value for what is masked"
            raise DataError(f"{self.name}: {what} gave {masked[0]} as a masked array; {remedy}")
        wanted = (len(numbers), *self.shape)
        if x.shape != wanted or x.dtype != self._given:
            found = f"x {x.dtype} {x.shape} for {len(numbers)} rows"
            raise DataError(f"{self.name}: {what} gave {found}; by its shape and dtype it is {self._given} {wanted}")
        if y.ndim < 1 or len(y) != len(numbers) or y.dtype.kind not in "biuf":
            raise DataError(f"{self.name}: {what} gave y {y.dtype} {y.shape} for {len(numbers)} rows; expected numbers")
        if self._target_given is None:
            self._target_given = y.shape[1:], y.dtype
        elif (y.shape[1:], y.dtype) != self._target_given:
            shape, dtype = self._target_given
            expected = f"and earlier {dtype} {(len(numbers), *shape)}"
            raise DataError(f"{self.name}: {what} gave y {y.dtype} {y.shape}, {expected}; they must agree")
        return x, y

    def rows(self, numbers: Integers) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return rows as they are used."""
        if not len(numbers):
            return np.empty((0, math.prod(self.shape)), self.dtype), np.empty((0, *self.target), self.target_dtype)
        raw, y = self._raw(numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            x = raw.reshape(len(raw), math.prod(self.shape)).astype(self.dtype)
            targets = y.astype(self.target_dtype)
        for letter, values in (("x", x), ("y", targets)):
            if (
                values.dtype.kind == "f"
                and not (finite := np.isfinite(values).reshape(len(values), -1).all(axis=1)).all()
            ):
                row = numbers[np.flatnonzero(~finite)[0]]
                what = f"{letter} of row {row} of {self._part} holds a value that is not finite in float32"
                raise DataError(f"{self.name}: {what}; remove or replace it")
        tokens = self.dtype == np.int32
        if tokens:
            self._check(numbers, "x", raw, self._tokens, None)
            if self.bounds is not None and x.size and not self.bounds[0] <= x.min() <= x.max() <= self.bounds[1]:
                what = f"x of {self._part} rows holds integers from {x.min()} to {x.max()}"
                now = f"and from {self.bounds[0]} to {self.bounds[1]} when the run began"
                raise DataError(f"{self.name}: {what}, {now}; rows must always be the same")
        if targets.dtype.kind in "iu" and (self._classes or (tokens and self.target)):
            classes = self._classes
            if classes is None and self.bounds is not None and self.target == self.shape:  # those that were found
                classes = self.bounds[1] + 1
            self._check(numbers, "y", y, classes, self._ignored)
        elif what := why_beyond(numbers, y, self.target_dtype):
            raise DataError(f"{self.name}: y of {self._part} rows: {what}")
        if self.divisor:
            x /= np.float32(self.divisor)
        return x, targets

    def _check(
        self, numbers: Integers, letter: str, values: NDArray[Any], classes: int | None, ignored: int | None
    ) -> None:
        """Raise DataError if integers are not those of tokens or classes; one that is ignored may be any."""
        most = classes or MOST_CLASSES
        if values.min() < 0 or values.max() >= most:
            outside = (((values < 0) | (values >= most)) & (values != ignored)).reshape(len(values), -1).any(axis=1)
            if not outside.any():
                return
            row = numbers[np.flatnonzero(outside)[0]]
            what = f"{letter} of row {row} of {self._part} holds integers from {values.min()} to {values.max()}"
            of = f"with {classes} classes" if classes else "of tokens and classes"
            least = IGNORED if ignored == IGNORED else 0
            also = f", or be loss.ignore_index, {ignored}" if ignored not in {None, IGNORED} else ""
            if letter == "y" and ignored is None and values.min() < 0:
                also = "; what does not count is named by loss: {name: cross_entropy, ignore_index: …}"
            raise DataError(f"{self.name}: {what}; {of} they must lie in {least} to {most - 1}{also}")


def _state(file: str) -> tuple[int, int]:
    try:
        found = os.stat(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error}); put it back") from None
    return found.st_size, found.st_mtime_ns


def _shortly(numbers: Integers) -> str:
    few = ", ".join(map(str, numbers[:3].tolist()))
    return f"{few}, …" if len(numbers) > 3 else few
