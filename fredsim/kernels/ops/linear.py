"""Dense layers of vectors: fredsim.numerics.ops.linear.Linear.

A pass over a minibatch is that of a convolution 1×1 whose pixels are the samples. A weight's gradient is the tree over
samples of products; LEAVES samples at a time are summed in registers, and sums over such blocks wait for their partners
in the tree on a stack, for some rows of the weights at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from fredsim.jit.cache import make_module
from fredsim.jit.kernel import Kernel
from fredsim.kernels.ops.few_samples import multiply_few, takes_few
from fredsim.kernels.ops.images.conv_weights import pack_forward
from fredsim.kernels.ops.images.correlate import LANES, correlate, padded, tile_of
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, Steps
from fredsim.kernels.ops.sums import mean_of_samples, merging
from fredsim.kernels.ops.values import Value
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.ops.operator import Operator, Shape

__all__ = ["LinearKernels"]

ROWS_AT_ONCE = 8  # rows of a gradient whose sums stay in the L1 cache

SOURCE = '''
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.vector import broadcast, load, store, zeros
from fredsim.kernels.ops.program import GRADS
from fredsim.kernels.ops.rows import part_of, put_lanes
from fredsim.kernels.ops.sums import tree_of_vectors


@kernel(batch=int64s, f=floats, rows=int, v=floats, width=int, samples=int, stack=floats, stack_stride=int, leaves=int,
        begin=int)
def products(rank, size, barrier, a):
    """Write the mean over samples of f[row]·v[column], f (samples, rows) and v (samples, width), to the gradient."""
    like = zeros(16)
    grads = floats(item(a.batch, GRADS))
    stack = shift(a.stack, rank * a.stack_stride)
    leaves = shift(stack, a.leaves)
    count = broadcast(16, a.samples)
    blocks = (a.samples + {LEAVES1}) // {LEAVES}
    begin, end = part_of(rank, size, a.rows)
    for r0 in range(begin, end, {ROWS}):
        r1 = min(r0 + {ROWS}, end)
        for c0 in range(0, a.width, {lanes}):
            for block in range(blocks):
                m0 = block * {LEAVES}
                left = a.samples - m0
                v = shift(a.v, m0 * a.width + c0)
                f = shift(a.f, m0 * a.rows)
                {load}
                for r in range(r0, r1):
                    if left >= {LEAVES}:
                        {products}
                    else:
                        {rest}
                    index, last = block, block == blocks - 1
                    waiting, level = shift(stack, (r - r0) * {lanes}), {level}
{merge}
                    if last:
                        out = a.begin + r * a.width + c0
                        {write}
'''


@cache
def outer(leaves: int, vectors: int) -> Kernel:
    """Return the kernel for blocks of 1, 2, 4 or 8 samples, and rows of this many vectors at a time."""
    lanes = LANES * vectors

    def tree(q: int, first: int, count: int) -> str:
        if count == 1:
            return f"b{first} * v{first}_{q}"
        half = count // 2
        return f"({tree(q, first, half)} + {tree(q, first + half, half)})"

    def joined(lines: list[str], indent: int) -> str:
        return ("\n" + " " * indent).join(lines)

    each = range(vectors)
    places = [(m, q) for m in range(leaves) for q in each]
    rest = []
    for q in each:
        rest.append("for m in range(left):")
        rest.append(f"    product = broadcast(16, item(f, m * a.rows + r)) * load(like, v, m * a.width + {LANES * q})")
        rest.append("    store(leaves, 16 * m, product)")
        rest.append(f"s{q} = tree_of_vectors(like, leaves, 16, left)")
    products = [f"b{m} = broadcast(16, item(f, {m} * a.rows + r))" for m in range(leaves)]
    source = SOURCE.format(
        LEAVES=leaves, LEAVES1=leaves - 1, ROWS=ROWS_AT_ONCE, lanes=lanes,
        load=joined(
            [f"v{m}_{q} = load(like, v, min({m}, left - 1) * a.width + {LANES * q})" for m, q in places], 16
        ),
        products=joined(products + [f"s{q} = {tree(q, 0, leaves)}" for q in each], 24),
        rest=joined(rest, 24),
        level=ROWS_AT_ONCE * LANES * vectors, merge=merging({f"s{q}": f"{LANES * q}" for q in each}, 20),
        write=joined(
            [f"put_lanes(grads, out + {LANES * q}, (s{q} + 0.0) / count, a.width - c0 - {LANES * q})" for q in each], 24
        ),
    )  # fmt: skip
    module = make_module(source, f"gradients of dense layers, {leaves} samples × {vectors} vectors at a time")
    found: Kernel = module.products
    return found


class LinearKernels(OperatorKernels):
    """A dense layer of one vector a sample."""

    image = False

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        return len(shapes[0]) == 1

    def _multiply(
        self, plan: Steps, x: Value, out: Value, direct: bool, bias_begin: int, rows: int, columns: int
    ) -> None:
        """Add the step out = x·w; w are the weights, (rows, columns), as they are if `direct`, else transposed."""
        weight, inputs, outputs = self.tensors["weight"], x.size, out.size
        if takes_few(x, out, direct):
            multiply_few(plan, x, out, weight.begin, bias_begin, direct)
            return
        nothing = np.zeros(padded(outputs) + MARGIN, np.float32)  # the last block may read vectors beyond it
        w, bias, w_input, w_panel = nothing, nothing, columns, LANES
        if not direct:
            w_input, w_panel, (block, stride) = LANES, inputs * LANES, plan.each_thread(256)
            w = plan.buffer(inputs * padded(outputs))
            plan.step(
                pack_forward, batch=BATCH, begin=weight.begin, bias_begin=-1, groups=1, outputs=rows, inputs=columns,
                taps=1, lanes=padded(outputs), block=block, block_stride=stride, out=w, bias=nothing,
            )  # fmt: skip
        work = x.samples * inputs * outputs
        tile = tile_of(1, [(0, 1)] * x.samples, outputs, work, direct=direct)
        blocks = -(-outputs // (LANES * tile.vectors))
        plan.step(
            correlate(tile), x=x, x_sample=0, x_row=0, x_rows=1, x_columns=x.samples, channels=inputs, samples=1,
            rows=1, columns=x.samples, scale=1, scale_columns=1, first=0, first_column=0, direction=1, taps=1,
            tap_columns=1, merged=1, group=blocks, inputs=inputs, batch=BATCH, direct=direct, bias_begin=bias_begin,
            w=w, w_begin=weight.begin if direct else 0, w_group=0, w_tap=0, w_column=0, w_input=w_input,
            w_panel=w_panel, bias=bias, blocks=blocks, outputs=outputs, lanes=padded(outputs), sample=0, row=0,
            row_at=0, column=outputs, column_at=0, width=0, gap=0, apart=1, apart_columns=1, out=out,
        )  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Multiply by the weights, (inputs, outputs); transpose them first if they are stored the other way."""
        bias = self.tensors["bias"].begin if self.operator.bias else -1
        self._multiply(plan, inputs[0], out, self.operator.layout == "in_out", bias, *self.tensors["weight"].shape)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        weight, (x,), by_output = self.tensors["weight"], self.inputs, self.operator.layout == "out_in"
        f, v = (error, x) if by_output else (x, error)
        leaves = 8
        while leaves > max(1, plan.mu):
            leaves //= 2
        vectors = 2 if v.size > LANES and plan.mu * f.size * v.size > 100_000 else 1
        waiting = (-(-plan.mu // leaves) - 1).bit_length() * ROWS_AT_ONCE * LANES * vectors
        stack, stride = plan.each_thread(waiting + leaves * LANES)
        fields: dict[str, Any] = {"f": f, "rows": f.size, "v": v, "width": v.size}
        plan.step(
            outer(leaves, vectors), batch=BATCH, **fields, samples=plan.mu, stack=stack, stack_stride=stride,
            leaves=waiting, begin=plan.gradient(weight),
        )  # fmt: skip
        if self.operator.bias:
            mean_of_samples(plan, error, error.size, self.tensors["bias"])
        if not wanted[0]:
            return [None]
        sent = x.error()
        self._multiply(plan, error, sent, by_output, -1, *weight.shape)
        return [sent]
