"""Draws of distributions: their laws, their ends in high precision, and the same bits compiled.

The laws are tested on draws of the kernels, which have NumPy's bits.
"""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fredsim.jit.team import Team
from fredsim.kernels.arrays.draws import NumbaDraws
from fredsim.numerics.distributions import BLOCK, FAMILIES, Distribution, Draw, draw
from fredsim.numerics.streams import Stream, Streams
from fredsim.simulation.paths.backends import make_operations
from tests.conftest import HAS_CUDA

Floats = NDArray[np.float64]
MILLION = 1_000_000
MOST = 2**32 - 1


@pytest.fixture(scope="module")
def compiled() -> Iterator[Draw]:
    with Team(2) as team:
        yield NumbaDraws(team).draw


def test_a_distribution_without_a_kernel_is_refused(compiled: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "signed", FAMILIES["normal"])
    given = Distribution("signed"), Streams(1), Stream.TIME, 3, 5
    assert draw(*given) == draw(Distribution("normal"), *given[1:])
    with pytest.raises(NotImplementedError, match="no distribution 'signed'"):
        compiled(*given)


def erfc(x: Floats) -> Floats:
    return np.array([math.erfc(value) for value in x])


def incomplete_gamma(k: float, x: Floats) -> Floats:
    """Return P(k, x) by its series, xᵏe⁻ˣ/Γ(k + 1)·(1 + x/(k + 1) + x²/((k + 1)(k + 2)) + …)."""
    total, term, n = np.ones_like(x), np.ones_like(x), 0
    while (term > 1e-17 * total).any():
        n += 1
        term = term * x / (k + n)
        total += term
    with np.errstate(divide="ignore"):
        return np.exp(k * np.log(x) - x - math.lgamma(k + 1) + np.log(total))


def gamma_law(k: float, scale: float) -> tuple[Any, ...]:
    return "gamma", (k, scale), lambda x: incomplete_gamma(k, x / scale), k * scale, k * scale**2


def pareto_law(a: float) -> tuple[Any, ...]:
    least = (a - 1) / a
    return "pareto", (a,), lambda x: 1 - (least / np.maximum(x, least)) ** a, 1, 1 / (a * (a - 2))


# Kind, parameters, P(X ≤ x), mean and variance.
LAWS: list[tuple[Any, ...]] = [
    ("uniform", (0.5, 1.5), lambda x: x - 0.5, 1, 1 / 12),
    ("uniform", (-3.0, 1.0), lambda x: (x + 3) / 4, -1, 16 / 12),
    ("exponential", (), lambda x: -np.expm1(-x), 1, 1),
    ("shifted_exponential", (0.3,), lambda x: -np.expm1(-(x - 0.3) / 0.7), 1, 0.49),
    ("normal", (), lambda x: erfc(-x / math.sqrt(2)) / 2, 0, 1),
    ("half_normal", (), lambda x: 1 - erfc(x / math.sqrt(2)), math.sqrt(2 / math.pi), 1 - 2 / math.pi),
    *(
        ("lognormal", (s,), lambda x, s=s: erfc(-(np.log(x) / s + s / 2) / math.sqrt(2)) / 2, 1, math.exp(s * s) - 1)
        for s in (0.1, 0.5, 1.0)
    ),
    pareto_law(2.5),
    pareto_law(5.0),
    *(gamma_law(k, 1.0) for k in (0.01, 0.1, 0.5, 0.99, 1.0, 1.01, 10.0, 1e4)),
    *(gamma_law(1 / cv**2, cv**2) for cv in (0.1, 0.6, 1.5)),
    gamma_law(1e6, 1e-6),
]


