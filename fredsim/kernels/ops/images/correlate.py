"""The inner loops of convolutions and dense layers, generated for tiles of several sizes.

A tile is P neighbouring pixels of one row, of S samples, in Q vectors of 16 output channels: S·P·Q sums that stay in
registers, each from +0, while the products of one input channel after the other are added. Which sums are in a tile
changes no sum. `correlate` computes, for output pixel (y, x) of a sample and every output channel,

    Σ over tap rows r, tap columns c, channels k, ascending: input(y·scale + f ± r·d, x·scale + f ± c·d, k) · w[r, c, k]

where taps outside of the input's rows are left out: their product would be ±0, as parameters are finite, and a sum from
+0 is never −0. Beside its columns the input has a halo of +0. It stands for the forward pass (+) as well as for the
error of the input (−), there with the weights transposed. If `direct`, weights are read from the parameters as they
are, as are biases from bias_begin on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from textwrap import indent
from typing import NamedTuple

from fredsim.jit.cache import make_module
from fredsim.jit.kernel import Kernel
from fredsim.jit.processor import WIDE
from fredsim.kernels.ops.rows import inside

__all__ = ["LANES", "Tile", "block_sizes", "choice", "correlate", "fits", "instructions", "padded", "spans", "tile_of"]

LANES = 16


class Tile(NamedTuple):
    """Sums that are computed together: S, P and Q; `across`: the pixels are the same one of P samples, and S is 1.

    `halves` says whether the last vector has half as many channels: in all blocks, or in the first and in the last.
    """

    samples: int
    pixels: int
    vectors: int
    across: bool
    halves: tuple[bool, ...] = (False,)


#: How many vectors of sums and of weights fit into registers, beside a product and an input. With AVX2 a vector is two
#: registers of 16, on ARM four of 32.
MOST_VECTORS = 28 if WIDE else 7
PARTS = 1 if WIDE else 2  # instructions for an operation on one vector
SAMPLES = (1, 2, 4)
PIXELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)
SMALL_WORK = 200_000  # multiply-adds below which a tile's size does not matter, so that less is compiled

HEAD = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, shift
from fredsim.jit.processor import unroll_whole
from fredsim.jit.vector import load, store_part, zeros
from fredsim.kernels.ops.program import PARAMS
from fredsim.kernels.ops.rows import clear_halo, part_of, taps_inside


@kernel(x=floats, x_sample=int, x_row=int, x_rows=int, x_columns=int, channels=int, samples=int, rows=int, columns=int,
        scale=int, scale_columns=int, first=int, first_column=int, direction=int, taps=int, tap_columns=int, merged=int,
        group=int, inputs=int, batch=int64s, direct=int, bias_begin=int, w=floats, w_begin=int, w_group=int, w_tap=int,
        w_column=int, w_input=int, w_panel=int, bias=floats, blocks=int, outputs=int, lanes=int, sample=int, row=int,
        row_at=int, column=int, column_at=int, width=int, gap=int, apart=int, apart_columns=int, out=floats)
def correlate(rank, size, barrier, a):
    like, few = zeros(16), zeros(8)
    params = floats(item(a.batch, PARAMS))
    weights = params if a.direct else a.w
    biases = a.bias if a.bias_begin < 0 else shift(params, a.bias_begin)
"""
#: The pixels of a tile are neighbours in a row.
ALONG = """
    whole = a.samples // {S}
    sets = whole + a.samples % {S}
    begin, end = part_of(rank, size, sets * a.rows * a.blocks)
    step, x_run, o_step = a.scale_columns * a.channels, a.direction * a.apart_columns * a.channels, a.column
    x_tap = a.direction * a.apart * a.x_row
    for t in range(begin, end):
        block, y, chosen = t % a.blocks, t // a.blocks % a.rows, t // a.blocks // a.rows
        i = chosen * {S} if chosen < whole else whole * {S} + chosen - whole
        g, c0 = block // a.group, block % a.group * {lanes}
        r = a.scale * y + a.first
        t0, t1 = taps_inside(a.direction, r, r, a.x_rows, a.taps, a.apart)
        x = shift(a.x, i * a.x_sample + r * a.x_row + t0 * x_tap + g * a.inputs)
        w = shift(weights, a.w_begin + g * a.w_group + c0 // 16 * a.w_panel + t0 * a.w_tap)
        bias = shift(biases, g * a.lanes + c0)
        line = shift(a.out, i * a.sample + y * a.row + a.row_at)
        out = shift(line, a.column_at + g * a.outputs + c0)
        left = a.outputs - c0
        for j in range(0, a.columns, {P}):
            j0 = min(j, a.columns - {P})
            first = a.scale_columns * j0 + a.first_column
            last = first + a.scale_columns * {P1}
            u0, u1 = taps_inside(a.direction, first, last, a.x_columns, a.tap_columns, a.apart_columns)
            u1 = max(u0, u1)
            px = shift(x, first * a.channels + u0 * x_run)
            pw = shift(w, u0 * a.w_column)
            runs, run = u1 - u0, a.inputs
            if a.merged:
                runs, run = 1, (u1 - u0) * a.inputs
{tiles}
        if block == 0:
            for s in range({S} if chosen < whole else 1):
                clear_halo(shift(line, s * a.sample), y == 0, a.width, a.gap)
"""
#: The pixels of a tile are the same place of several samples, so that no tap outside of the input's columns is added.
ACROSS = """
    begin, end = part_of(rank, size, a.rows * a.columns * a.blocks)
    step, x_run, o_step = a.x_sample, a.direction * a.apart_columns * a.channels, a.sample
    x_tap = a.direction * a.apart * a.x_row
    for t in range(begin, end):
        block, column, y = t % a.blocks, t // a.blocks % a.columns, t // a.blocks // a.columns
        g, c0 = block // a.group, block % a.group * {lanes}
        r, first = a.scale * y + a.first, a.scale_columns * column + a.first_column
        t0, t1 = taps_inside(a.direction, r, r, a.x_rows, a.taps, a.apart)
        u0, u1 = taps_inside(a.direction, first, first, a.x_columns, a.tap_columns, a.apart_columns)
        u1 = max(u0, u1)
        x = shift(a.x, r * a.x_row + t0 * x_tap + first * a.channels + u0 * x_run + g * a.inputs)
        pw = shift(weights, a.w_begin + g * a.w_group + c0 // 16 * a.w_panel + t0 * a.w_tap + u0 * a.w_column)
        bias = shift(biases, g * a.lanes + c0)
        line = shift(a.out, y * a.row + a.row_at)
        out = shift(line, a.column_at + column * a.column + g * a.outputs + c0)
        left = a.outputs - c0
        runs, run = u1 - u0, a.inputs
        if a.merged:
            runs, run = 1, (u1 - u0) * a.inputs
        for j in range(0, a.samples, {P}):
            j0 = min(j, a.samples - {P})
            px = shift(x, j0 * a.x_sample)
{tiles}
        if block == 0 and column == 0:
            for s in range(a.samples):
                clear_halo(shift(line, s * a.sample), y == 0, a.width, a.gap)
"""


