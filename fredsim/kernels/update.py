"""One fused loop from an elementwise rule: load, apply the rule in registers, store, and test for finiteness.

It is compiled to a plain C function, so that kernels that know no rule can call it by its address.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
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

from fredsim.kernels.pointers import floats, integers, item
from fredsim.kernels.vector import all_equal_itself, load, load_part, store, store_part, zeros
from fredsim.numerics.rules import FLUSH, absolute, sqrt, where


@njit
{flush}

@njit
{positive_part}

@njit
{sign}

@njit
{rule}

def apply_{name}(table, at, gradient, count, coefficients, sums):
    """Apply the rule to elements at … at + count − 1; return whether every new parameter is finite.

    `table` is the address of the arrays' addresses: θ to read, θ to write, then the state. `gradient` is the address
    of `count` elements, or 0 where all of them are +0. `sums` is that of 32 floats, where an array of the state is
    watched: its new elements are added to the first 16, their absolute values to the others, as they come.
    """
    arrays = integers(table)
    numbers = floats(coefficients)
    {pointers}
    {numbers}
    {begin}
    finite = zeros(16)
    v_g = zeros(16)
    i = 0
    if gradient == 0:
        {nothing}
        while i + 16 <= count:
            {quiet}
            i += 16
        if i < count:
            {quiet_part}
    else:
        p_g = floats(gradient)
        while i + 16 <= count:
            {whole}
            i += 16
        if i < count:
            {part}
    {end}
    return all_equal_itself(finite)
'''
#: Around the loop, and in it, where an array is watched.
BEGIN = "watched = floats(sums)\n    total = load(zeros(16), watched, 0)\n    most = load(zeros(16), watched, 16)"
ADD = "total = total + {0}\nmost = most + absolute({0})"
END = "store(watched, 0, total)\n    store(watched, 16, most)"


class CompiledRule:
    """The compiled loop of a rule, to be called from Python or, by its `address`, from kernels."""

    def __init__(self, rule: Rule, watched: str) -> None:
        self.rule = rule
        compiled = Compiled(_function(rule, watched), types.boolean)
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
        return bool(self._call(address(table), begin, gradient, end - begin, address(numbers), 0))


@functools.cache
def compile_rule(rule: Rule, watched: str = "") -> CompiledRule:
    """Compile a rule, or load what was compiled before; one that watches a name of its state is for kernels alone."""
    return CompiledRule(rule, watched)


def _function(rule: Rule, watched: str) -> Callable[..., bool]:
    """Return the Python function to compile.

    Of a name x of the rule's, p_x is the pointer, v_x the vector read, r_x the rule's result, and c_x a coefficient.
    """
    function, state = rule.function, rule.state
    arguments = ["v_theta", *(f"v_{name}" for name in state), "v_g", *(f"c_{name}" for name in rule.coefficients)]
    results = ["r_theta", *(f"r_{name}" for name in state)]
    call = f"{', '.join(results)} = rule({', '.join(arguments)})"

    def body(read: Sequence[str], written: Sequence[str], *, part: bool) -> str:
        load = "load_part(v_g, p_{0}, i, count - i)" if part else "load(v_g, p_{0}, i)"
        lines = [f"v_{x} = {load.format(x)}" for x in read]
        lines.append(call)
        for x in written:
            place = "p_new_theta" if x == "theta" else f"p_{x}"
            lines.append(f"store_part({place}, i, r_{x}, count - i)" if part else f"store({place}, i, r_{x})")
            if part and x == "theta":  # the lanes beyond may be anything
                lines.append("v_theta = load_part(v_g, p_new_theta, i, count - i)")
            if x == watched:
                lines += [f"v_{x} = load_part(v_g, p_{x}, i, count - i)"] if part else []
                lines += ADD.format(f"v_{x}" if part else f"r_{x}").splitlines()
        if "theta" in written:
            lines.append("finite = finite + v_theta * 0.0" if part else "finite = finite + r_theta * 0.0")
        return textwrap.indent("\n".join(lines), " " * 12).lstrip()

    every = ("theta", *state)
    touched = state if rule.zero_keeps else every  # by a gradient of +0
    source = TEMPLATE.format(
        name=function.__name__,
        flush=inspect.getsource(rules.flush),
        positive_part=inspect.getsource(rules.positive_part),
        sign=inspect.getsource(rules.sign),
        rule=textwrap.dedent(inspect.getsource(function)).replace(f"def {function.__name__}(", "def rule(", 1),
        pointers="\n    ".join(
            f"p_{name} = floats(item(arrays, {i}) + 4 * at)" for i, name in enumerate(("theta", "new_theta", *state))
        ),
        numbers="\n    ".join(f"c_{name} = item(numbers, {i})" for i, name in enumerate(rule.coefficients)) or "pass",
        begin=BEGIN if watched else "pass",
        end=END if watched else "pass",
        nothing="v_theta = zeros(16)" if rule.zero_keeps else "pass",
        quiet=body(touched, touched, part=False),
        quiet_part=body(touched, touched, part=True),
        whole=body((*every, "g"), every, part=False),
        part=body((*every, "g"), every, part=True),
    )
    module = generated(source, f"the fused update of {function.__module__}.{function.__qualname__}")
    compiled: Callable[..., bool] = getattr(module, f"apply_{function.__name__}")
    return compiled
