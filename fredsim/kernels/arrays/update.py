"""Compiles an elementwise rule into one fused loop: load, apply the rule in registers, store, test for finiteness.

The loop is compiled to a plain C function, so that kernels compiled independently of the rule can call it by address:
those of the paths `hand` and `fused`, and `update` here. The bits are those of the rule's own function on NumPy arrays
(fredsim.numerics.operations.NumpyOperations.compile_rule).
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import numpy as np

from fredsim.jit.cache import Compiled, make_module
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import address_of, call, floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import Team, address, addresses, share
from fredsim.kernels.arrays.reductions import copy
from fredsim.numerics.arrays import Array
from fredsim.numerics.rule_check import plain_source
from fredsim.numerics.rules import Rule

__all__ = ["FINITE", "UNCHANGED", "RuleInParts", "TeamRule", "call_rule", "compile_rule"]

TEMPLATE = '''
import numpy as np
from fredsim.jit.pointers import floats, int64s, item
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import broadcast, load, load_part, mark_changed_bits, no_bit_set, no_nan
from fredsim.jit.vector import store, store_part, zeros
from fredsim.numerics import rules
from fredsim.numerics.rules import absolute, sqrt, where

flush, positive_part, sign = subroutine(rules.flush), subroutine(rules.positive_part), subroutine(rules.sign)


@subroutine
{rule}

def apply_{name}(table, at, gradient, count, coefficients, sums):
    """Apply the rule to elements at … at + count − 1; return the bits FINITE and UNCHANGED, if they hold.

    `table` is the address of the arrays' addresses: θ to read, θ to write, then the state. `gradient` is the address
    of `count` elements, or 0 if all of them are +0. `coefficients` is the address of the rule's coefficients. If an
    array of the state is watched, `sums` is the address of 32 floats: lane by lane, the array's new elements are added
    to the first 16, their absolute values to the others.
    """
    arrays = int64s(table)
    numbers = floats(coefficients)
    {pointers}
    {numbers}
    {begin}
    finite = zeros(16)
    changed = zeros(16)
    v_g = zeros(16)
    i = 0
    if gradient == 0:
        {before_zeros}
        while i + 16 <= count:
            {zero_vector}
            i += 16
        if i < count:
            {zero_rest}
    else:
        p_g = floats(gradient)
        while i + 16 <= count:
            {vector}
            i += 16
        if i < count:
            {rest}
    {end}
    return np.int64(no_nan(finite)) | np.int64(gradient == 0 and no_bit_set(changed)) << 1
'''
#: The bits of what applying a rule returns. FINITE: every new parameter is finite. UNCHANGED: the gradient is +0, and
#: the rule has changed no bit of the arrays.
FINITE, UNCHANGED = 1, 2
#: The floats of each array that are updated before they are copied, while the first-level cache has them.
AT_ONCE = 2048
#: Source lines before, in and after the loop that sum the watched array, if there is one.
BEGIN = "watched = floats(sums)\n    total = load(zeros(16), watched, 0)\n    magnitude = load(zeros(16), watched, 16)"
ADD = "total = total + {0}\nmagnitude = magnitude + absolute({0})"
END = "store(watched, 0, total)\n    store(watched, 16, magnitude)"


@subroutine
def call_rule(rule, table, at, gradient, count, coefficients, sums):
    """Call a compiled rule by its address, with the arguments of the template above; return whether θ stays finite."""
    return call(rule, (table, at, gradient, count, coefficients, sums)) & FINITE != 0


@kernel(rule=int, table=int, at=int, gradient=int, count=int, coefficients=int, finite=int64s)
def update(rank, size, barrier, a):
    """Apply a rule to whole arrays, divided among the threads; write to finite[rank] whether θ stayed finite.

    The other arguments are those of the template above, as addresses.
    """
    begin, end = share(rank, size, a.count)
    gradient = a.gradient + 4 * begin
    finite = call_rule(a.rule, a.table, a.at + begin, gradient, end - begin, a.coefficients, np.int64(0))
    put(a.finite, rank, np.int64(finite))


@kernel(rule=int, table=int64s, parts=int64s, gradients=int64s, count=int, coefficients=int, out=int, finite=int64s)
def update_in_parts(rank, size, barrier, a):
    """Apply a rule to a gradient in `count` parts; copy θ to the address `out` in the same pass, unless that is 0.

    `parts` (count, 2): where a part begins in θ, and how many elements it has; `gradients` (count,) their addresses.
    Each part is divided among the threads. The other arguments are as in `update`.
    """
    finite = True
    theta = floats(item(a.table, 1))
    for part in range(a.count):
        begin, end = share(rank, size, item(a.parts, 2 * part + 1))
        while begin < end:
            at, some = item(a.parts, 2 * part) + begin, min(AT_ONCE, end - begin)
            gradient = item(a.gradients, part) + 4 * begin
            finite &= call_rule(a.rule, address_of(a.table, 0), at, gradient, some, a.coefficients, np.int64(0))
            if a.out != 0:
                copy(shift(theta, at), some, shift(floats(a.out), at))
            begin += some
    put(a.finite, rank, np.int64(finite))


class TeamRule:
    """A rule compiled for whole arrays, divided among a team's threads."""

    def __init__(self, team: Team, rule: Rule) -> None:
        self._team, self._count = team, 2 + len(rule.state)
        self._numbers, self._finite = np.empty(len(rule.coefficients), np.float32), np.ones(team.size, np.int64)
        self._arrays: Sequence[Any] = [None] * (self._count - 1)
        self._table = np.empty(self._count, np.int64)
        self._arguments = update.pack(
            rule=compile_rule(rule).address, table=self._table, at=0, gradient=0, count=0, coefficients=self._numbers,
            finite=self._finite,
        )  # fmt: skip
        update.address  # noqa: B018  compiles it now, so that this is not counted in the run's time

    def __call__(self, *arguments: Any) -> bool:
        """Apply the rule: update(theta, *state, g, begin, end, *coefficients); return whether θ stays finite.

        θ and the state are updated in place, elements begin … end − 1; they and g are float32 (P,).
        """
        *arrays, gradient = arguments[: self._count]
        begin, end, *coefficients = arguments[self._count :]
        if any(one is not other for one, other in zip(arrays, self._arrays, strict=True)):
            self._arrays = arrays
            self._table[1:] = addresses(arrays)
            self._table[0] = self._table[1]
        self._numbers[:] = coefficients
        given = self._arguments
        given.at, given.gradient, given.count = begin, address(gradient) + 4 * begin, end - begin
        self._finite[:] = 1
        self._team.run(update, given, end - begin)
        return 0 not in self._finite.tolist()


