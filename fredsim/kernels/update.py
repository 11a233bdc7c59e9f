"""One fused loop from an elementwise rule: load, apply the rule in registers, store, and test for finiteness.

It is compiled to a plain C function, so that kernels that know no rule can call it by its address.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from typing import Any

import numpy as np
from numba import types

from fredsim.kernels.cache import Compiled, generated
from fredsim.kernels.team import address
from fredsim.numerics import rules
from fredsim.numerics.rules import Rule

__all__ = ["CompiledRule", "compile_rule"]

TEMPLATE = '''
from numba import njit

from fredsim.kernels.vector import all_equal_itself, floats, integers, item, load, load_part, store, store_part, zeros
from fredsim.numerics.rules import FLUSH, absolute, sqrt, where


@njit
{flush}

@njit
{positive_part}

@njit
{sign}

@njit
{rule}

def update(table, at, gradient, count, coefficients):
    """Apply the rule to elements at … at + count − 1; return whether every new parameter is finite.

    `table` is the address of the arrays' addresses: θ to read, θ to write, then the state. `gradient` is the address
    of `count` elements, or 0 where all of them are +0.
    """
    arrays = integers(table)
    numbers = floats(coefficients)
    old_theta = floats(item(arrays, 0) + 4 * at)
    new_theta = floats(item(arrays, 1) + 4 * at)
    {views}
    {numbers}
    sums = zeros(16)
    v_g = zeros(16)
    i = 0
    if gradient == 0:
        {quiet_theta}
        while i + 16 <= count:
            {quiet_loads}
            {call}
            {quiet_stores}
            i += 16
        if i < count:
            {quiet_part_loads}
            {call}
            {quiet_part_stores}
    else:
        g = floats(gradient)
        while i + 16 <= count:
            {loads}
            {call}
            {stores}
            i += 16
        if i < count:
            {part_loads}
            {call}
            {part_stores}
    return all_equal_itself(sums)
'''


class CompiledRule:
    """The compiled loop of a rule, to be called from Python or, by its `address`, from kernels."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        compiled = Compiled(_function(rule), types.boolean)
        self.address: int = compiled.address
        self._call = compiled.call

    def __call__(self, *arguments: Any) -> bool:
        """Apply the rule: update(theta, *state, g, begin, end, *coefficients), in place on float32 arrays."""
        count = 2 + len(self.rule.state)
        addresses = [address(array) for array in arguments[:count]]
        begin, end, *coefficients = arguments[count:]
        table = np.array([addresses[0], *addresses[:-1]], np.int64)
        numbers = np.array(coefficients, np.float32)
        gradient = addresses[-1] + 4 * begin
        return bool(self._call(address(table), begin, gradient, end - begin, address(numbers)))


@functools.cache
def compile_rule(rule: Rule) -> CompiledRule:
    """Compile a rule, or load what was compiled before."""
    return CompiledRule(rule)


def _function(rule: Rule):
    """Return the Python function to compile."""
    function = rule.function
    parameters = tuple(inspect.signature(function).parameters)
    theta, *state = parameters[: 1 + len(rule.state)]
    gradient = parameters[1 + len(rule.state)]
    results = ", ".join(("r_theta", *(f"r_{name}" for name in state)))
    arguments = ", ".join(("v_theta", *(f"v_{name}" for name in state), "v_g", *rule.coefficients))
    call = f"{results} = {function.__name__}({arguments})"
    finite = "sums = sums + r_theta * 0.0"

    def lines(*parts: str, depth: int = 12) -> str:
        return ("\n" + " " * depth).join(parts) or "pass"

    def loads(names: list[str], part: bool) -> list[str]:
        template = "v_{0} = load_part(v_g, {1}, i, count - i)" if part else "v_{0} = load(v_g, {1}, i)"
        return [template.format(name, "old_theta" if name == "theta" else name) for name in names]

    def stores(names: list[str], part: bool) -> list[str]:
        template = "store_part({1}, i, r_{0}, count - i)" if part else "store({1}, i, r_{0})"
        return [template.format(name, "new_theta" if name == "theta" else name) for name in names]

    touched = state if rule.zero_keeps else ["theta", *state]
    quiet_end = [] if rule.zero_keeps else [finite]
    every = ["theta", *state]
    source = TEMPLATE.format(
        flush=inspect.getsource(rules.flush),
        positive_part=inspect.getsource(rules.positive_part),
        sign=inspect.getsource(rules.sign),
        rule=textwrap.dedent(inspect.getsource(function)),
        views=lines(*(f"{n} = floats(item(arrays, {i}) + 4 * at)" for i, n in enumerate(state, 2)), depth=4),
        numbers=lines(*(f"{name} = item(numbers, {i})" for i, name in enumerate(rule.coefficients)), depth=4),
        quiet_theta="v_theta = zeros(16)" if rule.zero_keeps else "pass",
        quiet_loads=lines(*loads(touched, part=False)),
        quiet_part_loads=lines(*loads(touched, part=True)),
        quiet_stores=lines(*stores(touched, part=False), *quiet_end),
        quiet_part_stores=lines(*stores(touched, part=True), *quiet_end),
        call=call,
        loads=lines(*loads([*every, "g"], part=False)),
        part_loads=lines(*loads([*every, "g"], part=True)),
        stores=lines(*stores(every, part=False), finite),
        part_stores=lines(*stores(every, part=True), finite),
    )
    module = generated(source, f"the fused update of {function.__module__}.{function.__qualname__}")
    del theta, gradient
    return module.update
