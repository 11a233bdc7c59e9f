"""Views, and numbers that do not depend on the sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.networks.capture.tensors import (
    Fixed,
    Given,
    Tensor,
    binary,
    named,
    traced,
    turned_matrix,
)
from fredsim.networks.capture.values import BATCH, Builder, Dim, Size, Traced, UnsupportedError, count_of, shown
from fredsim.numerics.ops.arithmetic import Mul
from fredsim.numerics.ops.views import Cat

__all__ = ["axis_of", "cat", "full", "moved", "ordered", "repeated", "select", "stack"]


def axis_of(dim: int, count: int) -> int:
    """Return a dimension counted from the front."""
    return dim % max(count, 1)


@named(
    "view", "reshape", "_unsafe_view", "flatten", "ravel", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"
)
def view(to: Builder, x: Tensor, out: Sequence[Size]) -> Tensor:
    return to.viewed(traced(to, x), out)


@named("contiguous", "clone", "alias", "lift_fresh_copy", "lift_fresh")
def same(to: Builder, x: Tensor) -> Tensor:
    del to
    return x


def ordered(to: Builder, x: Tensor, order: Sequence[int]) -> Tensor:
    """Return a tensor's dimensions in another order."""
    if isinstance(x, Given) and len(x.shape) == 2 and not x.rows:
        return x if list(order) == [0, 1] else turned_matrix(x)
    found = traced(to, x)
    return replace(found, dims=tuple(found.dims[i] for i in order))


@named("permute")
def permute(to: Builder, x: Tensor, dims: Sequence[int], out: Sequence[Size]) -> Tensor:
    return ordered(to, x, [axis_of(i, len(out)) for i in dims])


@named("transpose", "swapaxes", "swapdims")
def transpose(to: Builder, x: Tensor, out: Sequence[Size], **axes: int) -> Tensor:
    order = list(range(len(out)))
    one, other = (axis_of(i, len(out)) for i in axes.values())
    order[one], order[other] = other, one
    return ordered(to, x, order)


@named("t", "mT", "numpy_T")
def turned(to: Builder, x: Tensor, out: Sequence[Size]) -> Tensor:
    order = list(range(len(out)))
    return ordered(to, x, [*order[:-2], *order[-2:][::-1]])


def moved(x: Traced, dim: int, place: int) -> Traced:
    """Return a tensor with one dimension in another place."""
    order = list(range(len(x.dims)))
    order.insert(axis_of(place, len(order)), order.pop(axis_of(dim, len(order))))
    return replace(x, dims=tuple(x.dims[i] for i in order))


@named("movedim", "moveaxis")
def movedim(to: Builder, x: Tensor, source: Any, destination: Any) -> Tensor:
    if not isinstance(source, int):
        if len(source) != 1:
            raise UnsupportedError("moves several axes", "permute")
        source, destination = source[0], destination[0]
    return moved(traced(to, x), source, destination)


@named("repeat")
def repeat(to: Builder, x: Tensor, repeats: Sequence[Any], out: Sequence[Size]) -> Tensor:
    found = traced(to, x)
    sizes = (Size(1),) * (len(out) - len(found.dims)) + found.sizes
    if any(size != Size(1) and times != 1 for size, times in zip(sizes, repeats, strict=True)):
        raise UnsupportedError("repeats more than one element", "expand, or cat")
    return expand(to, x, out)


@named("repeat_interleave")
def repeat_interleave(to: Builder, x: Tensor, repeats: Any, dim: int | None = None) -> Tensor:
    found = traced(to, x)
    if dim is None or not isinstance(repeats, int):
        raise UnsupportedError("has no dim, or several numbers of repeats", "repeat_interleave by a number along dim")
    at = axis_of(dim, len(found.dims))
    if found.sizes[at].batch:
        raise UnsupportedError("repeats samples")
    sizes = [*found.sizes]
    apart = to.viewed(found, [*sizes[: at + 1], Size(1), *sizes[at + 1 :]])
    counts = [size.count for size in apart.sizes]
    counts[at + 1] = repeats
    sizes[at] = Size(sizes[at].count * repeats)
    return to.viewed(repeated(to, apart, counts), sizes)


@named("expand", "expand_as", "broadcast_to")
def expand(to: Builder, x: Tensor, out: Sequence[Size]) -> Tensor:
    found = traced(to, x)
    dims = ((),) * (len(out) - len(found.dims)) + found.dims
    if found.batch is None:
        dims = tuple((BATCH,) if size == Size(1, batch=True) else dim for dim, size in zip(dims, out, strict=True))
    return repeated(to, replace(found, dims=dims), [size.count for size in out])


def repeated(to: Builder, x: Traced, counts: Sequence[int]) -> Traced:
    """Return a tensor repeated along the dimensions of one element that are to have more."""
    if all(count_of(dim) == count for dim, count in zip(x.dims, counts, strict=True)):
        return x
    ones = np.ones([1 if count_of(dim) == n else n for dim, n in zip(x.dims, counts, strict=True)], np.float32)
    return binary(to, Mul(), x, Fixed(ones))