class RuleInParts:
    """A rule compiled for gradients whose parts lie anywhere in memory, divided among a team's threads."""

    def __init__(self, team: Team, rule: Rule, arrays: Sequence[Array], sizes: Sequence[int]) -> None:
        """Apply it to θ and the state, `arrays`, (P,) each; `sizes` are how many elements the parts have, in order."""
        self._team, self._kept, self._size = team, arrays, len(arrays[0])
        ends = np.cumsum(sizes, dtype=np.int64)
        parts = np.stack([ends - sizes, sizes], axis=1)
        self._gradients: Any = np.empty(len(sizes), np.int64)
        self._write = Struct(f"{len(sizes)}q").pack_into
        self._numbers, self._finite = np.empty(len(rule.coefficients), np.float32), np.ones(team.size, np.int64)
        self._arguments = update_in_parts.pack(
            rule=compile_rule(rule).address, table=addresses([arrays[0], *arrays]), parts=parts,
            gradients=self._gradients, count=len(sizes), coefficients=self._numbers, out=0, finite=self._finite,
        )  # fmt: skip
        update_in_parts.address  # noqa: B018  compiles it now, so that this is not counted in the run's time

    def __call__(self, gradients: Sequence[int], coefficients: Array, out: Array | None) -> bool:
        """Apply the rule in place to gradients at these addresses, one for each part; return whether θ stays finite.

        `out` (P,) becomes a copy of θ, if it is given.
        """
        # Between PyTorch's passes little is in the cache: a call of NumPy's takes ten times as long as in a loop.
        self._write(self._gradients, 0, *gradients)
        self._numbers[:] = coefficients
        self._arguments.out = 0 if out is None else address(out)
        self._team.run(update_in_parts, self._arguments, self._size)
        if 0 not in self._finite.tolist():
            return True
        self._finite[:] = 1
        return False


