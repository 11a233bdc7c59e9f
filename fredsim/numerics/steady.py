"""Finds the coefficients on which an update with a gradient of +0 depends (fredsim.kernels.arrays.steady)."""

from __future__ import annotations

import ast

from fredsim.numerics.rule_check import plain_source
from fredsim.numerics.rules import Rule

__all__ = ["steady_coefficients"]


def steady_coefficients(rule: Rule) -> tuple[int, ...]:
    """Return the indices, in `rule.coefficients`, of those on which the new state depends if the gradient is +0.

    If the rule does not declare `zero_keeps`, those on which the new parameter depends are included. As long as these
    coefficients keep their values, an update that has changed nothing changes nothing when it is repeated.
    """
    (function,) = ast.parse(plain_source(rule, "rule")).body
    assert isinstance(function, ast.FunctionDef)
    made_of = {argument.arg: {argument.arg} for argument in function.args.args}
    *assignments, result = function.body
    for statement in assignments:
        assert isinstance(statement, ast.Assign)
        assert isinstance(statement.targets[0], ast.Name)
        made_of[statement.targets[0].id] = _names(statement.value, made_of)
    assert isinstance(result, ast.Return)
    assert result.value is not None
    values = result.value.elts if isinstance(result.value, ast.Tuple) else [result.value]
    written = values[1:] if rule.zero_keeps else values
    names = set().union(*(_names(value, made_of) for value in written))
    return tuple(place for place, name in enumerate(rule.coefficients) if name in names)


def _names(value: ast.expr, made_of: dict[str, set[str]]) -> set[str]:
    """Return the arguments that an expression is made of."""
    found = (made_of.get(node.id, set()) for node in ast.walk(value) if isinstance(node, ast.Name))
    return set().union(*found)
