"""einsum: sums of products over letters, as products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fredsim.networks.capture.images import total
from fredsim.networks.capture.products import linear, product_of
from fredsim.networks.capture.tensors import Given, Tensor, named, traced, turned_matrix
from fredsim.networks.capture.values import BATCH, Builder, Size, Traced, UnsupportedError, plain

__all__: list[str] = []


@named("einsum")
def einsum(to: Builder, equation: str, tensors: Sequence[Tensor]) -> Tensor:
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    letters = inputs.split(",")
    if not arrow:
        joined = "".join(letters)
        output = "".join(sorted(letter for letter in set(joined) if joined.count(letter) == 1))
    if "." in equation or any(len(set(each)) < len(each) for each in letters):
        raise UnsupportedError(f"is {equation!r}, with an ellipsis or a letter that a tensor has twice")
    if len(tensors) == 1:
        return _ordered(_without(to, traced(to, tensors[0]), letters[0], output), letters[0], output)
    x, own = tensors[0], letters[0]
    for i, (other, its) in enumerate(zip(tensors[1:], letters[1:], strict=True), start=2):
        rest = set(output).union(*letters[i:])
        x, own = _product(to, x, own, other, its, rest)
    return _ordered(traced(to, x), own, output)


def _sizes(x: Tensor) -> Sequence[Size]:
    """Return the sizes of a tensor without adding a node for it."""
    if isinstance(x, Traced):
        return x.sizes
    if isinstance(x, Given):
        return [Size(n) for n in x.shape]
    return [Size(n, i == x.batch) for i, n in enumerate(x.values.shape)]


def _without(to: Builder, x: Traced, letters: str, kept: str) -> Traced:
    """Return a tensor summed over the letters that are not kept."""
    gone = [i for i, letter in enumerate(letters) if letter not in kept]
    return traced(to, total(to, x, gone)) if gone else x


def _ordered(x: Traced, letters: str, output: str) -> Traced:
    left = [letter for letter in letters if letter in output]
    return replace(x, dims=tuple(x.dims[left.index(letter)] for letter in output))


def _product(to: Builder, a: Tensor, own: str, b: Tensor, its: str, kept: set[str]) -> tuple[Tensor, str]:
    """Return the product of two tensors, summed over the letters that nothing else has, and its letters."""
    summed = [letter for letter in own if letter in its and letter not in kept]
    for letter in sorted({*own} & {*its}):
        one, other = _sizes(a)[own.index(letter)], _sizes(b)[its.index(letter)]
        if one != other:
            raise UnsupportedError(f"has the letter {letter} for the sizes {plain(one)} and {plain(other)}", "expand")
    matrix = isinstance(b, Given) and len(b.shape) == 2 and not b.rows
    if matrix and summed and summed == [*own[-1:]] and {*own[:-1], *its} - {*summed} <= kept:  # a dense layer
        assert isinstance(b, Given)
        return linear(to, a, turned_matrix(b) if own[-1] == its[0] else b), own[:-1] + its.replace(own[-1], "")
    first, second = traced(to, a), traced(to, b)
    alone = "".join(kept | set(own) & set(its))
    first, second = _without(to, first, own, alone), _without(to, second, its, alone)
    own, its = ("".join(letter for letter in word if letter in alone) for word in (own, its))
    if first.batch is None and second.batch is not None:
        first, own, second, its = second, its, first, own
    both = [letter for letter in own if letter in its and letter not in summed]
    mine, others = ([x for x in word if x not in (*both, *summed)] for word in (own, its))
    if any(BATCH in first.dims[own.index(letter)] for letter in summed):
        raise UnsupportedError("sums over samples")
    left = _matrices(to, _ordered(first, own, "".join([*both, *mine, *summed])), len(both), len(mine))
    right = _matrices(to, _ordered(second, its, "".join([*both, *summed, *others])), len(both), len(summed))
    sizes = dict(zip(own, first.sizes, strict=True)) | {
        letter: size for letter, size in zip(its, second.sizes, strict=True) if letter in others
    }
    found = product_of(to, left, right)
    return to.viewed(found, [sizes[letter] for letter in (*both, *mine, *others)]), "".join([*both, *mine, *others])


def _matrices(to: Builder, x: Traced, lead: int, rows: int) -> Traced:
    """Return a tensor whose dimensions after the first `lead` are two: the first `rows` of them, and the others."""
    parts = [x.sizes[lead : lead + rows], x.sizes[lead + rows :]]
    return to.viewed(x, [*x.sizes[:lead], *map(_joined, parts)])


def _joined(sizes: Sequence[Size]) -> Size:
    return Size(math.prod(size.count for size in sizes), any(size.batch for size in sizes))
