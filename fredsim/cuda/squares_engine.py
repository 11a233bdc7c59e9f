"""The engines of least squares and of a quadratic of the backend `cuda`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.quadratic_engine import QuadraticEvaluation
from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.engine import MOST_MINIBATCHES, CudaEngine
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import Launches, launch
from fredsim.cuda.machines import EMULATED, machine
from fredsim.cuda.operations import CudaOperations
from fredsim.data.datasets import Dataset, Split
from fredsim.data.problems import Quadratic
from fredsim.data.sampling import decode_task
from fredsim.networks.mlp import Mlp
from fredsim.numerics import distributions, squares
from fredsim.numerics.arrays import Array
from fredsim.numerics.distributions import Draw
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.streams import Streams

__all__ = ["CudaLeastSquares", "CudaQuadratic"]


class CudaLeastSquares(CudaEngine):
    """Computes gradients of many minibatches in a few launches; see Engine.

    The linear model is computed as a layer with one output; the gradient of its bias is left out at the end.
    """

    why_whole = "a linear model forms whole gradients"

    def __init__(self, dataset: Dataset, mu: int, draw: Draw = distributions.draw) -> None:
        super().__init__(Mlp((dataset.inputs, 1)), dataset, mu, draw)

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute the gradients of all minibatches together; they stay on the device."""
        found, losses = super().gradients(held, rows)
        return found[:, : self._dataset.inputs], losses

    def add_passes(self, launches: Launches, batches: Any, *, held: Any, rows: Any, losses: Any, **drawn: Any) -> None:
        """Add the errors and losses of minibatches; see CudaEngine."""
        del drawn
        train, errors = self._dataset.train, self._space.errors[-1]
        self._add_errors(launches, train, batches, self.mu, held=held, rows=rows, losses=losses, errors=errors)

    def strips(self, rows: Any, tall: int = 0) -> None:
        """Return None: the kernel of a rule would change a bias, which there is none of."""

    def _add_errors(self, launches: Launches, split: Split, batches: Any, mu: int, **fields: Any) -> None:
        kernel = machine().load(unit_of("squares"))["squared_errors"]
        x, y = self._uploaded(split)
        blocks = (-(-mu // kernel.threads), 1, batches)
        launches.add(kernel, blocks, x=x.address, y=y.address, mu=mu, inputs=self._dataset.inputs, **fields)

    def _uploaded(self, split: Split) -> tuple[DeviceArray, ...]:
        """Return a split's inputs and targets on the device."""
        return self._uploads.of(split, np.float32, np.float32)

    def outcomes(self, params: Any, part: str) -> tuple[Array, NDArray[Any]]:
        """Return the losses (n,), computed as one minibatch, and NaN (n,): no answer is right or wrong; see Engine."""
        split: Split = getattr(self._dataset, part)
        n, here = len(split), self.array_of(params)
        held, rows = upload([here.address], np.int64), upload(np.arange(n), np.int32)
        losses, errors = empty(n), empty(n)
        launches = Launches(machine())
        fields = {"held": held.address, "rows": rows.address, "losses": losses.address, "errors": errors.address}
        self._add_errors(launches, split, 1, n, **fields)
        launches.run()
        return np.asarray(losses), np.full(n, np.nan)


class CudaQuadratic(QuadraticEvaluation, CudaOperations):
    """Computes many gradients in one launch; noise and values are computed on the host."""

    def __init__(self, dataset: Quadratic, draw: Draw = distributions.draw) -> None:
        super().__init__(draw)
        self._dataset, self._streams = dataset, Streams(dataset.seed)
        self._kernel = machine().load(unit_of("squares"))["quadratic_gradients"]
        if not EMULATED:  # compile now, so that this is not counted in the run's time
            self.gradients([self.zeros(dataset.inputs)], np.zeros((1, 1), np.int64))

    def gradients(self, held: Sequence[Any], rows: NDArray[np.int64], keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute all gradients together; they stay on the device. `rows` (B, 1) encode client and number."""
        size, sd = self._dataset.inputs, self._dataset.noise
        arrays = [self.array_of(params) for params in held]  # kept alive until the kernel is done
        addresses, out = upload([params.address for params in arrays], np.int64), empty((len(rows), size))
        noise = None
        if sd and len(rows):
            drawn = [squares.quadratic_noise(self._streams, size, *decode_task(int(row)), sd) for (row,) in rows]
            noise = upload(np.stack(drawn), np.float32)
        for begin in range(0, len(rows), MOST_MINIBATCHES):
            blocks = (-(-size // self._kernel.threads), 1, min(MOST_MINIBATCHES, len(rows) - begin))
            launch(
                machine(), self._kernel, blocks, held=addresses[begin:].address,
                noise=0 if noise is None else noise[begin:].address, out=out[begin:].address, size=size,
            )  # fmt: skip
        values = [squares.quadratic_value(np.asarray(params)) for params in arrays]
        return out, np.array(values, np.float64).astype(np.float32).reshape(-1, 1)
