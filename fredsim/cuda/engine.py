"""The engine of the backend `cuda` for multilayer perceptrons: data and workspace on the device, queued kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Part
from fredsim.compute.graph_engine import Evaluation
from fredsim.compute.storage import Pool
from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.launches import Launches
from fredsim.cuda.layers import (
    Workspace,
    add_backward,
    add_forward,
    add_gradients,
    add_outputs,
    add_softmax,
    parts_of,
    strips,
)
from fredsim.cuda.machines import EMULATED, machine
from fredsim.cuda.operations import CudaOperations
from fredsim.cuda.queue import CudaQueueExecutor, Queueing
from fredsim.cuda.samples import Uploads
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from fredsim.numerics import distributions
from fredsim.numerics.distributions import Draw
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule

__all__ = ["CudaEngine", "QueuedEngine"]

Array = NDArray[np.float32]

#: The most samples that are evaluated together, which bounds the memory that their z take.
EVALUATED = 2**16
#: The bytes of a sample that is evaluated besides its z: its number, its loss, and whether its answer is wrong.
OF_SAMPLE = 9
#: The most minibatches of one launch, which are along the third axis of the grid.
MOST_MINIBATCHES = 65_535
#: The most bytes of the gradients of a window of several runs.
MOST_GRADIENTS = 2**31
#: Gradients and what clients hold are a multiple of this many floats apart: a cache line of a device.
APART = 32


class QueuedEngine(Evaluation, CudaOperations):
    """What engines have in common whose events are launched from arrays: minibatches of µ samples, P parameters."""

    why_whole = ""
    queues = True
    window_bytes = 512 * 2**20

    def __init__(self, dataset: Dataset, mu: int, size: int, draw: Draw) -> None:
        """`size` is P."""
        super().__init__(draw)
        self._dataset, self.mu, self._size = dataset, mu, size
        #: How far gradients are apart, in elements.
        self.stride = -(-size // APART) * APART
        self._uploads, self._batches = Uploads(), 0

    def samples_changed(self) -> None:
        """Upload samples again when they are needed."""
        self._uploads.forget()

    def queue_executor(
        self: Queueing, rule: Rule, params: Any, arrays: Sequence[Any], places: int, pool: Pool
    ) -> CudaQueueExecutor:
        """Return an executor that applies the rule in place to the server's arrays; see Engine."""
        del pool  # places are one block of the device's memory
        return CudaQueueExecutor(self, rule, params, arrays, places)