@pytest.mark.parametrize(("kind", "parameters", "law", "mean", "variance"), LAWS)
def test_a_million_draws_follow_the_law(
    kind: Any,
    parameters: tuple[float, ...],
    law: Callable[[Floats], Floats],
    mean: float,
    variance: float,
    compiled: Draw,
) -> None:
    """Kolmogorov and Smirnov, p > 0.001; mean and variance within five standard errors, what is 0 counted as 0."""
    distribution = Distribution(kind, parameters)
    assert distribution.mean == pytest.approx(mean, rel=1e-15)
    x = np.sort(compiled(distribution, Streams(2024), Stream.TIME, np.arange(MILLION), np.arange(MILLION) % 100, 16))
    for centre, power in ((mean, 1), (variance, 2)):
        powers = (x - mean * (power == 2)) ** power
        assert abs(powers.mean() - centre) < 5 * powers.std() / math.sqrt(MILLION)
    # Between two of every hundredth draw both shares grow, so their distance is bounded by those at the ends. A draw
    # that is 0 stands for all below the smallest number.
    at = np.append(np.arange(0, MILLION, 100), MILLION - 1)
    exact = law(np.where(x[at] == 0, 2.0**-1022, x[at]))
    above, below = (at[1:] + 1) / MILLION - exact[:-1], exact[1:] - at[:-1] / MILLION
    distance = math.sqrt(MILLION) * max(above.max(), below.max(), exact[0], 1 - exact[-1])
    assert 2 * sum((-1) ** (i - 1) * math.exp(-2 * (i * distance) ** 2) for i in range(1, 100)) > 0.001


@pytest.mark.parametrize("p", [0.0, 1e-5, 0.1, 1 / 3, 1.0])
def test_a_share_p_of_a_million_draws_is_the_factor(p: float, compiled: Draw) -> None:
    distribution = Distribution("bernoulli", (p, math.inf))
    x = compiled(distribution, Streams(2024), Stream.TIME, np.arange(MILLION), 3)
    assert set(x) == ({1.0} if p == 0 else {math.inf} if p == 1 else {1.0, math.inf})
    assert abs(np.isinf(x).sum() - p * MILLION) <= 3.3 * math.sqrt(MILLION * p * (1 - p))
    assert distribution.mean == (1 if p == 0 else math.inf)
    assert Distribution("bernoulli", (p, 5.0)).mean == pytest.approx(1 + 4 * p)


def test_draws_of_one_step_do_not_hang_together(compiled: Draw) -> None:
    """Of neighbouring clients, of neighbouring steps, and of neighbouring elements: |correlation| below 5 σ."""
    distribution, n = Distribution("normal"), 500_000
    steps, clients = np.arange(n) // 1000, np.arange(n) % 1000
    x = compiled(distribution, Streams(1), Stream.TIME, steps, clients)
    others = [compiled(distribution, Streams(1), Stream.TIME, *at) for at in (
        (steps + 1, clients), (steps, clients + 1), (steps, clients, 8), (clients, steps + 1000),
    )]  # fmt: skip
    others += [compiled(distribution, Streams(2), Stream.TIME, steps, clients)]
    others += [compiled(distribution, Streams(1), Stream.SERVER, steps, clients)]
    for other in others:
        assert abs((x * other).mean()) < 5 / math.sqrt(n)


PARAMETERS: dict[Any, Any] = {
    "uniform": st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)).map(lambda x: (x[0], x[0] + x[1])),
    "exponential": st.just(()),
    "shifted_exponential": st.tuples(st.floats(0, 1)),
    "normal": st.just(()),
    "half_normal": st.just(()),
    "lognormal": st.tuples(st.floats(0, 100)),
    "pareto": st.tuples(st.floats(1, 1e9, exclude_min=True)),
    "bernoulli": st.tuples(st.floats(0, 1), st.one_of(st.floats(1e-3, 1e9), st.just(math.inf))),
    "gamma": st.tuples(
        st.one_of(st.floats(0.01, 2), st.floats(-2, 6).map(lambda x: min(10**x, 1e6))), st.floats(1e-9, 1e9)
    ),
}
DISTRIBUTIONS = st.sampled_from(sorted(PARAMETERS)).flatmap(
    lambda kind: st.builds(Distribution, st.just(kind), PARAMETERS[kind])
)
WORDS = st.one_of(st.integers(0, MOST), st.sampled_from([0, 1, MOST]))


