"""Write operators.txt: the answers of every operator and loss of networks, from exact fractions, without NumPy.

python -m tests.vectors.make_operators
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.vectors.box import Box, count
from tests.vectors.contract import Numbers, philox, tree
from tests.vectors.ieee import FLOAT32, number
from tests.vectors.losses import LOSSES, wrong_share
from tests.vectors.make import AWKWARD, SPECIAL, chosen, f32, flat, spread, words
from tests.vectors.operators import meeting, run
from tests.vectors.records import record, sealed

FILE = Path(__file__).with_name("operators.txt")
HEADER = """\
# What each operator and loss of a network must answer, bit for bit. Made by `python -m tests.vectors.make_operators`
# from exact fractions: do not edit. Encodings are those of answers.txt.
#
# An operator has `samples` samples; its options and shapes, of a sample's inputs and of the output, are JSON; x0, x1 …
# are its inputs, `d` the error of the output. It must answer the output y, the errors dx0, dx1 … of the inputs, in
# which −0 is written +0, their means over the minibatch, and its gradient of each tensor. `u` are the numbers that
# dropout draws; where there is a `key` (seed, client, number of its gradient), they are those of that gradient. A loss
# answers each sample's loss, the error of its output, their mean, and the share of wrong answers. `meeting` is a
# network of seven nodes, of which three have one tensor.
"""
Shape = tuple[int, ...]
Shapes = Sequence[Shape]


def purpose(name: str, part: int) -> int:
    """Return a number for `words` that no other array of the file has."""
    return zlib.crc32(name.encode()) % 2**18 * 4096 + part


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def drawn(name: str, part: int, size: int) -> Numbers:
    return spread(size, purpose(name, part), -3, 1)


def cut(values: Sequence[Any], shape: Shape) -> list[Box]:
    """Return the samples' boxes."""
    size = math.prod(shape)
    return [Box(shape, values[begin : begin + size]) for begin in range(0, len(values), size)]


def operator(
    kind: str,
    name: str,
    shapes: Shapes,
    out: Shape,
    samples: int = 3,
    tensors: Mapping[str, Shape] | None = None,
    x: list[Any] | None = None,
    u: Shape | None = None,
    at: Fraction | None = None,
    key: tuple[int, int, int] | None = None,
    **options: Any,
) -> str:
    """Return the record of an operator; a tensor is its shape, or its numbers; `x` replaces the first input.

    `u` is the shape of what a sample draws; with a `key`, its numbers are those of a gradient of a client.
    """
    title = f"{kind}-{name}"
    xs = [drawn(title, i, samples * math.prod(shape)) for i, shape in enumerate(shapes)]
    if x is not None:
        xs[0] = [x[i % len(x)] for i in range(samples * math.prod(shapes[0]))]
    d = drawn(title, 10, samples * math.prod(out))
    boxes = {
        role: Box(shape, drawn(title, 11 + i, math.prod(shape)))
        for i, (role, shape) in enumerate((tensors or {}).items())
    }
    if "variance" in boxes:
        boxes["variance"] = boxes["variance"].map(abs)
    given = {"kind": kind, "options": text(options), "shapes": text([*shapes, out]), "samples": samples}
    given |= {f"x{i}": values for i, values in enumerate(xs)} | {"d": d}
    given |= {role: values.values for role, values in boxes.items()}
    draws: list[Box | None] = [None] * samples
    if u is not None:
        numbers = f32(*(Fraction(word >> 8, 2**24) for word in words(samples * math.prod(u), purpose(title, 20))))
        if at is not None:  # a draw that is p itself
            numbers[0] = number(FLOAT32, at)
        if key is not None:
            numbers = keyed(*key, samples, math.prod(u))
        given |= {"u": numbers} if key is None else {"key": list(key)}
        draws = list(cut(numbers, u))
    inputs = [cut(values, shape) for values, shape in zip(xs, shapes, strict=True)]
    made = run(kind, options, list(zip(*inputs, strict=True)), boxes, cut(d, out), draws)
    answers = {"y": flat(one.y.values for one in made)}
    for i in range(len(shapes)):
        errors = [one.errors[i] for one in made]
        if all(error is not None for error in errors):
            own = [error.values for error in errors if error is not None]
            answers |= {f"dx{i}": [value + 0 for value in flat(own)], f"mean{i}": means(own)}
    for role in made[0].grads:
        answers[f"grad_{role}"] = means([one.grads[role].values for one in made])
    return record("keyed" if key else "drawn" if u else "operator", title, given, answers)


