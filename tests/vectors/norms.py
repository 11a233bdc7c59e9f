"""The norms of docs/numerics.md, "Operators of networks", on exact numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from tests.vectors.box import Box, bands, box, count
from tests.vectors.case import Case, Made, Options, Tensors
from tests.vectors.contract import tree
from tests.vectors.ieee import FLOAT32, Number, number, sqrt

__all__ = ["batch_norm", "frozen_norm", "group_norm", "layer_norm", "rms_norm"]


class Places(NamedTuple):
    """Where the elements of a channel are: at (row, column), each with its place in the array."""

    rows: int
    columns: int
    channels: int
    at: Callable[[int, int, int], tuple[int, ...]]  # of a row, a column and a channel


def places(shape: tuple[int, ...], *, first: bool) -> Places:
    """Channels are the first axis, or the last; three axes of which they are the first are an image."""
    if first and len(shape) == 3:
        return Places(shape[1], shape[2], shape[0], lambda r, c, k: (k, r, c))
    rest, channels = (shape[1:], shape[0]) if first else (shape[:-1], shape[-1])
    positions = list(product(*map(range, rest)))
    if first:
        return Places(len(positions), 1, channels, lambda r, c, k: (k, *positions[r]))
    return Places(len(positions), 1, channels, lambda r, c, k: (*positions[r], k))


def normalised(t: Tensors, x: Box, hat: Box, p: Places) -> Box:
    """Return x̂·γ + β."""
    y = Box(x.shape, hat.values)
    for r, c, k in product(range(p.rows), range(p.columns), range(p.channels)):
        at = p.at(r, c, k)
        if "weight" in t:
            y[at] = y[at] * t["weight"][(k,)]
        if "bias" in t:
            y[at] = y[at] + t["bias"][(k,)]
    return y


def own_gradients(t: Tensors, hat: Box, d: Box, p: Places) -> Tensors:
    """Return δ·x̂ and δ over positions, for the tensors that there are."""

    def weight(k: int) -> Number:
        return bands(p.rows, p.columns, lambda r, c: d[p.at(r, c, k)] * hat[p.at(r, c, k)])

    def bias(k: int) -> Number:
        return bands(p.rows, p.columns, lambda r, c: d[p.at(r, c, k)])

    made = {"weight": weight, "bias": bias}
    return {role: box((p.channels,), made[role]) for role in made if role in t}


def scaled(t: Tensors, d: Box, p: Places) -> Box:
    """Return d = δ·γ."""
    made = Box(d.shape, d.values)
    if "weight" in t:
        for r, c, k in product(range(p.rows), range(p.columns), range(p.channels)):
            made[p.at(r, c, k)] = d[p.at(r, c, k)] * t["weight"][(k,)]
    return made


def normalise(
    o: Options,
    xs: Sequence[Box],
    t: Tensors,
    ds: Sequence[Box],
    p: Places,
    n: int,
    groups: list[list[Any]],
    total: Callable[[list[Any], Callable[[Any], Number]], Number],
    *,
    centred: bool = True,
) -> list[Made]:
    """Return a norm over groups of (sample, place), given S: what `total` makes of a group and a term."""
    eps, hats, scales = number(FLOAT32, o["eps"]), [Box(x.shape, x.values) for x in xs], {}
    for number_of_group, group in enumerate(groups):
        if centred:
            m = total(group, lambda e: xs[e[0]][e[1]]) / count(n)
            for s, at in members(group):
                hats[s][at] = xs[s][at] - m
        v = total(group, lambda e: hats[e[0]][e[1]] * hats[e[0]][e[1]]) / count(n)
        r = count(1) / sqrt(v + eps)
        scales[number_of_group] = r
        for s, at in members(group):
            hats[s][at] = hats[s][at] * r
    scaled_errors, errors = [scaled(t, d, p) for d in ds], [Box(x.shape, x.values) for x in xs]
    for number_of_group, group in enumerate(groups):
        by_hat = total(group, lambda e: scaled_errors[e[0]][e[1]] * hats[e[0]][e[1]]) / count(n)
        plain = total(group, lambda e: scaled_errors[e[0]][e[1]]) / count(n) if centred else None
        for s, at in members(group):
            d = scaled_errors[s][at]
            apart = d if plain is None else d - plain
            errors[s][at] = scales[number_of_group] * (apart - hats[s][at] * by_hat)
    return [
        Made(normalised(t, x, hat, p), [error], own_gradients(t, hat, d, p))
        for x, hat, error, d in zip(xs, hats, errors, ds, strict=True)
    ]


def members(group: Any) -> list[Any]:
    """Return the (sample, place) of a nested list."""
    return [group] if isinstance(group, tuple) else [one for part in group for one in members(part)]


def positional(p: Places, group: list[Any], term: Callable[[Any], Number]) -> Number:
    """Return the sum over positions of a channel, a list in row-major order."""
    return bands(p.rows, p.columns, lambda r, c: term(group[r * p.columns + c]))


def channel(p: Places, sample: int, k: int) -> list[Any]:
    """Return the (sample, place) of a channel in row-major order."""
    return [(sample, p.at(r, c, k)) for r in range(p.rows) for c in range(p.columns)]


def group_norm(case: Case) -> Made:
    p = places(case.xs[0].shape, first=True)
    each = p.channels // case.o["groups"]
    groups = [[channel(p, 0, g * each + k) for k in range(each)] for g in range(case.o["groups"])]
    n = p.rows * p.columns * each
    made = normalise(
        {"eps": 1e-5} | case.o,
        case.xs,
        case.t,
        [case.d],
        p,
        n,
        groups,
        lambda g, term: tree([positional(p, k, term) for k in g]),
    )
    return made[0]


def batch_norm(o: Options, xs: Sequence[Box], t: Tensors, ds: Sequence[Box]) -> list[Made]:
    p = places(xs[0].shape, first=True)
    groups = [[channel(p, s, k) for s in range(len(xs))] for k in range(p.channels)]
    n = len(xs) * p.rows * p.columns
    return normalise(
        {"eps": 1e-5} | o, xs, t, ds, p, n, groups, lambda g, term: tree([positional(p, s, term) for s in g])
    )


def layer_norm(case: Case, *, centred: bool = True) -> Made:
    p = places(case.xs[0].shape, first=False)
    groups = [[(0, p.at(r, 0, k)) for k in range(p.channels)] for r in range(p.rows)]
    eps = {"eps": 1e-5 if centred else 1e-6}
    made = normalise(
        eps | case.o,
        case.xs,
        case.t,
        [case.d],
        p,
        p.channels,
        groups,
        lambda g, term: tree([term(e) for e in g]),
        centred=centred,
    )
    return made[0]


def rms_norm(case: Case) -> Made:
    return layer_norm(case, centred=False)


def frozen_norm(case: Case) -> Made:
    (x,), p, eps = case.xs, places(case.xs[0].shape, first=True), number(FLOAT32, case.o.get("eps", 1e-5))
    r = [count(1) / sqrt(v + eps) for v in case.t["variance"].values]
    hat, given = Box(x.shape, x.values), scaled(case.t, case.d, p)
    error = Box(x.shape, x.values)
    for a, b, k in product(range(p.rows), range(p.columns), range(p.channels)):
        at = p.at(a, b, k)
        hat[at] = (x[at] - case.t["mean"][(k,)]) * r[k]
        error[at] = r[k] * given[at]
    return Made(normalised(case.t, x, hat, p), [error], own_gradients(case.t, hat, case.d, p))