@given(
    DISTRIBUTIONS, WORDS, st.sampled_from(Stream), st.lists(st.tuples(WORDS, WORDS), max_size=60),
    st.integers(0, 2**28).map(lambda x: 8 * x),
)  # fmt: skip
@settings(max_examples=200)
def test_compiled_gives_the_same_bits(
    compiled: Draw,
    distribution: Distribution,
    seed: int,
    stream: Stream,
    places: list[tuple[int, int]],
    element: int,
) -> None:
    steps, clients = np.array(places, np.int64).reshape(-1, 2).T
    found = draw(distribution, Streams(seed), stream, steps, clients, element)
    assert found.shape == steps.shape
    assert compiled(distribution, Streams(seed), stream, steps, clients, element).tobytes() == found.tobytes()
    for i, (step, client) in enumerate(places[:2]):
        alone = compiled(distribution, Streams(seed), stream, step, client, element)
        assert (alone.shape, alone.tobytes()) == ((1,), found[i : i + 1].tobytes())


@pytest.mark.parametrize("distribution", [Distribution("gamma", (0.5, 2.0)), Distribution("normal")])
def test_many_draws_are_each_as_if_alone(compiled: Draw, distribution: Distribution) -> None:
    """However many there are, in whatever order, on however many threads, and from where they come."""
    n, streams = 2 * BLOCK + 3, Streams(3)
    steps, clients = np.arange(n) % 1000, np.arange(n)[::-1] // 7
    found = draw(distribution, streams, Stream.TIME, steps, clients, 8)
    for some in (slice(None, None, -1), slice(BLOCK - 1, BLOCK + 2), slice(0, 1), slice(0, 0)):
        for each in (draw, compiled):
            assert (
                each(distribution, streams, Stream.TIME, steps[some], clients[some], 8).tobytes()
                == found[some].tobytes()
            )
    for kind in (np.int32, np.uint32, np.uint64):
        assert compiled(distribution, streams, Stream.TIME, steps.astype(kind), clients, 8).tobytes() == found.tobytes()
    assert (
        compiled(distribution, streams, Stream.TIME, steps[:9].tolist(), clients[:9], 8).tobytes()
        == found[:9].tobytes()
    )
    for each in (draw, compiled):
        one = each(distribution, streams, Stream.TIME, steps[5], clients[5], 8)  # NumPy's integers
        assert one.dtype == np.float64
        assert one.tolist() == [found[5]]
        first = each(distribution, streams, Stream.TIME, 0, np.arange(9), 8)
        assert first.tolist() == [each(distribution, streams, Stream.TIME, 0, i, 8)[0] for i in range(9)]
    for threads in (1, 3):
        with Team(threads) as team:
            assert (
                NumbaDraws(team).draw(distribution, streams, Stream.TIME, steps, clients, 8).tobytes()
                == found.tobytes()
            )


def test_what_was_drawn_stays_while_others_are_drawn(compiled: Draw) -> None:
    gamma, normal, streams = Distribution("gamma", (2.0, 0.5)), Distribution("normal"), Streams(3)
    kept = [compiled(each, streams, Stream.TIME, step, 0) for step in range(4) for each in (gamma, normal)]
    assert [x.tolist() for x in kept] == [
        draw(each, streams, Stream.TIME, step, 0).tolist() for step in range(4) for each in (gamma, normal)
    ]
    assert len({float(x[0]) for x in kept}) == 8


@pytest.mark.parametrize("backend", ["numpy", "numba", "cuda"])
def test_every_backend_draws(backend: Any) -> None:
    if backend == "cuda" and not HAS_CUDA:
        pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one")
    operations, distribution = make_operations(backend, 1), Distribution("gamma", (2.0, 0.5))
    try:
        found = operations.draw(distribution, Streams(1), Stream.TIME, np.arange(9), 3, element=8)
    finally:
        operations.close()
    assert found.tobytes() == draw(distribution, Streams(1), Stream.TIME, np.arange(9), 3, 8).tobytes()


def normal_share(z: Decimal) -> Decimal:
    """Return P(N ≤ −z), z > 0, by a continued fraction: φ(z)/(z + 1/(z + 2/(z + 3/(z + …))))."""
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    value = z
    for i in range(2000, 0, -1):
        value = z + i / value
    return (-z * z / 2).exp() / (2 * pi).sqrt() / value