def keyed(seed: int, client: int, number: int, samples: int, size: int) -> Numbers:
    """Return what the first drawing operator draws for a gradient, `size` numbers for each sample."""
    found = []
    for sample in range(samples):
        for element in range(size):
            block = sample * -(-size // 4) + element // 4
            word = philox((block, number, client, 0), (seed, 13))[element % 4]
            found.append(Fraction(word >> 8, 2**24))
    return f32(*found)


def means(own: Sequence[Numbers]) -> Numbers:
    """Return a minibatch's gradient of samples' own ones."""
    return [tree(leaves) / count(len(leaves)) for leaves in zip(*own, strict=True)]


def awkward(name: str, size: int) -> Numbers:
    return chosen(AWKWARD, size, purpose(name, 30))


def images() -> Iterator[str]:
    """Two bands of rows and more; strides, padding, groups, and images that a stride does not divide."""
    conv: list[tuple[str, Shape, Shape, dict[str, Any], Shape]] = [
        ("plain", (2, 10, 3), (3, 9, 2), {}, (3, 2, 2, 2)),
        ("padded", (1, 9, 3), (2, 9, 3), {"padding": (1, 1)}, (2, 1, 3, 3)),
        ("strided", (2, 17, 2), (2, 9, 1), {"padding": (1, 1), "stride": (2, 2)}, (2, 2, 3, 3)),
        ("odd", (1, 21, 5), (2, 11, 2), {"padding": (2, 0), "stride": (2, 3)}, (2, 1, 4, 2)),
        ("shortcut", (3, 4, 5), (4, 2, 3), {"stride": (2, 2)}, (4, 3, 1, 1)),
        ("groups", (4, 9, 2), (4, 8, 2), {"padding": (0, 1), "groups": 2}, (4, 2, 2, 3)),
        ("depthwise", (3, 8, 4), (3, 4, 2), {"padding": (1, 1), "stride": (2, 2), "groups": 3}, (3, 1, 3, 3)),
        ("dilated", (2, 9, 6), (3, 9, 4), {"padding": (2, 1), "dilation": (2, 2)}, (3, 2, 3, 3)),
        ("dilated-strides", (2, 9, 7), (2, 3, 3), {"stride": (2, 3), "padding": (0, 2), "dilation": (3, 2)},
         (2, 2, 2, 3)),
        ("dilated-depthwise", (2, 9, 4), (2, 5, 4),
         {"stride": (2, 1), "padding": (1, 2), "groups": 2, "dilation": (2, 2)}, (2, 1, 2, 3)),
        ("flat", (2, 1, 7), (3, 1, 4), {"padding": (0, 1), "stride": (1, 2), "flat": True}, (3, 2, 3)),
    ]  # fmt: skip
    for name, shape, out, options, weight in conv:
        for bias in (True, False) if name in ("plain", "shortcut") else (name != "padded",):
            tensors = {"weight": weight} | ({"bias": (out[0],)} if bias else {})
            own: Any = {"outputs": out[0], "kernel": (1, *weight[2:])[-2:], "bias": bias, **options}
            yield operator("Conv2d", f"{name}{'' if bias else '-no-bias'}", [shape], out, tensors=tensors, **own)
    yield operator(
        "Conv2d", "awkward", [(2, 9, 2)], (2, 9, 2), 4, {"weight": (2, 2, 3, 3)}, awkward("Conv2d", 144),
        outputs=2, kernel=(3, 3), padding=(1, 1), bias=False,
    )  # fmt: skip
    yield operator(
        "Conv2d", "special", [(1, 3, 2)], (2, 3, 2), 3, {"weight": (2, 1, 3, 3), "bias": (2,)}, SPECIAL[:14],
        outputs=2, kernel=(3, 3), padding=(1, 1),
    )  # fmt: skip
    for kind, more in (("MaxPool2d", [True]), ("AvgPool2d", [True, False])):
        for padded in more:
            options = {} if padded else {"count_padding": False}
            end = "-inside" if options else ""
            yield operator(kind, f"plain{end}", [(2, 6, 4)], (2, 3, 2), kernel=(2, 2), stride=(2, 2), **options)
            own = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), **options}
            yield operator(kind, f"overlapping{end}", [(1, 9, 5)], (1, 5, 3), **own)
            own = {"kernel": (3, 2), "stride": (1, 3), "padding": (1, 0), **options}
            yield operator(kind, f"odd{end}", [(1, 5, 7)], (1, 5, 2), **own)
    numbers = [*SPECIAL, *SPECIAL[::-1], *SPECIAL[::2]]
    yield operator("MaxPool2d", "special", [(1, 4, 4)], (1, 3, 3), 4, x=numbers, kernel=(2, 2), stride=(1, 1))
    for size, shape in (((1, 1), (2, 9, 3)), ((2, 3), (1, 5, 4)), ((3, 2), (1, 3, 5))):
        name = "x".join(map(str, size))
        yield operator("AdaptiveAvgPool2d", name, [shape], (shape[0], *size), size=size)