@named("slice", "narrow")
def part(
    to: Builder,
    x: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
    length: int | None = None,
) -> Tensor:
    sizes = [*map(Size, x.shape)] if isinstance(x, Given) else traced(to, x).sizes
    at = axis_of(dim, len(sizes))
    if sizes[at].batch and (start or 0) == 0 and step == 1 and (end is None or end >= 2**31):
        return x
    if length is not None:
        start = (start or 0) % sizes[at].count if length else 0
        end = start + length
    begin, stop, _ = slice(start, end, step).indices(sizes[at].count)
    return rows_of(to, x, at, begin, stop) if step == 1 else _every(to, traced(to, x), at, begin, stop, step)


def rows_of(to: Builder, x: Tensor, dim: int, begin: int, end: int) -> Tensor:
    """Return a part of a dimension; a part of a parameter's rows stays one."""
    if isinstance(x, Given) and dim == 0 and not x.turned and not x.rows and len(x.shape) in {1, 2}:
        return x if (begin, end) == (0, x.shape[0]) else replace(x, rows=(begin, end))
    return to.sliced(traced(to, x), dim, begin, end)


def _every(to: Builder, x: Traced, dim: int, begin: int, end: int, step: int) -> Tensor:
    """Return every `step`-th element: the first ones of so many groups, and of what is left."""
    groups, left = divmod(end - begin, step)
    found: list[Tensor] = []
    if groups:
        sizes = [*x.sizes[:dim], Size(groups), Size(step), *x.sizes[dim + 1 :]]
        found.append(select(to, to.viewed(to.sliced(x, dim, begin, end - left), sizes), dim + 1, 0))
    if left:
        found.append(to.sliced(x, dim, end - left, end - left + 1))
    return cat(to, found, dim)


@named("select")
def select(to: Builder, x: Tensor, dim: int, index: int) -> Traced:
    """Return one element along a dimension, without it."""
    found = traced(to, x)
    at = axis_of(dim, len(found.dims))
    place = index % found.sizes[at].count
    chosen = to.sliced(found, at, place, place + 1)
    return replace(chosen, dims=(*chosen.dims[:at], *chosen.dims[at + 1 :]))


@named("split", "chunk", "split_with_sizes", "tensor_split", "unsafe_split", "unsafe_chunk")
def split(to: Builder, x: Tensor, parts: Sequence[Sequence[Size]], dim: int = 0) -> tuple[Tensor, ...]:
    at = axis_of(dim, len(parts[0]))
    if parts[0][at].batch:
        raise UnsupportedError("takes some of the samples")
    ends = np.cumsum([part[at].count for part in parts]).tolist()
    return tuple(rows_of(to, x, at, begin, end) for begin, end in zip([0, *ends], ends, strict=False))


@named("unbind")
def unbind(to: Builder, x: Tensor, parts: Sequence[Sequence[Size]], dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(select(to, x, dim, i) for i in range(len(parts)))


@named("cat", "concat", "concatenate")
def cat(to: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors one after the other along a dimension."""
    found = [traced(to, x) for x in tensors]
    if len(found) == 1:
        return found[0]
    at = axis_of(dim, len(found[0].dims))
    batch = next((x.batch for x in found if x.batch is not None), None)
    if at == batch:
        raise UnsupportedError("joins samples")
    if batch is not None:
        found = [x if x.batch is not None else replace(x, dims=_with_batch(x, batch)) for x in found]
    values, dims, kept = to.together(*found)
    return to.of_together(to.add(Cat(kept.index(at)), *values), dims, kept)


def _with_batch(x: Traced, at: int) -> tuple[Dim, ...]:
    if x.dims[at]:
        raise UnsupportedError(f"joins {shown(x)} to samples")
    return (*x.dims[:at], (BATCH,), *x.dims[at + 1 :])


@named("stack")
def stack(to: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return tensors along a new dimension."""
    found = [traced(to, x) for x in tensors]
    at = axis_of(dim, len(found[0].dims) + 1)
    return cat(to, [replace(x, dims=(*x.dims[:at], (), *x.dims[at:])) for x in found], at)


@named("full_like", "new_full", "ones_like", "new_ones", "zeros_like", "new_zeros")
def filled(to: Builder, x: Tensor, out: Sequence[Size], kind: str, fill_value: float = 0.0) -> Fixed:
    del to, x  # whose shape and type the result has
    return full(out, 1.0 if "ones" in kind else fill_value)


def full(out: Sequence[Size], value: float) -> Fixed:
    """Return a constant of one number."""
    batch = next((i for i, size in enumerate(out) if size.batch), None)
    return Fixed(np.full([size.count for size in out], value, np.float32), batch)
