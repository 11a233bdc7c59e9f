"""What the fields of a class mean: the string below each field, read from the source when somebody asks.

pydantic can read these strings itself, but then does so for every class that is imported, which takes longer than all
else that a short command does.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel

__all__ = ["meanings"]


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the meaning of each field that has one, by name, on one line.

    It is the field's description or, if it has none, the string below it, in the class that declares it.
    """
    found = {}
    for name, field in model.model_fields.items():
        home = next((cls for cls in model.__mro__ if name in vars(cls).get("__annotations__", ())), model)
        if text := field.description or _strings(home).get(name):
            found[name] = " ".join(text.split())
    return found


@cache
def _strings(cls: type) -> dict[str, str]:
    """Return the strings below the fields in the body of a class, by field; none if its source is not there."""
    body: list[ast.stmt] = _tree(cls.__module__).body
    for part in cls.__qualname__.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        inner = [one for one in body if isinstance(one, kinds) and one.name == part]
        body = inner[-1].body if inner else [] if part != "<locals>" else body
    return {
        field.target.id: below.value.value
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


@cache
def _tree(module: str) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, SyntaxError, TypeError):
        return ast.Module([], [])
