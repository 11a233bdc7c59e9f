"""The vector type calculates as NumPy does, and touches nothing else."""

from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.jit.cache import make_module
from fredsim.jit.team import Team

# A kernel of a test is made from its text, under whose digest it is cached: a changed test is compiled anew.
LANES = """

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, put
from fredsim.jit.vector import no_nan, load, load_part, store, store_part
from fredsim.jit.vector import zeros
from fredsim.numerics.rules import absolute, sqrt, where


@kernel(x=floats, y=floats, out=floats, at=int, flags=int64s)
def calculate(rank, size, barrier, a):
    x, y, out, at = a.x, a.y, a.out, a.at
    one, two = load(zeros(LANES), x, at), load(zeros(LANES), y, at)
    store(out, 0 * LANES, zeros(LANES))
    store(out, 1 * LANES, one + two)
    store(out, 2 * LANES, one - two)
    store(out, 3 * LANES, one * two)
    store(out, 4 * LANES, one / two)
    store(out, 5 * LANES, -one)
    store(out, 6 * LANES, sqrt(one))
    store(out, 7 * LANES, absolute(one))
    store(out, 8 * LANES, 0.1 * one + 3)
    store(out, 9 * LANES, 1.0 / one - item(y, at))
    store(out, 10 * LANES, where(one < two, one, two))
    store(out, 11 * LANES, where(one <= two, one, 0.1))
    store(out, 12 * LANES, where(one > two, 0.1, two))
    store(out, 13 * LANES, where(one >= 0.1, 1.0, 2.0))
    store(out, 14 * LANES, where(one == two, one, 1.0))
    store(out, 15 * LANES, where(one != two, one, 1.0))
    store(out, 16 * LANES, one * two + one)
    put(a.flags, 0, no_nan(one))
    put(a.flags, 1, no_nan(one * 0.0))


@kernel(x=floats, out=floats, at=int, count=int)
def part(rank, size, barrier, a):
    store(a.out, 0, load_part(zeros(LANES), a.x, a.at, a.count))
    store_part(a.out, LANES + a.at, load(zeros(LANES), a.x, 0), a.count)
"""


def vectors(lanes: int) -> ModuleType:
    return make_module(LANES.replace("LANES", str(lanes)), f"a test of {lanes} lanes")


def expected_of(x: NDArray[np.float32], y: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    """What NumPy gives for the lines of `calculate`, in their order."""
    with np.errstate(all="ignore"):
        tenth, three, one, two = (np.float32(value) for value in (0.1, 3, 1, 2))
        values = (
            np.zeros_like(x), x + y, x - y, x * y, x / y, -x, np.sqrt(x), np.abs(x), tenth * x + three, one / x - y[0],
            np.where(x < y, x, y), np.where(x <= y, x, tenth), np.where(x > y, tenth, y),
            np.where(x >= tenth, one, two), np.where(x == y, x, one), np.where(x != y, x, one), x * y + x,
        )  # fmt: skip
    return [np.asarray(value, np.float32) for value in values]


SPECIAL = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, np.nan, 1.0, 0.1, 1 / 3], np.float32)


@pytest.mark.parametrize("lanes", [16, 32, 48, 64, 112])
def test_vectors_calculate_as_numpy_does(lanes: int) -> None:
    """Lane by lane, subnormals kept, multiply and add rounded apart; from any place that a float may have."""
    calculate, rng = vectors(lanes).calculate, np.random.default_rng(lanes)
    with Team(1) as team:
        for at in (*range(8), 100):
            x, y = ((rng.standard_normal(256) * np.exp(rng.uniform(-90, 80, 256))).astype(np.float32) for _ in range(2))
            if at % 2:
                for values in (x, y):
                    places = rng.random(256) < 0.5
                    values[places] = rng.choice(SPECIAL, places.sum())
                x[::5] = y[::5]
            out, flags = np.full((17, lanes), np.nan, np.float32), np.full(2, -1)
            team.run(calculate, calculate.pack(x=x, y=y, out=out, at=at, flags=flags))
            x, y = x[at : at + lanes], y[at : at + lanes]
            for line, (found, expected) in enumerate(zip(out, expected_of(x, y), strict=True)):
                np.testing.assert_array_equal(found, expected, err_msg=str(line))
                np.testing.assert_array_equal(np.signbit(found[found == 0]), np.signbit(expected[found == 0]))
            assert flags.tolist() == [not np.isnan(x).any(), bool(np.isfinite(x).all())]


@pytest.mark.parametrize("lanes", [16, 32, 48, 64, 112])
def test_a_part_of_a_vector_touches_nothing_else(lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    x = rng.standard_normal(256).astype(np.float32)
    with Team(1) as team:
        for count in range(lanes + 1):
            at = count % 5
            out = np.full(3 * lanes, np.nan, np.float32)
            part = vectors(lanes).part
            team.run(part, part.pack(x=x, out=out, at=at, count=count))
            expected = np.full(3 * lanes, np.nan, np.float32)
            expected[:lanes] = 0
            expected[:count] = x[at : at + count]
            expected[lanes + at : lanes + at + count] = x[:count]
            np.testing.assert_array_equal(out, expected)


TRANSPOSE = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats
from fredsim.jit.shuffles import transpose16


@kernel(source=floats, index=int, stride=int, out=floats, at=int, out_stride=int)
def transpose(rank, size, barrier, a):
    transpose16(a.source, a.index, a.stride, a.out, a.at, a.out_stride)
"""


@pytest.mark.parametrize("strides", [(16, 16), (17, 40), (208, 16), (16, 31)])
@pytest.mark.parametrize("places", [(0, 0), (3, 5)])
def test_transpose16(strides: tuple[int, int], places: tuple[int, int]) -> None:
    source = np.arange(4000, dtype=np.float32)
    out = np.full(1000, np.nan, np.float32)
    with Team(1) as team:
        transpose = make_module(TRANSPOSE, "a test's transposition").transpose
        arguments = transpose.pack(
            source=source, index=places[0], stride=strides[0], out=out, at=places[1], out_stride=strides[1]
        )
        team.run(transpose, arguments)
    expected = np.full(1000, np.nan, np.float32)
    for i in range(16):
        for j in range(16):
            expected[places[1] + i * strides[1] + j] = source[places[0] + j * strides[0] + i]
    np.testing.assert_array_equal(out, expected)
