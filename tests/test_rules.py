"""Every elementwise rule: the fused kernel gives the bits of NumPy, at every length, and notices what is not finite."""

from typing import Any

import numpy as np
import pytest

from fredsim.jit.team import Team
from fredsim.kernels.arrays.update import TeamRule
from fredsim.numerics.operations import NumpyOperations, Update
from fredsim.numerics.rules import Rule, flush, positive_part, sqrt
from fredsim.servers.asgd import ASGD
from fredsim.servers.batches import CollectingServer
from fredsim.servers.fasgd import RULES
from fredsim.servers.sasgd import SASGD
from tests.conftest import HAS_CUDA

TEAM = Team(1)
ALL = {
    "asgd": ASGD.rule,
    "sasgd": SASGD.rule,
    "mean": CollectingServer.rule,
    **{f"fasgd {k}": r for k, r in RULES.items()},
}


@pytest.mark.parametrize("rule", ALL.values(), ids=ALL)
def test_fused_equals_numpy(rule: Rule) -> None:
    fused, plain = TeamRule(TEAM, rule), NumpyOperations().compile_rule(rule)
    rng = np.random.default_rng(0)
    coefficients = [np.float32(x) for x in rng.uniform(0.1, 0.9, len(rule.coefficients))]
    for size in (*range(1, 40), 1000):
        scale = np.exp(rng.uniform(-60, 20, size))  # from subnormal squares to large ones
        arrays = [(rng.standard_normal(size) * scale).astype(np.float32) for _ in range(2 + len(rule.state))]
        for array in arrays[1:-1]:
            np.abs(array, out=array)
        copies = [array.copy() for array in arrays]
        for _ in range(3):
            one = fused(*arrays, 0, size, *coefficients)
            two = plain(*copies, 0, size, *coefficients)
            assert one == two
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array.view(np.uint32), copy.view(np.uint32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 36])
def test_a_value_that_is_not_finite_is_noticed_wherever_it_is(bad: float, place: int) -> None:
    for update in (TeamRule(TEAM, ASGD.rule), NumpyOperations().compile_rule(ASGD.rule)):
        theta, g = np.ones(37, np.float32), np.ones(37, np.float32)
        assert update(theta, g, 0, 37, np.float32(0.5))
        g[place] = bad
        assert not update(theta, g, 0, 37, np.float32(0.5))


def test_only_the_given_stretch_is_touched() -> None:
    for update in (TeamRule(TEAM, ASGD.rule), NumpyOperations().compile_rule(ASGD.rule)):
        theta, g = np.ones(50, np.float32), np.ones(50, np.float32)
        update(theta, g, 7, 33, np.float32(0.5))
        assert np.flatnonzero(theta == 0.5).tolist() == list(range(7, 33))


def test_flush_and_positive_part() -> None:
    tiny = np.float32(2.0**-62)
    below = np.nextafter(tiny, np.float32(0))
    values = np.array([tiny, -tiny, below, -below, 0.0, -0.0, np.nan, 1.0], np.float32)
    flushed = flush(values)
    np.testing.assert_array_equal(flushed, np.array([tiny, -tiny, 0, 0, 0, 0, np.nan, 1], np.float32))
    assert flushed.dtype == np.float32
    assert not np.signbit(flushed[2:6]).any()
    np.testing.assert_array_equal(
        positive_part(np.array([-1, 2, np.nan], np.float32)), np.array([0, 2, np.nan], np.float32)
    )


def test_a_rule_whose_arguments_do_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="velocity"):
        Rule(lambda theta, g: theta - g, state=("velocity",))


def under_other_names(count: Any, i: Any, at: Any, g: Any, table: Any, gradient: Any, numbers: Any, sums: Any) -> Any:
    """A rule may call its arguments as it likes, also as the loop around it calls its own."""
    gradient = gradient + g
    i = numbers * i + table * gradient
    return count - sums * i, i, at + gradient


def update(theta: Any, g: Any, alpha: Any) -> Any:
    """Nor does its own name matter."""
    return theta - alpha * g


def numbers(theta: Any, e: Any, here: Any, size: Any, g: Any, events: Any, worst: Any, target: Any) -> Any:
    """On a device, too."""
    here = events * here + g
    return theta - worst * here, e + target * g, here, size


def rooted(theta: Any, s: Any, g: Any, alpha: Any) -> Any:
    """Where s and g are both 0 this is not finite; s need not begin at 0."""
    s = s + g * g
    return theta - alpha * (g / sqrt(s)), s


def passed_on(theta: Any, one: Any, other: Any, before: Any, g: Any, alpha: Any) -> Any:  # noqa: ARG001
    """What becomes of a state may be what another was, or the parameters were, before this push."""
    return theta - alpha * g, other, one, theta


def accumulated(theta: Any, g: Any, gradient: Any, lr: Any) -> Any:
    """A state may be called as the gradient usually is,"""
    g = 0.9 * g + gradient
    return theta - lr * g, g


def averaged(x: Any, theta: Any, new_theta: Any, s0: Any, alpha: Any) -> Any:
    """or as the parameter is; and the gradient as nothing is."""
    new_theta = new_theta + s0
    return x - alpha * new_theta, 0.9 * theta + 0.1 * x, new_theta


OWN = {
    "the gradient's name": Rule(accumulated, state=("g",)),
    "the parameter's name": Rule(averaged, state=("theta", "new_theta")),
    "passed on": Rule(passed_on, state=("one", "other", "before")),
    "other names": Rule(under_other_names, state=("i", "at")),
    "the loop's name": Rule(update),
    "a name of the loop's": Rule(numbers, state=("e", "here", "size")),
    "not finite at 0": Rule(rooted, state=("s",)),
}


@pytest.mark.parametrize("rule", OWN.values(), ids=OWN)
@pytest.mark.parametrize("device", [False, True], ids=["numba", "cuda"])
def test_a_rule_of_ones_own(rule: Rule, device: bool) -> None:
    plain = NumpyOperations().compile_rule(rule)
    fused: Update = TeamRule(TEAM, rule)
    if device:
        if not HAS_CUDA:
            pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one")
        from fredsim.cuda.operations import CudaOperations

        fused = CudaOperations().compile_rule(rule)
    rng = np.random.default_rng(1)
    coefficients = [np.float32(x) for x in rng.uniform(0.1, 0.9, len(rule.coefficients))]
    for size in (1, 30, 1000) if device else (*range(1, 40), 1000):
        arrays = [rng.uniform(1, 2, size).astype(np.float32) for _ in range(2 + len(rule.state))]
        copies = [array.copy() for array in arrays]
        assert fused(*arrays, 0, size, *coefficients)
        assert plain(*copies, 0, size, *coefficients)
        for array, copy in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(array.view(np.uint32), copy.view(np.uint32))
