"""What an operator's kernels are, and how to add some.

To plan a network is to write down its steps once: the plan (fredsim.kernels.ops.plan) walks the nodes forwards, then
backwards, as Graph.gradient does, and asks each node's OperatorKernels for the steps to add. Nothing is computed then.
So that an operator gets kernels:

1. Write a class derived from OperatorKernels in a module of this package, and kernels (fredsim.jit.kernel) which have
   the bits of the operator's definition in fredsim.numerics.ops. Arguments of kernels are shapes and strides that are
   known when planning, and Values, which become addresses. Divide the work by `rank`; all threads wait at a step's end.
2. Add it to KERNELS in fredsim.kernels.ops.registry. Operators that are not there, or whose `takes` says no, are
   computed by their definition (fredsim.kernels.ops.fallback).

For example, the kernels of an operator y = −x, for any form of value without a halo:

    class Negation(OperatorKernels):
        def forward(self, plan, inputs, out):
            plan.step(negate, x=inputs[0], count=out.samples * out.size, out=out)
            return out

        def backward(self, plan, error, wanted):
            sent = self.inputs[0].error()
            plan.step(negate, x=error, count=sent.samples * sent.size, out=sent)
            return [sent]

What backward steps need of the forward pass is kept in attributes: values, or buffers of one's own (`plan.buffer`). A
buffer's memory lasts from the first to the last step that names it, so what is not needed later takes no room. A
tensor's gradient is written to `plan.gradient(tensor)`: the sum over samples by the tree, divided by µ once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fredsim.compute.buffers import Tensor
from fredsim.kernels.ops.program import Steps
from fredsim.kernels.ops.values import Value
from fredsim.numerics.ops.operator import Array, Draw, Inputs, Operator, Shape, Tensors

__all__ = ["JoinedNodes", "LossKernels", "OperatorKernels"]


class JoinedNodes(Operator):
    """An operator that stands for several nodes of a graph, which have its definition; it has kernels alone."""

    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Any]:
        raise NotImplementedError

    def backward(self, error: Array, kept: Any, tensors: Tensors) -> list[Array | None]:
        raise NotImplementedError


class OperatorKernels:
    """The kernels of an operator at one node of a network, for minibatches of one size."""

    #: Whether the output is the input's memory, so that the halo wanted of one is wanted of the other.
    passes_values = False
    #: Whether an input's error is the output's, likewise.
    passes_errors = False
    #: Whether it writes the samples' own gradients of a tensor that several nodes have to `plan.own`.
    shares = False
    #: Whether its inputs, all of them, are float32, and whether its output is; the plan says it.
    floats, gives_floats = True, True
    #: Whether it takes its inputs, and gives its output, as images; None: as its first input is given.
    image: bool | None = None

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        """Return whether there are kernels for these attributes and shapes of inputs."""
        return True

    def __init__(self, operator: Any, shapes: Sequence[Shape], tensors: dict[str, Tensor]) -> None:
        """Keep the operator, its inputs' shapes, and its tensors by role."""
        self.operator, self.shapes, self.tensors = operator, list(shapes), tensors
        self.inputs: list[Value] = []  # the values that it takes: known from the forward pass on
        self.draws = -1  # which of the network's drawing operators it is, from 0; the plan says it

    def images(self, given: Sequence[bool]) -> tuple[list[bool], bool]:
        """Return which inputs it takes as images, and whether its output is one; `given` says which inputs are.

        An input that is given in the other form is converted, and so is its error. Here: as `image` says.
        """
        image = given[0] if self.image is None else self.image
        return [image] * len(given), image

    def halo(self) -> int:
        """Return how many columns of +0 it wants beside each input that is an image."""
        return 0

    def error_halo(self) -> int:
        """Return how many columns of +0 it wants beside the error of its output, if that is an image."""
        return 0

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the steps that compute the output; return it: `out`, if no other value can stand for it."""
        raise NotImplementedError

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the steps that compute the tensors' gradients and the errors of the inputs that are wanted.

        `error` is that of the output, which must not be written. Return the errors, None for one that is not wanted.
        """
        raise NotImplementedError


class LossKernels:
    """The kernels of a loss."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss

    def losses(self, plan: Steps, output: Value, error: Value | None, *, wrong: bool) -> None:
        """Add the steps that write each sample's loss to LOSSES, and the error of the output if there is one.

        The output is plain. Targets are those of BATCH's rows, in plan.targets. With `wrong`, write each sample's share
        of wrong answers to WRONG, NaN if there is none.
        """
        raise NotImplementedError