class CudaEngine(QueuedEngine):
    """Computes gradients of minibatches of µ samples, many in a few launches, and evaluates: see Engine."""

    draws = False

    def __init__(self, model: Mlp, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        super().__init__(dataset, mu, model.layout.size, draw)
        self._sizes = model.sizes
        self._of_window = self._evaluated = 0  # the bytes of a window, and the samples of a part, the most so far
        self.allocate(1)
        if not EMULATED:  # compile now, so that this is not counted in the run's time
            start = self.zeros(self._size)
            self.gradients([start], np.zeros((1, mu), np.int64))
            self.mean(start)

    @property
    def buffer_bytes(self) -> int:
        """The bytes of what `allocate` has room for, and of what an evaluation takes; see Engine."""
        of_z = 4 * min(self._evaluated, EVALUATED) * sum(self._sizes[1:])
        return self._of_window + of_z + OF_SAMPLE * self._evaluated

    def note_evaluation(self, part: Part) -> None:
        """Count in `buffer_bytes` what the evaluation of a part takes; see Engine."""
        self._evaluated = max(self._evaluated, len(getattr(self._dataset, part)))

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute the gradients of all minibatches together; they stay on the device. See Engine."""
        arrays = [self.array_of(params) for params in held]  # kept alive until the losses are back
        batches = len(rows)
        self.allocate(batches)
        addresses, samples = upload([array.address for array in arrays], np.int64), upload(rows, np.int32)
        launches = Launches(machine())
        fields = {"held": addresses.address, "rows": samples.address, "losses": self._losses.address}
        self.add_passes(launches, batches, **fields)
        self.add_gradients(launches, batches, samples.address)
        launches.run()
        return self._grads[:batches, : self._size], np.asarray(self._losses[:batches])

    def add_passes(self, launches: Launches, batches: Any, *, held: Any, rows: Any, losses: Any, **drawn: Any) -> None:
        """Add the forward and backward passes of `batches` minibatches, a number for all windows or one for each.

        `held`, `rows` and `losses` are addresses: of the parameters' addresses, of the samples int32 (B, µ), and of
        where the losses (B, µ) go. There must be room: see `allocate`. Nothing is `drawn`.
        """
        del drawn
        x, labels = self._uploaded(self._dataset.train)
        space, mu, layers = self._space, self.mu, len(self._sizes) - 1
        fields = {"held": held, "rows": rows, "x": x.address}
        add_forward(launches, space, batches, mu, layers - space.narrow, **fields)
        if space.narrow:
            add_outputs(launches, space, batches, mu, **fields, labels=labels.address, losses=losses)
        else:
            samples = np.asarray(batches) * mu
            given = {"labels": labels.address, "rows": rows, "losses": losses, "errors": space.errors[-1]}
            add_softmax(launches, space, samples, **given)
        add_backward(launches, space, batches, mu, held)

    def add_gradients(self, launches: Launches, batches: Any, rows: Any) -> int:
        """Add the gradients of minibatches whose passes are done; return their address, each `stride` elements."""
        add_gradients(
            launches, self._space, batches, self.mu, x=self._uploaded(self._dataset.train)[0].address, rows=rows,
            out=self._grads.address, sums=self._sums.address, stride=self.stride,
        )  # fmt: skip
        return self._grads.address

    def strips(self, rows: Any, tall: int = 0) -> tuple[int, dict[str, Any]] | None:
        """Return what the kernel of a rule needs to form these gradients itself; None if it cannot."""
        return strips(self._space, self.mu, self._uploaded(self._dataset.train)[0].address, rows, tall)

    @property
    def alike(self) -> object:
        """The network, the size of minibatches and the data; see Queueing."""
        x, labels = self._uploaded(self._dataset.train)
        return type(self), self._sizes, self.mu, x.address, labels.address

    @property
    def most(self) -> int:
        """The most minibatches of a window of several runs."""
        return min(MOST_MINIBATCHES, max(1, MOST_GRADIENTS // (4 * self.stride)))

    def allocate(self, batches: int) -> None:
        """Have room for at least `batches` minibatches: z, errors, losses, gradients, and sums over parts.

        Raises MemoryError if there is none; then there is none for fewer, either, until it is asked for.
        """
        if batches <= self._batches:
            return
        self.shrink()  # first, so that there need not be room for what was there and for what is to be
        mu, parts = self.mu, parts_of(self.mu)
        z, errors = ([empty((batches, mu, width)) for width in self._sizes[1:]] for _ in range(2))
        losses, grads = empty((batches, mu)), empty((batches, self.stride))
        sums = empty((batches, parts if parts > 1 else 0, self.stride))
        # All of them or, if there is no room, none.
        self._losses, self._grads, self._sums, self._z, self._errors = losses, grads, sums, z, errors
        self._space = Workspace(self._sizes, *([array.address for array in arrays] for arrays in (z, errors)))
        self._batches = batches
        self._of_window = max(self._of_window, _bytes(losses, grads, sums, *z, *errors))

    def shrink(self) -> None:
        """Let go of that room."""
        self._batches = 0
        for name in ("_losses", "_grads", "_sums", "_z", "_errors"):
            vars(self).pop(name, None)

    def fix_window(self, wanted: int | None, clients: int, nbytes: int) -> int:
        """Return how many minibatches are computed at once, by all that a window has; see Engine."""
        parts = parts_of(self.mu)
        nbytes += (nbytes * parts if parts > 1 else 0) + 8 * self.mu * sum(self._sizes[1:])
        return min(super().fix_window(wanted, clients, nbytes), MOST_MINIBATCHES)

    def _uploaded(self, split: Split) -> tuple[DeviceArray, ...]:
        """Return a split's inputs and labels on the device."""
        return self._uploads.of(split, np.float32, np.int32)

    def _blocks(self, params: Any, split: Split) -> Iterator[tuple[slice, Launches, Workspace, int, DeviceArray]]:
        """Yield samples that are evaluated together, launches of their outputs, where z are, their rows, the last z."""
        n = len(split)
        x, here, rows = self._uploaded(split)[0], self.array_of(params), upload(np.arange(n), np.int32)
        held = upload([here.address], np.int64)
        z = [empty((min(n, EVALUATED), width)) for width in self._sizes[1:]]
        self._evaluated = max(self._evaluated, n)
        space = Workspace(self._sizes, [array.address for array in z], [])
        for begin in range(0, n, EVALUATED):
            launches, count, some = Launches(machine()), min(EVALUATED, n - begin), rows[begin:].address
            fields = {"held": held.address, "rows": some, "x": x.address}
            add_forward(launches, space, 1, count, len(self._sizes) - 1, **fields)
            yield slice(begin, begin + count), launches, space, some, z[-1][:count]

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return each sample's loss, and whether its answer is wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        losses, wrong = empty(len(split)), empty(len(split), np.bool_)
        for some, launches, space, rows, z in self._blocks(params, split):
            add_softmax(
                launches, space, len(z), labels=self._uploaded(split)[1].address, rows=rows,
                losses=losses[some].address, wrong=wrong[some].address,
            )  # fmt: skip
            launches.run()
        return np.asarray(losses), np.asarray(wrong)

    def outputs(self, params: Any, part: Part) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs for a part of the data set in blocks; see Engine."""
        for some, launches, _, _, z in self._blocks(params, getattr(self._dataset, part)):
            launches.run()
            yield some, np.asarray(z)


def _bytes(*arrays: DeviceArray) -> int:
    return sum(array.nbytes for array in arrays)
