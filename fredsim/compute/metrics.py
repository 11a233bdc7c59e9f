"""What else than loss and error is measured of a network's outputs, in NumPy, for every backend and for PyTorch.

The outputs of samples, float32 (n, …), come in blocks. Where all backends give the same outputs, they give the same
values. Less is better in each, unless its experiment says that of a function of the user's own more is.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine, Part
from fredsim.data.datasets import Dataset
from fredsim.data.kept import kept_with_data
from fredsim.data.targets import brought_together
from fredsim.errors import ConfigError, SimulationError, visible
from fredsim.numerics import oracle
from fredsim.numerics.elementary import exp64
from fredsim.numerics.given_arrays import copied_targets
from fredsim.numerics.oracle import mean64
from fredsim.plugins.failures import briefly, failing, is_interrupt
from fredsim.plugins.guarded import python_number
from fredsim.plugins.seeding import seeded

__all__ = ["Metric", "Metrics", "OwnMetric", "PerClass", "Perplexity", "TopK", "checked_columns"]

Array = NDArray[Any]
MOST_CLASSES = 1000  # the most classes of which each has a column


class Metric(ABC):
    """A measure of outputs, or several, each with a column."""

    #: Whether outputs must be logits of classes.
    of_classes = True

    def check(self, dataset: Dataset, parts: Sequence[Part]) -> None:
        """Raise ConfigError if these parts of a data set cannot be measured so."""
        del dataset, parts

    @abstractmethod
    def columns(self, dataset: Dataset) -> tuple[str, ...]:
        """Return the names of its values."""

    @abstractmethod
    def block(self, output: Array, y: Array, dataset: Dataset) -> Array:
        """Return what `values` needs of a block of samples, in rows."""

    @abstractmethod
    def values(self, found: Array, y: Array) -> list[float]:
        """Return the values of all samples; `found` are the rows of all blocks, one after the other."""


def _flat(output: Array, y: Array, dataset: Dataset) -> tuple[Array, Array, Array]:
    """Return logits (n·places, classes), labels (n·places,), 0 where a place does not count, and whether it does."""
    labels = y.reshape(-1)
    counts = np.ones(len(labels), bool) if dataset.ignored is None else labels != dataset.ignored
    return output.reshape(len(labels), -1), np.where(counts, labels, 0), counts


@dataclass(frozen=True)
class TopK(Metric):
    """The share of samples whose class is not among those of the k largest outputs; of equal ones the lower classes."""

    k: int

    def check(self, dataset: Dataset, parts: Sequence[Part]) -> None:
        """Refuse as many classes as all."""
        if self.k >= dataset.classes:
            what = f"the data have {dataset.classes} classes, so it would always be 0"
            raise ConfigError(f"evaluation.metrics: top{self.k}: {what}; leave it out, or lower its number")

    def columns(self, dataset: Dataset) -> tuple[str, ...]:
        """Return top5, and the like."""
        return (f"top{self.k}",)

    def block(self, output: Array, y: Array, dataset: Dataset) -> Array:
        """Return the share of wrong places of each sample, float64 (n,)."""
        logits, labels, counts = _flat(output, y, dataset)
        own, places = logits[np.arange(len(labels)), labels][:, None], np.arange(logits.shape[1])
        beaten = (own > logits) | ((own == logits) & (places >= labels[:, None]))  # NaN beats nothing
        wrong = (logits.shape[1] - beaten.sum(axis=1) >= self.k) & counts
        of_sample = counts.reshape(len(y), -1).sum(axis=1)
        return np.asarray(wrong.reshape(len(y), -1).sum(axis=1) / np.maximum(of_sample, 1))

    def values(self, found: Array, y: Array) -> list[float]:
        """Return the mean."""
        return [mean64(found)]


class Perplexity(Metric):
    """exp of the mean over all places that count of −log p, p being the probability of the place's class."""

    def columns(self, dataset: Dataset) -> tuple[str, ...]:
        """Return its name."""
        return ("perplexity",)

    def block(self, output: Array, y: Array, dataset: Dataset) -> Array:
        """Return −log p of each place, float32 (n, places); −1 where it does not count."""
        logits, labels, counts = _flat(output, y, dataset)
        losses, _, _ = oracle.softmax_cross_entropy(logits, labels)
        return np.asarray(np.where(counts, losses, np.float32(-1)).reshape(len(y), -1))

    def values(self, found: Array, y: Array) -> list[float]:
        """Return exp of the mean in float64; NaN if no place counts."""
        counted = found[~(found < 0)]
        return [float(exp64(np.float64(mean64(counted)))) if counted.size else math.nan]


