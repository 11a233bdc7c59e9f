"""Functions of each element, sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fredsim.networks.capture.tensors import Fixed, Given, Tensor, as_float, binary, named, traced
from fredsim.networks.capture.values import Builder, Size, Traced, UnsupportedError
from fredsim.numerics.ops import pointwise as activations
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.views import Detach

__all__ = [
    "absolute", "clamp", "detach", "dropout", "exp", "log", "maximum", "minimum", "number", "pointwise", "reciprocal",
    "scaled", "sqrt", "square",
]  # fmt: skip

LARGEST = float(np.finfo(np.float32).max)
SHARED = "drops elements of what all samples share, for which PyTorch draws once for all of them"
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017


def pointwise(to: Builder, x: Tensor, operator: Operator) -> Traced:
    """Return the result of an activation."""
    found = traced(to, x)
    if odd := [by for by in getattr(operator, "numbers", ()) if not math.isfinite(by)]:
        raise UnsupportedError(f"takes the number {odd[0]}")
    return replace(found, value=to.add(operator, found.value))


def elementwise(operator: Operator, *names: str) -> Callable[[Builder, Tensor], Traced]:
    """Register, and return, the function of PyTorch's operators of these names, an activation without arguments."""

    @named(*names)
    def function(to: Builder, x: Tensor) -> Traced:
        return pointwise(to, x, operator)

    return function


absolute = elementwise(activations.Abs(), "abs", "absolute")
cos = elementwise(activations.Cos(), "cos")
detach = elementwise(Detach(), "detach")
exp = elementwise(activations.Exp(), "exp")
log = elementwise(activations.Log(), "log")
reciprocal = elementwise(activations.Reciprocal(), "reciprocal")
relu = elementwise(activations.Relu(), "relu")
rsqrt = elementwise(activations.Rsqrt(), "rsqrt")
sigmoid = elementwise(activations.Sigmoid(), "sigmoid")
sin = elementwise(activations.Sin(), "sin")
sqrt = elementwise(activations.Sqrt(), "sqrt")
elementwise(activations.Hardsigmoid(), "hardsigmoid")
elementwise(activations.Hardswish(), "hardswish")
elementwise(activations.Log1p(), "log1p")
elementwise(activations.Mish(), "mish")
elementwise(activations.Scale(-1.0), "neg", "negative")
elementwise(activations.Hardtanh(0.0, 6.0), "relu6")
elementwise(activations.Silu(), "silu")
elementwise(activations.Tanh(), "tanh")


@named("clamp_min", "clamp_max", "clamp", "clip")
def clamp(to: Builder, x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None) -> Traced:
    """Return a tensor within bounds, which are numbers."""
    bounds = [None if bound is None else number(bound) for bound in (low, high)]
    if any(given is not None and bound is None for given, bound in zip((low, high), bounds, strict=True)):
        raise UnsupportedError("has bounds that depend on samples or parameters", "maximum, or minimum")
    least, most = (end if bound is None else bound for bound, end in zip(bounds, (-LARGEST, LARGEST), strict=True))
    return pointwise(to, x, activations.Hardtanh(_finite(least), _finite(most), inclusive=True))


def _finite(bound: float) -> float:
    """Return a bound that a float can have: an infinite one as the largest number."""
    return min(max(float(bound), -LARGEST), LARGEST)


