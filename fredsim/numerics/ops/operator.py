"""The contract of an operator of a network.

Arrays are float32 and C-contiguous if nothing else is said. Their first axis is the sample, of µ; the shapes that are
named below leave it out. An operator treats every sample as if it were alone (batch normalisation by the minibatch's
own statistics excepted): the gradient of a minibatch is the balanced tree over the samples' own gradients, divided by
µ once, so that the gradient of λ·µ samples is the mean of λ gradients of µ samples, bit for bit, for powers of two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Draw", "Inputs", "Leaves", "Operator", "Shape", "Tensors", "quiet"]

Array = NDArray[Any]
Shape = tuple[int, ...]

#: What an operator is given: the values of its inputs, and its tensors by role.
Inputs = Sequence[Array]
Tensors = Mapping[str, Array]

#: The samples' own gradients of a part of a tensor: given a slice of its first axis, returns (µ, rows of the slice, …).
#: A large tensor is summed part by part, since the gradients of all samples at once would not fit in memory.
Leaves = Callable[[slice], Array]

#: Uniform numbers in [0, 1) for the elements of one sample-major array of this shape, (µ, …); None while a network is
#: evaluated, when nothing is drawn.
Draw = Callable[[Shape], NDArray[np.float64]]


def quiet() -> np.errstate:
    """Return a context without warnings: what overflows or is no number follows from the contract."""
    return np.errstate(all="ignore")


class Operator(ABC):
    """A step of a network, from inputs and named tensors to one output. Subclasses are frozen dataclasses.

    For example, y = x·w with one weight for each element of a sample:

        @dataclass(frozen=True)
        class Scale(Operator):
            def tensors(self, x):
                return {"weight": x}

            def shape(self, x):
                return x

            def forward(self, inputs, tensors, draw=None):
                (x,), w = inputs, tensors["weight"]
                return x * w, x

            def backward(self, error, kept, tensors):
                return [error * tensors["weight"]]

            def gradients(self, error, kept, tensors):
                return {"weight": lambda part: error[:, part] * kept[:, part]}
    """

    #: How many inputs it has; None if any number.
    inputs: ClassVar[int | None] = 1
    #: The least value of each integer field, or of its elements, in a file; −1 for those that are not named.
    at_least: ClassVar[Mapping[str, int]] = {}
    #: Fields that were added later: a file has them only where they are not as their default.
    added: ClassVar[frozenset[str]] = frozenset()

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training."""
        return False

    def tensors(self, *shapes: Shape) -> dict[str, Shape]:
        """Return the shapes of its parameters by role, in order, for inputs of these shapes. Raises as `shape`."""
        del shapes
        return {}

    @abstractmethod
    def shape(self, *shapes: Shape) -> Shape:
        """Return the shape of its output for inputs of these shapes.

        Raises ValueError, which names the shapes, if it does not take such inputs.
        """

    @abstractmethod
    def forward(self, inputs: Inputs, tensors: Tensors, draw: Draw | None = None) -> tuple[Array, Any]:
        """Return the output (µ, …), and what `backward` needs."""

    @abstractmethod
    def backward(self, error: Array, kept: Any, tensors: Tensors) -> list[Array | None]:
        """Return the errors of the inputs; None for one that has none, such as integers.

        `error` (µ, …) is the derivative of each sample's loss by the output; `kept` is what `forward` returned.
        """

    def gradients(self, error: Array, kept: Any, tensors: Tensors) -> dict[str, Leaves]:
        """Return the samples' own gradients of each tensor that has one, by role; arguments as of `backward`."""
        return {}
