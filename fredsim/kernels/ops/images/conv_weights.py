"""Gradients of a convolution's weights, and the weights in the orders that kernels read them in.

A sample's own gradient of a weight is Σ x·δ over output positions, in bands of 8 rows; bands are summed by the tree,
then samples. A tile is A neighbouring inputs of one tap row (tap columns and channels lie together) times Q vectors of
output channels. Its sums stay in registers over a band, and while they are merged; sums that wait for their partners in
the tree stand on a stack. Samples are taken in blocks whose values fit into a cache, all tiles of a block before the
next block.

A small tile reads a few of the channels of many pixels, each from another line of memory. Where tiles are small, images
of more than 16 channels are therefore written as panels first, each with at most 16 of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from textwrap import indent
from typing import NamedTuple

import numpy as np

from fredsim.jit.cache import make_module
from fredsim.jit.kernel import Kernel, kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.shuffles import transpose16
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.images.correlate import LANES, SMALL_WORK, block_sizes, choice, fits, instructions, padded
from fredsim.kernels.ops.program import GRADS, PARAMS
from fredsim.kernels.ops.rows import clear_halo, part_of, put_lanes
from fredsim.kernels.ops.sums import merging

__all__ = ["gradient_tile", "pack_forward", "pack_transposed", "unpack_gradient", "weight_gradient", "write_panels"]

ZERO, ZERO_PLACE = np.float32(0), np.int64(0)
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 18, 20, 21, 24)  # how many inputs a tile may have

SOURCE = '''
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, item, shift
from fredsim.jit.processor import unroll_whole
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.ops.rows import part_of


@kernel(x=floats, x_sample=int, x_row=int, x_rows=int, x_run=int, channels=int, nothing=floats, e=floats, e_sample=int,
        e_row=int, e_column=int, e_panel=int, rows=int, columns=int, stride=int, stride_columns=int, first=int,
        first_column=int, taps=int, runs=int, heights=int, widths=int, groups=int, inputs=int, group_outputs=int,
        lanes=int, samples=int, at_once=int, own=int, apart=int, stack=floats, stack_stride=int, band_levels=int,
        levels=floats, level=int, out=floats)
def weights(rank, size, barrier, a):
    """Compute all tiles; see fredsim.kernels.ops.images.conv_weights. If `own`, each sample's are written."""
    like, few = zeros(16), zeros(8)
    bands_stack = shift(a.stack, rank * a.stack_stride)
    samples_stack = shift(bands_stack, a.band_levels * {floats})
    begin, end = part_of(rank, size, a.groups * a.taps * a.runs * a.heights * a.widths)
    bands = (a.rows + 7) // 8
    blocks = (a.samples + a.at_once - 1) // a.at_once
    step = a.stride_columns * a.channels
    for block in range(blocks):
        i0, i1 = block * a.at_once, min((block + 1) * a.at_once, a.samples)
        for t in range(begin, end):
            q0, line = t % a.widths * {lanes}, t // a.widths
            k0, line = line % a.heights * {A}, line // a.heights
            run, tap, g = line % a.runs, line // a.runs % a.taps, line // a.runs // a.taps
            x_at = a.first_column * a.channels + run * a.x_run + g * a.inputs + k0
            e_at = g * a.group_outputs + q0 // 16 * a.e_panel
            place = (line * a.heights * {A} + k0) * a.lanes + q0
{tiles}
'''
#: One tile for all samples of a block.
TILE = """
for i in range(i0, i1):
    for band in range(bands):
{begin}
        for y in range(8 * band, min(8 * band + 8, a.rows)):
            r = y * a.stride + a.first + tap * a.apart
            x = shift(a.x, i * a.x_sample + r * a.x_row + x_at)
            if r < 0 or r >= a.x_rows:
                x = a.nothing
            e = shift(a.e, i * a.e_sample + y * a.e_row + e_at)
            for _ in range(a.columns):
                unroll_whole()
{products}
                x = shift(x, step)
                e = shift(e, a.e_column)
        index, last = band, band == bands - 1
        waiting, pitch, level = bands_stack, {lanes}, {floats}
{merge_bands}
    if a.own:
        out, pitch = shift(a.out, i * a.level + place), a.lanes
{own}
    else:
        index, last = i - i0, i == i1 - 1
        waiting, pitch, level = samples_stack, {lanes}, {floats}
{merge_samples}
if not a.own:
    index, last = block, block == blocks - 1
    waiting, pitch, level = shift(a.levels, place), a.lanes, a.level
{merge_blocks}
    if last:
        out = shift(a.out, place)
{mean}
"""


class GradientTile(NamedTuple):
    """Sums that are computed together: A and Q; `halves` as those of Tile."""

    inputs: int
    vectors: int
    halves: tuple[bool, ...] = (False,)


def _sums(height: int, vectors: int, half: bool) -> str:
    """Return the lines that compute one tile."""
    halves = [half and q == vectors - 1 for q in range(vectors)]
    kinds = ["h" if each else "s" for each in halves]  # numba gives a name one type
    names = {(k, q): f"{kinds[q]}{k}_{q}" for k in range(height) for q in range(vectors)}
    places = {name: f"{k} * pitch + {LANES * q}" for (k, q), name in names.items()}
    likes = ["few" if each else "like" for each in halves]
    products = [f"{kinds[q]}e{q} = load({likes[q]}, e, {q} * a.e_panel)" for q in range(vectors)]
    for k in range(height):
        products.append(f"b = item(x, {k})")
        products += [f"{names[k, q]} = {names[k, q]} + b * {kinds[q]}e{q}" for q in range(vectors)]

    def lines(pieces: Iterable[str], depth: int) -> str:
        return indent("\n".join(pieces), " " * 4 * depth)

    return TILE.format(
        lanes=LANES * vectors, floats=height * vectors * LANES,
        begin=lines((f"{name} = {likes[q]}" for (_, q), name in names.items()), 2), products=lines(products, 4),
        merge_bands=merging(places, 8), own=lines((f"store(out, {at}, {s})" for s, at in places.items()), 2),
        merge_samples=merging(places, 8), merge_blocks=merging(places, 4),
        mean=lines((f"store(out, {at}, {s} / a.samples)" for s, at in places.items()), 2),
    )  # fmt: skip


@cache
def weight_gradient(tile: GradientTile) -> Kernel:
    """Return the kernel for tiles of this size."""
    height, vectors, halves = tile
    lanes = LANES * vectors
    tiles = choice(f"q0 + {lanes} < a.lanes", [_sums(height, vectors, half) for half in halves])
    source = SOURCE.format(A=height, lanes=lanes, floats=height * lanes, tiles=indent(tiles, " " * 12))
    ends = ", the last vectors halves" if any(halves) else ""
    module = make_module(source, f"gradients of weights in tiles of {height} × {vectors}{ends}")
    found: Kernel = module.weights
    return found


def gradient_tile(run: int, outputs: int, work: int) -> GradientTile:
    """Return the size of tile, inputs and vectors, that takes least time for runs of so many inputs."""
    vectors = padded(outputs) // LANES
    if work < SMALL_WORK:
        return GradientTile(4 if run >= 4 else 1, 1)

    def cost(tile: GradientTile) -> float:
        height, q, _ = tile
        sizes = block_sizes(outputs, q)
        first, last = instructions(height, sizes[0]), instructions(height, sizes[-1])
        return -(-run // height) * ((vectors // q - 1) * first + last)

    fitting = []
    for q in (1, 2, 3):
        if vectors % q == 0:
            sizes = block_sizes(outputs, q)
            halves = tuple(size < q for size in sizes)
            heights = (height for height in HEIGHTS if height < run + 4 and fits(height, max(sizes)))
            fitting += [GradientTile(height, q, halves) for height in heights]
    return min(fitting, key=cost)


@kernel(x=floats, x_sample=int, x_row=int, channels=int, samples=int, rows=int, columns=int, panels=int, width=int,
        sample=int, row=int, gap=int, out=floats)  # fmt: skip
def write_panels(rank, size, barrier, a):
    """Write an image as panels, images of `width` of its channels: a sample's first, its second, …, the next sample's.

    If the channels do not fill the last panel, the rest of it is arbitrary.
    """
    begin, end = part_of(rank, size, a.samples * a.panels * a.rows)
    for t in range(begin, end):
        y, image = t % a.rows, t // a.rows
        panel, i = image % a.panels, image // a.panels
        x = shift(a.x, i * a.x_sample + y * a.x_row + panel * a.width)
        out = shift(a.out, image * a.sample + y * a.row)
        for column in range(a.columns):
            put_lanes(out, column * a.width, load(zeros(16), x, column * a.channels), a.width)
        clear_halo(out, y == 0, a.columns * a.width, a.gap)


@kernel(batch=int64s, begin=int, bias_begin=int, groups=int, outputs=int, inputs=int, taps=int, lanes=int,
        block=floats, block_stride=int, out=floats, bias=floats)  # fmt: skip
def pack_forward(rank, size, barrier, a):
    """Write weights (groups·outputs, inputs, taps) as (groups, panels, taps, inputs, 16), and the bias.

    A panel is 16 outputs; the bias is (groups, lanes). Lanes from `outputs` on are +0, as is the bias if bias_begin is
    negative.
    """
    params = floats(item(a.batch, PARAMS))
    block = shift(a.block, rank * a.block_stride)
    row, vectors = a.inputs * a.taps, a.lanes // 16
    begin, end = part_of(rank, size, a.groups * vectors)
    for t in range(begin, end):
        g, o0 = t // vectors, t % vectors * 16
        own = min(16, a.outputs - o0)
        source = shift(params, a.begin + (g * a.outputs + o0) * row)
        out = shift(a.out, g * row * a.lanes + o0 * row)
        for o in range(16):
            known = o < own and a.bias_begin >= 0
            put(a.bias, g * a.lanes + o0 + o, item(params, a.bias_begin + g * a.outputs + o0 + o) if known else ZERO)
        k, tap = ZERO_PLACE, ZERO_PLACE
        for m0 in range(0, row, 16):
            count = min(16, row - m0)
            if own == 16 and count == 16:
                if a.taps == 1:
                    transpose16(source, m0, row, out, m0 * 16, 16)
                    continue
                transpose16(source, m0, row, block, 0, 16)
            else:
                for m in range(count):
                    for o in range(16):
                        put(block, m * 16 + o, item(source, o * row + m0 + m) if o < own else ZERO)
            if a.taps == 1:
                k = m0
            for m in range(count):
                store(out, (tap * a.inputs + k) * 16, load(zeros(16), block, m * 16))
                tap += 1
                if tap == a.taps:
                    tap, k = ZERO_PLACE, k + 1


@kernel(packed=floats, groups=int, taps=int, inputs=int, in_lanes=int, out_lanes=int, out=floats)
def pack_transposed(rank, size, barrier, a):
    """Write weights as pack_forward writes them as (groups, panels of inputs, taps, outputs, 16).

    The number of outputs is a whole number of vectors. Lanes from `inputs` on are arbitrary.
    """
    across, down = a.out_lanes // 16, a.in_lanes // 16
    begin, end = part_of(rank, size, a.groups * across * down * a.taps)
    for t in range(begin, end):
        tap, line = t % a.taps, t // a.taps
        o, k, g = line % across, line // across % down, line // across // down
        source = ((g * across + o) * a.taps + tap) * a.inputs + k * 16
        out = ((g * down + k) * a.taps + tap) * a.out_lanes + o * 16
        transpose16(a.packed, source * 16, 16, a.out, out * 16, 16)


@kernel(batch=int64s, begin=int, groups=int, outputs=int, inputs=int, taps=int, tap_columns=int, tap_row=int,
        tap_column=int, panel=int, panel_lines=int, lanes=int, block=floats, block_stride=int, x=floats, samples=int,
        level=int, size=int, apart=int, add=int, own=floats)  # fmt: skip
def unpack_gradient(rank, size, barrier, a):
    """Write a gradient from x to the flat vector, as (groups·outputs, inputs, taps).

    In x, a tap's inputs lie `lanes` floats apart, those of one panel, a row's taps tap_column·lanes, rows and groups
    tap_row·lanes, panels panel_lines·lanes. If `apart`, x has those of all samples, `level` floats apart, and they are
    written to `own`, (samples, size), or added to what is there.
    """
    grads = a.own if a.apart else shift(floats(item(a.batch, GRADS)), a.begin)
    block = shift(a.block, rank * a.block_stride)
    row, vectors = a.inputs * a.taps, (a.outputs + 15) // 16
    blocks = (row + 15) // 16
    tasks = a.groups * vectors * blocks
    begin, end = part_of(rank, size, a.samples * tasks)
    for task in range(begin, end):
        t = task % tasks
        m0, o0, g = t % blocks * 16, t // blocks % vectors * 16, t // blocks // vectors
        count, own = min(16, row - m0), min(16, a.outputs - o0)
        out = shift(grads, task // tasks * a.size + (g * a.outputs + o0) * row + m0)
        x = shift(a.x, task // tasks * a.level)
        tap_rows = a.taps // a.tap_columns
        first = g * tap_rows
        k, tap = m0 // a.taps, m0 % a.taps
        tap_row, tap_column = tap // a.tap_columns, tap % a.tap_columns
        for m in range(count):
            line = (first + tap_row) * a.tap_row + tap_column * a.tap_column + k % a.panel
            line += k // a.panel * a.panel_lines
            store(block, m * 16, load(zeros(16), x, line * a.lanes + o0))
            tap_column += 1
            if tap_column == a.tap_columns:
                tap_row, tap_column = tap_row + 1, ZERO_PLACE
                if tap_row == tap_rows:
                    tap_row, k = ZERO_PLACE, k + 1
        if a.add:
            for o in range(own):
                for m in range(count):
                    put(out, o * row + m, item(out, o * row + m) + item(block, m * 16 + o))
        elif own == 16 and count == 16:
            transpose16(block, 0, 16, out, 0, row)
        else:
            for o in range(own):
                for m in range(count):
                    put(out, o * row + m, item(block, m * 16 + o))