@functools.cache
def compile_rule(rule: Rule, watched: str = "") -> Compiled:
    """Return a rule's loop, compiled or from the cache; it also sums the state's array `watched`, if that is given."""
    return Compiled(_function(rule, watched))


def _function(rule: Rule, watched: str) -> Callable[..., bool]:
    """Return the Python function of the template above that is to be compiled for a rule.

    In its source, for θ, the gradient g and the state's arrays s0, s1, …, p_x is the pointer, v_x the vector read, and
    r_x the result to be stored; c_x is a coefficient. The rule's own names of them, which may be any, do not occur.
    """
    function, state = rule.function, [f"s{i}" for i in range(len(rule.state))]
    summed = state[rule.state.index(watched)] if watched else ""
    arguments = ["v_theta", *(f"v_{name}" for name in state), "v_g", *(f"c_{name}" for name in rule.coefficients)]
    results = ["r_theta", *(f"r_{name}" for name in state)]
    apply = f"{', '.join(results)} = rule({', '.join(arguments)})"

    def body(read: Sequence[str], written: Sequence[str], *, part: bool, compare: bool) -> str:
        """Return the lines that update a vector or, if `part`, the elements that are left at the end."""
        load = "load_part(v_g, p_{0}, i, count - i)" if part else "load(v_g, p_{0}, i)"
        lines = [f"v_{x} = {load.format(x)}" for x in read]
        lines.append(apply)
        for x in written:
            place = "p_new_theta" if x == "theta" else f"p_{x}"
            lines.append(f"store_part({place}, i, r_{x}, count - i)" if part else f"store({place}, i, r_{x})")
            if compare:
                new = f"load_part(v_g, {place}, i, count - i)" if part else f"r_{x}"
                lines.append(f"changed = mark_changed_bits(changed, v_{x}, {new})")
            if part and x == "theta":  # the rule's results in the lanes beyond `count` are arbitrary
                lines.append("v_theta = load_part(v_g, p_new_theta, i, count - i)")
            if x == summed:
                lines += [f"v_{x} = load_part(v_g, p_{x}, i, count - i)"] if part else []
                lines += ADD.format(f"v_{x}" if part else f"r_{x}").splitlines()
        if "theta" in written:
            lines.append("finite = finite + v_theta * 0.0" if part else "finite = finite + r_theta * 0.0")
        return textwrap.indent("\n".join(lines), " " * 12).lstrip()

    every = ("theta", *state)
    touched = state if rule.zero_keeps else every  # what the rule may change if the gradient is +0
    source = TEMPLATE.format(
        name=function.__name__,
        rule=plain_source(rule, "rule"),
        pointers="\n    ".join(
            f"p_{name} = floats(item(arrays, {i}) + 4 * at)" for i, name in enumerate(("theta", "new_theta", *state))
        ),
        # Coefficients are vectors, too: from a float32 scalar and a number in the rule numba would make a float64.
        numbers="\n    ".join(f"c_{x} = broadcast(16, item(numbers, {i}))" for i, x in enumerate(rule.coefficients))
        or "pass",
        begin=BEGIN if watched else "pass",
        end=END if watched else "pass",
        before_zeros="v_theta = zeros(16)" if rule.zero_keeps else "pass",
        zero_vector=body(touched, touched, part=False, compare=True),
        zero_rest=body(touched, touched, part=True, compare=True),
        vector=body((*every, "g"), every, part=False, compare=False),
        rest=body((*every, "g"), every, part=True, compare=False),
    )
    module = make_module(source, f"the fused update of {function.__module__}.{function.__qualname__}")
    compiled: Callable[..., bool] = getattr(module, f"apply_{function.__name__}")
    return compiled
