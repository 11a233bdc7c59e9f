"""Write tests/vectors/answers.txt: the expected answers of every kernel, computed from exact fractions, without NumPy.

python -m tests.vectors.make
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import chain, pairwise, product
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.vectors import contract
from tests.vectors.contract import Numbers
from tests.vectors.distributions import distributions
from tests.vectors.ieee import FLOAT32, FLOAT64, number, of_bits
from tests.vectors.records import record, sealed
from tests.vectors.rules import RULES

FILE = Path(__file__).with_name("answers.txt")
HEADER = """\
# What each kernel must answer, bit for bit. Made by `python -m tests.vectors.make` from exact fractions: do not edit.
#
# A record: the kernel and the record's name; what the kernel is given; what it must answer, after "=". A line is a
# name, a type and values; a longer array goes on under the same name. f32, f64, u32 and u8 are hexadecimal encodings
# (any NaN stands for any NaN), int and ints are decimal. The state of an update begins at 0.25; its rules stand in
# rules.py. Minibatches have parameters of their own; `rows` number their samples.
"""
Ints = Sequence[int]

EPS = Fraction(1, 2**23)  # between 1 and the next number
TINY = Fraction(1, 2**149)  # the least subnormal
LARGEST = (2 - EPS) * 2**127
INF, NAN = math.inf, math.nan


def f32(*values: Any) -> Numbers:
    return [number(FLOAT32, value) for value in values]


def flat(lists: Iterable[Numbers]) -> Numbers:
    return list(chain.from_iterable(lists))


def words(count: int, purpose: int) -> list[int]:
    """Return 32-bit words that look random."""
    blocks = (contract.philox((i, purpose, 0, 0), (2016, 0)) for i in range(-(-count // 4)))
    return [word for block in blocks for word in block][:count]


def spread(count: int, purpose: int, least: int, most: int) -> Numbers:
    """Return numbers of either sign and many bits, of exponents in least … most."""
    mantissas, exponents = words(count, purpose), words(count, purpose + 1000)
    return [
        of_bits(FLOAT32, (m & 0x807FFFFF) | (127 + least + e % (most - least + 1)) << 23)
        for m, e in zip(mantissas, exponents, strict=True)
    ]


def chosen(values: Numbers, count: int, purpose: int) -> Numbers:
    return [values[word % len(values)] for word in words(count, purpose)]


SPECIAL = f32(
    0, -0.0, TINY, -TINY, (2**23 - 1) * TINY, 2**23 * TINY, 1, 1 + EPS, -1, 0.1, LARGEST, -LARGEST, INF, -INF, NAN
)
# Pairs whose sum, difference, product or quotient lies halfway between two numbers, or just beside.
TIES: list[tuple[Any, Any]] = [
    (1, EPS / 2), (1 + EPS, EPS / 2), (1, -EPS / 4), (1 - EPS / 2, EPS / 4), (1, EPS / 2 + EPS**2), (2**24, 1),
    (2**24 + 2, 1), (-(2**24), -1), (1, 3 * EPS / 2), (LARGEST, Fraction(2) ** 103), (LARGEST, Fraction(2) ** 102),
    (-LARGEST, -(Fraction(2) ** 103)), (1 + Fraction(1, 2**12), 1 + Fraction(1, 2**12)), (1 + EPS, Fraction(3, 2)),
    (1 + 3 * EPS, Fraction(3, 2)), (1 - EPS / 2, 1 + EPS), (TINY, Fraction(1, 2)), (3 * TINY, Fraction(1, 2)),
    (5 * TINY, Fraction(1, 2)), (TINY, Fraction(3, 2)), (TINY, 2), (3 * TINY, 2), (5 * TINY, -2), (7 * TINY, 4),
    (2**23 * TINY, 1 - EPS / 2), (2**23 * TINY, 1 + EPS), (Fraction(2) ** 64, Fraction(2) ** 64), (1 + EPS, 1 - EPS),
    (1, 1 + EPS), (1 - EPS, 1 + EPS), (1 + 2 * EPS, 3), (4 + 4 * EPS, 1), (2 - EPS, 1), (1, 3), (1, 10), (LARGEST, 0.5),
]  # fmt: skip
EDGE = Fraction(1, 2**62)
NEAR = f32(EDGE, -EDGE, EDGE * (1 - EPS / 2), -EDGE * (1 - EPS / 2), EDGE * (1 + EPS), EDGE / 2, -EDGE / 2, 0.1, 0.3)


def elementary() -> Iterator[str]:
    below, above = f32(-87)[0], f32(88.72)[0]
    ends = [of_bits(FLOAT32, x.bits() + step) for x in (below, above) for step in (-1, 0, 1)]
    halves = f32(*(k * 0.34657359 for k in range(-251, 256, 6)))  # of ln 2: where the range reduction turns
    for name, x in (
        ("special", SPECIAL), ("range-ends", [*ends, *f32(-88, -104, 89, 1e10, -1e10)]), ("halves", halves),
        ("many", [*spread(120, 1, -20, 5), *spread(24, 2, -126, -20)]),
    ):  # fmt: skip
        yield record("exp32", name, {"x": x}, {"y": [contract.exp32(value) for value in x]})
    near = [of_bits(FLOAT32, 0x3F800000 + step) for step in range(-12, 13)]
    root = [of_bits(FLOAT32, x.bits() + step) for x in f32(math.sqrt(2), math.sqrt(0.5)) for step in range(-3, 4)]
    subnormal = [of_bits(FLOAT32, word & 0x7FFFFF) for word in words(36, 3)]
    for name, x in (
        ("special", SPECIAL), ("near-1", near), ("near-root-2", root), ("subnormal", subnormal),
        ("many", [abs(value) for value in spread(144, 4, -126, 127)]),
    ):  # fmt: skip
        yield record("log32", name, {"x": x}, {"y": [contract.log32(value) for value in x]})


def update(rule: str, name: str, theta: Numbers, g: Numbers, numbers: Numbers) -> str:
    """Return the record of a rule, whose own source is run on exact numbers. Its state begins at 0.25."""
    function = RULES[rule].function
    exact = FunctionType(function.__code__, contract.rule_names())
    state = f32(0.25) * len(RULES[rule].state)
    results = [exact(t, *state, x, *numbers) for t, x in zip(theta, g, strict=True)]
    arrays = [list(array) for array in zip(*results, strict=True)] if state else [results]
    answers = dict(zip(("theta", *RULES[rule].state), arrays, strict=True))
    finite = not any(x.special for x in answers["theta"])
    given = {"rule": rule, "theta": theta, "g": g} | ({"numbers": numbers} if numbers else {})
    return record("update", f"{rule}-{name}", given, answers | {"finite": int(finite)})


def updates() -> Iterator[str]:
    pairs: dict[str, list[Any]] = {
        "special": list(product(SPECIAL, SPECIAL)),
        "ties": [tuple(f32(*pair)) for pair in TIES] + [tuple(f32(a, -b)) for a, b in TIES],
        "near-2^-62": list(product(NEAR, f32(EDGE, -0.0))),
        "many": list(zip(spread(90, 10, -30, 30), spread(90, 11, -30, 30), strict=True)),
        "subnormal": list(zip(spread(30, 12, -126, -120), spread(30, 13, -30, 30), strict=True)),
    }
    for name, both in pairs.items():
        theta, g = (list(side) for side in zip(*both, strict=True))
        yield update("arithmetic", name, theta, g, [])
        yield update("choices", name, theta, g, [])
        yield update("with-numbers", name, theta, g, f32(0.3, 1 / 3))
    bad = {"inf": INF, "minus-inf": -INF, "nan": NAN, "finite": LARGEST}
    for name, place in product(bad, (0, 15, 16, 36)):  # lanes of a vector, and what is left over
        g = f32(*([1] * place + [bad[name]] + [1] * (36 - place)))
        yield update("descend", f"{name}-at-{place}", f32(1) * 37, g, f32(0.5))


def means() -> Iterator[str]:
    for count in (1, 2, 3, 5, 1000, 1024, 1025, 2049):
        values = spread(count, 20, -40, 40)
        yield record("mean", f"of-{count}", {"x": values}, {"y": contract.mean(values)})
    ties = f32(1, Fraction(1, 2**53), Fraction(1, 2**53), Fraction(1, 2**54), 1, 1 + EPS, Fraction(3, 2**53), -TINY)
    for name, values in (
        ("ties", ties), ("zeros", f32(-0.0, 0, -0.0)), ("minus-zero", f32(-0.0)),
        ("subnormal", f32(TINY, TINY, -3 * TINY)), ("large", f32(LARGEST, LARGEST, LARGEST)),
        ("infinite", f32(1, INF, 2)), ("both", f32(INF, 1, -INF)), ("nan", f32(1, 2, NAN, 3, 4)),
        ("cancelled", f32(1, -1, 2, -2, TINY)),
    ):  # fmt: skip
        yield record("mean", name, {"x": values}, {"y": contract.mean(values)})


# Numbers whose products and sums are often halfway between two, and those that vanish.
AWKWARD = f32(
    0, -0.0, 1, -1, 1 + EPS, -1 - EPS, EPS / 2, -EPS / 2, 3 * EPS / 2, 1 + Fraction(1, 2**12), Fraction(1, 2**12), 0.1,
    -0.7, Fraction(3, 2), 1e-30, -1e-30, TINY, -TINY, Fraction(1, 2**25), 2, -2,
)  # fmt: skip


def network(name: str, sizes: Ints, mu: int, params: list[Numbers], x: list[Numbers], labels: Ints, rows: Ints) -> str:
    """Return the record of minibatches of µ samples, each with its own parameters."""
    given = {"sizes": sizes, "mu": mu, "params": flat(params), "x": flat(x), "labels": labels, "rows": rows}
    grads, passes = [], []
    for b, theta in enumerate(params):
        samples = rows[b * mu : (b + 1) * mu]
        mean, made = contract.gradients(sizes, theta, [x[i] for i in samples], [labels[i] for i in samples])
        grads += mean
        passes += made
    answers = {"grads": grads, "losses": [one.loss for one in passes]}
    answers["logits"] = flat(one.logits for one in passes)
    for layer in range(len(sizes) - 1):
        answers[f"errors{layer + 1}"] = flat(one.errors[layer] for one in passes)
        if layer:
            answers[f"activations{layer}"] = flat(one.activations[layer] for one in passes)
    return record("gradients", name, given, answers)


def networks() -> Iterator[str]:
    for purpose, (mu, sizes) in enumerate(
        ((1, (4, 3)), (1, (3, 4, 5, 2)), (2, (5, 3, 2)), (3, (3, 4, 5, 2)), (5, (4, 3)), (8, (4, 5, 3)),
         (13, (3, 2, 4, 2)), (64, (2, 2)), (70, (4, 3, 2))), start=30,
    ):  # fmt: skip
        batches = 2 if mu < 64 else 1
        size = sum((inputs + 1) * width for inputs, width in pairwise(sizes))
        params = [chosen(AWKWARD, size, purpose + 100 * b) for b in range(1, batches + 1)]
        x = [chosen(AWKWARD, sizes[0], purpose + 100 * (i + 10)) for i in range(batches * mu)]
        labels = [word % sizes[-1] for word in words(len(x), purpose + 20000)]
        rows = [word % len(x) for word in words(batches * mu, purpose + 30000)]
        yield network(f"mu-{mu}-of-{'-'.join(map(str, sizes))}", sizes, mu, params, x, labels, rows)
    # The input is 0, so the biases are the logits: 43 = 62·ln 2 apart, errors are flushed.
    logits = [
        (0, 0, 0), (1, 1, 0), (0, -42.9, -43), (-42.97, 0, -42.98), (0, -86, -88), (-200, 0, 200), (0, -EPS, EPS),
        (LARGEST, 0, -LARGEST), (-100, -100, -100), (0.1, 0.2, 0.3), (0, -0.0, 0), (16, 16 + 16 * EPS, 0),
        (0, -16, -17), (2, -30, 2), (TINY, 0, -TINY), (0, -17.3, -34),
        (0, -42.93405532836914, -3.171875), (0, -3.171875, -42.93405532836914),  # an error of 2⁻⁶² itself
    ]  # fmt: skip
    params = [f32(0, 0, 0, *z) for z in logits for _ in range(3)]
    yield network("softmax", (1, 3), 1, params, [f32(0)] * 3, [0, 1, 2], [i % 3 for i in range(len(params))])
    # Leaves that are zeros of either sign or underflow to them, and a mean that does.
    x = [f32(value) for value in (-0.0, 0, TINY, -TINY, Fraction(1, 2**148), -(EDGE**2))]
    theta = f32(1, -1, 0.25, -0.0)
    for mu, order in (
        (1, [0, 1, 2, 3, 4, 5]),
        (2, [0, 1, 2, 3, 0, 2]),
        (3, [0, 0, 1, 3, 0, 4]),
        (6, [0, 1, 2, 3, 4, 5]),
    ):
        yield network(f"vanishing-{mu}", (1, 2), mu, [theta] * (6 // mu), x, [0, 1, 1, 1, 0, 0], order)


def evaluations() -> Iterator[str]:
    tied = f32(1, 1, 0.5, 0, 0, 0)
    ones = [f32(value) for value in (0, 1, -1, 2, -0.0, 1e-30, LARGEST)]
    net = chosen(AWKWARD, 5 * 4 + 5 * 3, 50)
    many = [chosen(AWKWARD, 4, 400 + i) for i in range(70)]
    for name, sizes, params, x, labels in (
        ("ties", (1, 3), tied, [value for value in ones for _ in range(3)], [0, 0, 1] * len(ones)),
        ("one", (4, 4, 3), net, many[:1], [1]),
        ("many", (4, 4, 3), net, many, [word % 3 for word in words(70, 51)]),
    ):
        loss, wrong = contract.evaluated(sizes, params, x, labels)
        given = {"sizes": sizes, "params": params, "x": flat(x), "labels": labels}
        yield record("evaluate", name, given, {"loss": loss, "error": number(FLOAT64, Fraction(wrong, len(x)))})


def draws() -> Iterator[str]:
    most = 2**32 - 1
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    published = {((0,) * 4, (0,) * 2): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
                 ((most,) * 4, (most,) * 2): "408f276d 41c83b0e a20bc7c6 6d5451fd",
                 pi: "d16cfe09 94fdcceb 5001e420 24126ea1"}  # fmt: skip
    for place, ((counter, key), answer) in enumerate(published.items()):
        found = contract.philox(counter, key)
        assert [f"{word:08x}" for word in found] == answer.split()
        yield record("philox", f"published-{place}", {"counter": ("u32", counter), "key": ("u32", key)},
                     {"words": ("u32", found)})  # fmt: skip


def ternaries() -> Iterator[str]:
    u = [
        Fraction(contract.philox((i // 4, 3, 2, 0), (9, 6))[i % 4] >> 8, 2**24) for i in range(8)
    ]  # the draws themselves
    plain = spread(37, 60, -3, 0)
    for name, g, seed, begin, step, client in (
        ("plain", plain, 1, 0, 0, 0), ("from-3", plain, 1, 3, 7, 5), ("from-5", plain[:6], 1, 5, 7, 5),
        ("far", plain[:9], 2**32 - 1, 159_010, 2**31 - 1, 9_999), ("outlier", [*plain[:9], *f32(2.0**100)], 3, 1, 2, 3),
        ("zero", f32(0, -0.0, 0, 0, -0.0), 3, 0, 2, 3), ("subnormal", f32(TINY, -TINY, 3 * TINY, 5 * TINY), 4, 0, 0, 1),
        ("largest", f32(LARGEST, -LARGEST, 1), 4, 2, 0, 1),
        ("ties", f32(*u[:4], *(-value for value in u[4:7]), 1), 9, 0, 3, 2),
        ("beside-ties", f32(*(value + EPS / 4 for value in u[:7]), 1), 9, 0, 3, 2), ("one", f32(-0.3), 5, 6, 0, 0),
    ):  # fmt: skip
        s = contract.scaler(g)
        packed = contract.codes(g, s, seed, begin, step, client)
        yield record("scaler", name, {"g": g}, {"s": s})
        given = {"g": g, "s": s, "seed": seed, "begin": begin, "step": step, "client": client}
        yield record("encode", name, given, {"packed": ("u8", packed)})
        given = {"packed": ("u8", packed), "count": len(g), "s": s}
        yield record("decode", name, given, {"g": contract.decoded(packed, len(g), s)})
    yield record("scaler", "nan", {"g": f32(1, NAN, -3)}, {"s": f32(NAN)[0]})
    for name, g in (
        ("plain", plain),
        ("outlier", [*plain, *f32(1e20)]),
        ("same", f32(0.1) * 3),
        ("zero", f32(0, -0.0)),
    ):
        yield record("clip", name, {"g": g, "tenths": 15}, {"y": contract.clipped(g, 1.5)})


def answers() -> str:
    records = (elementary, updates, means, networks, evaluations, draws, ternaries, distributions)
    return sealed(HEADER, (text for part in records for text in part()))


if __name__ == "__main__":
    FILE.write_text(answers(), encoding="utf-8")
