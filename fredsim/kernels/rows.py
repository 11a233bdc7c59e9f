"""A rule applied to the rows of a gradient as they are formed."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from fredsim.kernels.dense import ZERO
from fredsim.kernels.pointers import address_of
from fredsim.kernels.trees import gradient_rows

__all__ = ["apply_rows", "call_rule"]


@intrinsic
def call_rule(typingctx, rule, table, at, gradient, count, coefficients, sums):
    """Call a compiled rule by its address (fredsim.kernels.update)."""

    def generate(context, builder, sig, args):
        function = ir.FunctionType(ir.IntType(8), [ir.IntType(64)] * 6)
        result = builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])
        return builder.icmp_unsigned("!=", result, ir.Constant(result.type, 0))

    return types.boolean(*[types.int64] * 7), generate


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
