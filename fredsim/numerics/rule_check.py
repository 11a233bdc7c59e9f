"""Checks what a rule uses before any backend compiles it, so that all backends accept and refuse the same rules.

The function's source is parsed, not run. Each expression in it has a kind: it consists of numbers only, or also of
coefficients, or also of the parameter, the state or the gradient. A comparison is a condition; only `where` takes it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import math
import textwrap
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from fredsim.errors import SimulationError
from fredsim.numerics import rules
from fredsim.numerics.arrays import LARGEST
from fredsim.numerics.rules import Rule

__all__ = ["FUNCTIONS", "plain_source"]

#: The functions that a rule may call, and how many arguments each takes.
FUNCTIONS = {"sqrt": 1, "absolute": 1, "flush": 1, "positive_part": 1, "sign": 1, "where": 3}
ALLOWED = (
    "a rule may use + - * /, -x, < <= > >= == !=, its arguments, numbers, and "
    f"{', '.join(FUNCTIONS)} of fredsim.numerics.rules (docs/rules.md)"
)
#: Operators of Python that a rule may not use, and how messages write them.
OPERATORS: dict[type[ast.AST], str] = {
    ast.FloorDiv: "//", ast.Mod: "%", ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
    ast.LShift: "<<", ast.RShift: ">>", ast.Invert: "~", ast.UAdd: "+x",
}  # fmt: skip
NUMBER, COEFFICIENT, ELEMENT = range(3)  # what an expression consists of; each may contain those before it


class Kind(NamedTuple):
    """The kind of an expression: what it consists of, and whether it is a condition."""

    made_of: int
    condition: bool = False


@functools.lru_cache(maxsize=1024)
def plain_source(rule: Rule, name: str) -> str:
    """Return the source text of a rule's function, renamed to `name`, without annotations and docstring.

    Expressions of numbers alone are folded to one float. Raises SimulationError, naming the rule, the line and the
    remedy, if a rule uses something that it may not.
    """
    tree = _RuleChecker(rule).function
    tree = _ConstantFolder().visit(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value = float(node.value)  # type: ignore[arg-type]  # nothing else is left
        elif isinstance(node, ast.arg):
            node.annotation = None
    tree.name, tree.returns = name, None
    return ast.unparse(ast.fix_missing_locations(tree))


def _source(function: FunctionType) -> tuple[list[str], int]:
    """Return a function's lines, and the number of the first; __wrapped__ is not followed. Raises OSError, SyntaxError.

    inspect.getsourcelines does the same, and looks through every module that there is, which takes a tenth of a second.
    """
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if len(lines) < code.co_firstlineno:
        raise OSError("the source is not available")
    return inspect.getblock(lines[code.co_firstlineno - 1 :]), code.co_firstlineno


class _RuleChecker:
    """Parses and checks a rule's function; `function` is its syntax tree. Raises SimulationError like plain_source."""

    def __init__(self, rule: Rule) -> None:
        self._of = rule.function
        self._name = getattr(rule.function, "__qualname__", repr(rule.function))
        self._place = ""
        self._first = 0
        self.function = self._read()
        names = [argument.arg for argument in self.function.args.args]
        arrays = 2 + len(rule.state)
        if len(names) < arrays:
            raise self._refusal(
                self.function, f"takes {', '.join(names)}; its arguments are θ, the state, g, coefficients"
            )
        self._kinds = {name: Kind(ELEMENT if at < arrays else COEFFICIENT) for at, name in enumerate(names)}
        for name in names:
            self._check_name(self.function, name)
        self._check_body(["the new parameter", *rule.state])

    def _read(self) -> ast.FunctionDef:
        if not isinstance(self._of, FunctionType):
            raise self._refusal(None, f"is a {type(self._of).__name__}; it must be a plain function of a module")
        try:
            lines, first = _source(self._of)
            (function,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, SyntaxError, ValueError):  # the function was made by exec, or is only a part of a line
            raise self._refusal(None, "its source cannot be read; write it in a module's file, with def") from None
        self._place, self._first = Path(self._of.__code__.co_filename).name, max(1, first)
        if not isinstance(function, ast.FunctionDef) or function.decorator_list or self._of.__closure__:
            raise self._refusal(
                function, "is no plain function; write it with def, undecorated, outside other functions"
            )
        given = function.args
        if given.posonlyargs or given.vararg or given.kwonlyargs or given.kwarg or given.defaults:
            raise self._refusal(function, "its arguments must be plain names, without defaults, * or **")
        return function

    def _check_body(self, results: list[str]) -> None:
        body = self.function.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):  # the docstring
            del body[0]
        for statement in body[:-1]:
            self._check_assignment(statement)
        last = body[-1] if body else self.function
        if not isinstance(last, ast.Return) or last.value is None:
            raise self._refusal(last, f"it must end with return, of {', '.join(results)}")
        values = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
        if len(values) != len(results) or (isinstance(last.value, ast.Tuple) and len(results) == 1):
            wanted = f"{', '.join(results)}: {len(results)} in all"
            raise self._refusal(last, f"it must return {wanted}, and here are {len(values)}")
        for result, value in zip(results, values, strict=True):
            if self._value(value).made_of < ELEMENT:
                raise self._refusal(value, f"{result} must be made of the parameter, the state or the gradient")

    def _check_assignment(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.AugAssign):  # with arrays, it would overwrite an argument
            raise self._refusal(statement, "write it out, as in x = x + y")
        if isinstance(statement, ast.If | ast.Match | ast.While | ast.For):
            raise self._refusal(statement, "a rule cannot branch or repeat; choose by where(condition, x, y)")
        if not isinstance(statement, ast.Assign):
            raise self._refusal(statement, "a rule is made of assignments to names, and return at its end")
        target = statement.targets[0]
        if len(statement.targets) > 1 or not isinstance(target, ast.Name):
            raise self._refusal(statement, "assign to one name at a time")
        self._check_name(statement, target.id)
        kind = self._kind(statement.value)
        if kind.made_of == NUMBER:
            raise self._refusal(
                statement, f"{target.id} is a number; write it where it is used, or make it a coefficient"
            )
        self._kinds[target.id] = kind

    def _check_name(self, node: ast.AST, name: str) -> None:
        if name in FUNCTIONS:
            raise self._refusal(node, f"{name} is a function that a rule may use; choose another name")

    def _value(self, node: ast.expr) -> Kind:
        """Return the kind of an expression that must not be a condition."""
        kind = self._kind(node)
        if kind.condition:
            raise self._refusal(node, "a condition goes only into where(condition, x, y)")
        return kind

    def _kind(self, node: ast.expr) -> Kind:
        match node:
            case ast.Name():
                if node.id not in self._kinds:
                    raise self._refusal(node, f"{node.id} is no argument of the rule; make it a coefficient")
                return self._kinds[node.id]
            case ast.Constant():
                self._number(node)
                return Kind(NUMBER)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right):
                kind = Kind(max(self._value(left).made_of, self._value(right).made_of))
                if kind.made_of == NUMBER:
                    self._number(node)
                return kind
            case ast.BinOp(op=ast.Pow()):
                raise self._refusal(node, "** is rounded otherwise on every machine; write x * x, or sqrt(x)")
            case ast.UnaryOp(ast.USub(), operand):
                return self._value(operand)
            case ast.Compare(left, [ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() | ast.Eq() | ast.NotEq()], [right]):
                made_of = max(self._value(left).made_of, self._value(right).made_of)
                if made_of == NUMBER:
                    raise self._refusal(node, "both sides are numbers; write the result")
                return Kind(made_of, condition=True)
            case ast.Call():
                return self._call(node)
            case ast.IfExp() | ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
                raise self._refusal(node, "if, and, or, not decide once, not for each element; choose by where, nested")
            case ast.BinOp(op=op) | ast.UnaryOp(op=op) if type(op) in OPERATORS:
                said = f"{OPERATORS[type(op)]} is no operator of a rule"
                raise self._refusal(node, f"{said}; {self._instead(node, 'write it with + - * / and where')}")
            case ast.Subscript():
                said = "an index is not for a rule, which sees one element of each array"
                raise self._refusal(node, f"{said}; {self._instead(node, 'make it a coefficient')}")
        raise self._refusal(node, "is not among what a rule may use")

    def _instead(self, node: ast.AST, otherwise: str) -> str:
        """Return the remedy for an operation that a rule lacks; `otherwise` is one if it uses θ, the state or g."""
        names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
        if any(self._kinds.get(name, Kind(NUMBER)).made_of == ELEMENT for name in names):
            return f"{otherwise}, or give the class an apply_update of its own"
        return "compute it in coefficients"

    def _not_called(self, node: ast.Call, called: str, name: str) -> SimulationError:
        """Return the error for a call of a function that a rule may not call; it names one that does the same."""
        given = [ast.unparse(one) for one in node.args]
        if name in FUNCTIONS or name in {"abs", "fabs"}:
            use = name if name in FUNCTIONS else "absolute"
        elif name in {"max", "maximum"} and len(given) == 2 and (zeros := {"0", "0.0"} & {*given}):
            use = f"positive_part({next((one for one in given if one not in zeros), '0')})"
        elif name in {"max", "maximum", "min", "minimum"} and len(given) == 2:
            use = f"where({given[0]} {'>' if name.startswith('max') else '<'} {given[1]}, {', '.join(given)})"
        else:
            written = self._instead(node, "a rule is elementwise and has no such operation: write it out")
            return self._refusal(node, f"{called} is no function of a rule; {written}")
        imported = f"imported from fredsim.numerics.rules by {'this' if use == name else 'its'} name"
        return self._refusal(node, f"{called} is no function of a rule; use {use}, {imported}")

    def _call(self, node: ast.Call) -> Kind:
        called = ast.unparse(node.func)
        name = called.rpartition(".")[2]
        if not isinstance(node.func, ast.Name) or called not in FUNCTIONS:
            raise self._not_called(node, called, name)
        if self._of.__globals__.get(name) is not getattr(rules, name):
            raise self._refusal(node, f"{name} is another function here; import it from fredsim.numerics.rules")
        if node.keywords or len(node.args) != FUNCTIONS[name]:
            raise self._refusal(node, f"{name} takes {FUNCTIONS[name]} arguments, by place")
        if name != "where":
            kind = self._value(node.args[0])
            if kind.made_of == NUMBER:
                raise self._refusal(node, "is of a number; write its value")
            return kind
        condition = self._kind(node.args[0])
        if not condition.condition:
            raise self._refusal(node, "the first argument of where must be a comparison, such as g > 0")
        return Kind(max(condition.made_of, *(self._value(one).made_of for one in node.args[1:])))

    def _number(self, node: ast.expr) -> None:
        """Raise SimulationError for an expression of numbers whose value is not a number that float32 can hold."""
        folded = _ConstantFolder().visit(ast.parse(ast.unparse(node), mode="eval")).body
        value = folded.value if isinstance(folded, ast.Constant) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refusal(node, "must be a number")
        if not abs(value) <= LARGEST or (isinstance(value, int) and abs(value) > 2**53):
            raise self._refusal(node, f"is too large; numbers lie within ±{LARGEST:.8g}, and whole ones within ±2^53")

    def _refusal(self, node: ast.AST | None, what: str) -> SimulationError:
        """Return the error that says what is wrong with a part of the function, given by its node."""
        at, quoted = f"{self._of.__module__}.{self._name}", ""
        if node is not None and hasattr(node, "lineno"):
            at += f" ({self._place}:{self._first + node.lineno - 1})"
            first = ast.unparse(node).partition("\n")[0]
            quoted = f"`{first if len(first) <= 60 else first[:57] + '...'}`: "
        return SimulationError(f"rule {at}: {quoted}{what}; {ALLOWED}")


class _ConstantFolder(ast.NodeTransformer):
    """Folds expressions of numbers alone to one number, computed as Python does; NaN if that fails."""

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.operand, ast.Constant) and isinstance(node.op, ast.USub):
            return ast.copy_location(ast.Constant(-node.operand.value), node)  # type: ignore[operator]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.left, ast.Constant) or not isinstance(node.right, ast.Constant):
            return node
        x, y = node.left.value, node.right.value
        try:
            match node.op:
                case ast.Add():
                    value = x + y  # type: ignore[operator]
                case ast.Sub():
                    value = x - y  # type: ignore[operator]
                case ast.Mult():
                    value = x * y  # type: ignore[operator]
                case _:
                    value = x / y  # type: ignore[operator]
        except (ArithmeticError, TypeError):
            value = math.nan
        return ast.copy_location(ast.Constant(value), node)