@named("hardtanh")
def hardtanh(to: Builder, x: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Traced:
    return pointwise(to, x, activations.Hardtanh(_finite(min_val), _finite(max_val)))


@named("elu")
def elu(to: Builder, x: Tensor, alpha: float = 1.0) -> Traced:
    return pointwise(to, x, activations.Elu(float(alpha)))


@named("selu")
def selu(to: Builder, x: Tensor) -> Tensor:
    return scaled(to, elu(to, x, SELU_ALPHA), SELU_SCALE)


@named("softplus")
def softplus(to: Builder, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    if threshold < 15:
        raise UnsupportedError(f"has threshold={threshold}, from which it is another function")
    return scaled(to, pointwise(to, scaled(to, x, float(beta)), activations.Softplus()), 1 / beta)


@named("log_sigmoid")
def log_sigmoid(to: Builder, x: Tensor) -> Tensor:
    return scaled(to, softplus(to, scaled(to, x, -1.0)), -1.0)


@named("log2", "log10")
def log_to_base(to: Builder, x: Tensor, kind: str) -> Tensor:
    return scaled(to, log(to, x), 1 / math.log(int(kind.removeprefix("log"))))


@named("tan")
def tan(to: Builder, x: Tensor) -> Traced:
    return binary(to, Mul(), sin(to, x), reciprocal(to, cos(to, x)))


@named("expm1")
def expm1(to: Builder, x: Tensor) -> Traced:
    """Return exp(x) − 1, which is −(exp(−x) − 1)·exp(x) above 0, so that small numbers keep their digits."""
    above = relu(to, x)
    turned = elu(to, scaled(to, above, -1.0))
    more = scaled(to, binary(to, Mul(), turned, exp(to, above)), -1.0)
    return binary(to, Add(), elu(to, clamp(to, x, high=0.0)), more)


@named("leaky_relu")
def leaky_relu(to: Builder, x: Tensor, negative_slope: float = 0.01) -> Traced:
    return pointwise(to, x, activations.LeakyRelu(float(negative_slope)))


@named("gelu")
def gelu(to: Builder, x: Tensor, approximate: str = "none") -> Traced:
    return pointwise(to, x, activations.Gelu("tanh" if approximate == "tanh" else "none"))


@named("dropout")
def dropout(to: Builder, x: Tensor, p: float, train: bool) -> Tensor:
    """Return the result of dropout, or the tensor itself if it leaves everything."""
    if not train or p == 0:
        return x
    if p >= 1:
        raise UnsupportedError(f"has p={p}")
    if traced(to, x).batch is None:
        raise UnsupportedError(SHARED, "dropout of what depends on the samples")
    return pointwise(to, x, Dropout(float(p)))


@named("feature_dropout")
def dropout_of_channels(to: Builder, x: Tensor, p: float, train: bool) -> Tensor:
    """Return the product with ones, one for each channel, of which dropout leaves some."""
    found = traced(to, x)
    if not train or p == 0:
        return x
    if found.batch != 0 or len(found.dims) < 2:
        raise UnsupportedError("is called without samples or channels")
    ones = np.ones([size.count if i == 1 else 1 for i, size in enumerate(found.sizes)], np.float32)
    return binary(to, Mul(), found, traced(to, dropout(to, Fixed(ones, 0), p, train)))


@named("prelu")
def prelu(to: Builder, x: Tensor, weight: Tensor) -> Traced:
    found, own = traced(to, x), traced(to, weight)
    channels = Size(own.sizes[0].count)
    slopes = to.viewed(own, [channels, *[Size(1)] * (len(found.dims) - 2)] if len(found.dims) > 1 else [channels])
    above = relu(to, found)
    below = binary(to, Add(), found, scaled(to, above, -1.0))
    return binary(to, Add(), above, binary(to, Mul(), below, slopes))


@named("glu")
def glu(to: Builder, x: Tensor, dim: int = -1) -> Traced:
    found = traced(to, x)
    at = dim % len(found.dims)
    half = found.sizes[at].count // 2
    first, second = to.sliced(found, at, 0, half), to.sliced(found, at, half, 2 * half)
    return binary(to, Mul(), first, sigmoid(to, second))


@named("celu")
def celu(to: Builder, x: Tensor, alpha: float = 1.0) -> Tensor:
    return scaled(to, elu(to, scaled(to, x, 1 / alpha)), alpha)


def number(x: Tensor | float, beside: Tensor | float | None = None) -> float | None:
    """Return a number, or the only element of a constant, as a float; None for any other tensor.

    And None for one that has more dimensions than the tensor beside it, since then the result has them.
    """
    if isinstance(x, int | float):
        return float(x)
    if not isinstance(x, Fixed) or x.values.size != 1 or x.values.ndim > _dimensions(beside, x.values.ndim):
        return None
    return float(x.values.reshape(-1)[0])


def _dimensions(x: Tensor | float | None, default: int) -> int:
    match x:
        case Traced():
            return len(x.dims)
        case Given():
            return len(x.shape)
        case Fixed():
            return x.values.ndim
    return default


def scaled(to: Builder, x: Tensor, by: float) -> Tensor:
    """Return a tensor times a number."""
    return x if by == 1 else pointwise(to, x, activations.Scale(by))


@named("add")
def add(to: Builder, x: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    by = number(other, x)
    if by is not None:
        return x if by * alpha == 0 else pointwise(to, x, activations.Shift(by * alpha))
    if (by := number(x, other)) is not None:
        return add(to, scaled(to, _tensor(other), alpha), by)
    return binary(to, Add(), x, scaled(to, _tensor(other), alpha))


def _tensor(x: Tensor | float) -> Tensor:
    assert not isinstance(x, int | float)
    return x


@named("sub", "subtract")
def sub(to: Builder, x: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    return add(to, x, other, -alpha)


@named("rsub")
def rsub(to: Builder, x: Tensor, other: Tensor | float, alpha: float = 1) -> Tensor:
    return add(to, scaled(to, x, -alpha), other)


@named("mul", "multiply")
def mul(to: Builder, x: Tensor, other: Tensor | float) -> Tensor:
    for one, by in ((x, number(other, x)), (other, number(x, other))):
        if by is not None:
            return scaled(to, _tensor(one), by)
    return binary(to, Mul(), x, _tensor(other))


@named("div", "divide", "true_divide")
def div(to: Builder, x: Tensor, other: Tensor | float) -> Tensor:
    if (by := number(other, x)) is not None and by != 0:
        return scaled(to, x, 1 / by)
    if isinstance(other, Fixed):
        return binary(to, Mul(), x, replace(other, values=1 / as_float(other.values)))
    if number(other) == 0:
        raise UnsupportedError("divides by 0")
    below = reciprocal(to, _tensor(other))
    return scaled(to, below, by) if (by := number(x, other)) is not None else binary(to, Mul(), x, below)


@named("maximum")
def maximum(to: Builder, x: Tensor, other: Tensor) -> Traced:
    """Return the larger of two tensors, element by element."""
    return binary(to, Maximum(), x, other)


@named("minimum")
def minimum(to: Builder, x: Tensor, other: Tensor) -> Traced:
    """Return the smaller of two tensors, element by element."""
    return binary(to, Minimum(), x, other)


@named("square")
def square(to: Builder, x: Tensor) -> Traced:
    """Return x·x."""
    return binary(to, Mul(), x, x)


#: Functions of exponents that are no whole numbers from 1 on.
ROOTS = {0.5: sqrt, -0.5: rsqrt, -1.0: reciprocal}


@named("pow")
def power(to: Builder, x: Tensor, exponent: Tensor | float) -> Tensor:
    by = number(exponent, x)
    if by in ROOTS:
        return ROOTS[by](to, x)
    if by is None or by not in range(1, 9):
        raise UnsupportedError("has another exponent than a whole number up to 8, ½, −½ or −1", "mul")
    found = x
    for _ in range(int(by) - 1):
        found = binary(to, Mul(), found, x)
    return found


@named("masked_fill")
def masked_fill(to: Builder, x: Tensor, mask: Tensor, value: Tensor | float) -> Traced:
    if not isinstance(mask, Fixed):
        raise UnsupportedError("has a mask that depends on samples", "masked_fill by a constant mask")
    if (by := number(value)) is None:
        return where(to, mask, value, x)
    hidden = mask.values.astype(bool)
    kept = binary(to, Keep(), x, replace(mask, values=as_float(~hidden)))
    return kept if by == 0 else binary(to, Add(), kept, replace(mask, values=as_float(np.where(hidden, by, 0))))


@named("where")
def where(to: Builder, condition: Tensor, x: Tensor | float, other: Tensor | float) -> Traced:
    if not isinstance(condition, Fixed):
        raise UnsupportedError("has a condition that depends on samples", "where by a constant condition")
    chosen = condition.values.astype(bool)
    if number(other) is not None:
        return masked_fill(to, _tensor(x), replace(condition, values=~chosen), other)
    if number(x) is not None:
        return masked_fill(to, _tensor(other), condition, x)
    parts = [(_tensor(x), ~chosen), (_tensor(other), chosen)]
    return binary(to, Add(), *(masked_fill(to, part, replace(condition, values=hidden), 0) for part, hidden in parts))


@named("tril", "triu")
def triangle(to: Builder, x: Tensor, diagonal: int = 0, *, kind: str) -> Traced:
    found = traced(to, x)
    if found.batch is not None and found.batch >= len(found.dims) - 2:
        raise UnsupportedError("is taken over samples")
    rows, columns = (size.count for size in found.sizes[-2:])
    upper = np.tri(rows, columns, diagonal - (kind == "triu")) == 0
    return masked_fill(to, found, Fixed(upper if kind == "tril" else ~upper), 0)
