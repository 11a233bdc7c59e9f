"""The table "Operators of networks" of docs/numerics.md, on exact numbers: an implementation of the text alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from tests.vectors.box import Box, add, bands, box, count, over
from tests.vectors.case import Case, Made, Options, Tensors
from tests.vectors.contract import ZERO, exp32, log32
from tests.vectors.functions import POINTWISE
from tests.vectors.ieee import FLOAT32, Number, number
from tests.vectors.norms import batch_norm, frozen_norm, group_norm, layer_norm, rms_norm

__all__ = ["meeting", "run", "softmax"]


def run(
    kind: str, o: Options, samples: Sequence[Sequence[Box]], t: Tensors, deltas: Sequence[Box], draws: Sequence[Any]
) -> list[Made]:
    """Return what an operator makes of samples, each with the inputs' values, at errors of their outputs."""
    if kind == "BatchNorm":
        return batch_norm(o, [x for (x,) in samples], t, deltas)
    if kind in POINTWISE:
        value, back = POINTWISE[kind](o)
        return [Made(x.map(value), [x.map(back, d)]) for (x,), d in zip(samples, deltas, strict=True)]
    operator = OPERATORS[kind]
    return [operator(Case(o, xs, t, d, u)) for xs, d, u in zip(samples, deltas, draws, strict=True)]


def conv2d(case: Case) -> Made:
    (x,), w, (outs, rows, columns) = case.xs, case.t["weight"], case.d.shape
    by, across = case.o.get("dilation", (1, 1))
    if case.o.get("flat"):
        w = Box((w.shape[0], w.shape[1], 1, w.shape[2]), w.values)
    (kernel, (top, left), (down, right)) = case.o["kernel"], case.o.get("padding", (0, 0)), case.o.get("stride", (1, 1))
    each_in, each_out = w.shape[1], outs // case.o.get("groups", 1)
    offsets = list(product(range(kernel[0]), range(kernel[1])))

    def seen(channel: int, r: int, c: int) -> Number:
        inside = 0 <= r < x.shape[1] and 0 <= c < x.shape[2]
        return x[channel, r, c] if inside else ZERO

    def output(j: int, r: int, c: int) -> Number:
        first = j // each_out * each_in
        z = add(
            seen(first + k, r * down + a * by - top, c * right + b * across - left) * w[j, k, a, b]
            for a, b in offsets
            for k in range(each_in)
        )
        return z + case.t["bias"][(j,)] if "bias" in case.t else z

    def error(channel: int, r: int, c: int) -> Number:
        total, (group, k) = ZERO, divmod(channel, each_in)
        for a, b in offsets:
            (i, rest_i), (j, rest_j) = divmod(r + top - a * by, down), divmod(c + left - b * across, right)
            if rest_i == rest_j == 0 and 0 <= i < rows and 0 <= j < columns:
                for out in range(group * each_out, (group + 1) * each_out):
                    total = total + case.d[out, i, j] * w[out, k, a, b]
        return total

    def weight(j: int, k: int, a: int, b: int) -> Number:
        channel = j // each_out * each_in + k
        return bands(
            rows, columns,
            lambda r, c: seen(channel, r * down + a * by - top, c * right + b * across - left) * case.d[j, r, c],
        )  # fmt: skip

    grads = {"weight": Box(case.t["weight"].shape, box(w.shape, weight).values)}
    if "bias" in case.t:
        grads["bias"] = box((outs,), lambda j: bands(rows, columns, lambda r, c: case.d[j, r, c]))
    return Made(box(case.d.shape, output), [box(x.shape, error)], grads)


def linear(case: Case) -> Made:
    (x,), turned = case.xs, case.o.get("layout") == "out_in"
    inputs, outputs = x.shape[-1], case.o["outputs"]
    positions = list(product(*map(range, x.shape[:-1])))

    def w(k: int, j: int) -> Any:
        return case.t["weight"][(j, k) if turned else (k, j)]

    def output(*place: int) -> Number:
        at, j = place[:-1], place[-1]
        z = add(x[(*at, k)] * w(k, j) for k in range(inputs))
        return z + case.t["bias"][(j,)] if "bias" in case.t else z

    def error(*place: int) -> Number:
        at, k = place[:-1], place[-1]
        return add(case.d[(*at, j)] * w(k, j) for j in range(outputs))

    def weight(a: int, b: int) -> Number:
        k, j = (b, a) if turned else (a, b)
        return over(positions, lambda at: x[(*at, k)] * case.d[(*at, j)])

    grads = {"weight": box(case.t["weight"].shape, weight)}
    if "bias" in case.t:
        grads["bias"] = box((outputs,), lambda j: over(positions, lambda at: case.d[(*at, j)]))
    return Made(box(case.d.shape, output), [box(x.shape, error)], grads)


