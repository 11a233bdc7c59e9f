"""One fused loop from an elementwise rule: load, apply the rule in registers, store, and test for finiteness."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable

from fredsim.kernels.cache import generated
from fredsim.numerics import rules
from fredsim.numerics.rules import Rule

__all__ = ["compile_rule"]

TEMPLATE = '''
from numba import njit

from fredsim.kernels.cache import kernel
from fredsim.kernels.vector import all_equal_itself, load, load_part, store, store_part, zeros16
from fredsim.numerics.rules import FLUSH, absolute, sqrt, where


@njit
{flush}

@njit
{positive_part}

@njit
{sign}

@njit
{rule}

@kernel(nogil=True)
def update({arrays}, begin, end{coefficients}):
    """Apply the rule to elements begin ... end - 1; return whether every new parameter is finite."""
    sums = zeros16()
    i = begin
    while i + 16 <= end:
        {loads}
        {call}
        {stores}
        sums = sums + new_{theta} * 0.0
        i += 16
    if i < end:
        {part_loads}
        {call}
        {part_stores}
        sums = sums + new_{theta} * 0.0
    return all_equal_itself(sums)
'''


@functools.cache
def compile_rule(rule: Rule) -> Callable[..., bool]:
    """Return update(theta, *state, g, begin, end, *coefficients), which works in place on float32 arrays."""
    function = rule.function
    parameters = tuple(inspect.signature(function).parameters)
    updated = parameters[: 1 + len(rule.state)]
    arrays = parameters[: 2 + len(rule.state)]
    arguments = ", ".join((*(f"v_{a}" for a in arrays), *rule.coefficients))
    call = f"{', '.join(f'new_{a}' for a in updated)} = {function.__name__}({arguments})"
    between = "\n        "
    source = TEMPLATE.format(
        flush=inspect.getsource(rules.flush),
        positive_part=inspect.getsource(rules.positive_part),
        sign=inspect.getsource(rules.sign),
        rule=textwrap.dedent(inspect.getsource(function)),
        arrays=", ".join(arrays),
        coefficients="".join(f", {c}" for c in rule.coefficients),
        loads=between.join(f"v_{a} = load({a}, i)" for a in arrays),
        part_loads=between.join(f"v_{a} = load_part({a}, i, end - i)" for a in arrays),
        call=call,
        stores=between.join(f"store({a}, i, new_{a})" for a in updated),
        part_stores=between.join(f"store_part({a}, i, new_{a}, end - i)" for a in updated),
        theta=updated[0],
    )
    module = generated(source, f"the fused update of {function.__module__}.{function.__qualname__}")
    update: Callable[..., bool] = module.update
    return update