def test_the_ends_in_high_precision() -> None:
    """Word 0 is 2³² − 1 and 0 at these steps of seed 14 (found by search), and word 1 such that U is this."""
    last, first = 710_354_409, 1_610_074_746

    def drawn(kind: Any, *parameters: float) -> list[Decimal]:
        distribution = Distribution(kind, parameters)
        return [Decimal(float(x)) for x in draw(distribution, Streams(14), Stream.TIME, [last, first], 0)]

    def near(found: Decimal, exact: Decimal) -> bool:
        return abs(found / exact - 1) <= (1 + abs(exact.ln())) * Decimal(2) ** -50

    with localcontext() as context:
        context.prec = 100
        u = 1 - Decimal(2) ** -24
        assert drawn("uniform", 0.0, 3.0) == [3 * u, 0]
        top, zero = drawn("exponential")
        assert near(top, 24 * Decimal(2).ln())
        assert str(zero) == "0"  # not −0
        top, low = drawn("shifted_exponential", 0.25)
        assert near(top, (1 + 72 * Decimal(2).ln()) / 4)
        assert low == Decimal("0.25")
        top, low = drawn("normal")
        assert top == -low
        # A relative error e of z changes the share by z·φ(z)·e, which is about z² times the share.
        assert abs(normal_share(top) * Decimal(2) ** 33 - 1) < top * top * Decimal(2) ** -50
        assert drawn("half_normal") == [top, top]
        for sigma in (Decimal("0.5"), Decimal(3)):
            for found, z in zip(drawn("lognormal", float(sigma)), (top, -top), strict=True):
                assert near(found, (sigma * z - sigma * sigma / 2).exp())
        for alpha in (Decimal("1.25"), Decimal(4)):
            for found, (w0, w1) in zip(
                drawn("pareto", float(alpha)), ((MOST, 0xC8590210), (0, 0x2F694685)), strict=True
            ):
                rest = 1 - (Decimal(w0 // 32) * 2**26 + w1 // 64) / 2**53
                assert near(found, (alpha - 1) / alpha * (-rest.ln() / alpha).exp())


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("weibull", (1.0,), "distribution is 'weibull'; it must be one of uniform, exponential, "),
        ("gamma", (1.0,), "distribution gamma has 1 parameters; it takes 2: shape, scale"),
        ("normal", (1.0,), "distribution normal has 1 parameters; it takes 0: none"),
        ("uniform", (1.0, 1.0), "distribution uniform has low 1.0, high 1.0; it takes finite low < high"),
        ("uniform", (-1e308, 1e308), "finite low < high"),
        ("uniform", (0.0, math.inf), "finite low < high"),
        ("shifted_exponential", (1.01,), "distribution shifted_exponential has shift 1.01; it takes 0 <= shift <= 1"),
        ("lognormal", (-0.1,), "0 <= sigma <= 100"),
        ("lognormal", (math.nan,), "0 <= sigma <= 100"),
        ("pareto", (1.0,), "1 < alpha < inf"),
        ("pareto", (math.inf,), "1 < alpha < inf"),
        ("bernoulli", (1.1, 2.0), "0 <= p <= 1 and factor > 0"),
        ("bernoulli", (0.5, 0.0), "0 <= p <= 1 and factor > 0"),
        ("bernoulli", (0.5, math.nan), "0 <= p <= 1 and factor > 0"),
        ("gamma", (0.0099, 1.0), r"0.01 <= shape <= 1e\+06 and 0 < scale < inf"),
        ("gamma", (1.1e6, 1.0), r"0.01 <= shape <= 1e\+06 and 0 < scale < inf"),
        ("gamma", (1.0, 0.0), r"0.01 <= shape <= 1e\+06 and 0 < scale < inf"),
        ("gamma", (1.0, math.inf), r"0.01 <= shape <= 1e\+06 and 0 < scale < inf"),
    ],
)
def test_what_no_distribution_has_is_refused(kind: Any, parameters: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Distribution(kind, parameters)


def test_a_draw_has_eight_elements_of_its_own(compiled: Draw) -> None:
    for each in (draw, compiled):
        with pytest.raises(ValueError, match="element is 4; the elements of a draw begin at a multiple of 8"):
            each(Distribution("normal"), Streams(0), Stream.TIME, 0, 0, 4)