def windows(kind: str, o: Options, shape: tuple[int, ...]) -> list[tuple[list[tuple[int, int]], int]]:
    """Return the places of each window inside the image, and by how many a mean is divided."""
    spans = []
    for axis in (0, 1):
        size = shape[axis + 1]
        if kind == "AdaptiveAvgPool2d":
            n = o["size"][axis]
            spans.append([range(i * size // n, -(-(i + 1) * size // n)) for i in range(n)])
            continue
        k, s, p = o["kernel"][axis], o["stride"][axis], o.get("padding", (0, 0))[axis]
        begins = [i * s - p for i in range((size + 2 * p - k) // s + 1)]
        spans.append([range(max(0, begin), min(begin + k, size)) for begin in begins])
    found = [list(product(r, c)) for r, c in product(*spans)]
    whole = math.prod(o["kernel"]) if kind == "AvgPool2d" and o.get("count_padding", True) else None
    return [(places, whole or len(places)) for places in found]


def max_pool(case: Case) -> Made:
    (x,) = case.xs
    y, dx = box(case.d.shape, lambda *_: ZERO), box(x.shape, lambda *_: ZERO)
    outs = list(product(range(case.d.shape[1]), range(case.d.shape[2])))
    for channel in range(x.shape[0]):
        for (i, j), (places, _) in zip(outs, windows("MaxPool2d", case.o, x.shape), strict=True):
            best = places[0]
            for place in places:
                v = x[(channel, *place)]
                if v > x[(channel, *best)] or v.nan:
                    best = place
            y[channel, i, j] = x[(channel, *best)]
            dx[(channel, *best)] = dx[(channel, *best)] + case.d[channel, i, j]
    return Made(y, [dx])


def mean_pool(kind: str) -> Callable[..., Made]:
    def made(case: Case) -> Made:
        (x,) = case.xs
        y, dx = box(case.d.shape, lambda *_: ZERO), box(x.shape, lambda *_: ZERO)
        outs = list(product(range(case.d.shape[1]), range(case.d.shape[2])))
        for channel in range(x.shape[0]):
            for (i, j), (places, n) in zip(outs, windows(kind, case.o, x.shape), strict=True):
                y[channel, i, j] = add(x[(channel, *place)] for place in places) / count(n)
                share = case.d[channel, i, j] / count(n)
                for place in places:
                    dx[(channel, *place)] = dx[(channel, *place)] + share
        return Made(y, [dx])

    return made


def embedding(case: Case) -> Made:
    (x,), table = case.xs, case.t["weight"]
    grad = box(table.shape, lambda *_: ZERO)
    for at, j in product(x.places, range(case.o["width"])):
        if x[at] == case.o.get("untrained"):
            continue
        grad[x[at], j] = grad[x[at], j] + case.d[(*at, j)]
    return Made(box(case.d.shape, lambda *place: table[x[place[:-1]], place[-1]]), [None], {"weight": grad})


def both(backs: Callable[..., tuple[Number, Number]], forward: Callable[..., Number]) -> Callable[..., Made]:
    """Return a sum or product, whose inputs may be repeated along axes."""

    def made(case: Case) -> Made:
        def given(x: Box, place: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(0 if size == 1 else i for i, size in zip(place, x.shape, strict=True))

        a, b = case.xs
        errors = [box(x.shape, lambda *_: ZERO) for x in case.xs]
        for place in case.d.places:
            sent = backs(a[given(a, place)], b[given(b, place)], case.d[place])
            for x, error, one in zip(case.xs, errors, sent, strict=True):
                error[given(x, place)] = error[given(x, place)] + one
        return Made(box(case.d.shape, lambda *at: forward(a[given(a, at)], b[given(b, at)])), list(errors))

    return made


def extreme(beats: Callable[[Number, Number], bool]) -> Callable[..., Made]:
    """Return maximum or minimum."""

    def share(own: Number, other: Number) -> Number:
        return number(FLOAT32, 0 if beats(other, own) else 0.5 if own == other else 1)

    return both(
        lambda a, b, d: (d * share(a, b), d * share(b, a)), lambda a, b: a if beats(a, b) or a.nan else b
    )  # fmt: skip


def keep(case: Case) -> Made:
    made = both(lambda a, b, d: (d if b > 0 else ZERO, ZERO), lambda a, b: a if b > 0 else ZERO)(case)
    return Made(made.y, [made.errors[0], None])


def dropout(case: Case) -> Made:
    if case.u is None:
        return Made(case.xs[0], [case.d])
    return Made(
        case.xs[0].map(lambda x, v: left(case.o["p"], x, v), case.u),
        [case.d.map(lambda x, v: left(case.o["p"], x, v), case.u)],
    )


def left(p: float, x: Number, u: Number) -> Number:
    """Return +0 where u < p, else x·s."""
    return ZERO if u.exact < Fraction(p) else x * number(FLOAT32, 1 / (1 - p))


def matmul(case: Case) -> Made:
    a, b = case.xs
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    y = box(case.d.shape, lambda *at: add(a[(*at[:-1], k)] * b[(*at[:-2], k, at[-1])] for k in range(inner)))
    da = box(a.shape, lambda *at: add(case.d[(*at[:-1], j)] * b[(*at[:-2], at[-1], j)] for j in range(columns)))
    db = box(b.shape, lambda *at: add(a[(*at[:-2], i, at[-2])] * case.d[(*at[:-2], i, at[-1])] for i in range(rows)))
    return Made(y, [da, db])


def softmax(z: Sequence[Number]) -> tuple[list[Number], list[Number], Number]:
    """Return p, z − max and the sum of its exponentials."""
    best = z[0]
    for value in z[1:]:
        best = value if value > best else best
    shifted = [value - best for value in z]
    parts = [exp32(value) for value in shifted]
    total = add(parts)
    return [part / total for part in parts], shifted, total


def softmax_of_last(case: Case) -> Made:
    (x,), n = case.xs, case.xs[0].shape[-1]
    y, error = Box(x.shape, x.values), Box(x.shape, x.values)
    for begin in range(0, len(x.values), n):
        p, given = softmax(x.values[begin : begin + n])[0], case.d.values[begin : begin + n]
        mean = add(one * other for one, other in zip(p, given, strict=True))
        y.values[begin : begin + n] = p
        error.values[begin : begin + n] = [one * (other - mean) for one, other in zip(p, given, strict=True)]
    return Made(y, [error])


def log_softmax(case: Case) -> Made:
    (x,), n = case.xs, case.xs[0].shape[-1]
    y, error = Box(x.shape, list(x.values)), Box(x.shape, list(x.values))
    for begin in range(0, len(x.values), n):
        p, shifted, total = softmax(x.values[begin : begin + n])
        given = case.d.values[begin : begin + n]
        log_total, sent = log32(total), add(given)
        y.values[begin : begin + n] = [value - log_total for value in shifted]
        error.values[begin : begin + n] = [own - one * sent for own, one in zip(given, p, strict=True)]
    return Made(y, [error])


def attention(case: Case) -> Made:
    q, k, v = case.xs
    queries, keys, width, values = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    scale = number(FLOAT32, case.o["scale"] if case.o.get("scale") is not None else 1 / math.sqrt(width))
    masked, lost = case.o.get("masked"), case.o.get("dropout", 0.0)
    seen = [
        [j for j in range(keys) if not (case.o.get("causal") and j > i) and not (masked and masked[i][j])]
        for i in range(queries)
    ]
    y, dq, dk, dv = (box(x.shape, lambda *_: ZERO) for x in (case.d, q, k, v))

    def dropped(at: tuple[int, ...], i: int, j: int, x: Number) -> Number:
        return x if case.u is None else left(lost, x, case.u[(*at, i, j)])

    for at in product(*map(range, q.shape[:-2])):
        for i in range(queries):
            s = [add(q[(*at, i, c)] * k[(*at, j, c)] for c in range(width)) * scale for j in seen[i]]
            p = dict(zip(seen[i], softmax(s)[0] if s else [], strict=True))
            kept = {j: dropped(at, i, j, p[j]) for j in p}
            e = {j: dropped(at, i, j, add(case.d[(*at, i, c)] * v[(*at, j, c)] for c in range(values))) for j in p}
            mean = add(p[j] * e[j] for j in p)
            sent = {j: (p[j] * (e[j] - mean)) * scale for j in p}
            for c in range(values):
                y[(*at, i, c)] = add(kept[j] * v[(*at, j, c)] for j in p)
            for c in range(width):
                dq[(*at, i, c)] = add(sent[j] * k[(*at, j, c)] for j in p)
            for j in p:  # queries ascend: the loop around
                for c in range(width):
                    dk[(*at, j, c)] = dk[(*at, j, c)] + sent[j] * q[(*at, i, c)]
                for c in range(values):
                    dv[(*at, j, c)] = dv[(*at, j, c)] + kept[j] * case.d[(*at, i, c)]
    return Made(y, [dq, dk, dv])


def detach(case: Case) -> Made:
    return Made(case.xs[0], [None])


def permute(case: Case) -> Made:
    (x,), axes = case.xs, case.o["axes"]

    def old(place: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(place[axes.index(axis)] for axis in range(len(axes)))

    error = Box(x.shape, x.values)
    for place in case.d.places:
        error[old(place)] = case.d[place]
    return Made(box(case.d.shape, lambda *place: x[old(place)]), [error])


def slice_of(case: Case) -> Made:
    (x,), axis, begin = case.xs, case.o["axis"], case.o["begin"]

    def old(place: tuple[int, ...]) -> tuple[int, ...]:
        return (*place[:axis], place[axis] + begin, *place[axis + 1 :])

    error = box(x.shape, lambda *_: ZERO)
    for place in case.d.places:
        error[old(place)] = case.d[place]
    return Made(box(case.d.shape, lambda *place: x[old(place)]), [error])


def cat(case: Case) -> Made:
    axis, begin, y, errors = case.o["axis"], 0, box(case.d.shape, lambda *_: ZERO), list[Box | None]()
    for x in case.xs:
        error = Box(x.shape, x.values)
        for place in x.places:
            new = (*place[:axis], place[axis] + begin, *place[axis + 1 :])
            y[new], error[place] = x[place], case.d[new]
        errors.append(error)
        begin += x.shape[axis]
    return Made(y, errors)


def reshape(case: Case) -> Made:
    return Made(Box(case.d.shape, case.xs[0].values), [Box(case.xs[0].shape, case.d.values)])


def parameter(case: Case) -> Made:
    return Made(case.t["weight"], [None], {"weight": case.d})


OPERATORS: dict[str, Callable[..., Made]] = {
    "AdaptiveAvgPool2d": mean_pool("AdaptiveAvgPool2d"),
    "Add": both(lambda a, b, d: (d, d), lambda a, b: a + b),
    "Attention": attention,
    "AvgPool2d": mean_pool("AvgPool2d"),
    "Cat": cat,
    "Conv2d": conv2d,
    "Detach": detach,
    "Dropout": dropout,
    "Embedding": embedding,
    "FrozenBatchNorm": frozen_norm,
    "GroupNorm": group_norm,
    "Keep": keep,
    "LayerNorm": layer_norm,
    "Linear": linear,
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "MaxPool2d": max_pool,
    "Maximum": extreme(lambda a, b: a > b),
    "Minimum": extreme(lambda a, b: a < b),
    "Mul": both(lambda a, b, d: (d * b, d * a), lambda a, b: a * b),
    "Parameter": parameter,
    "Permute": permute,
    "Reshape": reshape,
    "RmsNorm": rms_norm,
    "Slice": slice_of,
    "Softmax": softmax_of_last,
}


def meeting(x: Box, w: Box, d: Box) -> tuple[Box, Box]:
    """Return the output of the network of drive_operators.meeting_nodes for a sample, and its own gradient of w.

    Errors that meet in a value are added, the last node's first, and one node's in the order of its inputs; so are the
    gradients of a tensor that several nodes have.
    """
    o, t = {"outputs": w.shape[1]}, {"weight": w}

    def of(kind: str, given: list[Box], error: Box) -> Made:
        return run(kind, o, [given], t, [error], [None])[0]

    a = of("Linear", [x], d).y
    b = of("Tanh", [a], d).y
    c = of("Mul", [a, b], d).y
    e = of("Linear", [c], d).y
    f = of("Add", [e, a], d).y
    g = of("Mul", [f, f], d).y
    last = of("Linear", [g], d)
    own, errors = last.grads["weight"], last.errors[0]
    assert errors is not None
    first, second = of("Mul", [f, f], errors).errors
    assert first is not None
    assert second is not None
    at_f = first.map(lambda p, q: p + q, second)
    middle = of("Linear", [c], at_f)
    assert middle.errors[0] is not None
    at_a, (to_a, at_b) = at_f, of("Mul", [a, b], middle.errors[0]).errors
    assert to_a is not None
    assert at_b is not None
    (through,) = of("Tanh", [a], at_b).errors
    assert through is not None
    at_a = at_a.map(lambda p, q, r: (p + q) + r, to_a, through)
    own = own.map(lambda p, q, r: (p + q) + r, middle.grads["weight"], of("Linear", [x], at_a).grads["weight"])
    return last.y, own
