"""Every server on a device gives the bits that it gives on NumPy: parameters, state, what it hands out."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.conftest import needs_cuda

SIZE, PUSHES = 500, 30


def bits(values: Any) -> bytes:
    """Return an array's bytes; all NaNs have the same, since devices give different ones."""
    array = np.asarray(values)
    return (np.where(array == array, array, array.dtype.type(np.nan)) if array.dtype.kind == "f" else array).tobytes()


@needs_cuda
def test_rules_on_a_device_give_the_bits_of_numpy(
    spec: dict[str, Any], exchange: Callable[..., Any], make: Callable[[Mapping[str, Any]], Any]
) -> None:
    from fredsim.cuda.array import DeviceArray
    from fredsim.cuda.operations import CudaOperations

    operations = CudaOperations()
    one, two = exchange(spec, size=SIZE, drops=0.1), exchange(spec, size=SIZE, drops=0.1)
    server = make(spec)
    getattr(server, "server", server).operations = operations
    server.init(one.server.params, one.clients)
    two.server = server
    for ex in (one, two):  # from a fixed draw: gradients whose squares are subnormal, and large ones
        scales = np.exp(np.random.default_rng(1).uniform(-60, 5, SIZE)).astype(np.float32)
        for _ in range(PUSHES):
            client = int(ex.rng.choice(sorted(ex.eligible)))
            gradients = [g * scales for g in ex.gradients()]
            if ex is two:
                gradients = [operations.array_of(g) for g in gradients]
            ex.push(client, gradients)
    states = one.server.take_state(), two.server.take_state()
    assert isinstance(server.params, DeviceArray)
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert bits(value) == bits(states[1][name]), name
    for mine, other in zip(one.held, two.held, strict=True):
        assert bits(mine) == bits(other)
    assert one.server.timestamp >= 3
    server.put_state(states[0])  # and a state can be put back
    params = next(value for name, value in states[0].items() if name in {"params", "server.params"})
    assert bits(server.params) == bits(params)
