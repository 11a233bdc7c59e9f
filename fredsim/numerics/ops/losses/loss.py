"""The contract of a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from fredsim.numerics.ops.operator import Array, Shape

__all__ = ["Loss", "Losses"]


class Losses(NamedTuple):
    """Each sample's loss, float32 (µ,), and the derivative of it by the output, (µ, …)."""

    each: Array
    error: Array


class Loss(ABC):
    """A loss of one output and one target a sample. A minibatch's loss is the mean of its samples'."""

    @abstractmethod
    def check(self, output: Shape, target: Shape) -> None:
        """Raise ValueError, which names the shapes, if outputs and targets of these shapes have no such loss."""

    @abstractmethod
    def losses(self, output: Array, target: Array) -> Losses:
        """Return the losses of samples, and their errors."""

    def wrong(self, output: Array, target: Array) -> Array | None:
        """Return the share of wrong answers of each sample, float64 (µ,); None if no answer is right or wrong."""
        del output, target
        return None