class PerClass(Metric):
    """The error of each class: the share of its places whose largest output is another class's."""

    @staticmethod
    @kept_with_data(1)  # each block asks for them, and to look for those of tokens takes a pass over all rows
    def _classes(dataset: Dataset) -> list[int]:
        """Return the classes that count; of tokens those that some row has as a label."""
        found = set(range(dataset.classes)) - {dataset.ignored}
        if dataset.sequences:
            found &= {int(label) for split in dataset.parts for label in np.unique(split.targets)}
        return sorted(found)

    def check(self, dataset: Dataset, parts: Sequence[Part]) -> None:
        """Refuse very many classes, and parts that have no sample of some class."""
        if dataset.classes > MOST_CLASSES:
            what = f"the data have {dataset.classes:,} classes, which would be as many columns"
            raise ConfigError(f"evaluation.metrics: per_class: {what}; {MOST_CLASSES:,} are the most: leave it out")
        for part in parts:
            labels = getattr(dataset, part).targets.reshape(-1)
            missing = np.setdiff1d(self._classes(dataset), labels)
            if len(labels) and len(missing):
                more = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
                named = ", ".join(map(str, missing[:5])) + more
                what = f"no {part} row has the class {named}, whose error would be of nothing"
                raise ConfigError(f"evaluation.metrics: per_class: {what}; give more {part} rows, or leave it out")

    def columns(self, dataset: Dataset) -> tuple[str, ...]:
        """Return error_class_0, error_class_1, and so on."""
        return tuple(f"error_class_{label}" for label in self._classes(dataset))

    def block(self, output: Array, y: Array, dataset: Dataset) -> Array:
        """Return how many places each class has, and how many of them are wrong, int64 (1, 2, classes)."""
        logits, labels, counts = _flat(output, y, dataset)
        wrong = counts & (oracle.largest(logits) != labels)
        found = [np.bincount(labels[some], minlength=dataset.classes) for some in (counts, wrong)]
        return np.stack(found)[None][:, :, self._classes(dataset)]

    def values(self, found: Array, y: Array) -> list[float]:
        """Return the share of each class."""
        places, wrong = found.sum(axis=0)
        return [float(bad) / float(all_) if all_ else math.nan for bad, all_ in zip(wrong, places, strict=True)]


@dataclass(frozen=True)
class OwnMetric(Metric):
    """A user's function of the outputs of all samples, float32 (n, …), and their targets, which returns a number.

    What it draws from the generators that everybody shares (a bootstrap, a permutation) is the same in each call.
    """

    of_classes = False

    name: str
    column: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def columns(self, dataset: Dataset) -> tuple[str, ...]:
        """Return its column."""
        return (self.column,)

    def block(self, output: Array, y: Array, dataset: Dataset) -> Array:
        """Return a copy of the outputs, which the next block may overwrite."""
        return output.copy()

    def values(self, found: Array, y: Array) -> list[float]:
        """Call the function, with copies; NaN if it fails on outputs that are not finite.

        Raises SimulationError if it fails on finite ones, or returns something else than a number.
        """
        key = f"evaluation.metrics: {self.name}"
        shapes = f"outputs {found.shape} and targets {y.shape}, arrays of NumPy"
        try:
            with failing(lambda error: SimulationError(f"{key} failed on {shapes}: {briefly(error)}")):
                value = self._called(found, y)
        except SimulationError:
            if np.isfinite(found).all():
                raise
            return [math.nan]
        number = _real(value)
        if number is None:
            raise SimulationError(f"{key} returned {_described(value)}; it must return one real number")
        if not math.isfinite(number) and np.isfinite(found).all():
            raise SimulationError(f"{key} returned {number} for outputs that are all finite; return a finite number")
        if remedy := brought_together(found.shape, y.shape):
            self._check_broadcast(number, found, y, f"; {remedy}")
        return [number]

    def check_again(self, found: Array, y: Array, values: Sequence[float]) -> None:
        """Raise SimulationError if the function returns something else than `values` for the same outputs."""
        if (again := self.values(found, y)) != [*values] and np.isfinite(found).all():
            what = f"returned {values[0]} and then {again[0]} for the same outputs"
            remedy = "it must depend on what it is given alone: let it draw from np.random, or by a seed of its own"
            raise SimulationError(f"evaluation.metrics: {self.name} {what}; {remedy}")

    def _called(self, output: Array, y: Array) -> Any:
        """Return what the function returns for copies."""
        with seeded(0):
            return self.function(output.copy(), copied_targets(y), **self.arguments)

    def _check_broadcast(self, number: float, output: Array, y: Array, remedy: str) -> None:
        """Raise SimulationError if the function meets each output with each target, where one has one axis more.

        Then it returns one other number if outputs have the targets' shape, and if targets have the outputs'. One that
        takes output[..., 0] itself returns two, or fails.
        """
        others = []
        for given, target in ((output.reshape(y.shape), y), (output, y.reshape(output.shape))):
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    others.append(_real(self._called(given, target)))
            except BaseException as error:  # of any type: the function is the user's
                if is_interrupt(error):
                    raise
                return
        rounding = 1e-5 * float(max(np.abs(output).max(), np.abs(y).max()))
        one, other = others
        if one is None or other is None or not math.isfinite(one) or not math.isfinite(number):
            return
        if math.isclose(one, other, rel_tol=1e-3, abs_tol=rounding) and not math.isclose(
            one, number, rel_tol=1e-3, abs_tol=rounding
        ):
            shapes = f"outputs {output.shape} and targets {y.shape}, of which each meets each"
            what = f"returned {number:g} for {shapes}, and {one:g} for outputs of the targets' shape"
            raise SimulationError(f"evaluation.metrics: {self.name} {what}{remedy}")


