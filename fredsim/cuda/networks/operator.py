"""What an operator's kernels on a device are, and how to add some.

The plan (fredsim.cuda.networks.plan) walks the nodes forwards, then backwards, as Graph.gradient does, and asks each
node's OperatorKernels for the launches to add; nothing is computed then. So that an operator gets kernels:

1. Write kernels in a file of fredsim/cuda/sources/networks, whose first lines say the order of its sums, with the bits
   of the operator's definition in fredsim.numerics.ops; name the file in fredsim.cuda.kernels.FAMILIES.
2. Write a class derived from OperatorKernels, and add it to fredsim.cuda.networks.registry.

A network with an operator that is not there is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from fredsim.compute.buffers import Tensor
from fredsim.cuda.networks.steps import Steps, Value
from fredsim.numerics.ops.operator import Operator, Shape

__all__ = ["MOST_BANDS", "LossKernels", "OperatorKernels"]

#: The most bands of a sample's positions: sources/networks/samples.h has room for the sums of fewer than 2^10.
MOST_BANDS = 2**10 - 1


class OperatorKernels:
    """The kernels of an operator at one node of a network, for minibatches of one size."""

    #: Whether it takes integers, and its output is then made of them; and whether it takes nothing else.
    copies, whole = False, False
    #: The most axes of its first input, without that of the samples.
    axes: ClassVar[float] = math.inf

    @classmethod
    def why_not(cls, operator: Operator, shapes: Sequence[Shape]) -> str:
        """Return why there are no kernels for these attributes and shapes of inputs; "" if there are."""
        return f"more than {cls.axes} axes" if len(shapes[0]) > cls.axes else ""

    def __init__(self, operator: Any, shapes: Sequence[Shape], tensors: dict[str, Tensor]) -> None:
        """Keep the operator, its inputs' shapes, and its tensors by role."""
        self.operator, self.shapes, self.tensors = operator, list(shapes), tensors
        self.inputs: list[Value] = []  # the values that it takes: known from the forward pass on
        self.draws = -1  # which of the network's drawing operators it is, from 0; the plan says it

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the launches that compute the output; return it: `out`, if no other value can stand for it."""
        raise NotImplementedError

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the launches that compute the tensors' gradients and the errors of the inputs that are wanted.

        `error` is that of the output, which must not be written. Return the errors, None for one that is not wanted. An
        operator without tensors is asked only if one is.
        """
        raise NotImplementedError


class LossKernels:
    """The kernels of a loss."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def losses(self, plan: Steps, output: Value, error: Value | None) -> None:
        """Add the launches that write each sample's loss, the share of wrong answers, and the output's error if any."""
        raise NotImplementedError
