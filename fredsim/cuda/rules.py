"""Compiles an elementwise rule into one kernel that applies it for several pushes in turn.

θ and state stay in registers from push to push. The bits are those of the rule's own function on NumPy arrays
(fredsim.numerics.operations.NumpyOperations.compile_rule).
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
from types import ModuleType
from typing import Any

from fredsim.numerics import rules
from fredsim.numerics.rule_check import plain_source
from fredsim.numerics.rules import FLUSH, Rule

__all__ = ["BLOCK", "compile_rule"]

BLOCK = 1024  # the number of elements of a program

TEMPLATE = '''
import triton
import triton.language as tl

FLUSH = tl.constexpr({flush})


@triton.jit
def exact_quotient(x, y):
    return tl.div_rn(x, y)


@triton.jit
def sqrt(x):
    return tl.sqrt_rn(x)


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


{functions}


@triton.jit(do_not_specialize=["first", "events"], do_not_specialize_on_alignment=["coefficients", "targets"])
def apply(
    {pointers}, gradients, stride, coefficients, targets, size, first, events, diverged_at, BLOCK: tl.constexpr
):
    """Apply the rule for `events` pushes in turn, whose gradients (size,) are `stride` elements apart.

    `coefficients` are float32 (events, {count}). After push e, θ is also written to the address targets[e], unless that
    is 0. If θ is not finite after push e, and e is the first such push, `diverged_at` becomes at most first + e.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < size
    {loads}
    worst = tl.zeros([BLOCK], tl.int32) + events
    for e in range(events):
        v_g = tl.load(gradients + i, mask=here, other=0.0)
        gradients += stride
        {numbers}
        {results} = rule({arguments})
        worst = tl.where(here & (worst == events) & (v_theta * 0.0 != 0.0), e, worst)
        target = tl.load(targets + e)
        if target != 0:
            tl.store(target.to(tl.pointer_type(tl.float32)) + i, v_theta, mask=here)
    {stores}
    found = tl.min(worst, axis=0)
    if found < events:
        tl.atomic_min(diverged_at, first + found)
'''


class _TritonWriter(ast.NodeTransformer):
    """Turns a plain function into a Triton function of a given name: x / y is correctly rounded, −x is −1·x."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """Replace −x by −1·x: some versions of Triton compute 0 − x, which is +0 for +0."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.USub) or isinstance(node.operand, ast.Constant):
            return node
        return ast.BinOp(node.operand, ast.Mult(), ast.UnaryOp(ast.USub(), ast.Constant(1.0)))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Replace x / y by a call of exact_quotient."""
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        return ast.Call(ast.Name("exact_quotient", ast.Load()), [node.left, node.right], [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        """Rename the function, leave out annotations, and decorate it with triton.jit."""
        self.generic_visit(node)
        node.name, node.returns = self._name, None
        for argument in node.args.args:
            argument.annotation = None
        node.decorator_list = [ast.Attribute(ast.Name("triton", ast.Load()), "jit", ast.Load())]
        return node


def _triton_source(name: str, text: str) -> str:
    """Return the source text of a plain function, turned into a Triton function."""
    tree = _TritonWriter(name).visit(ast.parse(text))
    return ast.unparse(ast.fix_missing_locations(tree))


@functools.cache
def compile_rule(rule: Rule) -> Any:
    """Return a rule's kernel. In its source, p_x is the pointer to an array x, v_x its values; c_x is a coefficient."""
    arrays = "theta", *rule.state
    functions = {
        **{x.__name__: inspect.getsource(x) for x in (rules.flush, rules.positive_part, rules.sign)},
        "rule": plain_source(rule, "rule"),
    }
    separator, deeper = "\n    ", "\n        "
    source = TEMPLATE.format(
        flush=repr(FLUSH),
        functions="\n\n\n".join(_triton_source(name, text) for name, text in functions.items()),
        pointers=", ".join(f"p_{x}" for x in arrays),
        count=len(rule.coefficients),
        loads=separator.join(f"v_{x} = tl.load(p_{x} + i, mask=here, other=0.0)" for x in arrays),
        numbers=deeper.join(
            f"c_{x} = tl.load(coefficients + e * {len(rule.coefficients)} + {number})"
            for number, x in enumerate(rule.coefficients)
        ),
        results=", ".join(f"v_{x}" for x in arrays),
        arguments=", ".join([*(f"v_{x}" for x in (*arrays, "g")), *(f"c_{x}" for x in rule.coefficients)]),
        stores=separator.join(f"tl.store(p_{x} + i, v_{x}, mask=here)" for x in arrays),
    )
    return _module(source, f"the update of {rule.function.__module__}.{rule.function.__qualname__}").apply


def _module(source: str, purpose: str) -> ModuleType:
    """Return a module made from a source text, which is also given to linecache, where Triton looks for it."""
    file = f"<fredsim: {purpose} {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    module = ModuleType("fredsim.cuda.generated", f"Generated by fredsim: {purpose}.")
    exec(compile(source, file, "exec"), module.__dict__)
    return module
