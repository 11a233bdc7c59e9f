"""Every server on compiled rules gives the bits that it gives on NumPy: parameters, state and what it hands out.

A rule that is told of no gradient does what it does with one of zeros.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.jit.team import Team, address, addresses
from fredsim.kernels.arrays.update import TeamRule, compile_rule
from fredsim.numerics.operations import NumpyOperations, Update
from fredsim.numerics.rules import Rule

Array = NDArray[np.float32]
TEAM = Team(1)


class Fused(NumpyOperations):
    """Operations of the compiled backend."""

    def compile_rule(self, rule: Rule) -> Update:
        return TeamRule(TEAM, rule)


def test_compiled_rules_give_the_bits_of_numpy(
    spec: dict[str, Any], exchange: Callable[..., Any], make: Callable[[Mapping[str, Any]], Any]
) -> None:
    one, two = exchange(spec, size=53, drops=0.1), exchange(spec, size=53, drops=0.1)
    server = make(spec)
    getattr(server, "server", server).operations = Fused()
    server.init(two.server.params, 6)
    two.server = server
    for ex in (one, two):  # from a fixed draw: gradients whose squares are subnormal, and large ones
        scales = np.exp(np.random.default_rng(1).uniform(-60, 5, 53)).astype(np.float32)
        for _ in range(150):
            client = int(ex.rng.choice(sorted(ex.eligible)))
            ex.push(client, [g * scales for g in ex.gradients()])
    states = one.server.take_state(), two.server.take_state()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert np.asarray(value).tobytes() == np.asarray(states[1][name]).tobytes(), name
    for mine, other in zip(one.held, two.held, strict=True):
        assert mine.tobytes() == other.tobytes()
    assert one.server.timestamp >= 6


def test_no_gradient_is_a_gradient_of_zeros(spec: dict[str, Any], exchange: Callable[..., Any]) -> None:
    """From every place and over every length, and nothing beside it is touched."""
    ex, rng = exchange(spec, size=60), np.random.default_rng(4)
    server = ex.server
    scales = np.exp(rng.uniform(-60, 0, 60)) * (rng.random(60) < 0.9)
    for _ in range(50):
        client = int(ex.rng.choice(sorted(ex.eligible)))
        ex.push(client, [(g * scales).astype(np.float32) for g in ex.gradients()])
    assert server.finite
    compiled = compile_rule(server.rule)
    numbers = np.array(server.coefficients(server.timestamp, 3), np.float32)
    for length in range(1, 41):
        at = length % 20
        zeros = np.zeros(length, np.float32)
        told, untold = ([a.copy() for a in (server.params, *server.state_of(client))] for _ in range(2))
        for _ in range(3):
            for arrays, gradient in ((told, address(zeros)), (untold, 0)):
                table = addresses([arrays[0], *arrays])  # θ is read and written in place
                assert compiled.call(address(table), at, gradient, length, address(numbers), 0)
        for one, other, before in zip(told, untold, (server.params, *server.state_of(client)), strict=True):
            assert one.tobytes() == other.tobytes()
            beside = np.r_[:at, at + length : 60]
            assert one[beside].tobytes() == before[beside].tobytes()
        if server.rule.zero_keeps:
            assert told[0].tobytes() == server.params.tobytes()
