"""Tiles: small matrices of float32 in vector registers, with which products of matrices keep their sums in registers.

A tile has `rows` rows of `lanes` columns, whole vectors of 16. Each of its elements is a sum of its own: products are
formed and added one after the other, and none is reassociated, so that the bits do not depend on a tile's size.
Pointers are those of fredsim.jit.pointers; bounds are not checked.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_model

from fredsim.jit.lanes import OneValue
from fredsim.jit.pointers import INT64, element_pointer, lowered
from fredsim.jit.vector import INT32, load_at, splat, store_at, store_first

__all__ = [
    "TileType",
    "tile_add",
    "tile_add_number",
    "tile_add_products",
    "tile_add_products_of",
    "tile_add_row",
    "tile_divide",
    "tile_load",
    "tile_scale",
    "tile_store",
    "tile_store_part",
    "tile_sum_products",
    "tile_zeros",
]

LANES = 16  # of one LLVM vector
VECTOR = ir.VectorType(ir.FloatType(), LANES)


class TileType(types.Type):
    """The numba type of a tile of `rows` × `lanes` float32; `lanes` is a multiple of 16."""

    def __init__(self, rows, lanes):
        super().__init__(name=f"fredsim_tile{rows}x{lanes}")
        self.rows, self.columns = rows, lanes // LANES
        self.llvm = ir.LiteralStructType([VECTOR] * (rows * self.columns))

    def split(self, builder, value):
        """Return the LLVM vectors of each row."""
        vectors = [builder.extract_value(value, i) for i in range(self.rows * self.columns)]
        return [vectors[row * self.columns : (row + 1) * self.columns] for row in range(self.rows)]

    def join(self, builder, rows):
        """Return the tile that rows of LLVM vectors make up."""
        value = ir.Constant(self.llvm, ir.Undefined)
        for i, vector in enumerate(vector for row in rows for vector in row):
            value = builder.insert_value(value, vector, i)
        return value

    def places(self, builder, pointer, index, stride):
        """Return the pointers to the vectors of each row, in an array whose rows begin `stride` floats apart."""
        begins = [builder.add(index, builder.mul(stride, ir.Constant(index.type, row))) for row in range(self.rows)]
        return [row_places(builder, pointer, begin, self.columns) for begin in begins]


def row_places(builder, pointer, index, count):
    """Return the pointers to `count` consecutive vectors from pointer[index] on."""
    begin = builder.gep(pointer, [index])
    return [element_pointer(builder, begin, INT32(LANES * i), VECTOR) for i in range(count)]


register_model(TileType)(OneValue)


@intrinsic(prefer_literal=True)
def tile_zeros(typingctx, rows, lanes):
    """Return a tile of +0; both arguments are literals."""
    tile = TileType(rows.literal_value, lanes.literal_value)
    return lowered(tile(rows, lanes), lambda b, rows, lanes: ir.Constant(tile.llvm, None))


@intrinsic
def tile_add_products(typingctx, tile, factors, index, step, values, at):
    """Return tile[p, j] + factors[index + p·step]·values[at + j], each product rounded, then each sum."""

    def emit(builder, total, *places):
        return tile.join(builder, _sums(builder, tile.split(builder, total), _products(builder, tile, *places)))

    integer = types.intp
    return lowered(tile(tile, factors, integer, integer, values, integer), emit)


@intrinsic
def tile_add_products_of(typingctx, tile, factors, index, step, values, at, low, high):
    """Do what tile_add_products does in rows low ≤ p < high; the others stay as they are."""

    def emit(builder, total, factors, index, step, values, at, low, high):
        products = _products(builder, tile, factors, index, step, values, at)
        rows = []
        for p, (row, added) in enumerate(zip(tile.split(builder, total), products, strict=True)):
            number = ir.Constant(low.type, p)
            chosen = builder.and_(builder.icmp_signed("<=", low, number), builder.icmp_signed("<", number, high))
            pairs = zip(row, added, strict=True)
            rows.append([builder.select(chosen, builder.fadd(x, y), x) for x, y in pairs])
        return tile.join(builder, rows)

    integer = types.intp
    return lowered(tile(tile, factors, integer, integer, values, integer, integer, integer), emit)


@intrinsic(prefer_literal=True)
def tile_sum_products(typingctx, like, count, factors, index, factors_step, values, at, values_step):
    """Return the sum of `count` tiles, one after the other: factors[index + p]·values[at + j] of rows p and columns j.

    From one to the next, `index` grows by `factors_step`, `at` by `values_step`. `count` is a literal; a loop would
    take longer than so few products.
    """

    def emit(builder, _, count_value, factors, index, factors_step, values, at, values_step):
        total = None
        one = ir.Constant(index.type, 1)
        for _ in range(count.literal_value):
            products = _products(builder, like, factors, index, one, values, at)
            total = products if total is None else _sums(builder, total, products)
            index, at = builder.add(index, factors_step), builder.add(at, values_step)
        return like.join(builder, total)

    integer = types.intp
    return lowered(like(like, count, factors, integer, integer, values, integer, integer), emit)


def _products(builder, tile, factors, index, step, values, at):
    """Return the LLVM vectors of each row of a tile of products."""
    vectors = [load_at(builder, place) for place in row_places(builder, values, at, tile.columns)]
    rows = []
    for p in range(tile.rows):
        place = builder.add(index, builder.mul(step, ir.Constant(index.type, p)))
        factor = splat(builder, builder.load(builder.gep(factors, [place])), LANES)
        rows.append([builder.fmul(factor, vector) for vector in vectors])
    return rows


def _sums(builder, rows, others):
    """Return the sums of the LLVM vectors of two tiles' rows."""
    return [[builder.fadd(x, y) for x, y in zip(*pair, strict=True)] for pair in zip(rows, others, strict=True)]


