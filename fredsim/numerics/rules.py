"""Elementwise update rules: each is written once, as a function of scalars, and runs on every backend.

A rule takes the parameter, the server's state, the gradient and the coefficients of this push, in that order, and
returns the new parameter and state. It uses only the functions of this module, + − × ÷ and comparisons. Each operation
is rounded to float32, so NumPy arrays, numba's vectors and a GPU's registers give the same bits:

    def heavy_ball(theta, velocity, g, lr, momentum):
        velocity = momentum * velocity + g
        return theta - lr * velocity, flush(velocity)

    rule = Rule(heavy_ball, state=("velocity",))

A number written in a rule is rounded to float32 first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Rule", "absolute", "flush", "positive_part", "sign", "sqrt", "where"]

FLUSH = 2.0**-62


def sqrt(x: Any) -> Any:
    """Return √x, correctly rounded."""
    return np.sqrt(x)


def absolute(x: Any) -> Any:
    """Return |x|."""
    return np.abs(x)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return x where the condition holds, else y, element by element; numbers are rounded to float32."""
    return np.where(condition, _float32(x), _float32(y))


def _float32(x: Any) -> Any:
    return np.float32(x) if isinstance(x, float | int) else x


def flush(x: Any) -> Any:
    """Return +0 if |x| < 2⁻⁶², else x, so that a moving average never decays into subnormals; a NaN stays a NaN."""
    return where(absolute(x) < FLUSH, 0.0, x)


def positive_part(x: Any) -> Any:
    """Return max(x, 0); a NaN stays a NaN."""
    return where(x < 0.0, 0.0, x)


def sign(x: Any) -> Any:
    """Return −1, +1, or +0 for a zero; a NaN stays a NaN."""
    return where(x > 0.0, 1.0, where(x < 0.0, -1.0, where(x == 0.0, 0.0, x)))


@dataclass(frozen=True)
class Rule:
    """An elementwise rule: its function, and how the arguments divide into state, gradient and coefficients.

    The function's arguments are the parameter, one per name of `state`, the gradient, then the coefficients. It must be
    a module's plain function, since backends compile it from its source text. `zero_keeps` declares that a gradient of
    +0 leaves a finite parameter as it is, whatever state and coefficients a run can have: most pixels of an image are
    0, and their weights' gradients with them.
    """

    function: Callable[..., Any]
    state: tuple[str, ...] = ()
    zero_keeps: bool = False
    coefficients: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = tuple(inspect.signature(self.function).parameters)
        if names[1 : 1 + len(self.state)] != self.state:
            raise TypeError(f"{self.function.__qualname__}{names}: the state {self.state} must follow the parameter")
        object.__setattr__(self, "coefficients", names[2 + len(self.state) :])