def _sums(samples: int, pixels: int, vectors: int, half: bool) -> str:
    """Return the lines that compute one tile."""
    places = [(s, p) for s in range(samples) for p in range(pixels)]
    q_range = range(vectors)
    likes = ["few" if half and q == vectors - 1 else "like" for q in q_range]
    lines = [f"a{s}_{p}_{q} = {likes[q]}" for s, p in places for q in q_range]
    lines += ["for tap in range(t1 - t0):", "    for u in range(runs):"]
    inner = [f"qx{s} = shift(px, tap * x_tap + u * x_run + {s} * a.x_sample)" for s in range(samples)]
    inner += ["qw = shift(pw, tap * a.w_tap + u * a.w_column)", "for k in range(run):", "    unroll_whole()"]
    inner += [f"    w{q} = load({likes[q]}, qw, k * a.w_input + {q} * a.w_panel)" for q in q_range]
    for s, p in places:
        inner.append(f"    b = item(qx{s}, {p} * step + k)")
        inner += [f"    a{s}_{p}_{q} = a{s}_{p}_{q} + b * w{q}" for q in q_range]
    lines += [" " * 8 + line for line in inner]
    lines += [f"z{q} = load({likes[q]}, bias, {LANES * q})" for q in q_range]
    for s, p in places:
        lines.append(f"o = shift(out, {s} * a.sample + (j0 + {p}) * o_step)")
        lines += [f"store_part(o, {LANES * q}, a{s}_{p}_{q} + z{q}, left - {LANES * q})" for q in q_range]
    return "\n".join(lines)


