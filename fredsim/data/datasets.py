"""Loads data sets by name, and divides them into training, validation and test samples.

They are `digits` (which comes with fredsim), `mnist` (IDX files, read or downloaded), `npz:PATH`, `text:PATH`,
`torchvision:CLASS`, and `mishchenko` (fredsim.data.squares). Those that are drawn are in fredsim.data.problems.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from fredsim.data.augment import Augmentation
from fredsim.data.idx import read_mnist
from fredsim.data.kept import kept_with_data
from fredsim.data.npy import digest_of_folder, open_arrays, read_arrays_of
from fredsim.data.npz import read_npz
from fredsim.data.on_demand import MOST_IN_MEMORY, OnDemand, why_rounded
from fredsim.data.partitions.shards import Shards
from fredsim.data.sampling import Sampler, make_sampler
from fredsim.data.sequences import IGNORED, read_text
from fredsim.data.squares import mishchenko_rows
from fredsim.errors import ConfigError, DataError, hint, nearest, option
from fredsim.numerics.streams import Streams
from fredsim.system.files import content_digest
from fredsim.system.given import at_home

__all__ = [
    "DATASETS",
    "DEFAULT_ROWS",
    "MOST_CLASSES",
    "Dataset",
    "Split",
    "Wanted",
    "check_dataset",
    "data_root",
    "divided",
    "file_digest",
    "load_dataset",
    "normalized",
    "read_dataset",
    "split_of_bytes",
    "unscaled",
    "usual_train",
    "why_no_labels",
]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples `x`, float32 (n, inputs), and their labels `y`, int64 (n,), or targets, float32 (n, …).

    Or sequences: tokens `x`, int32 (n, T), and what follows each of them, `y`, int32 (n, T).
    `integers` says of which integers a user's samples were that are used as they are, such as `uint16 up to 4095`;
    `divisor` is what integers were divided by, 0 if they were not. `bounds` are the lowest and the highest token that
    there may be, of samples that are written into x later. `unfit` says why `y`, which is then as it was read, holds no
    labels (fredsim.data.targets); "" if it does.
    """

    x: Any  # NDArray or OnDemand
    y: Any
    integers: str = ""
    divisor: int = 0
    bounds: tuple[int, int] | None = None
    unfit: str = ""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def on_demand(self) -> bool:
        """Whether samples are read when they are needed (fredsim.data.on_demand)."""
        return isinstance(self.x, OnDemand)

    @property
    def targets(self) -> NDArray[Any]:
        """All targets; those that are not in memory are read, and kept if they are as small as what may be there."""
        return self._read if self.y.size * self.y.itemsize <= MOST_IN_MEMORY else np.asarray(self.y)

    @functools.cached_property
    def _read(self) -> NDArray[Any]:
        return np.asarray(self.y)

    def rows(self, which: slice | NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return samples and targets of some rows. Raises DataError for what can no longer be read."""
        if not isinstance(self.x, OnDemand):
            return self.x[which], self.y[which]
        x, y = self.x.rows_with_targets(which)
        return x, y if isinstance(self.y, OnDemand) else self.y[which]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Three splits: `train` and `validation`, the first and the last samples of the training part, and `test`.

    `shape` is that of one sample, such as (1, 28, 28), of which a row of `x` is the C order; () if only rows are known.
    `classes` is 0 if samples have targets instead of labels; of sequences it is the number of tokens. `declared` is how
    many classes a user's class says there are, 0 if it does not. `unused` are the labels below `classes` that no sample
    has. A label `ignored` does not count. `labels` are those that occur in any part, also in rows that are not used,
    ascending; None if they are not known: then `every` are the targets of all rows of each part, if these are more than
    the splits have. `augment` changes the training samples before
    a gradient is computed from them. `fingerprint` tells samples that are read on demand from others. `files` are those
    that a user's class reads, each with its SHA-256.
    """

    train: Split
    validation: Split
    test: Split
    classes: int
    shape: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    ignored: int | None = None
    augment: Augmentation | None = None
    fingerprint: str = ""
    files: tuple[tuple[str, str], ...] = ()

    #: Whether its samples are written anew, in place, while an engine has it: nothing may be kept of them.
    rewritten: ClassVar[bool] = False

    @property
    def staged(self) -> bool:
        """Whether what a gradient is computed from is not simply rows of `train`."""
        on_demand: bool = self.train.on_demand
        return self.augment is not None or on_demand

    labels: NDArray[np.int64] | None = None
    every: tuple[Any, ...] = ()  # of NDArray or OnDemand
    declared: int = 0

    @property
    def sequences(self) -> bool:
        """Whether samples are sequences of tokens, with a label for each."""
        return self.train.y.ndim == 2 and self.train.x.dtype.kind in "iu" and self.train.y.dtype.kind in "iu"

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one sample, or of its row if only rows are known."""
        return self.shape or (self.inputs,)

    @property
    def target(self) -> tuple[int, ...]:
        """The shape of what one sample's output is compared with; () for one label or number."""
        shape: tuple[int, ...] = self.train.y.shape[1:]
        return shape

    @property
    def outputs(self) -> int:
        """How many numbers tell a sample's class, or the class at one of its places; else those of its target."""
        return self.classes or math.prod(self.target)

    @property
    def parts(self) -> tuple[Split, Split, Split]:
        """All splits."""
        return self.train, self.validation, self.test

    @property
    def nbytes(self) -> int:
        """The bytes of the samples and the targets that are in memory."""
        return sum(int(array.nbytes) for part in self.parts for array in (part.x, part.y))

    @property
    def inputs(self) -> int:
        """The number of values of a sample."""
        return int(self.train.x.shape[1])

    def sampler(self, kind: str, batch_size: int, streams: Streams, shards: Shards | None) -> Sampler:
        """Return the sampler of the training rows: fredsim.data.sampling.make_sampler."""
        return make_sampler(kind, len(self.train), batch_size, streams, shards)

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 of all samples and labels, as they are used; of those read on demand, of their files."""
        if self.fingerprint:
            return self.fingerprint
        found = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            found.update(np.ascontiguousarray(part.x).data)
            found.update(np.ascontiguousarray(part.y).data)
        return found.hexdigest()


Parts = tuple[Split, Split, tuple[int, ...]]  # the training part, the test part, the shape of a sample


@dataclass(frozen=True)
class Wanted:
    """How many rows are to train and to validate on, None for the usual number; and what is known of the targets.

    `ignored` is the one that does not count, None: what the data say; `numbers`: they and the samples are numbers.
    """

    train: int | None
    validation: int | None
    ignored: int | None = None
    numbers: bool = False


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data files: `root`, else FREDSIM_DATA, else a folder in the user's cache folder.

    Raises DataError if it is not a folder.
    """
    usual = os.path.join(platformdirs.user_cache_dir("fredsim"), "data")
    chosen = at_home(root or os.environ.get("FREDSIM_DATA") or usual)
    if os.path.exists(chosen) and not os.path.isdir(chosen):
        raise DataError(f"{chosen}: is no folder; name the data root's folder by {option('data-root')} or FREDSIM_DATA")
    return chosen


def load_dataset(
    name: str, train: int | None, validation: int | None, root: Path, sha256: str | None = None, block: int = 0
) -> Dataset:
    """Return a data set with its first `train` and last `validation` training rows; None means the usual number.

    `block` is the length of a row of text. Raises ConfigError for an unknown name or numbers that do not fit, DataError
    for missing or damaged files, and for targets that are neither labels nor those of a set with targets.
    """
    found = read_dataset(name, train, validation, root, sha256, block)
    if unfit := found.train.unfit or found.test.unfit:
        raise DataError(unfit)
    return found


def read_dataset(
    name: str,
    train: int | None,
    validation: int | None,
    root: Path,
    sha256: str | None = None,
    block: int = 0,
    ignored: int | None = None,
    *,
    numbers: bool = False,
) -> Dataset:
    """Return a data set as `load_dataset` does, but with targets of any type and shape (fredsim.data.targets).

    `ignored` is the target of a token that does not count; None: −1. `numbers`: no samples of files of arrays are
    tokens, whatever their targets are.
    """
    check_dataset(name)
    kind, _, path = name.partition(":")
    digest = file_digest(name)
    if sha256 is not None and digest is not None and digest != sha256:
        raise DataError(f"{path}: SHA-256 {digest} is not data.sha256, {sha256}; put the file back, or change the key")
    of_arrays = (ignored, numbers) if kind in {"npy", "npz"} else ()
    return _load(kind, path, digest, root, block, Wanted(train, validation, *of_arrays))


@kept_with_data(4)
def normalized(data: Dataset, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
    """Return a data set whose values are (x − mean) ÷ std in float32, with one number for all or one per channel.

    Raises ConfigError if there are neither 1 nor as many numbers as channels, or if a result is not finite.
    """
    if data.sequences:
        raise ConfigError("data.normalize is given, and the samples are tokens; leave it out")
    for key, numbers in (("mean", mean), ("std", std)):
        channels = data.shape[0] if data.shape else 1
        if len(numbers) not in {1, channels}:
            last = len(data.shape) == 3 and len(numbers) == data.shape[2]
            raise ConfigError(
                f"data.normalize.{key} has {len(numbers)} numbers, and a sample {channels} "
                f"channel{'s' * (channels > 1)} (its shape is {data.shape}); give one number, or one per channel"
                f"{', and save images with their channels first: x.transpose(0, 3, 1, 2)' * last}"
            )
    minus, by = (np.array(numbers, np.float32)[:, None] for numbers in (mean, std))
    groups = max(len(mean), len(std))

    def of(split: Split) -> Split:
        def changed(given: NDArray[Any]) -> NDArray[Any]:
            with np.errstate(all="ignore"):
                x = (given.reshape(len(given), groups, data.inputs // groups) - minus) / by
            if not np.isfinite(x).all():
                raise ConfigError(f"data.normalize.std is {list(std)}; a value is not finite in float32 then, raise it")
            return x.reshape(given.shape)

        return replace(split, x=_changed(split.x, changed))

    return _of_parts(data, of, f"normalize {mean} {std}")


@kept_with_data(4)
def unscaled(data: Dataset) -> Dataset:
    """Return a data set whose samples are the bytes that were divided, or others as they are, in float32."""

    def of(split: Split) -> Split:
        if not split.divisor:
            return split
        by = np.float32(split.divisor)
        return replace(split, x=_changed(split.x, lambda x: np.rint(x * by)), divisor=0)

    return _of_parts(data, of, "unscaled")


def _changed(x: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    """Return samples after a change, of each row alone; those that are read on demand are changed then."""
    return x.changed(change) if isinstance(x, OnDemand) else change(x)


def _of_parts(data: Dataset, of: Callable[[Split], Split], what: str) -> Dataset:
    found = f"{data.fingerprint} {what}" if data.fingerprint else ""
    fingerprint = hashlib.sha256(found.encode()).hexdigest() if found else ""
    train, validation, test = (of(split) for split in (data.train, data.validation, data.test))
    return replace(data, train=train, validation=validation, test=test, fingerprint=fingerprint)


def _nearest(name: str, kind: str) -> str:
    """Return the hint at what an unknown name may mean: a file without its kind before it, or a known name."""
    reader = {".npz": "npz", ".npy": "npy", ".txt": "text"}.get(os.path.splitext(name)[1].lower())
    if reader and ":" not in name:
        return hint(f"{reader}:{os.path.dirname(name) or '.' if reader == 'npy' else name}")
    if os.path.splitext(name)[1].lower() in {".csv", ".json", ".parquet", ".pkl", ".pt", ".h5", ".mat"}:
        return "; save its arrays, and give npz:FILE (docs/data.md)"
    return nearest(kind.rpartition("/")[2], [*DATASETS, *DRAWN])  # Hugging Face's names have an owner before them


def check_dataset(name: str) -> None:
    """Raise ConfigError if there is no data set of this name."""
    kind = name.partition(":")[0]
    if kind in {"python", "torch"}:  # fredsim.data.own looks it up
        return
    if kind not in DATASETS or (kind in {"npy", "npz", "text", "torchvision"}) != (":" in name) or name.endswith(":"):
        near = "" if kind in DATASETS else _nearest(name, kind)
        raise ConfigError(
            f"data.name: unknown data set '{name}'{near} (known: digits, mnist, npz:PATH, npy:FOLDER, "
            f"torchvision:CLASS, text:PATH, {', '.join(DRAWN)}, mishchenko, or your own as "
            "python:package.module:Class or torch:package.module:Dataset)"
        )


def file_digest(name: str) -> str | None:
    """Return the SHA-256 of the file of npz:FILE or text:FILE, or of the files of npy:FOLDER, if it can be read."""
    kind, _, path = name.partition(":")
    if kind == "npy":
        return digest_of_folder(path)
    return content_digest(path) if kind in {"npz", "text"} else None


@functools.lru_cache(maxsize=2)
def _read(
    kind: str, path: str, digest: str | None, root: Path, block: int, ignored: int | None, numbers: bool
) -> Parts:
    del digest  # only part of the cache's key, so that a file that has changed is read again
    match kind:
        case "digits":
            return _digits()
        case "mnist":
            return _mnist(root)
        case "npy":  # large ones: fredsim.data.npy_datasets
            return _of_arrays(path, read_arrays_of(open_arrays(path)), ignored, numbers)
        case "npz":
            return _of_arrays(path, read_npz(path), ignored, numbers)
        case "text":
            return _text(path, block)
        case "torchvision":
            return _torchvision(root, path)
    return _mishchenko()


@functools.lru_cache(maxsize=4)
def _load(kind: str, path: str, digest: str | None, root: Path, block: int, wanted: Wanted) -> Dataset:
    # Rows are views: other numbers of them share memory.
    part, test, shape = _read(kind, path, digest, root, block, wanted.ignored, wanted.numbers)
    ignored, total = wanted.ignored, len(part)
    train, validation = divided(kind, total, wanted.train, wanted.validation)
    tail = slice(total - validation, total)
    first, last = replace(part, x=part.x[:train], y=part.y[:train]), replace(part, x=part.x[tail], y=part.y[tail])
    labels = np.union1d(part.y, test.y) if part.y.dtype.kind == test.y.dtype.kind == "i" else None
    if labels is None or part.unfit or test.unfit:
        return Dataset(first, last, test, 0, shape, labels=labels)
    if part.y.ndim == 2:
        none = IGNORED if ignored is None else ignored
        most = int(max(labels[labels != none].max(initial=0), part.x.max(), test.x.max(initial=0)))
        return Dataset(first, last, test, most + 1, shape, (), none if none in labels else None, labels=labels)
    classes = int(labels[-1]) + 1
    unused = tuple(np.setdiff1d(np.arange(classes), labels, assume_unique=True).tolist())
    return Dataset(first, last, test, classes, shape, unused, labels=labels)


def usual_train(usual: int, total: int, validation: int) -> int:
    """Return how many of `total` rows are trained on: `usual`, or those that validation leaves, if it leaves any."""
    left = total - validation
    return min(usual, left) if left > 0 else usual


def divided(kind: str, total: int, train: int | None, validation: int | None) -> tuple[int, int]:
    """Return how many of a training part's rows are for training and validation. Raises ConfigError for too many."""
    default_train, default_validation = DEFAULT_ROWS.get(kind, (total - total // 6, total // 6))
    validation = default_validation if validation is None else validation
    train = usual_train(default_train, total, validation) if train is None else train
    if train + validation > total:
        raise ConfigError(
            f"data.train {train} and data.validation {validation} overlap: the training part has {total} rows; "
            "lower one of them"
        )
    return train, validation


DIGITS = Path(__file__).with_name("digits.gz")
#: Of the bytes of `digits`, uint8 (1797, 65), pixels before the label.
DIGITS_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"


def _digits() -> Parts:
    """1,797 images of 8×8 in 17 grey levels (Alpaydin and Kaynak 1998), which come with fredsim; x = value/16."""
    try:
        content = gzip.decompress(DIGITS.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{DIGITS}: cannot be read ({error}); install fredsim again") from None
    if hashlib.sha256(content).hexdigest() != DIGITS_SHA256:
        raise DataError(f"{DIGITS}: does not hold the 1,797 digits; install fredsim again")
    table = np.frombuffer(content, np.uint8).reshape(-1, 65)
    x, y = table[:, :-1].astype(np.float32) / np.float32(16), table[:, -1].astype(np.int64)
    return Split(x[:1497], y[:1497], divisor=16), Split(x[1497:], y[1497:], divisor=16), (1, 8, 8)


def _mnist(root: Path) -> Parts:
    """MNIST of LeCun, Cortes and Burges: 60,000 + 10,000 images of 28×28 bytes; x = float32(byte)/255, not centred."""
    arrays = read_mnist(root)
    train, test = (split_of_bytes(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
    return train, test, (1, 28, 28)


def split_of_bytes(pixels: NDArray[np.uint8], labels: NDArray[Any]) -> Split:
    """Return images, uint8 (n, …), as a split: float32(byte)/255 in rows, and the labels."""
    levels = np.arange(256, dtype=np.float32) / np.float32(255)
    return Split(levels[pixels.reshape(len(pixels), math.prod(pixels.shape[1:]))], labels.astype(np.int64), divisor=255)


def _torchvision(root: Path, name: str) -> Parts:
    """Return a class of torchvision.datasets, which reads its own files; x = float32(byte)/255, channels first."""
    from fredsim.data.vision import read_images

    (pixels, labels), (test_pixels, test_labels) = read_images(name, root)
    return split_of_bytes(pixels, labels), split_of_bytes(test_pixels, test_labels), pixels.shape[1:]


MOST_CLASSES = 2**20  # a greater label is damage, or not a class number; the output layer would be that wide


def _of_arrays(path: str, arrays: dict[str, NDArray[Any]], ignored: int | None, numbers: bool) -> Parts:
    """Return the arrays x_train, y_train, x_test, y_test of a user's files; bytes become float32(byte)/255.

    If both are integers, and each sample has as many labels as values, both are tokens, and are kept as they are; but
    not if all samples are `numbers`.
    """
    given = {name: arrays[name] for name in ("x_test", "y_test")}
    if all(one.ndim and not len(one) for one in given.values()):  # np.array([]) has neither type nor shape of a row
        arrays = arrays | {name: arrays[f"{name[0]}_train"][:0] for name, one in given.items() if one.ndim == 1}
    splits = []
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        if x.ndim < 2 or y.ndim < 1 or len(x) != len(y) or 0 in x.shape[1:] or 0 in y.shape[1:]:
            raise DataError(_misshapen(path, part, x, y, numbers))
        if y.dtype.kind not in "biuf" and numbers:
            raise DataError(f"{path}: y_{part} holds {y.dtype}; it must hold real numbers")
        if y.dtype.kind not in "biuf":
            raise DataError(why_no_labels(path, f"y_{part}", y, 0))
        splits.append(_split_of_arrays(path, part, x, y, ignored, numbers))
    train, test = splits
    shape = arrays["x_train"].shape[1:]
    if len(train) == 0:
        raise DataError(f"{path}: x_train has no rows; training needs one at least")
    if train.x.dtype != test.x.dtype and (unfit := train.unfit or test.unfit):  # only one part is of tokens
        raise DataError(unfit)
    if train.y.shape[1:] != test.y.shape[1:]:
        found = f"y_train has shape {train.y.shape} and y_test {test.y.shape}"
        raise DataError(f"{path}: {found}; give both parts one label a row, or both one a token")
    if train.x.shape[1] != test.x.shape[1]:
        lengths = f"{train.x.shape[1]} values in x_train and {test.x.shape[1]} in x_test"
        raise DataError(f"{path}: a sample has {lengths}; they must agree")
    axes = [[length for length in arrays[name].shape[1:] if length > 1] for name in ("x_train", "x_test")]
    if axes[0] != axes[1] and min(map(len, axes)) > 1:  # samples of one axis are taken as flattened ones
        found = f"x_train has shape {arrays['x_train'].shape} and x_test {arrays['x_test'].shape}"
        raise DataError(f"{path}: {found}; give the axes of a sample in one order")
    types = {x.dtype for x in (arrays["x_train"], arrays["x_test"]) if len(x)}
    if np.dtype(np.uint8) in types and len(types) > 1 and train.x.dtype == np.float32:  # only bytes are divided by 255
        found = f"x_train holds {arrays['x_train'].dtype} and x_test {arrays['x_test'].dtype}"
        raise DataError(f"{path}: {found}; save both as bytes (uint8), or both as other numbers")
    return train, test, shape


def _misshapen(path: str, part: str, x: NDArray[Any], y: NDArray[Any], numbers: bool) -> str:
    expected = "expected (n, …) and (n,), or (n, T) and (n, T) of tokens"
    remedy = ""
    if numbers:
        expected = "expected (n, …) of one number a row at least, and as many rows of both"
    elif y.ndim == 2 and len(y) == len(x) and y.shape[1] == 1:
        remedy = f"; save y_{part}.ravel()"
    elif y.ndim == 2 and len(y) == len(x) and y.dtype.kind in "biuf" and _one_hot(y[:1000]):
        remedy = f"; if these are one-hot rows, save y_{part}.argmax(1)"
    elif y.ndim == 1 and x.ndim == 2 and x.shape[1] == len(y):
        remedy = f"; if samples are columns, save x_{part}.T"
    return f"{path}: x_{part} has shape {x.shape} and y_{part} {y.shape}; {expected}{remedy}"


def _one_hot(y: NDArray[Any]) -> bool:
    """Return whether each row (n, classes) has one 1, and zeros."""
    return bool(y.size and ((y == 0) | (y == 1)).all() and (y.sum(axis=1) == 1).all())


def why_no_labels(path: str, name: str, values: NDArray[Any], least: int = 0) -> str:
    """Return why values are no integers from `least` to the greatest that a class may have; "" if they are."""
    if values.dtype.kind in "iu" and (not values.size or least <= values.min() <= values.max() < MOST_CLASSES):
        return ""
    known = f" from {values.min()} to {values.max()}" if values.size and values.dtype.kind in "iuf" else ""
    what = f"it must hold integers from {least} to {MOST_CLASSES - 1}"
    return f"{path}: {name} holds {values.dtype}{known}; {what}"


def _split_of_arrays(
    path: str, part: str, x: NDArray[Any], y: NDArray[Any], ignored: int | None, numbers: bool
) -> Split:
    """Return samples with their labels, tokens with theirs, or samples with other targets; see Split.unfit."""
    if y.dtype.kind == "b" and y.ndim == 1:
        y = y.astype(np.int64)  # two classes
    if y.ndim == 1:
        unfit = why_no_labels(path, f"y_{part}", y, 0)
    elif numbers or x.ndim > 2 or y.shape != x.shape:
        unfit = _misshapen(path, part, x, y, numbers)
    else:
        counted, least = (y, IGNORED) if ignored is None else (y[y != ignored], 0)
        unfit = why_no_labels(path, f"y_{part}", counted, least) or why_no_labels(path, f"x_{part}", x, 0)
        if not unfit:
            return Split(x.astype(np.int32, order="C"), y.astype(np.int32, order="C"))
    if not numbers and (rounded := why_rounded(np.arange(len(x)), x)):
        raise DataError(why_no_labels(path, f"x_{part}", x) if x.shape == y.shape else f"{path}: x_{part}: {rounded}")
    found = _split_of_numbers(path, part, x)
    whole = y.dtype.kind in "biu" and (y.dtype != np.uint64 or not y.size or y.max() < 2**63)
    return replace(found, y=y.astype(np.int64, order="C") if whole else y, unfit=unfit)


def _split_of_numbers(path: str, part: str, x: NDArray[Any]) -> Split:
    """Return samples, one in a row, as float32, without targets. Raises DataError if they are no finite numbers."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{path}: x_{part} holds {x.dtype}; it must hold real numbers")
    with np.errstate(over="ignore"):
        flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float32, order="C")
    if not np.isfinite(flat).all():
        raise DataError(f"{path}: x_{part} holds a value that is not finite in float32; remove or replace it")
    nothing = np.zeros(len(x), np.int64)
    if x.dtype == np.uint8:
        return Split(flat / np.float32(255), nothing, divisor=255)
    large = x.dtype.kind in "iu" and x.size > 0 and x.max() > 1
    return Split(flat, nothing, f"{x.dtype} up to {x.max()}" if large else "")


def _text(path: str, block: int) -> Parts:
    """Return rows of `block` characters of a text; the last tenth is for testing."""
    x, y = read_text(path, block)
    cut = len(x) - len(x) // 10
    return Split(x[:cut], y[:cut]), Split(x[cut:], y[cut:]), (block,)


def _mishchenko() -> Parts:
    """Return the least squares of Mishchenko et al. 2022, and rows to validate and test that are drawn after them."""
    x, y = mishchenko_rows()
    return Split(x[:11000], y[:11000]), Split(x[11000:], y[11000:]), ()


DATASETS = ("digits", "mnist", "npy", "npz", "text", "torchvision", "mishchenko")  # which are read
DRAWN = ("modular", "glyphs", "least_squares", "quadratic")  # fredsim.data.problems

#: The default numbers of training and validation rows; for other data sets, the last sixth is for validation.
DEFAULT_ROWS = {"digits": (1200, 297), "mnist": (50000, 10000), "mishchenko": (10000, 1000)}
