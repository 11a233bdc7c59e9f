"""A rule applied to the rows of a gradient as they are formed."""

from __future__ import annotations

from numba import njit

from fredsim.jit.pointers import address_of
from fredsim.kernels.dense import ZERO
from fredsim.kernels.trees import gradient_rows
from fredsim.kernels.update import call_rule

__all__ = ["apply_rows"]


@njit(error_model="numpy")
def apply_rows(
    rule, table, at, width, coefficients, factors, x, step, rows, counts, found, closes, active, mark, apart, errors, d,
    stride, mu, nodes, gradient,
):  # fmt: skip
    """Form rows of a layer's gradient and apply the rule to them, at element `at` on; return whether θ is finite."""
    gradient_rows(
        factors, x, step, rows, counts, found, closes, active, mark, apart, errors, d, stride, width, mu, nodes,
        gradient, ZERO, width,
    )  # fmt: skip
    return call_rule(rule, table, at, address_of(gradient, ZERO), rows * width, coefficients, ZERO)
