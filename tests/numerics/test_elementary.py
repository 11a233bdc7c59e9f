"""exp, log, pow, sin, cos, tanh, erf: within one unit in the last place, special values, and the same bits compiled."""

import mpmath
import numpy as np
import pytest
from numba import njit
from numpy.typing import NDArray

from fredsim.kernels.arrays import elementary as compiled
from fredsim.numerics.elementary import (
    PI,
    cos64,
    erfc64,
    exp32,
    exp64,
    log1p64,
    log32,
    log64,
    pow64,
    sine64,
    tanh64,
)
from tests.vectors.drive_numba import exponentials, logarithms

MILLION = 1_000_000


def ulps(found: NDArray[np.floating], wide: NDArray[np.longdouble]) -> float:
    """Return the largest distance from the reference in units of the result's last place."""
    spacing = np.spacing(np.abs(found)).astype(np.longdouble)
    return float(np.max(np.abs(found.astype(np.longdouble) - wide) / spacing))


def floats32(low: float, high: float) -> NDArray[np.float32]:
    return np.unique(np.linspace(low, high, MILLION + MILLION // 5, dtype=np.float64).astype(np.float32))


def positive32() -> NDArray[np.float32]:
    """Return positive float32 over the whole range of exponents, subnormals included."""
    bits = np.linspace(1, np.float32(np.finfo(np.float32).max).view(np.uint32), MILLION + 7).astype(np.uint32)
    near_one = np.float32(1) + np.arange(-50_000, 50_000, dtype=np.float32) * np.float32(2.0**-23)
    return np.concatenate([bits.view(np.float32), near_one])


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="this platform's longdouble is no wider than float64")
def test_within_one_ulp() -> None:
    x = floats32(-87, 88.72)
    assert len(x) >= MILLION
    assert ulps(exp32(x), np.exp(x.astype(np.longdouble))) <= 0.51
    y = positive32()
    y = y[y != 1]
    assert ulps(log32(y), np.log(y.astype(np.longdouble))) <= 0.51
    wide = np.linspace(-708, 709.78, MILLION)
    assert ulps(exp64(wide), np.exp(wide.astype(np.longdouble))) <= 1.0
    positive = np.concatenate([np.exp(np.linspace(-744, 709, MILLION)), 1 + np.linspace(-1e-3, 1e-3, 1001)])
    positive = positive[positive != 1]
    assert ulps(log64(positive), np.log(positive.astype(np.longdouble))) <= 1.0


def test_against_arbitrary_precision() -> None:
    """The reference above is the C library's: check ours against mpmath too."""
    for value in np.linspace(-86.9, 88.7, 500).astype(np.float32):
        with mpmath.workprec(120):
            true = mpmath.exp(mpmath.mpf(float(value)))
            error = abs(mpmath.mpf(float(exp32(value))) - true) / mpmath.mpf(float(np.spacing(exp32(value))))
        assert error <= 0.51
    for wide in np.geomspace(1e-300, 1e300, 500):
        with mpmath.workprec(120):
            true = mpmath.log(mpmath.mpf(float(wide)))
            error = abs(mpmath.mpf(float(log64(wide))) - true) / mpmath.mpf(float(np.spacing(abs(log64(wide)))))
        assert error <= 1.0


@pytest.mark.parametrize("name", ["tanh", "erfc"])
def test_tanh_and_erfc_against_arbitrary_precision(name: str) -> None:
    function = {"tanh": tanh64, "erfc": erfc64}[name]
    edges = [
        s * np.nextafter(np.float32(x), np.float32(y)) for x in (2.0**-9, 1, 12) for y in (0, x, 99) for s in (-1, 1)
    ]
    x = np.unique(np.concatenate([np.linspace(-12, 12, 1501), 2.0 ** -np.arange(140.0), edges]).astype(np.float32))
    x = x[(x != 0) & (x <= 12)]  # erfc beyond is that of 12
    for value, found in zip(x, function(x), strict=True):
        with mpmath.workprec(120):
            true = getattr(mpmath, name)(mpmath.mpf(float(value)))
            assert abs(mpmath.mpf(float(found)) / true - 1) < (2e-13 if name != "erfc" else 2e-12)


def any_float32(count: int) -> NDArray[np.float32]:
    """Return finite float32 of random bits."""
    bits = np.random.default_rng(4).integers(0, 2**32, 2 * count, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    return x[np.isfinite(x)][:count]


#: Of all float32, those nearest to a multiple of π/2 at exponents all over the range, by a search over all of them.
NEAR_QUARTERS = [
    1.5707964, 14.137167, 11191.924, 52516.434, 801176.8, 1.2614588e38, 16367173 * 2.0**72, 13176795 * 2.0**-23
]  # fmt: skip


@pytest.mark.parametrize("quarters", [0, 1, 2])
def test_sine_against_arbitrary_precision(quarters: int) -> None:
    """For every finite float32 it has more than the bits of one, also next to its zeros."""
    x = np.concatenate([any_float32(1000), np.linspace(-40, 40, 500), NEAR_QUARTERS, [2.0**20, 2.0**-149]])
    x = x.astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(0)), -x[-10:]])
    with mpmath.workprec(400):
        turn = quarters * mpmath.pi / 2
        for value, found in zip(x, sine64(x, quarters), strict=True):
            if value or quarters % 2:
                true = mpmath.sin(mpmath.mpf(float(value)) + turn)
                assert abs(mpmath.mpf(float(found)) / true - 1) < 2.0**-43, value


