"""Writes an elementwise rule in CUDA C++, for the kernel that applies it for several pushes in turn (sources/rule.cu).

The bits are those of the rule's own function on NumPy arrays (NumpyOperations.compile_rule of
fredsim.numerics.operations).
"""

from __future__ import annotations

import ast
import functools
import inspect

import numpy as np

from fredsim.cuda.kernels import Unit, make_unit
from fredsim.numerics import rules
from fredsim.numerics.rule_check import plain_source
from fredsim.numerics.rules import FLUSH, Rule

__all__ = ["unit_of_rule"]

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
#: Functions of a rule that CUDA C++ has; the others are written like the rule itself.
GIVEN = {"sqrt": "sqrtf", "absolute": "fabsf"}
WRITTEN = rules.flush, rules.positive_part, rules.sign


@functools.cache
def unit_of_rule(rule: Rule, mu: int = 0, tall: int = 0) -> Unit:
    """Return the unit of a rule, whose kernel is `apply`; with `mu`, that of sources/rule_thin.cu, `apply_thin`.

    With `mu` and `tall`, the rows of a thread, it is that of sources/rule_wide.cu, `apply_wide`.

    Raises SimulationError for what a rule may not use.
    """
    arrays = ("theta", *rule.state)
    (function,) = ast.parse(plain_source(rule, "rule")).body
    assert isinstance(function, ast.FunctionDef)
    # The function's own names, as they are in its signature, may be others than those of the state.
    names = [_named(argument.arg) for argument in function.args.args]
    given = [f"values[{number}]" for number in range(len(arrays))] + ["g"]
    given += [f"coefficients[{number}]" for number in range(len(rule.coefficients))]
    lines = [f"  float {name} = {value};" for name, value in zip(names, given, strict=True)]
    lines += _statements(function.body, names)
    source = "\n".join(
        [
            '#include "common.h"',
            f"#define ARRAYS {len(arrays)}",
            f"#define COEFFICIENTS {len(rule.coefficients)}",
            *map(_written, WRITTEN),
            "DEVICE void rule(float* values, float g, const float* coefficients) {",
            *lines,
            "}",
            *[f"#define {name} {value}" for name, value in (("SAMPLES", mu), ("TALL", tall)) if value],
            f'#include "{"rule_wide.cu" if tall else "rule_thin.cu" if mu else "rule.cu"}"',
        ]
    )
    return make_unit(f"the rule {rule.function.__module__}.{rule.function.__qualname__}", source + "\n")


def _statements(body: list[ast.stmt], names: list[str]) -> list[str]:
    """Return a rule's statements, of which the last returns the new values; `names` are already declared."""
    known, lines = set(names), []
    for statement in body[:-1]:
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.targets[0], ast.Name)
        name = _named(statement.targets[0].id)
        lines.append(f"  {'' if name in known else 'float '}{name} = {_expression(statement.value)};")
        known.add(name)
    last = body[-1]
    assert isinstance(last, ast.Return)
    results = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    # All are computed before the first is stored: a rule may return its old parameter as new state.
    lines += [f"  const float new_{number} = {_expression(value)};" for number, value in enumerate(results)]
    return lines + [f"  values[{number}] = new_{number};" for number in range(len(results))]


def _written(function: object) -> str:
    """Return a function of fredsim.numerics.rules, which is one returned expression, in CUDA C++."""
    (tree,) = ast.parse(inspect.getsource(function)).body  # type: ignore[arg-type]
    assert isinstance(tree, ast.FunctionDef)
    last = tree.body[-1]
    assert isinstance(last, ast.Return)
    arguments = ", ".join(f"float v_{argument.arg}" for argument in tree.args.args)
    return f"DEVICE float v_{tree.name}({arguments}) {{ return {_expression(last.value)}; }}"


def _expression(node: ast.expr | None) -> str:
    """Return an expression, each operation of it in brackets."""
    match node:
        case ast.Name(id="FLUSH"):
            return _number(FLUSH)
        case ast.Name():
            return _named(node.id)
        case ast.Constant():
            return _number(float(node.value))  # type: ignore[arg-type]
        case ast.UnaryOp(ast.USub(), operand):
            return f"(-{_expression(operand)})"
        case ast.BinOp(left, operator, right):
            return f"({_expression(left)} {OPERATORS[type(operator)]} {_expression(right)})"
        case ast.Compare(left, [operator], [right]):
            return f"({_expression(left)} {OPERATORS[type(operator)]} {_expression(right)})"
        case ast.Call(ast.Name(id="where"), [condition, x, y]):
            return f"({_expression(condition)} ? {_expression(x)} : {_expression(y)})"
        case ast.Call(ast.Name(id=name), [x]):
            return f"{GIVEN.get(name, f'v_{name}')}({_expression(x)})"
    raise AssertionError(f"the check of rules lets {ast.unparse(node) if node else node} pass")


def _named(name: str) -> str:
    """Return what a variable of a rule is called in CUDA C++: NVRTC takes no letters beyond ASCII, such as η."""
    return f"v_{name}" if name.isascii() else f"w_{name.encode().hex()}"


def _number(value: float) -> str:
    """Return a number rounded to float32, to the last bit."""
    return f"{np.float32(value).item().hex()}f"