def norms() -> Iterator[str]:
    affine: dict[str, Shape] = {"weight": (4,), "bias": (4,)}
    for shape in ((4, 9, 2), (4, 11), (4,)):
        name = "of-" + "x".join(map(str, shape))
        for groups in (1, 2, 4) if len(shape) == 3 else (2,):
            yield operator("GroupNorm", f"{name}-{groups}", [shape], shape, tensors=affine, groups=groups)
        yield operator("BatchNorm", name, [shape], shape, 3, affine)
        statistics = {"mean": (4,), "variance": (4,)}
        yield operator("FrozenBatchNorm", name, [shape], shape, tensors=affine | statistics)
    yield operator("GroupNorm", "plain", [(4, 2, 2)], (4, 2, 2), groups=2, affine=False, eps=0.25)
    yield operator("BatchNorm", "plain", [(2, 9, 2)], (2, 9, 2), 5, affine=False, eps=1e-3)
    yield operator(
        "FrozenBatchNorm", "plain", [(2, 3, 2)], (2, 3, 2), tensors={"mean": (2,), "variance": (2,)}, affine=False
    )
    for kind in ("LayerNorm", "RmsNorm"):
        for shape in ((9, 3), (2, 5, 5), (7,)):
            tensors = {"weight": shape[-1:]} | ({"bias": shape[-1:]} if kind == "LayerNorm" else {})
            yield operator(kind, "of-" + "x".join(map(str, shape)), [shape], shape, tensors=tensors)
        yield operator(kind, "plain", [(4, 6)], (4, 6), affine=False, eps=0.125)


def dense() -> Iterator[str]:
    for layout in ("in_out", "out_in"):
        for shape in ((5,), (11, 3), (3, 3, 2), (17, 2)):
            k, bias = shape[-1], shape != (3, 3, 2)
            weight = (k, 4) if layout == "in_out" else (4, k)
            tensors = {"weight": weight} | ({"bias": (4,)} if bias else {})
            name = f"{layout}-of-{'x'.join(map(str, shape))}"
            own: Any = {"outputs": 4, "layout": layout, "bias": bias}
            yield operator("Linear", name, [shape], (*shape[:-1], 4), 3, tensors, **own)
    yield operator(
        "Linear", "awkward", [(10, 3)], (10, 2), 5, {"weight": (3, 2)}, awkward("Linear", 150), outputs=2, bias=False
    )
    yield operator("MatMul", "plain", [(3, 4), (4, 5)], (3, 5))
    yield operator("MatMul", "of-heads", [(2, 5, 3), (2, 3, 4)], (2, 5, 4))
    yield operator("Softmax", "plain", [(7,)], (7,))
    yield operator("Softmax", "of-rows", [(2, 3, 5)], (2, 3, 5))
    yield operator("LogSoftmax", "plain", [(7,)], (7,))
    yield operator("LogSoftmax", "of-rows", [(2, 3, 5)], (2, 3, 5))


def sequences() -> Iterator[str]:
    yield operator("Attention", "plain", [(2, 4, 4)] * 3, (2, 4, 4))
    yield operator("Attention", "causal", [(2, 4, 4)] * 3, (2, 4, 4), causal=True)
    yield operator("Attention", "odd-width", [(9, 3), (9, 3), (9, 2)], (9, 2), causal=True)
    yield operator("Attention", "across", [(3, 2), (5, 2), (5, 4)], (3, 4), scale=0.3)
    masked = [[(7 * i + 3 * j) % 4 == 0 for j in range(5)] for i in range(3)]
    masked[1] = [True] * 5
    yield operator("Attention", "masked", [(3, 2), (5, 2), (5, 4)], (3, 4), masked=masked)
    square = [[(5 * i + j) % 3 == 0 and i != j for j in range(4)] for i in range(4)]
    yield operator("Attention", "both", [(4, 2)] * 3, (4, 2), causal=True, masked=square)
    yield operator("Attention", "dropout", [(2, 4, 3)] * 3, (2, 4, 3), u=(2, 4, 4), causal=True, dropout=0.3)
    yield operator("Attention", "dropped", [(3, 2)] * 3, (3, 2), u=(3, 3), at=Fraction(1, 4), causal=True, dropout=0.25)
    tokens = [word % 4 for word in words(60, 7)]
    yield operator("Embedding", "of-sequences", [(11,)], (11, 3), 3, {"weight": (5, 3)}, tokens, rows=5, width=3)
    yield operator(
        "Embedding", "but-a-row", [(11,)], (11, 3), 3, {"weight": (5, 3)}, tokens, rows=5, width=3, untrained=2
    )
    yield operator("Embedding", "of-one", [()], (2,), 4, {"weight": (4, 2)}, tokens, rows=4, width=2)
    yield operator("Parameter", "of-a-row", [(1,)], (2, 3), 5, {"weight": (2, 3)}, sizes=(2, 3))