def test_log1p_against_arbitrary_precision() -> None:
    x = np.concatenate([any_float32(1500), -(2.0 ** -np.arange(140.0)), 2.0 ** -np.arange(140.0), [-1 + 2.0**-24]])
    x = x[x > -1].astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, np.float32(np.inf))])
    x = x[x != 0]
    with mpmath.workprec(400):
        for value, found in zip(x, log1p64(x), strict=True):
            assert abs(mpmath.mpf(float(found)) / mpmath.log1p(mpmath.mpf(float(value))) - 1) < 2.0**-50, value


def test_special_values() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        sines = [sine64(special, quarters) for quarters in (0, 1, 2)]
    np.testing.assert_array_equal(sines, [[0, 0, *[np.nan] * 3], [1, 1, *[np.nan] * 3], [0, 0, *[np.nan] * 3]])
    assert np.signbit(sines[0][:2]).tolist() == [False, True]
    np.testing.assert_array_equal(
        log1p64([0.0, -0.0, -1, -1.5, np.inf, np.nan]), [0, 0, -np.inf, np.nan, np.inf, np.nan]
    )
    assert np.signbit(log1p64([0.0, -0.0])).tolist() == [False, True]
    for function, expected in (
        (tanh64, [0.0, -0.0, 1, -1, np.nan]),
        (erfc64, [1, 1, erfc64(12.0), 2, np.nan]),
    ):
        np.testing.assert_array_equal(function(special), expected)
        np.testing.assert_array_equal(np.signbit(function(special)[:4]), np.signbit(np.array(expected[:4], np.float64)))
    x = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -87.01, 88.73], np.float32)
    np.testing.assert_array_equal(exp32(x), np.array([1, 1, np.nan, np.inf, 0, 0, np.inf], np.float32))
    np.testing.assert_array_equal(exp64([0.0, np.nan, 710, -709, np.inf]), [1, np.nan, np.inf, 0, np.inf])
    y = np.array([0.0, -0.0, 1.0, -1.0, np.inf, np.nan], np.float32)
    expected = [-np.inf, -np.inf, 0, np.nan, np.inf, np.nan]
    np.testing.assert_array_equal(log32(y), np.array(expected, np.float32))
    np.testing.assert_array_equal(log64(y.astype(np.float64)), expected)
    assert pow64(1.0, -0.75) == 1.0
    assert abs(pow64(16.0, 0.75) - 8.0) < 4e-15
    wide = np.linspace(0.01, 50, 1000)  # of no library's exp and log, which differ in the last place
    assert pow64(wide, -0.75).tobytes() == exp64(-0.75 * log64(wide)).tobytes()


