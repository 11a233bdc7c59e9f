"""What a backend computes for servers, gates and compressors, besides gradients; and the NumPy version of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fredsim.numerics.arrays import Array, aligned
from fredsim.numerics.distributions import Draw, draw
from fredsim.numerics.oracle import mean64
from fredsim.numerics.rule_check import plain_source
from fredsim.numerics.rules import Rule
from fredsim.numerics.ternary import NumpyTernary, Ternary

__all__ = ["NumpyOperations", "Operations", "Update"]

Update = Callable[..., bool]


class Operations(Protocol):
    """The interface of a backend's operations.

    Arrays are float32, are stored where the backend computes, and support NumPy's operators.
    """

    #: Quantisation to −1, 0 and +1.
    ternary: Ternary

    def zeros(self, size: int) -> Array:
        """Return zeros (size,)."""

    def compile_rule(self, rule: Rule) -> Update:
        """Return a function update(theta, *state, g, begin, end, *coefficients) → whether θ stayed finite.

        It applies the rule in place to elements begin … end − 1 of arrays (n,). Raises SimulationError if the rule's
        function uses something that a rule may not (fredsim.numerics.rule_check).
        """

    def finite(self, array: Array) -> bool:
        """Return whether every element of an array (n,) is finite."""

    def duplicate(self, array: Array, out: Array) -> None:
        """Copy one array (n,) to another."""

    def duplicate_finite(self, array: Array, out: Array) -> bool:
        """Copy one array (n,) to another; return whether every element is finite."""

    def mean(self, array: Array) -> float:
        """Return the mean of all elements in float64, summed by the binary tree of docs/numerics.md."""

    @property
    def draw(self) -> Draw:
        """The function that draws from distributions, on the host."""


class NumpyOperations:
    """The operations in NumPy, which define the bits of every backend."""

    ternary: Ternary = NumpyTernary()

    def zeros(self, size: int) -> Array:
        """Return zeros (size,)."""
        return aligned(size)

    def compile_rule(self, rule: Rule) -> Update:
        """Return a function that runs the rule on NumPy arrays."""
        plain_source(rule, "rule")  # which refuses what a rule may not use

        def update(*arguments: Any) -> bool:
            arrays = arguments[: 2 + len(rule.state)]
            begin, end, *coefficients = arguments[2 + len(rule.state) :]
            parts = [array[begin:end] for array in arrays]
            with np.errstate(all="ignore"):
                result = rule.function(*parts, *coefficients)
            # All results are copied before the first is stored: a rule may return its old parameter as new state.
            results = [np.array(new, np.float32) for new in (result if rule.state else (result,))]
            for part, new in zip(parts, results, strict=False):
                part[...] = new
            return bool(np.isfinite(parts[0]).all())

        return update

    def finite(self, array: Array) -> bool:
        """Return whether every element is finite."""
        return bool(np.isfinite(array).all())

    def duplicate(self, array: Array, out: Array) -> None:
        """Copy one array to another."""
        np.copyto(out, array)

    def duplicate_finite(self, array: Array, out: Array) -> bool:
        """Copy one array to another; return whether every element is finite."""
        np.copyto(out, array)
        return self.finite(out)

    mean = staticmethod(mean64)
    draw = staticmethod(draw)
