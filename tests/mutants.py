"""Mutants of a module: small changes of its meaning, one at a time, which a test should notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Mutant", "mutants", "normal"]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
}  # fmt: skip
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
WORDS = {"__all__", "idea", "citation"}  # values assigned to these names have no effect on numbers
DROPPED = ast.Assign | ast.AugAssign | ast.Expr | ast.Return


class Mutant(NamedTuple):
    """A change: the line at which it begins, its description, and the module's changed source."""

    line: int
    change: str
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a module; docstrings, annotations, decorators and errors' texts are not changed."""
    tree = ast.parse(source)
    kept = _kept(tree)
    for node in ast.walk(tree):
        if id(node) in kept:
            continue
        for field, new, change, line in [*_changed(node), *_dropped(node, kept)]:
            old = getattr(node, field)
            setattr(node, field, new)
            text = ast.unparse(ast.fix_missing_locations(tree))
            setattr(node, field, old)
            yield Mutant(line, change, text)


def normal(source: str) -> str:
    """Return a module as its mutants are written, but for their changes."""
    return ast.unparse(ast.parse(source))


def _kept(tree: ast.Module) -> set[int]:
    """Return the identities of the nodes that no mutant changes."""
    parts: list[ast.AST] = []
    for node in ast.walk(tree):
        parts += [part for name in ("annotation", "returns") if (part := getattr(node, name, None)) is not None]
        if isinstance(node, ast.FunctionDef):
            parts += node.decorator_list
        if isinstance(node, ast.Raise | ast.JoinedStr):
            parts.append(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.append(node)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in WORDS:
            parts.append(node)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            parts.append(node)
    return {id(node) for part in parts for node in ast.walk(part)}


def _changed(node: ast.AST) -> Iterator[tuple[str, Any, str, int]]:
    """Yield (field, new value, description, line) for the changes of an expression or a condition."""
    line = getattr(node, "lineno", 0)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for kind in COMPARISONS[type(node.ops[0])]:
            yield "ops", [kind()], f"{type(node.ops[0]).__name__} → {kind.__name__}", line
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATIONS:
        operation = OPERATIONS[type(node.op)]
        yield "op", operation(), f"{type(node.op).__name__} → {operation.__name__}", line
    elif isinstance(node, ast.BoolOp):
        for place, value in enumerate(node.values):
            rest = node.values[:place] + node.values[place + 1 :]
            yield "values", rest if len(rest) > 1 else rest * 2, f"without {ast.unparse(value)}", line
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield "op", other(), f"{type(node.op).__name__} → {other.__name__}", line
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "op", ast.UAdd(), "without the sign", line
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "value", not node.value, f"{node.value} → {not node.value}", line
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "value", node.value + 1, f"{node.value} → {node.value + 1}", line
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        for truth in (False,) if isinstance(node, ast.While) else (True, False):
            yield "test", ast.Constant(truth), f"{ast.unparse(node.test)} → {truth}", line


def _dropped(node: ast.AST, kept: set[int]) -> Iterator[tuple[str, Any, str, int]]:
    """Yield (field, new value, description, line) for each statement of a function that can be removed."""
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if not isinstance(body, list) or isinstance(node, ast.Module | ast.ClassDef):
            continue
        for place, statement in enumerate(body):
            if isinstance(statement, DROPPED) and id(statement) not in kept:
                rest = [*body[:place], ast.Pass(), *body[place + 1 :]]
                yield field, rest, f"without {ast.unparse(statement)}", statement.lineno