@intrinsic
def tile_add(typingctx, one, other):
    """Return the sum of two tiles of one size, element by element."""
    return lowered(one(one, one), lambda b, x, y: one.join(b, _sums(b, one.split(b, x), one.split(b, y))))


@intrinsic
def tile_add_row(typingctx, tile, values, at):
    """Return tile[p, j] + values[at + j]."""

    def emit(builder, x, values, at):
        added = [load_at(builder, place) for place in row_places(builder, values, at, tile.columns)]
        return tile.join(builder, _sums(builder, tile.split(builder, x), [added] * tile.rows))

    return lowered(tile(tile, values, types.intp), emit)


@intrinsic
def tile_add_number(typingctx, tile, number):
    """Return the tile with a float32 added to every element."""
    return lowered(tile(tile, types.float32), lambda b, x, y: _by_number(b, tile, b.fadd, x, y))


@intrinsic
def tile_divide(typingctx, tile, number):
    """Return the tile with every element divided by a float32."""
    return lowered(tile(tile, types.float32), lambda b, x, y: _by_number(b, tile, b.fdiv, x, y))


@intrinsic
def tile_scale(typingctx, tile, number):
    """Return the tile with every element multiplied by a float32."""
    return lowered(tile(tile, types.float32), lambda b, x, y: _by_number(b, tile, b.fmul, x, y))


def _by_number(builder, tile, operation, value, number):
    same = splat(builder, number, LANES)
    return tile.join(builder, [[operation(a, same) for a in row] for row in tile.split(builder, value)])


@intrinsic
def tile_load(typingctx, like, pointer, index, stride):
    """Return the tile, of the size of `like`, in rows that begin `stride` floats apart, the first at pointer[index]."""

    def emit(builder, _, pointer, index, stride):
        places = like.places(builder, pointer, index, stride)
        return like.join(builder, [[load_at(builder, place) for place in row] for row in places])

    return lowered(like(like, pointer, types.intp, types.intp), emit)


@intrinsic
def tile_store(typingctx, pointer, index, stride, tile):
    """Write a tile to rows that begin `stride` floats apart, the first at pointer[index]."""

    def emit(builder, pointer, index, stride, value):
        rows = zip(tile.split(builder, value), tile.places(builder, pointer, index, stride), strict=True)
        for vectors, places in rows:
            for vector, place in zip(vectors, places, strict=True):
                store_at(builder, vector, place)

    return lowered(types.none(pointer, types.intp, types.intp, tile), emit)


@intrinsic
def tile_store_part(typingctx, pointer, index, stride, tile, count):
    """Write the first `count` columns of a tile to rows as tile_store does; nothing else is written."""

    def emit(builder, pointer, index, stride, value, count):
        rows = zip(tile.split(builder, value), tile.places(builder, pointer, index, stride), strict=True)
        for vectors, places in rows:
            for i, (vector, place) in enumerate(zip(vectors, places, strict=True)):
                store_first(builder, vector, place, builder.sub(count, INT64(LANES * i)))

    return lowered(types.none(pointer, types.intp, types.intp, tile, types.intp), emit)
