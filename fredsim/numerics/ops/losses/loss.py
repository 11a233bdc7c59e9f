"""The contract of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

from fredsim.numerics.ops.operator import Array, Shape

__all__ = ["Loss", "Losses"]


class Losses(NamedTuple):
    """Each sample's loss, float32 (µ,), and the derivative of it by the output, (µ, …)."""

    each: Array
    error: Array


class Loss(ABC):
    """A loss of one output and one target a sample. A minibatch's loss is the mean of its samples'."""

    #: What tells how good outputs are: the rate of wrong answers, or nothing but the loss.
    measured_by: ClassVar[Literal["error", "loss"]] = "loss"
    #: What its targets are: `classes`, integers from 0; `numbers`, float32; `shares`, float32 from 0 to 1; `any`.
    targets: ClassVar[Literal["classes", "numbers", "shares", "any"]] = "numbers"
    #: The least value of each integer field in a file; −1 for those that are not named.
    at_least: ClassVar[Mapping[str, int]] = {}

    @abstractmethod
    def check(self, output: Shape, target: Shape) -> None:
        """Raise ValueError, which names the shapes, if outputs and targets of these shapes have no such loss."""

    def output(self, target: Shape, classes: int) -> Shape:
        """Return the shape of the outputs that targets of this shape are compared with; `classes` of each label."""
        return target or (1,)

    def target(self, output: Shape) -> Shape:
        """Return the shape of the targets that outputs of this shape are compared with."""
        return output

    @abstractmethod
    def losses(self, output: Array, target: Array) -> Losses:
        """Return the losses of samples, and their errors. `target` (µ, …) has the type that `targets` says."""

    def wrong(self, output: Array, target: Array) -> Array | None:
        """Return the share of wrong answers of each sample, float64 (µ,); None if no answer is right or wrong.

        None is for losses that are not `measured_by` the error.
        """
        return None
