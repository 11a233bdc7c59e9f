"""Other shapes of the same elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.values import Value

__all__ = ["ReshapeKernels"]


class ReshapeKernels(OperatorKernels):
    """fredsim.numerics.ops.views.Reshape of plain values: the same memory. An image is converted before."""

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Take and give plain values."""
        return [False], False

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Return the input in another shape."""
        return replace(inputs[0], shape=out.shape)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Return the error in the old shape."""
        return [replace(error, shape=self.inputs[0].shape)]