def _real(value: Any) -> float | None:
    """Return a value as a float; None if it is not one real number."""
    if isinstance(value, np.ma.MaskedArray):
        return None
    try:
        if (number := python_number(value)) is not None:
            return number
        array = np.asarray(value)
        return float(array) if array.shape == () and array.dtype.kind in "biuf" else None
    except BaseException as error:  # of any type: the conversion may be the user's
        if is_interrupt(error):
            raise
        return None


def _described(value: Any) -> str:
    """Return what a value is, for a message."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"{type(value).__name__} of shape {tuple(shape)}"
    try:
        return visible(repr(value)[:60])
    except Exception:  # of any type: the value may be the user's
        return type(value).__name__


def _measured_parts(test: bool) -> tuple[Part, ...]:
    return ("validation", "test") if test else ("validation",)


def checked_columns(metrics: Sequence[Metric], dataset: Dataset, *, test: bool) -> tuple[str, ...]:
    """Return the columns of metrics of the validation samples and, if `test`, the test samples, as `Metrics` does.

    Raises ConfigError if something cannot be measured.
    """
    for metric in metrics:
        metric.check(dataset, _measured_parts(test))
    names = [name for metric in metrics for name in metric.columns(dataset)]
    return (*names, *(f"test_{name}" for name in names)) if test else tuple(names)


class Metrics:
    """The measures of a run: a function of the parameters that returns the value of each column."""

    def __init__(self, metrics: Sequence[Metric], dataset: Dataset, engine: Engine, *, test: bool) -> None:
        """Measure the validation samples and, if `test`, the test samples, whose columns begin with test_.

        Raises ConfigError if something cannot be measured.
        """
        self._metrics, self._dataset, self._engine = metrics, dataset, engine
        self._parts = _measured_parts(test)
        self.columns = checked_columns(metrics, dataset, test=test)
        self._tried = False  # whether each user's function has been called twice for the same outputs

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The user's functions among them."""
        return [metric.function for metric in self._metrics if isinstance(metric, OwnMetric)]

    def __call__(self, params: NDArray[np.float32]) -> dict[str, float]:
        """Return the values at finite parameters (P,), by column; NaN of parts without samples."""
        found: list[float] = []
        for part in self._parts:
            y = getattr(self._dataset, part).targets
            blocks: list[list[Array]] = [[] for _ in self._metrics]
            first: tuple[int, ...] = ()
            for rows, output in self._engine.outputs(params, part) if len(y) else ():
                first = first or output.shape
                if output.shape[1:] != first[1:]:
                    what = f"{len(output)} samples have outputs {output.shape}, and {first[0]} have {first}"
                    remedy = "but for the first axis they must have one shape, however many samples there are"
                    raise SimulationError(f"evaluation.metrics: {what}; {remedy}")
                for metric, some in zip(self._metrics, blocks, strict=True):
                    some.append(metric.block(output, y[rows], self._dataset))
            for metric, some in zip(self._metrics, blocks, strict=True):
                nothing = [math.nan] * len(metric.columns(self._dataset))
                outputs = np.concatenate(some) if some else None
                values = nothing if outputs is None else metric.values(outputs, y)
                if isinstance(metric, OwnMetric) and outputs is not None and not self._tried:
                    metric.check_again(outputs, y, values)
                found += values
        self._tried = True
        return dict(zip(self.columns, found, strict=True))