def choice(condition: str, pieces: Sequence[str]) -> str:
    """Return the lines of a choice between two pieces of code; if there is only one, it alone."""
    if len(pieces) == 1:
        return pieces[0]
    first, other = (indent(piece, " " * 4) for piece in pieces)
    return f"if {condition}:\n{first}\nelse:\n{other}"


@cache
def correlate(tile: Tile) -> Kernel:
    """Return the kernel for tiles of this size."""
    s, p, q, across, halves = tile
    lanes, counts = LANES * q, [s, 1] if s > 1 else [1]
    tiles = [choice("chosen < whole", [_sums(count, p, q, half) for count in counts]) for half in halves]
    source = HEAD + (ACROSS if across else ALONG).format(
        S=s, P=p, P1=p - 1, lanes=lanes, tiles=indent(choice(f"left > {lanes}", tiles), " " * 12)
    )
    ends = ", the last vectors halves" if any(halves) else ""
    module = make_module(source, f"convolutions in tiles of {s} × {p} × {q}{ends}")
    found: Kernel = module.correlate
    return found


def padded(count: int) -> int:
    """Return a number of channels, rounded up to whole vectors."""
    return -(-count // LANES) * LANES


def spans(
    direction: int, scale: int, first: int, taps: int, size: int, count: int, apart: int = 1
) -> list[tuple[int, int]]:
    """Return which taps of each of `count` outputs lie inside an axis of `size` inputs: the first, and the end."""
    found = []
    for x in range(count):
        at = scale * x + first
        begin, end = inside(direction, at, at, size, taps, apart)
        found.append((begin, max(begin, end)))
    return found


def instructions(inputs: int, vectors: float) -> float:
    """Return how many instructions a step of a tile is, or as many as are done while one of its sums is added to.

    A product with one register's weights reads its input by itself; with more, the input is read before.
    """
    read = inputs if PARTS * vectors > 1 else 0
    return max(PARTS * (2 * inputs * vectors + vectors) + read, 16) + 1


def fits(inputs: int, vectors: float) -> bool:
    """Return whether a tile's sums stay in registers; the smallest tile may always be taken."""
    return inputs * vectors + vectors <= MOST_VECTORS or inputs * vectors <= 1


def halved(outputs: int) -> bool:
    """Return whether the last vector of so many channels may be half a vector."""
    return not WIDE and 0 < outputs % LANES <= LANES // 2


def block_sizes(outputs: int, vectors: int) -> tuple[float, ...]:
    """Return how many vectors all blocks of so many channels have, or the first ones and the last."""
    if not halved(outputs):
        return (vectors,)
    return (vectors - 0.5,) if padded(outputs) <= LANES * vectors else (vectors, vectors - 0.5)


def tile_of(samples: int, reached: Sequence[tuple[int, int]], outputs: int, work: int, *, direct: bool = False) -> Tile:
    """Return the size of tile that takes least time for rows of pixels that reach so many taps; see `spans`.

    If weights are read `direct`ly, in rows that are far apart, several vectors of a row are read at once, where that
    leaves registers for as many pixels.
    """
    vectors, columns = padded(outputs) // LANES, len(reached)
    if work < SMALL_WORK:
        return Tile(1, 4 if columns >= 4 else 1, 1, across=False)

    def sizes(q: int) -> tuple[float, ...]:
        return (q,) if direct else block_sizes(outputs, q)

    def cost(tile: Tile) -> float:
        s, p, q, across, _ = tile
        if across:
            steps = -(-samples // p) * sum(end - begin for begin, end in reached)
        else:
            starts = [min(j, columns - p) for j in range(0, columns, p)]
            taps = [
                max(reached[j + p - 1][1], reached[j][1]) - min(reached[j + p - 1][0], reached[j][0]) for j in starts
            ]
            steps = sum(taps) * (samples // s + samples % s)
        first, last = (instructions(s * p, size) for size in (sizes(q)[0], sizes(q)[-1]))
        return steps * ((-(-vectors // q) - 1) * first + last)

    fitting = [
        Tile(s, p, q, across, tuple(size < q for size in sizes(q)))
        for across in (False, True)
        for s in (SAMPLES[:1] if across else SAMPLES)
        for p in PIXELS
        for q in ((2, 3, 4) if direct and vectors > 1 and WIDE else (1, 2, 3))
        if s <= samples and p <= (samples if across else columns) and (direct or vectors % q == 0)
        if fits(s * p, max(sizes(q)))
    ]
    return min(fitting, key=cost)