@njit
def apply_wide_exp(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = compiled.exp64(x[i])


@njit
def apply_wide_log(x, out):  # type: ignore[no-untyped-def]
    for i in range(len(x)):
        out[i] = compiled.log64(x[i])


ENDS64 = [
    np.nextafter(x, x + step)
    for x in (-708.0, 709.78, 2.0**-1022, 0.0, 1.0, 2.0**0.5, 0.5**0.5, PI / 4, PI / 2, 3 * PI / 4)
    for step in (-1, 0, 1)
]
SPECIAL64 = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1, 5e-324, 1e-310, np.finfo(np.float64).max, *ENDS64])


def test_numbers_have_the_bits_of_arrays() -> None:
    """Servers compute with a number for each update, and with arrays for a whole window."""
    rng = np.random.default_rng(0)
    spread = np.concatenate([rng.uniform(-720, 720, 20_000), rng.standard_normal(20_000), np.arange(-700.0, 700.0)])
    positive = np.concatenate([np.exp(np.clip(spread, -744, 709)), 2.0 ** np.arange(-1074, 1024)])
    angles = np.concatenate([np.linspace(0, PI, 20_000), [x for x in ENDS64 if 0 <= x <= PI]])
    for function, x in ((exp64, spread), (log64, positive), (cos64, angles)):
        x = x if function is cos64 else np.concatenate([x, SPECIAL64])
        whole = function(x)
        for numbers in (x.tolist(), list(x)):
            each = np.array([function(one) for one in numbers])
            assert each.dtype == np.float64
            np.testing.assert_array_equal(each, whole)  # but a NaN's sign
            np.testing.assert_array_equal(np.signbit(each[~np.isnan(each)]), np.signbit(whole[~np.isnan(whole)]))
    narrow = spread.astype(np.float32)
    np.testing.assert_array_equal(np.array([exp64(one) for one in narrow]), exp64(narrow))
    counts = np.arange(1, 3000)
    for base, power in ((0.9, 1), (0.999, 1), (1.5, -0.25)):
        whole = pow64(base, power * counts)
        for numbers in (counts.tolist(), list(counts)):
            np.testing.assert_array_equal(np.array([pow64(base, power * n) for n in numbers]), whole)


def test_compiled_gives_the_same_bits_in_float64() -> None:
    for function, oracle, x in (
        (apply_wide_exp, exp64, np.linspace(-710, 712, MILLION // 10)),
        (apply_wide_log, log64, np.exp(np.linspace(-744, 709, MILLION // 10))),
    ):
        x = np.concatenate([x, SPECIAL64])
        out = np.empty_like(x)
        function(x, out)
        np.testing.assert_array_equal(out, oracle(x))  # but a NaN's sign
        np.testing.assert_array_equal(np.signbit(out[~np.isnan(out)]), np.signbit(oracle(x)[~np.isnan(out)]))


def test_compiled_gives_the_same_bits() -> None:
    special = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, -1, 1e-45, 1e-38, 3.4e38], np.float32)
    for function, oracle, x in (
        (exponentials, exp32, np.concatenate([floats32(-90, 90), special])),
        (logarithms, log32, np.concatenate([positive32(), special])),
    ):
        out = np.empty_like(x)
        function(x, out)
        np.testing.assert_array_equal(out.view(np.uint32) << 1, oracle(x).view(np.uint32) << 1)  # but a NaN's sign
        np.testing.assert_array_equal(np.signbit(out[~np.isnan(out)]), np.signbit(oracle(x)[~np.isnan(out)]))
