"""An engine for samples that are not simply rows of an array: they are changed at random, or read when needed.

It writes the samples of the next few gradients, one after the other, into a small array, from which another engine
computes. So they are the same for every backend, and take no more memory than that array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine, Part
from fredsim.compute.graph_engine import BLOCK, OnEngine
from fredsim.data.datasets import Dataset, Split
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Keys

__all__ = ["EVALUATION_BATCH", "Staged"]

#: The number of samples that a native engine evaluates at once.
EVALUATION_BATCH = 500
#: The most minibatches, and bytes, of samples that are in the array at once, unless one minibatch has more bytes.
MOST_MINIBATCHES, MOST_BYTES = 64, 32 * 2**20


class Window(Dataset):
    """A data set whose training part is the array into which samples are written."""

    rewritten: ClassVar[bool] = True

    @classmethod
    def of(cls, dataset: Dataset, mu: int, minibatches: int, rows: int | None = None) -> Window:
        """Return one with room for so many minibatches of µ samples; at first, it has the first µ again and again.

        The other parts, and the whole training part as `whole`, are the data set's own; but those that are read on
        demand are evaluated in blocks (`block`). `rows` are those of the tables from which samples choose, if they do.
        """
        train = dataset.train
        # In C order, as what is written later must be seen by engines, of which some take copies of other arrays.
        first = train.rows(slice(0, mu))
        x, y = (np.ascontiguousarray(np.tile(one, (minibatches, *[1] * (one.ndim - 1)))) for one in first)
        bounds = (int(train.x.min()), int(train.x.max())) if train.x.dtype.kind in "iu" else None
        if bounds is not None and dataset.augment is not None:  # it may write any, which is looked at then
            bounds = (-(2**31), 2**31 - 1) if rows is None else (0, rows - 1)
        split = replace(train, x=x, y=y, bounds=bounds)
        nothing = replace(split, x=x[:0], y=y[:0])
        parts = (train, dataset.validation, dataset.test)
        whole, validation, test = (nothing if one.on_demand else one for one in parts)
        found = cls(split, validation, test, dataset.classes, dataset.shape, dataset.unused, dataset.ignored)
        found.__dict__["whole"] = whole
        return found

    def replace_train(self, other: Window) -> None:
        """Take the array of another window."""
        self.__dict__["train"] = other.train

    def block(self, x: NDArray[Any], y: NDArray[Any]) -> str:
        """Let samples be a part, in the same array for all blocks of this length; return the part's name."""
        name = f"block of {len(x)}"
        if name not in self.__dict__:  # in C order: see `of`
            self.__dict__[name] = replace(self.train, x=np.empty(x.shape, x.dtype), y=np.empty(y.shape, y.dtype))
        split = self.__dict__[name]
        split.x[...], split.y[...] = x, y
        return name


class Staged(OnEngine):
    """Gives another engine the samples of minibatches; see `Engine`."""

    why_whole = "training samples are read, or changed at random, when they are needed"

    def __init__(self, make: Callable[[Dataset], Engine], dataset: Dataset, mu: int, rows: int | None) -> None:
        """Make the engine: `make` returns one for minibatches of µ samples of a data set.

        `rows` are those of the tables from which samples choose; None if there are none, or none is known.
        """
        self._dataset, self._mu, self._rows = dataset, mu, rows
        row = dataset.train.x.itemsize * dataset.inputs + dataset.train.y[:1].nbytes
        self._most = max(1, min(MOST_MINIBATCHES, MOST_BYTES // max(1, mu * row)))
        self._window = Window.of(dataset, mu, self._most, rows)
        self._engine = make(self._window)

    def fix_window(self, wanted: int | None, clients: int, nbytes: int) -> int:
        """Choose as the engine does; but where that changes no bit, no more minibatches than there is room for."""
        width: int = self._engine.fix_window(wanted, clients, nbytes)
        if self._engine.numerics == "portable":
            return int(min(width, self._most))
        self._most = max(width, self._most // width * width)  # whole windows, as a window's bits depend on its width
        self._window.replace_train(Window.of(self._dataset, self._mu, self._most, self._rows))
        return width

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute the gradients of minibatches; without keys samples are used as they are. See Engine."""
        return self._in_rounds(held, None, rows, keys)

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Any, Array]:
        """Compute gradients whose forward and backward passes have different parameters; see Engine."""
        return self._in_rounds(forward, backward, rows, keys)

    def _in_rounds(
        self, held: Sequence[Array], backward: Sequence[Array] | None, rows: NDArray[np.int64], keys: Keys | None
    ) -> tuple[Any, Array]:
        """Compute as many minibatches at once as there is room for their samples."""
        if len(rows) <= self._most:
            return self._gradients(held, backward, rows, keys)
        grads, losses = [], []
        for begin in range(0, len(rows), self._most):
            some = slice(begin, begin + self._most)
            its_backward = None if backward is None else backward[some]
            found, its_losses = self._gradients(held[some], its_backward, rows[some], keys and keys.part(some))
            grads += [np.array(one) for one in found]
            losses.append(its_losses.copy())
        return grads, np.concatenate(losses)

    def _gradients(
        self, held: Sequence[Array], backward: Sequence[Array] | None, rows: NDArray[np.int64], keys: Keys | None
    ) -> tuple[Any, Array]:
        train = self._window.train
        if len(rows):
            x, y = self._dataset.train.rows(rows.reshape(-1))
            if keys is not None and self._dataset.augment is not None:
                x = self._dataset.augment(x, keys, self._mu)
                self._dataset.augment.check(x, self._rows)
            train.x[: len(x)], train.y[: len(y)] = x, y
            self._engine.samples_changed()
        staged = np.arange(rows.size).reshape(rows.shape)
        if backward is None:
            return self._engine.gradients(held, staged, keys)
        return self._engine.gradients_at_two(held, backward, staged, keys)

    def outcomes(self, params: Any, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part, as it is, and whether its answer is wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        name: Any = "whole" if part == "train" else part
        if not split.on_demand or not len(split):
            return self._engine.outcomes(params, name)
        found = [
            [one.copy() for one in self._engine.outcomes(params, block)] for _, block in self._staged_blocks(split)
        ]
        losses, wrong = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return losses, wrong

    def outputs(self, params: Any, part: Part) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the network's outputs for a part in blocks: which samples, and float32 (n, …); see Engine."""
        split: Split = getattr(self._dataset, part)
        name: Any = "whole" if part == "train" else part
        engine: Any = self._engine
        if not split.on_demand or not len(split):
            yield from engine.outputs(params, name)
            return
        for begin, block in self._staged_blocks(split):
            for rows, output in engine.outputs(params, block):
                yield slice(begin + rows.start, begin + min(rows.stop, len(split) - begin)), output

    def _staged_blocks(self, split: Split) -> Iterator[tuple[int, Any]]:
        """Yield where blocks of samples begin, each with the name of the part that it is now."""
        for rows in self._blocks(len(split)):
            name = self._window.block(*split.rows(rows))
            self._engine.samples_changed()
            yield rows.start, name

    def _blocks(self, count: int) -> Iterator[slice]:
        """Yield slices of samples that are evaluated together, as they would be if all were in memory."""
        native = self._engine.numerics == "native"
        begins = [*range(0, count, EVALUATION_BATCH if native else BLOCK)]
        if native and len(begins) > 1 and count - begins[-1] == 1:  # may be too few: the engine takes it alone or not
            del begins[-1]
        return (slice(begin, end) for begin, end in pairwise([*begins, count]))
