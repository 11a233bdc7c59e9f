"""Operators and losses without kernels: computed in the same walk by their definition in NumPy, which is slow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.compute.buffers import Tensor
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.program import Batch, Steps
from fredsim.kernels.ops.values import Value
from fredsim.networks.graph import sum_up
from fredsim.networks.running import Found, found_in
from fredsim.numerics.ops.operator import Array, Leaves
from fredsim.numerics.ops.views import Cat, Permute, Slice

__all__ = ["FallbackKernels", "FallbackLoss", "finish"]


class FallbackKernels(OperatorKernels):
    """An operator's definition; takes and gives plain values."""

    image = False

    _kept: Any = None

    def _tensors(self, batch: Batch) -> dict[str, Array]:
        return {role: _part(batch.params, tensor) for role, tensor in self.tensors.items()}

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep what the definition keeps."""
        if isinstance(self.operator, Slice | Permute | Cat) and not self.gives_floats:  # integers stay integers
            out = out.like(dtype=inputs[0].dtype)

        def compute(batch: Batch) -> None:
            given = [value.view(batch.arena).copy() for value in inputs]
            draw = None if batch.draws is None or self.draws < 0 else batch.draws.draw(self.draws)
            out.view(batch.arena)[:], self._kept = self.operator.forward(given, self._tensors(batch), draw)

        plan.call(compute, *inputs, out)
        return out

    def found(self, batch: Batch) -> Found:
        """Return what a batch norm has found in the minibatch that is under way."""
        del batch
        return found_in(self._kept)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Collect the samples' own gradients of the tensors; sum them up if no other node has one."""
        sent = [value.error() if wants else None for value, wants in zip(self.inputs, wanted, strict=True)]
        done = [tensor for tensor in self.tensors.values() if not plan.shared(tensor.name)]

        def compute(batch: Batch) -> None:
            given, tensors = error.view(batch.arena).copy(), self._tensors(batch)
            for role, own in self.operator.gradients(given, self._kept, tensors).items():
                plan.leaves.setdefault(self.tensors[role].name, []).append(own)
            if any(wanted):
                for value, one in zip(sent, self.operator.backward(given, self._kept, tensors), strict=True):
                    if value is not None:
                        value.view(batch.arena)[:] = 0 if one is None else one
            self._kept = None
            for tensor in done:
                finish(plan.leaves.pop(tensor.name, []), batch, tensor)

        for tensor in self.tensors.values():
            plan.gradient(tensor)
        plan.call(compute, error, *(value for value in sent if value is not None))
        return list(sent)


def finish(leaves: Sequence[Leaves], batch: Batch, tensor: Tensor) -> None:
    """Write a tensor's gradient, the tree over the samples of what their own gradients add up to."""
    assert batch.grads is not None
    view = _part(batch.grads, tensor)
    if leaves:
        sum_up(leaves, view, len(batch.rows))
    else:
        view[...] = 0


class FallbackLoss(LossKernels):
    """A loss's definition."""

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        """Compute the losses, the error and the share of wrong answers in one step."""

        def compute(batch: Batch) -> None:
            given, targets = output.view(batch.arena).copy(), plan.targets[batch.rows]
            losses, sent = self.loss.losses(given, targets)
            batch.losses[:] = losses
            if error is not None:
                error.view(batch.arena)[:] = sent
            if wrong and batch.wrong is not None:
                answers = self.loss.wrong(given, targets)
                batch.wrong[:] = np.nan if answers is None else answers

        plan.call(compute, output, *([] if error is None else [error]))


def _part(flat: Array, tensor: Tensor) -> Array:
    return flat[tensor.begin : tensor.begin + tensor.size].reshape(tensor.shape)
