"""Dense layers of few samples: their weights, which take most of the time to read, are read once, along rows.

Every sum is from +0 over ascending inputs, as in fredsim.kernels.ops.images.correlate. `by_rows` multiplies by rows of
weights, and a vector holds the samples; `by_columns` multiplies by columns, and adds to sums that stay in the L1 cache.
"""

from __future__ import annotations

from functools import cache
from textwrap import indent

from fredsim.jit.cache import make_module
from fredsim.jit.kernel import Kernel
from fredsim.jit.processor import WIDE
from fredsim.kernels.ops.program import BATCH, Steps
from fredsim.kernels.ops.values import Value

__all__ = ["multiply_few", "takes_few"]

#: Up to how many samples are few: 16 by rows. With AVX-512, weights are turned fast enough.
MOST_SAMPLES = 0 if WIDE else 64
LARGE = 50_000  # weights below which it does not matter how they are read
SUMS_AT_ONCE = 4096  # which stay in the L1 cache
ROWS = {8: 12, 16: 6}  # by lanes: of how many rows sums stay in registers

BY_ROWS = '''
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.processor import unroll_whole
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.program import PARAMS
from fredsim.kernels.ops.rows import part_of


@kernel(x=floats, samples=int, width=int, out=floats)
def turn(rank, size, barrier, a):
    """Write x, (samples, width), as (width, {lanes}), with +0 for samples that are missing."""
    begin, end = part_of(rank, size, a.width)
    for k in range(begin, end):
        for m in range({lanes}):
            put(a.out, k * {lanes} + m, item(a.x, m * a.width + k) if m < a.samples else 0.0)


@kernel(batch=int64s, begin=int, bias_begin=int, rows=int, width=int, x=floats, samples=int, block=floats,
        block_stride=int, out=floats)
def by_rows(rank, size, barrier, a):
    """Write weights, (rows, width), times x, (width, {lanes}), plus the bias if there is one: (samples, rows)."""
    like = zeros({lanes})
    params = floats(item(a.batch, PARAMS))
    block = shift(a.block, rank * a.block_stride)
    begin, end = part_of(rank, size, (a.rows + {R} - 1) // {R})
    for t in range(begin, end):
        r0 = min(t * {R}, a.rows - {R})
        w = shift(params, a.begin + r0 * a.width)
{sums}
        for m in range(a.samples):
            for i in range({R}):
                put(a.out, m * a.rows + r0 + i, item(block, i * {lanes} + m))
'''

BY_COLUMNS = '''
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.vector import broadcast, load, zeros
from fredsim.kernels.ops.program import PARAMS
from fredsim.kernels.ops.rows import clear, part_of, put_lanes


@kernel(batch=int64s, begin=int, bias_begin=int, rows=int, width=int, x=floats, samples=int, at_once=int, out=floats)
def by_columns(rank, size, barrier, a):
    """Write x, (samples, rows), times weights, (rows, width), plus the bias if there is one: (samples, width)."""
    like = zeros(16)
    params = floats(item(a.batch, PARAMS))
    begin, end = part_of(rank, size, (a.width + 15) // 16)
    last = min(16 * end, a.width)
    for c0 in range(16 * begin, last, a.at_once):
        count = min(a.at_once, last - c0)
        for m in range(a.samples):
            clear(a.out, m * a.width + c0, count)
        r = 0
        while r < a.rows:
            w = shift(params, a.begin + r * a.width + c0)
            m = 0
{sums}
        if a.bias_begin >= 0:
            bias = shift(params, a.bias_begin + c0)
            for m in range(a.samples):
                out = shift(a.out, m * a.width + c0)
                for c in range(0, count, 16):
                    put_lanes(out, c, load(like, out, c) + load(like, bias, c), count - c)
'''