def elements() -> Iterator[str]:
    plain = [value for value in SPECIAL if not value.nan]
    near = f32(
        *(sign * x for x in (2.0**-9, 2.0**-10, 1, 1.4142135, 1.5, 3, 5.5, 9.25, 16.9, 17, 40) for sign in (1, -1))
    )
    turned = f32(2**20, 2**20 - Fraction(1, 16), 2**20 + Fraction(1, 8), 16367173 * 2**72) + spread(36, 91, 14, 127)
    chosen_options: list[tuple[str, Any]] = [
        ("Relu", {}), ("LeakyRelu", {}), ("LeakyRelu", {"slope_below": 0.3}), ("Scale", {"by": 0.3}),
        ("Shift", {"by": 0.1}), ("Tanh", {}), ("Sigmoid", {}), ("Silu", {}), ("Gelu", {}),
        ("Gelu", {"approximate": "tanh"}), ("Elu", {}), ("Elu", {"alpha": 0.3}), ("Hardtanh", {}),
        ("Hardtanh", {"low": -0.3, "high": 6.1}), ("Hardsigmoid", {}), ("Hardswish", {}), ("Rsqrt", {}),
        ("Abs", {}), ("Exp", {}), ("Sqrt", {}), ("Reciprocal", {}), ("Softplus", {}), ("Mish", {}),
        ("Hardtanh", {"low": -1.5, "high": 3.0, "inclusive": True}),
        ("Hardtanh", {"low": 0.0, "high": 1.0, "inclusive": True}), ("Sqrt", {"flat": True}), ("Log", {}),
        ("Log1p", {}), ("Sin", {}), ("Cos", {}),
    ]  # fmt: skip
    for kind, options in chosen_options:
        name = "".join(f"-{value}" for value in options.values())
        numbers = [
            *(SPECIAL if kind in ("Relu", "LeakyRelu", "Hardtanh") else plain),
            *near,
            *spread(23, purpose(kind, 40), -12, 4),
            *(turned if kind in ("Sin", "Cos") else ()),
        ]
        size = -(-len(numbers) // 3)
        yield operator(kind, f"many{name}", [(size,)], (size,), 3, x=numbers, **options)
    for kind in ("Maximum", "Minimum"):
        alike = [x * sign for x, sign in zip(drawn(f"{kind}-ties", 1, 12), [1, -1, 1] * 4, strict=True)]
        yield operator(kind, "ties", [(4,), (4,)], (4,), x=alike)
        yield operator(kind, "special", [(5,), (5,)], (5,), x=SPECIAL)
    yield operator("Keep", "special", [(5,), (5,)], (5,), x=SPECIAL)
    for kind in ("Add", "Mul", "Maximum", "Minimum", "Keep"):
        yield operator(kind, "plain", [(3, 4), (3, 4)], (3, 4))
        yield operator(kind, "repeated", [(3, 1, 2), (1, 4, 2)], (3, 4, 2))
        yield operator(kind, "repeated-twice", [(1, 3, 1), (2, 3, 5)], (2, 3, 5))
    yield operator("Dropout", "half", [(3, 5)], (3, 5), u=(3, 5), at=Fraction(1, 2), p=0.5)
    yield operator("Dropout", "evaluated", [(3, 5)], (3, 5), p=0.5)
    yield operator("Dropout", "tenth", [(31,)], (31,), u=(31,), p=0.1)
    yield operator("Dropout", "of-a-gradient", [(3, 7)], (3, 7), u=(3, 7), key=(5, 3, 2), p=0.3)
    yield operator("Dropout", "of-many", [(70,)], (70,), u=(70,), key=(4294967295, 70000, 123456), p=0.5)
    key = 9, 1, 4
    yield operator(
        "Attention", "of-a-gradient", [(2, 5, 3)] * 3, (2, 5, 3), u=(2, 5, 5), key=key, causal=True, dropout=0.3
    )
    yield operator("Reshape", "plain", [(2, 3, 2)], (4, 3), sizes=(4, -1))
    yield operator("Detach", "plain", [(2, 3)], (2, 3))
    yield operator("Permute", "plain", [(2, 3, 4)], (4, 2, 3), axes=(2, 0, 1))
    yield operator("Slice", "plain", [(2, 5, 3)], (2, 2, 3), axis=1, begin=2, end=4)
    yield operator("Cat", "plain", [(2, 1, 3), (2, 4, 3), (2, 2, 3)], (2, 7, 3), axis=1)


def meetings() -> Iterator[str]:
    for samples in (1, 3):
        name = f"of-{samples}"
        x, d = (drawn(name, part, 9 * 3 * samples) for part in (0, 1))
        w = Box((3, 3), drawn(name, 2, 9))
        pairs = zip(cut(x, (9, 3)), cut(d, (9, 3)), strict=True)
        made = [meeting(one, w, error) for one, error in pairs]
        answers = {"y": flat(y.values for y, _ in made), "grad": means([own.values for _, own in made])}
        yield record("meeting", name, {"samples": samples, "x": x, "weight": w.values, "d": d}, answers)


def loss(kind: str, name: str, shape: Shape, output: Numbers, target: list[Any], aim: Shape, **options: Any) -> str:
    """Return the record of a loss, of the samples' outputs and targets, whose shapes are `shape` and `aim`."""
    samples, size = len(output) // math.prod(shape), math.prod(aim)
    target = [target[i % len(target)] for i in range(samples * size)]
    made = [LOSSES[kind](options, z, y) for z, y in zip(cut(output, shape), cut(target, aim), strict=True)]
    given = {"kind": kind, "options": text(options), "shapes": text([shape, aim]), "output": output, "target": target}
    errors = [error.values for _, error in made]
    answers = {"losses": [one for one, _ in made], "errors": [x + 0 for x in flat(errors)], "mean": means(errors)}
    pairs = zip(cut(output, shape), cut(target, aim), strict=True)
    answers["wrong"] = [wrong_share(kind, options, z, y) for z, y in pairs]
    return record("loss", f"{kind}-{name}", given, answers)


def losses() -> Iterator[str]:
    labels = [word % 5 for word in words(40, 8)]
    far = flat(f32(0, -43, -42.9, 1, 1 + Fraction(1, 2**23)) for _ in range(4))  # errors that are flushed
    for name, options in (("plain", {}), ("smoothed", {"smoothing": 0.1})):
        for part, output in (("many", spread(30, 81, -3, 3)), ("far", far)):
            yield loss("CrossEntropy", f"{name}-{part}", (5,), output, labels, (), **options)
        yield loss("CrossEntropy", f"{name}-places", (11, 5), spread(165, 82, -3, 3), labels, (11,), **options)
        some = [label - 1 for label in labels]
        own: Any = {"ignored": -1, **options}
        yield loss("CrossEntropy", f"{name}-ignored", (7, 4), spread(84, 83, -3, 3), some, (7,), **own)
        last = [-1, -1, -1, 2, -1, -1, -1, -1, -1, -1, 0, 1]
        yield loss("CrossEntropy", f"{name}-last", (4, 3), spread(36, 84, -3, 3), last, (4,), **own)
    yield loss("CrossEntropy", "hardly-smoothed", (5,), far, labels, (), smoothing=1e-20)
    for shape in ((3,), (9, 2)):
        size = 3 * math.prod(shape)
        name = "x".join(map(str, shape))
        yield loss("MeanSquaredError", f"of-{name}", shape, spread(size, 85, -3, 1), spread(size, 86, -3, 1), shape)
        between = f32(*(Fraction(word >> 8, 2**24) for word in words(size, 87)), 0, 1)
        yield loss("BinaryCrossEntropy", f"of-{name}", shape, spread(size, 88, -4, 3), between, shape)
    yield loss("MeanSquaredError", "half", (1,), spread(5, 89, -3, 1), spread(5, 90, -3, 1), (1,), half=True)
    far = f32(*(sign * x for x in (0, 1, 30, 100, 800, 1e30) for sign in (1, -1)))
    yield loss("BinaryCrossEntropy", "far", (3,), far, f32(0, 0.5, 1, 0.25), (3,))


def answers() -> str:
    records = (images, norms, dense, sequences, elements, meetings, losses)
    return sealed(HEADER, (one for part in records for one in part()))


if __name__ == "__main__":
    FILE.write_text(answers(), encoding="utf-8")
