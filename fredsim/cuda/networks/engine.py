"""The engine of the backend `cuda` for networks that are graphs of operators with kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Part
from fredsim.compute.graph_engine import BLOCK
from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.engine import MOST_GRADIENTS, MOST_MINIBATCHES, QueuedEngine
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import machine
from fredsim.cuda.networks.plan import Plan
from fredsim.cuda.networks.program import Arena, Program
from fredsim.cuda.networks.steps import Given
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.graph import Graph
from fredsim.numerics import distributions
from fredsim.numerics.distributions import Draw
from fredsim.numerics.ops.draws import Keys

__all__ = ["CudaGraphEngine", "check_kernels"]

Array = NDArray[np.float32]

#: The most floats that the values and errors of a window take; one minibatch may take more.
MOST_FLOATS = 2**29


class CudaGraphEngine(QueuedEngine):
    """Computes gradients of minibatches of µ samples, a window of them in each launch, and evaluates: see Engine.

    The bits are those of fredsim.compute.graph_engine.GraphEngine.
    """

    def __init__(self, graph: Graph, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        """Plan and compile. Raises ConfigError for what has no kernels."""
        super().__init__(dataset, mu, graph.layout.size, draw)
        self._graph, self.draws = graph, graph.draws
        self._together = 0  # the most minibatches so far whose gradients there was room for
        self._evaluated = 0  # the most bytes so far that the evaluation of a part was said to take
        self._arena = Arena()
        self._programs: dict[tuple[int, str], Program] = {}
        self._bounds = _bounds(dataset)
        self._learning = self._program(mu, "learn")

    @property
    def buffer_bytes(self) -> int:
        """The bytes of values and errors, and of a window's gradients; see Engine."""
        return max(self._arena.nbytes, self._evaluated) + 4 * self.stride * self._together

    def note_evaluation(self, part: Part) -> None:
        """Count in `buffer_bytes` what the evaluation of a part takes; see Engine."""
        found = self._blocks(len(getattr(self._dataset, part)), "outcomes")
        self._evaluated = max([self._evaluated, *(4 * blocks * program.floats for _, blocks, program in found)])

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute the gradients of all minibatches together; they stay on the device. See Engine."""
        arrays = [self.array_of(params) for params in held]  # kept alive until the losses are back
        batches = len(rows)
        grads, losses = empty((batches, self.stride)), empty((batches, self.mu))
        self._together = max(self._together, batches)
        room = self._room(batches)
        for begin in range(0, batches, room):
            some = slice(begin, min(begin + room, batches))
            count, launches = some.stop - some.start, Launches(machine())
            addresses = upload([array.address for array in arrays[some]], np.int64)
            samples = upload(rows[some], np.int32)
            given = self._given(self._dataset.train, addresses.address, samples.address, losses[some].address)
            given |= {Given.GRADS: grads[some].address}
            if keys is not None and self._graph.draws:
                clients, numbers = (
                    upload(np.asarray(one[some], np.int64).astype(np.int32)) for one in (keys.clients, keys.numbers)
                )
                given |= _of_keys(clients.address, numbers.address, keys.seed)
            self._learning.add(launches, count, room, given)
            launches.run()
        return grads[:, : self._size], np.asarray(losses)

    def _room(self, batches: int) -> int:
        """Return how many minibatches are computed together, `batches` at most."""
        return max(1, min(batches, MOST_FLOATS // max(1, self._learning.floats), MOST_MINIBATCHES))

    @property
    def alike(self) -> object:
        """The network, the size of minibatches and the data; see Queueing."""
        x, y = self._uploaded(self._dataset.train)
        return self._graph, self.mu, x.address, y.address

    @property
    def most(self) -> int:
        """The most minibatches of a window of several runs."""
        return min(self._room(MOST_MINIBATCHES), max(1, MOST_GRADIENTS // (4 * self.stride)))

    def allocate(self, batches: int) -> None:
        """Have room for at least `batches` minibatches, as many as `fix_window` says at most; see CudaEngine."""
        if batches > self._batches:
            self.shrink()
            self._arena.of(max(1, self._learning.floats * batches))
            self._grads = empty((batches, self.stride))
            self._batches = batches  # last: if there is no room, there is none of anything
            self._together = max(self._together, batches)

    def shrink(self) -> None:
        """Let go of that room."""
        self._batches = 0
        self._arena.shrink()
        vars(self).pop("_grads", None)

    def add_passes(self, launches: Launches, batches: Any, *, held: Any, rows: Any, losses: Any, **drawn: Any) -> None:
        """Add all that gradients of windows of minibatches take; see CudaEngine. There must be room: `allocate`."""
        given = self._given(self._dataset.train, held, rows, losses) | {Given.GRADS: self._grads.address}
        self._learning.add(launches, batches, self._batches, given | _of_keys(**drawn))

    def add_gradients(self, launches: Launches, batches: Any, rows: Any) -> int:
        """Return the address of the gradients, which are formed by then."""
        del launches, batches, rows
        return self._grads.address

    def strips(self, rows: Any, tall: int = 0) -> None:
        """Return None: no kernel of a rule forms these gradients."""

    def _given(self, split: Split, held: Any, rows: Any, losses: Any) -> dict[Given, Any]:
        x, y = self._uploaded(split)
        return {
            Given.HELD: held, Given.ROWS: rows, Given.SAMPLES: x.address, Given.TARGETS: y.address,
            Given.LOSSES: losses, Given.WRONG: 0,
        } | _of_keys()  # fmt: skip

    def fix_window(self, wanted: int | None, clients: int, nbytes: int) -> int:
        """Return how many minibatches are computed at once: no more than their values have room; see Engine."""
        return self._room(super().fix_window(wanted, clients, nbytes))

    def _uploaded(self, split: Split) -> tuple[DeviceArray, ...]:
        """Return a split's samples and targets on the device, in numbers of four bytes."""
        return self._uploads.of(split, _kind(split.x), _kind(split.y))

    def _program(self, count: int, kind: str) -> Program:
        """Return the program of `count` samples: it learns, gives outcomes, or outputs alone."""
        if (count, kind) not in self._programs:
            learn, losses = kind == "learn", kind != "outputs"
            plan = Plan(self._graph, count, self.stride, self._bounds, learn=learn, losses=losses)
            self._programs[count, kind] = Program(plan, self._arena)
        return self._programs[count, kind]

    def _block(self, kind: str) -> int:
        """Return how many samples a block has: in batch norms, where samples meet, as many as in the definition.

        Else there are fewer if the values of so many would need more than MOST_FLOATS.
        """
        if self._graph.batch_norms:
            return BLOCK
        return max(1, min(BLOCK, MOST_FLOATS // max(1, self._program(1, kind).floats)))

    def _blocks(self, n: int, kind: str) -> Iterator[tuple[slice, int, Program]]:
        """Yield which samples are evaluated together: in how many blocks, by which program."""
        size = self._block(kind)
        program = self._program(min(n, size), kind) if n else None
        together = min(MOST_MINIBATCHES, max(1, MOST_FLOATS // max(1, program.floats))) if program else 1
        whole = n // size * size
        for begin in range(0, whole, together * size):
            end = min(whole, begin + together * size)
            yield slice(begin, end), (end - begin) // size, self._program(size, kind)
        if n > whole:
            yield slice(whole, n), 1, self._program(n - whole, kind)

    def _evaluations(
        self, params: Any, split: Split, kind: str, more: Mapping[Given, DeviceArray]
    ) -> Iterator[tuple[slice, int, Program]]:
        """Compute block after block; yield which samples they were, how many blocks, and the program."""
        here, n = self.array_of(params), len(split)
        rows = upload(np.arange(n), np.int32)
        for some, blocks, program in self._blocks(n, kind):
            held, launches = upload(np.full(blocks, here.address), np.int64), Launches(machine())
            given = self._given(split, held.address, rows[some].address, 0)
            given |= {name: array[some].address for name, array in more.items()}
            program.add(launches, blocks, blocks, given)
            launches.run()
            yield some, blocks, program

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return each sample's loss, and whether its answer is wrong: NaN if no answer is right or wrong."""
        split: Split = getattr(self._dataset, part)
        n = len(split)
        losses, wrong = empty(n), empty(n, np.float64)
        for _ in self._evaluations(params, split, "outcomes", {Given.LOSSES: losses, Given.WRONG: wrong}):
            pass
        return np.asarray(losses), np.asarray(wrong)

    def outputs(self, params: Any, part: Part) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs for a part of the data set in blocks; see Engine."""
        split: Split = getattr(self._dataset, part)
        for some, blocks, program in self._evaluations(params, split, "outputs", {}):
            found = program.output(blocks, blocks)
            yield some, found.reshape(some.stop - some.start, *found.shape[2:])


def check_kernels(graph: Graph, dataset: Dataset, mu: int) -> None:
    """Raise ConfigError if a device has no kernels for a network, for these samples or minibatches of µ of them."""
    bounds = (0, 0) if _kind(dataset.train.x) is np.int32 else None
    Plan(graph, mu, 0, bounds, learn=True)  # which refuses all that an engine would refuse
    if graph.batch_norms:  # blocks of other networks are as small as they need to be
        Plan(graph, min(BLOCK, max(map(len, dataset.parts))), 0, bounds, learn=False)


def _of_keys(clients: Any = 0, numbers: Any = 0, seed: int = 0) -> dict[Given, Any]:
    """Return what is drawn by, of which addresses are 0 if nothing is drawn."""
    return {Given.CLIENTS: clients, Given.NUMBERS: numbers, Given.SEED: int(np.int64(seed).astype(np.int32))}


def _bounds(dataset: Dataset) -> tuple[int, int] | None:
    """Return the lowest and the highest integer that samples consist of; None if they are floats."""
    if _kind(dataset.train.x) is np.float32:
        return None
    found = []
    for split in (dataset.train, dataset.validation, dataset.test):
        if split.bounds is not None:
            found.append(split.bounds)
        elif len(split):
            found.append((int(split.x.min()), int(split.x.max())))
    return min(low for low, _ in found), max(high for _, high in found)


def _kind(array: Any) -> type[np.float32 | np.int32]:
    """Return in which numbers of four bytes samples or targets are on the device."""
    return np.int32 if array.dtype.kind in "iub" else np.float32
