"""The operators of networks: their bits by plain loops, their values by PyTorch in float64, their gradients by both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Array, Operator, Shape
from fredsim.numerics.ops.pointwise import (
    Abs,
    Cos,
    Elu,
    Exp,
    Gelu,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyRelu,
    Log,
    Log1p,
    Mish,
    Reciprocal,
    Relu,
    Rsqrt,
    Scale,
    Shift,
    Sigmoid,
    Silu,
    Sin,
    Softplus,
    Sqrt,
    Tanh,
)
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from fredsim.numerics.oracle import tree_sum

F = np.float32
HALF_MASK = tuple(tuple(key > query + 2 for key in range(5)) for query in range(4))
Call = Callable[..., Any]

#: An operator, the shapes of its inputs, and the same in PyTorch: f(torch, inputs, tensors).
CASES: dict[str, tuple[Operator, tuple[Shape, ...], Call | None]] = {
    "linear": (Linear(4), ((5,),), lambda t, x, w: x[0] @ w["weight"] + w["bias"]),
    "linear out_in": (
        Linear(4, layout="out_in"), ((3, 5),), lambda t, x, w: t.nn.functional.linear(x[0], w["weight"], w["bias"])
    ),
    "linear of positions": (Linear(3, bias=False), ((19, 2),), lambda t, x, w: x[0] @ w["weight"]),
    "conv": (
        Conv2d(4, (3, 3), padding=(1, 1)), ((2, 11, 5),),
        lambda t, x, w: t.nn.functional.conv2d(x[0], w["weight"], w["bias"], padding=1),
    ),
    "conv by strides": (
        Conv2d(3, (3, 2), (2, 3), (1, 0), bias=False), ((2, 9, 8),),
        lambda t, x, w: t.nn.functional.conv2d(x[0], w["weight"], stride=(2, 3), padding=(1, 0)),
    ),
    "conv by groups": (
        Conv2d(6, (2, 2), (2, 1), groups=2), ((4, 5, 4),),
        lambda t, x, w: t.nn.functional.conv2d(x[0], w["weight"], w["bias"], stride=(2, 1), groups=2),
    ),
    "conv by channels": (
        Conv2d(3, (3, 3), padding=(2, 1), groups=3), ((3, 4, 4),),
        lambda t, x, w: t.nn.functional.conv2d(x[0], w["weight"], w["bias"], padding=(2, 1), groups=3),
    ),
    "conv dilated": (
        Conv2d(4, (3, 2), (1, 2), (2, 1), dilation=(2, 3)), ((2, 6, 7),),
        lambda t, x, w: t.nn.functional.conv2d(
            x[0], w["weight"], w["bias"], stride=(1, 2), padding=(2, 1), dilation=(2, 3)
        ),
    ),
    "conv of a sequence": (
        Conv2d(4, (1, 3), (1, 2), (0, 1), 2, flat=True), ((2, 1, 7),),
        lambda t, x, w: t.nn.functional.conv1d(
            x[0][:, :, 0], w["weight"], w["bias"], stride=2, padding=1, groups=2
        )[:, :, None],
    ),
    "elu": (Elu(0.7), ((7,),), lambda t, x, w: t.nn.functional.elu(x[0], float(F(0.7)))),
    "hardtanh": (Hardtanh(-0.5, 1.5), ((7,),), lambda t, x, w: t.nn.functional.hardtanh(x[0], -0.5, 1.5)),
    "clamp": (Hardtanh(-0.5, 1.5, inclusive=True), ((7,),), lambda t, x, w: t.clamp(x[0], -0.5, 1.5)),
    "flat sqrt": (Sqrt(flat=True), ((7,),), lambda t, x, w: t.sqrt(x[0])),
    "hardsigmoid": (Hardsigmoid(), ((7,),), lambda t, x, w: t.nn.functional.hardsigmoid(x[0])),
    "hardswish": (Hardswish(), ((7,),), lambda t, x, w: t.nn.functional.hardswish(x[0])),
    "rsqrt": (Rsqrt(), ((7,),), lambda t, x, w: t.rsqrt(x[0])),
    "abs": (Abs(), ((7,),), lambda t, x, w: t.abs(x[0])),
    "exp": (Exp(), ((7,),), lambda t, x, w: t.exp(x[0])),
    "log": (Log(), ((7,),), lambda t, x, w: t.log(x[0])),
    "log1p": (Log1p(), ((7,),), lambda t, x, w: t.log1p(x[0])),
    "sin": (Sin(), ((7,),), lambda t, x, w: t.sin(x[0])),
    "cos": (Cos(), ((7,),), lambda t, x, w: t.cos(x[0])),
    "sqrt": (Sqrt(), ((7,),), lambda t, x, w: t.sqrt(x[0])),
    "reciprocal": (Reciprocal(), ((7,),), lambda t, x, w: 1 / x[0]),
    "softplus": (Softplus(), ((7,),), lambda t, x, w: t.nn.functional.softplus(x[0])),
    "mish": (Mish(), ((7,),), lambda t, x, w: t.nn.functional.mish(x[0])),
    "log_softmax": (LogSoftmax(), ((3, 5),), lambda t, x, w: t.log_softmax(x[0], -1)),
    "relu": (Relu(), ((3, 4),), lambda t, x, w: t.relu(x[0])),
    "leaky_relu": (
        LeakyRelu(0.1), ((7,),), lambda t, x, w: t.nn.functional.leaky_relu(x[0], float(F(0.1)))
    ),
    "tanh": (Tanh(), ((7,),), lambda t, x, w: t.tanh(x[0])),
    "sigmoid": (Sigmoid(), ((7,),), lambda t, x, w: t.sigmoid(x[0])),
    "silu": (Silu(), ((7,),), lambda t, x, w: t.nn.functional.silu(x[0])),
    "gelu": (Gelu(), ((7,),), lambda t, x, w: t.nn.functional.gelu(x[0])),
    "gelu by tanh": (Gelu("tanh"), ((7,),), lambda t, x, w: t.nn.functional.gelu(x[0], approximate="tanh")),
    "scale": (Scale(0.375), ((7,),), lambda t, x, w: x[0] * 0.375),
    "shift": (Shift(-1.5), ((7,),), lambda t, x, w: x[0] - 1.5),
    "softmax": (Softmax(), ((3, 5),), lambda t, x, w: t.softmax(x[0], -1)),
    "matmul": (MatMul(), ((2, 4, 3), (2, 3, 5)), lambda t, x, w: x[0] @ x[1]),
    "max pool": (
        MaxPool2d((3, 2), (2, 1), (1, 0)), ((2, 5, 4),),
        lambda t, x, w: t.nn.functional.max_pool2d(x[0], (3, 2), (2, 1), (1, 0)),
    ),
    "avg pool": (
        AvgPool2d((3, 3), (1, 2), (1, 1)), ((2, 5, 4),),
        lambda t, x, w: t.nn.functional.avg_pool2d(x[0], 3, (1, 2), 1),
    ),
    "avg pool inside": (
        AvgPool2d((3, 3), (2, 2), (1, 1), count_padding=False), ((2, 5, 4),),
        lambda t, x, w: t.nn.functional.avg_pool2d(x[0], 3, 2, 1, count_include_pad=False),
    ),
    "adaptive": (
        AdaptiveAvgPool2d((2, 3)), ((2, 5, 4),), lambda t, x, w: t.nn.functional.adaptive_avg_pool2d(x[0], (2, 3))
    ),
    "group norm": (
        GroupNorm(3), ((6, 11, 2),),
        lambda t, x, w: t.nn.functional.group_norm(x[0], 3, w["weight"], w["bias"]),
    ),
    "group norm of sequences": (
        GroupNorm(2, affine=False), ((4, 5),), lambda t, x, w: t.nn.functional.group_norm(x[0], 2)
    ),
    "layer norm": (
        LayerNorm(), ((4, 6),), lambda t, x, w: t.nn.functional.layer_norm(x[0], (6,), w["weight"], w["bias"])
    ),
    "rms norm": (
        RmsNorm(), ((4, 6),), lambda t, x, w: t.nn.functional.rms_norm(x[0], (6,), w["weight"], 1e-6)
    ),
    "batch norm": (
        BatchNorm(), ((3, 4, 2),),
        lambda t, x, w: t.nn.functional.batch_norm(x[0], None, None, w["weight"], w["bias"], training=True),
    ),
    "batch norm of vectors": (
        BatchNorm(affine=False), ((3,),), lambda t, x, w: t.nn.functional.batch_norm(x[0], None, None, training=True)
    ),
    "frozen batch norm": (
        FrozenBatchNorm(), ((3, 4, 2),),
        lambda t, x, w: t.nn.functional.batch_norm(x[0], w["mean"], w["variance"], w["weight"], w["bias"]),
    ),
    "add": (Add(), ((3, 4), (3, 4)), lambda t, x, w: x[0] + x[1]),
    "add by rows": (Add(), ((3, 4), (1, 4)), lambda t, x, w: x[0] + x[1]),
    "mul": (Mul(), ((3, 4), (3, 1)), lambda t, x, w: x[0] * x[1]),
    "maximum": (Maximum(), ((3, 4), (3, 4)), lambda t, x, w: t.maximum(*x)),
    "maximum by rows": (Maximum(), ((3, 4), (1, 4)), lambda t, x, w: t.maximum(*x)),
    "minimum": (Minimum(), ((3, 4), (3, 4)), lambda t, x, w: t.minimum(*x)),
    "minimum by columns": (Minimum(), ((3, 1), (3, 4)), lambda t, x, w: t.minimum(*x)),
    "reshape": (Reshape((2, -1)), ((3, 4),), lambda t, x, w: x[0].reshape(-1, 2, 6)),
    "permute": (Permute((2, 0, 1)), ((2, 3, 4),), lambda t, x, w: x[0].permute(0, 3, 1, 2)),
    "slice": (Slice(1, 1, 3), ((2, 4),), lambda t, x, w: x[0][:, :, 1:3]),
    "cat": (Cat(0), ((2, 3), (1, 3), (4, 3)), lambda t, x, w: t.cat(tuple(x), 1)),
    "attention": (
        Attention(), ((2, 4, 3), (2, 5, 3), (2, 5, 2)),
        lambda t, x, w: t.nn.functional.scaled_dot_product_attention(*x, scale=float(F(1 / math.sqrt(3)))),
    ),
    "causal attention": (
        Attention(causal=True, scale=0.25), ((5, 4), (5, 4), (5, 4)),
        lambda t, x, w: t.nn.functional.scaled_dot_product_attention(*x, is_causal=True, scale=0.25),
    ),
    "masked attention": (
        Attention(scale=0.5, masked=HALF_MASK), ((4, 3), (5, 3), (5, 2)),
        lambda t, x, w: t.nn.functional.scaled_dot_product_attention(*x, attn_mask=~t.tensor(HALF_MASK), scale=0.5),
    ),
}  # fmt: skip
NAMES = list(CASES)


def drawn(rng: np.random.Generator, *shape: int) -> Array:
    return rng.normal(size=shape).astype(F)


def arrays(name: str, samples: int = 6) -> tuple[Operator, list[Array], dict[str, Array], Array]:
    """Return an operator with random inputs, tensors, and an error."""
    op, shapes, _ = CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    inputs = [drawn(rng, samples, *shape) for shape in shapes]
    if isinstance(op, Log | Log1p | Rsqrt | Sqrt | Reciprocal):
        inputs = [abs(x) + F(0.5) for x in inputs]
    tensors = {role: drawn(rng, *shape) for role, shape in op.tensors(*shapes).items()}
    if "variance" in tensors:
        tensors["variance"] = abs(tensors["variance"])
    return op, inputs, tensors, drawn(rng, samples, *op.shape(*shapes))


def summed(op: Operator, kept: Any, error: Array, tensors: dict[str, Array]) -> tuple[list[Any], dict[str, Array]]:
    """Return the input errors, and the sums of the samples' own gradients, a tensor in two parts."""
    errors, leaves = op.backward(error, kept, tensors), op.gradients(error, kept, tensors)
    sums = {}
    for role, own in leaves.items():
        size = len(tensors[role])
        parts = [own(slice(0, size // 2)), own(slice(size // 2, size))]
        assert all(part.dtype == F for part in parts)
        sums[role] = np.concatenate([tree_sum(part) for part in parts])
        assert sums[role].shape == tensors[role].shape
    return errors, sums


@pytest.mark.parametrize("name", NAMES)
def test_by_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    op, inputs, tensors, error = arrays(name)
    same = CASES[name][2]
    assert same is not None
    wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in inputs]
    wide_tensors = {
        role: torch.tensor(w, dtype=torch.float64, requires_grad=role not in {"mean", "variance"})
        for role, w in tensors.items()
    }
    expected = same(torch, wide, wide_tensors)
    expected.backward(torch.tensor(error, dtype=torch.float64))
    y, kept = op.forward(inputs, tensors)
    assert y.dtype == F
    assert y.flags.c_contiguous
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=2e-5, atol=2e-6)
    errors, sums = summed(op, kept, error, tensors)
    for own, x in zip(errors, wide, strict=True):
        assert own.flags.c_contiguous
        np.testing.assert_allclose(own, x.grad.numpy(), rtol=5e-5, atol=1e-5)
    assert list(sums) == [role for role in tensors if role not in {"mean", "variance"}]
    for role, total in sums.items():
        np.testing.assert_allclose(total, wide_tensors[role].grad.numpy(), rtol=5e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_by_differences(name: str) -> None:
    """The errors are derivatives: along a random direction, by central differences of float32 values."""
    op, inputs, tensors, error = arrays(name, samples=3)
    kept = op.forward(inputs, tensors)[1]
    errors, sums = summed(op, kept, error, tensors)
    rng, h = np.random.default_rng(5), 2.0**-7

    def value(by: float) -> float:
        moved = [(x + F(by) * d).astype(F) for x, d in zip(inputs, along, strict=True)]
        moved_tensors = tensors | {role: (tensors[role] + F(by) * d).astype(F) for role, d in along_tensors.items()}
        return float((op.forward(moved, moved_tensors)[0].astype(np.float64) * error).sum())

    along = [drawn(rng, *x.shape) for x in inputs]
    along_tensors = {role: drawn(rng, *sums[role].shape) for role in sums}
    by_rule = sum(float((e.astype(np.float64) * d).sum()) for e, d in zip(errors, along, strict=True))
    by_rule += sum(float((sums[role].astype(np.float64) * along_tensors[role]).sum()) for role in sums)
    by_differences = (value(h) - value(-h)) / (2 * h)
    kinks = isinstance(
        op, Relu | LeakyRelu | Hardtanh | Hardsigmoid | MaxPool2d | Maximum | Minimum
    )  # a step may cross one
    scale = sum(float(abs(e * d).sum()) for e, d in zip(errors, along, strict=True)) + 1
    assert abs(by_rule - by_differences) < (0.05 if kinks else 0.005) * scale


@pytest.mark.parametrize("name", [name for name in NAMES if not isinstance(CASES[name][0], BatchNorm)])
@pytest.mark.parametrize("split", [1, 2, 4])
def test_samples_do_not_meet(name: str, split: int) -> None:
    """The gradient of 8 samples is the mean of those of its parts, bit for bit."""
    op, inputs, tensors, error = arrays(name, samples=8)
    y, kept = op.forward(inputs, tensors)
    errors, sums = summed(op, kept, error, tensors)
    parts = [summed_part(op, inputs, tensors, error, slice(at, at + 8 // split)) for at in range(0, 8, 8 // split)]
    assert b"".join(part[0].tobytes() for part in parts) == y.tobytes()
    for i, whole in enumerate(errors):
        assert np.concatenate([part[1][i] for part in parts]).tobytes() == whole.tobytes()
    for role, total in sums.items():
        means = np.stack([part[2][role] / F(8 // split) for part in parts])
        assert (tree_sum(means) / F(split)).tobytes() == (total / F(8)).tobytes()


def summed_part(op: Operator, inputs: list[Array], tensors: dict[str, Array], error: Array, part: slice) -> Any:
    y, kept = op.forward([np.ascontiguousarray(x[part]) for x in inputs], tensors)
    return y, *summed(op, kept, np.ascontiguousarray(error[part]), tensors)


# The same sums written out, one number at a time, in the order of docs/numerics.md.


def banded(terms: Array) -> Any:
    """Return the sum over positions of terms (rows, columns), in bands of 8 rows."""
    bands = []
    for begin in range(0, len(terms), 8):
        total = F(0)
        for row in terms[begin : begin + 8]:
            for term in row:
                total = F(total + term)
        bands.append(total)
    return tree_sum(np.array(bands, F))


def plain_conv(x: Array, w: Array, b: Array, op: Conv2d, d: Array) -> tuple[Array, Array, Array, Array]:
    """Return z, the input error, and the samples' own gradients of w and b."""
    _, rows, columns = op.shape(x.shape[1:])
    (sr, sc), (pr, pc), (kr, kc), (ar, ac) = op.stride, op.padding, op.kernel, op.dilation
    each_in, each_out = w.shape[1], op.outputs // op.groups

    def seen(m: int, k: int, r: int, c: int) -> Any:
        inside = 0 <= r < x.shape[2] and 0 <= c < x.shape[3]
        return x[m, k, r, c] if inside else F(0)

    z = np.empty((len(x), op.outputs, rows, columns), F)
    gw, gb, dx = np.empty((len(x), *w.shape), F), np.empty((len(x), len(b)), F), np.empty_like(x)
    for m in range(len(x)):
        for o in range(op.outputs):
            first = o // each_out * each_in
            for r in range(rows):
                for c in range(columns):
                    total = F(0)
                    for i in range(kr):
                        for j in range(kc):
                            for k in range(each_in):
                                at = r * sr - pr + i * ar, c * sc - pc + j * ac
                                total += seen(m, first + k, *at) * w[o, k, i, j]
                    z[m, o, r, c] = total + b[o]
            gb[m, o] = banded(d[m, o])
            for k in range(each_in):
                for i in range(kr):
                    for j in range(kc):
                        terms = np.empty((rows, columns), F)
                        for r in range(rows):
                            for c in range(columns):
                                at = r * sr - pr + i * ar, c * sc - pc + j * ac
                                terms[r, c] = seen(m, first + k, *at) * d[m, o, r, c]
                        gw[m, o, k, i, j] = banded(terms)
        for k in range(x.shape[1]):
            own = range(k // each_in * each_out, (k // each_in + 1) * each_out)
            for y in range(x.shape[2]):
                for v in range(x.shape[3]):
                    total = F(0)
                    for i in range(kr):
                        for j in range(kc):
                            (r, odd), (c, left) = divmod(y + pr - i * ar, sr), divmod(v + pc - j * ac, sc)
                            if odd or left or not (0 <= r < rows and 0 <= c < columns):
                                continue
                            for o in own:
                                total += d[m, o, r, c] * w[o, k % each_in, i, j]
                    dx[m, k, y, v] = total
    return z, dx, gw, gb


@pytest.mark.parametrize("name", [name for name in NAMES if isinstance(CASES[name][0], Conv2d)])
def test_a_convolution_has_the_bits_of_loops(name: str) -> None:
    op, (x,), tensors, error = arrays(name, samples=2)
    assert isinstance(op, Conv2d)
    bias = tensors.get("bias", np.zeros(op.outputs, F))
    w = tensors["weight"].reshape(op.outputs, -1, *op.kernel)
    z, dx, gw, gb = plain_conv(x, w, bias, op, error)
    y, kept = op.forward([x], tensors)
    (own,), leaves = op.backward(error, kept, tensors), op.gradients(error, kept, tensors)
    assert own is not None
    assert (y + F(0)).tobytes() == (z + F(0)).tobytes()
    assert (own + F(0)).tobytes() == (dx + F(0)).tobytes()
    assert (leaves["weight"](slice(None)) + F(0)).tobytes() == (gw + F(0)).tobytes()
    if op.bias:
        assert (leaves["bias"](slice(None)) + F(0)).tobytes() == (gb + F(0)).tobytes()


def test_group_norm_has_the_bits_of_loops() -> None:
    op, (x,), tensors, error = arrays("group norm", samples=2)
    assert isinstance(op, GroupNorm)
    channels, rows, columns = x.shape[1:]
    each = channels // op.groups
    count, eps = F(each * rows * columns), F(op.eps)
    y, kept = op.forward([x], tensors)
    own = op.backward(error, kept, tensors)[0]
    assert own is not None
    for m in range(2):
        for g in range(op.groups):
            inside = range(g * each, (g + 1) * each)

            def total(values: Array, inside: range = inside, m: int = m) -> Any:
                return tree_sum(np.array([banded(values[m, k]) for k in inside]))

            apart = x - total(x) / count
            r = F(1) / np.sqrt(total(apart * apart) / count + eps)
            normal = apart * r
            shaped = {role: w[:, None, None] for role, w in tensors.items()}
            d = error * shaped["weight"]
            expected = normal * shaped["weight"] + shaped["bias"]
            dx = r * ((d - total(d) / count) - normal * (total(d * normal) / count))
            assert y[m, list(inside)].tobytes() == expected[m, list(inside)].tobytes()
            assert own[m, list(inside)].tobytes() == dx[m, list(inside)].tobytes()


def test_attention_has_the_bits_of_loops() -> None:
    op, (q, k, v), tensors, _ = arrays("masked attention", samples=2)
    assert isinstance(op, Attention)
    y = op.forward([q, k, v], tensors)[0]
    from fredsim.numerics.elementary import exp32

    for m in range(2):
        for i in range(q.shape[1]):
            keys = [j for j in range(k.shape[1]) if not HALF_MASK[i][j]]
            scores = [F(sum_up(q[m, i, d] * k[m, j, d] for d in range(q.shape[2])) * F(0.5)) for j in keys]
            e = [exp32(s - max(scores))[()] for s in scores]
            p = [part / sum_up(iter(e)) for part in e]
            for d in range(v.shape[2]):
                assert y[m, i, d] == sum_up(w * v[m, j, d] for w, j in zip(p, keys, strict=True))


def sum_up(terms: Iterator[Any]) -> Any:
    total = F(0)
    for term in terms:
        total = F(total + term)
    return total


def test_an_embedding_adds_a_samples_own_places() -> None:
    rng = np.random.default_rng(1)
    op, x, error = Embedding(4, 3), rng.integers(0, 4, (5, 6)), drawn(rng, 5, 6, 3)
    table = drawn(rng, 4, 3)
    y, kept = op.forward([x], {"weight": table})
    assert y.tobytes() == table[x].tobytes()
    assert op.forward([x.astype(F)], {"weight": table})[0].tobytes() == y.tobytes()
    leaves = op.gradients(error, kept, {"weight": table})
    assert op.backward(error, kept, {"weight": table}) == [None]
    expected = np.zeros((5, 4, 3), F)
    for m in range(5):
        for at in range(6):
            expected[m, x[m, at]] += error[m, at]
    assert leaves["weight"](slice(None)).tobytes() == expected.tobytes()
    assert leaves["weight"](slice(1, 3)).tobytes() == expected[:, 1:3].tobytes()
    with pytest.raises(SimulationError, match=r"embedding: 0 … 4 are no rows of 0 … 3"):
        op.forward([np.array([[0, 4]])], {"weight": table})


@pytest.mark.parametrize("op", [Maximum(), Minimum()])
def test_extremes_of_equal_and_odd_numbers_are_pytorchs(op: Operator) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0], F)
    a, b = (np.ascontiguousarray(x) for x in np.broadcast_arrays(values[:, None], values[None]))
    error = np.arange(1, 50, dtype=F).reshape(7, 7)
    given = [torch.tensor(x, requires_grad=True) for x in (a, b)]
    expected = getattr(torch, type(op).__name__.lower())(*given)
    expected.backward(torch.from_numpy(error))
    y, kept = op.forward([a, b], {})
    np.testing.assert_array_equal(y, expected.detach().numpy())
    for own, x in zip(op.backward(error, kept, {}), given, strict=True):
        np.testing.assert_array_equal(own, x.grad.numpy())


@pytest.mark.parametrize(("shape", "masked"), [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 1), (1, 4))])
def test_what_is_not_kept_may_be_infinite(shape: Shape, masked: Shape) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    rng = np.random.default_rng(7)
    a, b, error = drawn(rng, 6, *shape), np.sign(drawn(rng, 6, *masked)), drawn(rng, 6, 3, 4)
    hidden = np.broadcast_to(b <= 0, error.shape)
    error[hidden] = np.inf
    if a.shape == error.shape:
        a[hidden] = np.nan
    x, mask = torch.tensor(a, dtype=torch.float64, requires_grad=True), torch.from_numpy(b > 0)
    expected = torch.where(mask, x, 0)
    expected.backward(torch.from_numpy(error).double())
    y, kept = Keep().forward([a, b], {})
    np.testing.assert_array_equal(y, expected.detach().numpy())
    own, none = Keep().backward(error, kept, {})
    assert none is None
    assert own is not None
    np.testing.assert_allclose(own, x.grad.numpy(), rtol=1e-6)


def test_dropout_keeps_the_mean_and_the_places() -> None:
    op, x = Dropout(0.25), np.ones((40, 50), F)
    u = np.random.default_rng(2).random(x.shape)
    y, kept = op.forward([x], {}, lambda shape: u.reshape(shape))
    assert y.tobytes() == np.where(u < 0.25, F(0), F(1 / 0.75)).astype(F).tobytes()
    (own,) = op.backward(x, kept, {})
    assert own is not None
    assert own.tobytes() == y.tobytes()
    assert op.forward([x], {})[0] is x
    with pytest.raises(ValueError, match=r"p is 1; it must be at least 0 and below 1"):
        Dropout(1)


def test_attention_with_dropout_is_that_of_its_parts() -> None:
    rng = np.random.default_rng(8)
    q, k, v, error = (drawn(rng, 3, *shape) for shape in ((4, 3), (5, 3), (5, 2), (4, 2)))
    u = rng.random((3, 4, 5))

    def drawing(shape: Shape) -> Array:
        return u.reshape(shape)

    op, seen = Attention(scale=0.5, masked=HALF_MASK, dropout=0.25), ~np.array(HALF_MASK)
    y, kept = op.forward([q, k, v], {}, drawing)

    def back(op: Operator, error: Array, kept: Any) -> Any:
        return op.backward(error, kept, {})

    dq, dk, dv = back(op, error, kept)
    parts: tuple[Operator, ...] = (MatMul(), Scale(0.5), Softmax(), Dropout(0.25), MatMul())
    scores, first = parts[0].forward([q, np.ascontiguousarray(k.swapaxes(1, 2))], {})
    scaled, second = parts[1].forward([scores], {})
    p, third = parts[2].forward([np.where(seen, scaled, F(-np.inf))], {})
    weights, fourth = parts[3].forward([p], {}, drawing)
    combined, fifth = parts[4].forward([weights, v], {})
    np.testing.assert_allclose(y, combined, rtol=1e-6)
    assert not (op.forward([q, k, v], {})[0] == y).any()
    sent = back(parts[4], error, fifth)
    np.testing.assert_allclose(dv, sent[1], rtol=1e-5, atol=1e-6)
    for part, keeps in zip(parts[3:0:-1], [fourth, third, second], strict=True):
        sent = back(part, sent[0], keeps)
    sent = back(parts[0], sent[0], first)
    np.testing.assert_allclose(dq, sent[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dk, sent[1].swapaxes(1, 2), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match=r"attention: dropout is 1; it must be at least 0 and below 1"):
        Attention(dropout=1)


def test_sources_are_the_same_for_every_sample() -> None:
    x, values, table = np.zeros((3, 2), F), np.array([[1, 2], [3, 4]]), np.arange(6, dtype=F).reshape(3, 2)
    for given in (values, values.astype(F)):
        constant = Constant.of(given)
        y, kept = constant.forward([x], {})
        assert y.dtype == given.dtype
        assert y.tolist() == [given.tolist()] * 3
        assert constant.shape((2,)) == (2, 2)
        assert constant.backward(y, kept, {}) == [None]
    assert Constant.of(values) == Constant.of(values.copy())
    with pytest.raises(ValueError, match=r"constant: 8 bytes are no float32 of shape \(3,\)"):
        Constant((3,), bytes(8))
    op, error = Parameter((3, 2)), np.random.default_rng(4).normal(size=(3, 3, 2)).astype(F)
    y, kept = op.forward([x], {"weight": table})
    assert y.tolist() == [table.tolist()] * 3
    assert op.backward(error, kept, {}) == [None]
    assert op.gradients(error, kept, {})["weight"](slice(1, 3)).tobytes() == error[:, 1:].tobytes()
    alone = Parameter(()).gradients(error[:, 0, 0], None, {})["weight"](slice(None))
    assert alone.tolist() == error[:, 0, :1].tolist()


def test_the_largest_of_a_window_with_a_nan_is_it() -> None:
    x = np.array([[[[1, np.nan, 3], [5, 2, 5]]]], F)
    y, kept = MaxPool2d((2, 2), (1, 1)).forward([x], {})
    assert np.isnan(y).all()
    (own,) = MaxPool2d((2, 2), (1, 1)).backward(np.ones_like(y), kept, {})
    assert own is not None
    assert own.tolist() == [[[[0, 2, 0], [0, 0, 0]]]]
    tie = MaxPool2d((2, 3), (1, 1)).forward([np.array([[[[5, 5, 5], [5, 5, 5]]]], F)], {})[1][1]
    assert tie.tolist() == [[[0]]]


BY_TORCH: list[tuple[str, Loss, Shape, Callable[..., Any], Call]] = [
    ("classes", CrossEntropy(), (5,), lambda rng: rng.integers(0, 5, 6),
     lambda t, z, y: t.nn.functional.cross_entropy(z, y, reduction="none")),
    ("smoothed", CrossEntropy(smoothing=0.25), (5,), lambda rng: rng.integers(0, 5, 6),
     lambda t, z, y: t.nn.functional.cross_entropy(z, y, reduction="none", label_smoothing=0.25)),
    ("sequences", CrossEntropy(), (4, 5), lambda rng: rng.integers(0, 5, (6, 4)),
     lambda t, z, y: t.nn.functional.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1)),
    ("ignored", CrossEntropy(ignored=-1), (4, 5), lambda rng: rng.integers(-1, 5, (6, 4)),
     lambda t, z, y: t.nn.functional.cross_entropy(z.transpose(1, 2), y, reduction="none", ignore_index=-1).sum(1)
     / (y >= 0).sum(1).clamp(min=1)),
    ("squares", MeanSquaredError(), (3,), lambda rng: drawn(rng, 6, 3), lambda t, z, y: ((z - y) ** 2).mean(1)),
    ("half", MeanSquaredError(half=True), (1,), lambda rng: drawn(rng, 6),
     lambda t, z, y: (z[:, 0] - y) ** 2 / 2),
    ("binary", BinaryCrossEntropy(), (3,), lambda rng: rng.integers(0, 2, (6, 3)).astype(F),
     lambda t, z, y: t.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none").mean(1)),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "shape", "targets", "same"), [case[1:] for case in BY_TORCH], ids=lambda _: "")
def test_losses_by_pytorch(loss: Loss, shape: Shape, targets: Callable[..., Any], same: Call) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    rng = np.random.default_rng(3)
    z, y = F(3) * drawn(rng, 6, *shape), targets(rng)
    loss.check(shape, y.shape[1:])
    wide = torch.tensor(z, dtype=torch.float64, requires_grad=True)
    goal = torch.tensor(y, dtype=torch.int64 if y.dtype == np.int64 else torch.float64)
    expected = same(torch, wide, goal)
    expected.sum().backward()
    each, error = loss.losses(z, y)
    assert each.dtype == error.dtype == F
    assert error.shape == z.shape
    np.testing.assert_allclose(each, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(error, wide.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_wrong_answers() -> None:
    z = np.array([[[0, 2, 1], [5, 0, 0]], [[1, 1, 0], [np.nan, 3, 0]]], F)
    assert CrossEntropy().wrong(z, np.array([[1, 1], [0, 0]])).tolist() == [0.5, 0]
    assert CrossEntropy(ignored=9).wrong(z, np.array([[9, 1], [9, 9]])).tolist() == [1, 0]
    assert BinaryCrossEntropy().wrong(np.array([[0.0, 1.0]], F), np.array([[0.0, 0.0]], F)).tolist() == [0.5]
    assert MeanSquaredError().wrong(z, z) is None


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        (Linear(2), ((),), "linear: takes samples of shape (…, inputs), not ()"),
        (Conv2d(4, (3, 3), groups=3), ((3, 8, 8),), "in 3 groups of one size; not (3, 8, 8)"),
        (Conv2d(4, (9, 3)), ((3, 8, 8),), "conv2d: the kernel (9, 3) is larger than the padded image (3, 8, 8)"),
        (MaxPool2d((2, 2), (2, 2), (2, 0)), ((3, 8, 8),), "the padding (2, 0) is over half of the (2, 2)"),
        (AvgPool2d((2, 9), (2, 2)), ((3, 8, 8),), "the window (2, 9) is larger than the padded image (3, 8, 8)"),
        (AdaptiveAvgPool2d(), ((3, 8),), "takes samples of shape (channels, rows, columns), not (3, 8)"),
        (GroupNorm(4), ((6, 2, 2),), "GroupNorm: 6 channels are no 4 groups of one size"),
        (LayerNorm(), ((),), "LayerNorm: takes samples with channels, not ()"),
        (Add(), ((3,), (3, 1)), "Add: takes two inputs with as many axes, not (3,) and (3, 1)"),
        (Mul(), ((3,), (2,)), "Mul: (3,) and (2,) do not fit together"),
        (Reshape((5, -1)), ((3, 4),), "reshape: 12 elements, (3, 4), do not fit (5, -1)"),
        (Reshape((-1, -1)), ((3, 4),), "reshape: 12 elements, (3, 4), do not fit (-1, -1)"),
        (Permute((0, 2)), ((3, 4),), "permute: (0, 2) is no order of the 2 axes of (3, 4)"),
        (Slice(0, 2, 5), ((4,),), "slice: (4,) has no elements 2 … 4 of axis 0"),
        (Cat(0), ((2, 3), (2, 4)), "cat: (2, 3), (2, 4) differ elsewhere than on axis 0"),
        (MatMul(), ((2, 3), (2, 3)), "matmul: takes a (…, rows, k) and b (…, k, columns), not (2, 3) and (2, 3)"),
        (Softmax(), ((),), "softmax: takes samples of shape (…, classes), not ()"),
        (Attention(), ((4, 3), (5, 2), (5, 2)), "not (4, 3), (5, 2), (5, 2)"),
        (Attention(masked=HALF_MASK), ((3, 3), (5, 3), (5, 2)), "the mask is (4, 5), not (queries, keys) = (3, 5)"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(op: Operator, shapes: tuple[Shape, ...], says: str) -> None:
    with pytest.raises(ValueError) as caught:
        op.shape(*shapes)
    assert says in str(caught.value)


def test_losses_refuse_shapes() -> None:
    with pytest.raises(ValueError, match=r"takes outputs \(…, classes\) and labels \(…\), not \(4, 5\) and \(5,\)"):
        CrossEntropy().check((4, 5), (5,))
    with pytest.raises(ValueError, match=r"mse: takes one output and one target, not \(2,\) and \(2,\)"):
        MeanSquaredError(half=True).check((2,), (2,))
    with pytest.raises(ValueError, match=r"bce: takes outputs and targets of one shape, not \(2,\) and \(3,\)"):
        BinaryCrossEntropy().check((2,), (3,))
