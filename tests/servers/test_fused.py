"""Every server on compiled rules gives the bits that it gives on NumPy: parameters, state and what it hands out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.kernels.update import compile_rule
from fredsim.numerics.operations import Kernel, NumpyOperations
from fredsim.numerics.rules import Rule

Array = NDArray[np.float32]


class Fused:
    """Operations of the compiled backend."""

    def compile_rule(self, rule: Rule) -> Kernel:
        return compile_rule(rule)

    def mean(self, array: Array) -> float:
        return NumpyOperations().mean(array)


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
        for _ in range(60):
            client = int(ex.rng.choice(sorted(ex.eligible)))
            ex.push(client, [g * scales for g in ex.gradients()])
    states = one.server.take_state(), two.server.take_state()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert np.asarray(value).tobytes() == np.asarray(states[1][name]).tobytes(), name
    for mine, other in zip(one.held, two.held, strict=True):
        assert mine.tobytes() == other.tobytes()
    assert one.server.timestamp >= 6
