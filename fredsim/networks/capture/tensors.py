"""What operators are called on, and the table of the functions that add the nodes of their results.

A function's arguments have the names of the operator's schema, but for the tensor that it is called on, `x`, and `out`
and `parts`, the sizes of its result or results. It is called only if all arguments that it does not take have their
usual values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from fredsim.networks.capture.values import BATCH, Builder, Traced, UnsupportedError
from fredsim.numerics.ops.operator import Array, Operator, Shape


@dataclass(frozen=True)
class Given:
    """A parameter, or rows of it, or its transpose if `turned`."""

    name: str
    whole: Shape
    turned: bool = False
    rows: tuple[int, int] | None = None

    @property
    def shape(self) -> Shape:
        """The shape of what is taken of it."""
        if self.turned:
            return self.whole[::-1]
        return (self.rows[1] - self.rows[0], *self.whole[1:]) if self.rows else self.whole


@dataclass(frozen=True, eq=False)
class Fixed:
    """Numbers that are part of the network; `batch` is the dimension, of one element, that has the samples, if any.

    `name` is that of the module's buffer that has them, if one has.
    """

    values: Array
    batch: int | None = None
    name: str = ""


Tensor = Traced | Given | Fixed
Result = Tensor | tuple[Tensor, ...]
Call = TypeVar("Call", bound=Callable[..., Any])

#: By the name of an operator of PyTorch's.
OPERATORS: dict[str, Callable[..., Result]] = {}


def named(*names: str) -> Callable[[Call], Call]:
    """Register the function of operators of these names."""

    def known(function: Call) -> Call:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return known


def traced(to: Builder, x: Tensor) -> Traced:
    """Return any tensor as a traced one."""
    if isinstance(x, Traced):
        return x
    if isinstance(x, Given):
        found = to.parameter(x.name)
        if x.turned:
            return replace(found, dims=found.dims[::-1])
        return to.sliced(found, 0, *x.rows) if x.rows else found
    if x.values.dtype.kind not in "fiub":
        raise UnsupportedError(f"takes constants of {x.values.dtype}")
    if x.batch is not None:
        others = to.constant(as_float(np.squeeze(x.values, x.batch)))
        return replace(others, dims=(*others.dims[: x.batch], (BATCH,), *others.dims[x.batch :]))
    return to.constant(x.values if x.values.dtype.kind == "i" else as_float(x.values))


def as_float(values: Array) -> Array:
    """Return numbers as float32."""
    return np.asarray(values, np.float32)


def dense(to: Builder, x: Tensor, operator: Operator, tensors: dict[str, str]) -> Traced:
    """Return the result of an operator that treats all but the last dimension as rows."""
    value, lead = to.rows(traced(to, x))
    return to.of_rows(to.add(operator, value, tensors=tensors), lead)


def whole(to: Builder, x: Tensor, operator: Operator, tensors: dict[str, str] | None = None) -> Traced:
    """Return the result of an operator that takes samples as they are."""
    found = traced(to, x)
    value = to.add(operator, to.sample_first(found), tensors=tensors)
    return to.traced(value, found.batch is not None)


def parameter(x: Tensor | None, role: str) -> str:
    """Return the name of a whole parameter."""
    if not isinstance(x, Given) or x.turned or x.rows:
        raise UnsupportedError(f"has a {role} that is no parameter but computed, or a part of one")
    return x.name


def tensors_of(weight: Tensor | None, bias: Tensor | None) -> dict[str, str]:
    """Return the parameters of an operator by role."""
    given = {"weight": weight, "bias": bias}
    return {role: parameter(x, role) for role, x in given.items() if x is not None}


def binary(to: Builder, operator: Operator, *inputs: Tensor) -> Traced:
    """Return the result of a sum or a product of two tensors."""
    values, dims, kept = to.together(*(traced(to, x) for x in inputs))
    return to.of_together(to.add(operator, *values), dims, kept)


def turned_matrix(x: Given) -> Tensor:
    """Return a matrix of parameters, transposed."""
    if len(x.shape) != 2 or x.rows:
        raise UnsupportedError("takes a part of a parameter, or one that is no matrix")
    return replace(x, turned=not x.turned)