def _rows(lanes: int) -> str:
    """Return the lines that sum up the products of some rows, and write them to `block`."""
    rows = range(ROWS[lanes])
    lines = [f"s{i} = like" for i in rows]
    lines += ["for k in range(a.width):", "    unroll_whole()", f"    x = load(like, a.x, k * {lanes})"]
    lines += [f"    s{i} = s{i} + item(w, {i} * a.width + k) * x" for i in rows]
    lines += ["if a.bias_begin >= 0:"]
    lines += [f"    s{i} = s{i} + item(params, a.bias_begin + r0 + {i})" for i in rows]
    return "\n".join([*lines, *(f"store(block, {i * lanes}, s{i})" for i in rows)])


def _columns(samples: int, rows: int) -> str:
    """Return the lines that add the products of some samples and rows to sums."""
    s_range, r_range = range(samples), range(rows)
    lines = [f"b{s}_{i} = broadcast(16, item(a.x, (m + {s}) * a.rows + r + {i}))" for s in s_range for i in r_range]
    lines += [f"out{s} = shift(a.out, (m + {s}) * a.width + c0)" for s in s_range]
    sums = [f"w{i} = load(like, w, {i} * a.width + c)" for i in r_range]
    for s in s_range:
        total = f"load(like, out{s}, c)" + "".join(f" + b{s}_{i} * w{i}" for i in r_range)
        sums.append(f"put_lanes(out{s}, c, {total}, count - c)")
    return "\n".join([*lines, "for c in range(0, count, 16):", *("    " + line for line in sums)])


@cache
def rows_kernels(lanes: int) -> tuple[Kernel, Kernel]:
    """Return the kernels `turn` and `by_rows` for up to so many samples."""
    source = BY_ROWS.format(lanes=lanes, R=ROWS[lanes], sums=indent(_rows(lanes), " " * 8))
    module = make_module(source, f"dense layers of up to {lanes} samples, by rows")
    return module.turn, module.by_rows


@cache
def columns_kernel() -> Kernel:
    """Return the kernel `by_columns`."""
    lines = ["if a.rows - r >= 4:", "    while m + 2 <= a.samples:", indent(_columns(2, 4), " " * 8), "        m += 2"]
    lines += ["    if m < a.samples:", indent(_columns(1, 4), " " * 8), "    r += 4", "else:"]
    lines += ["    while m < a.samples:", indent(_columns(1, 1), " " * 8), "        m += 1", "    r += 1"]
    module = make_module(BY_COLUMNS.format(sums=indent("\n".join(lines), " " * 12)), "dense layers of few samples")
    found: Kernel = module.by_columns
    return found


def takes_few(x: Value, out: Value, direct: bool) -> bool:
    """Return whether multiply_few is the faster way to multiply x, (µ, inputs), by weights, (inputs, outputs)."""
    few = x.samples <= MOST_SAMPLES and x.size * out.size >= LARGE
    return few and (direct or (x.samples <= 16 and out.size >= ROWS[_lanes(x)]))


def multiply_few(plan: Steps, x: Value, out: Value, begin: int, bias_begin: int, direct: bool) -> None:
    """Add the steps out = x·w, plus the bias unless bias_begin is −1.

    The weights begin at `begin` in the parameters, (inputs, outputs) if `direct`, else (outputs, inputs).
    """
    layer = {"batch": BATCH, "begin": begin, "bias_begin": bias_begin, "samples": x.samples, "out": out}
    if direct:
        at_once = max(16, SUMS_AT_ONCE // x.samples // 16 * 16)
        plan.step(columns_kernel(), **layer, x=x, rows=x.size, width=out.size, at_once=at_once)
        return
    lanes = _lanes(x)
    turn, by_rows = rows_kernels(lanes)
    turned, (block, stride) = plan.buffer(x.size * lanes), plan.each_thread(lanes * ROWS[lanes])
    plan.step(turn, x=x, samples=x.samples, width=x.size, out=turned)
    plan.step(by_rows, **layer, x=turned, rows=out.size, width=x.size, block=block, block_stride=stride)


def _lanes(x: Value) -> int:
    return 8 if x.samples <= 8 else 16
