"""EF21: each client's estimate, whatever compresses its differences, and whole runs beside uncompressed ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.compressors import EF21
from fredsim.errors import ConfigError
from fredsim.networks.layout import Layout
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
PARTS = [slice(0, 63), slice(63, 72), slice(72, 78)]


def started(compressor: EF21) -> EF21:
    compressor.init(Layout((("W1", (7, 9)), ("b1", (9,)), ("W2", (3, 2)))), Streams(7))
    return compressor


def pushes(count: int) -> NDArray[np.float32]:
    drawn = np.random.default_rng(1).standard_normal((count, 78)).astype(np.float32)
    drawn[:, ::11] = 0
    return drawn


@pytest.mark.parametrize("inner", [{"name": "top_k", "k": 7}, {"name": "error_feedback_sign"}])
def test_ef21(inner: dict[str, Any]) -> None:
    """h ← h + C(g − h) of each client, C without a memory of its own."""
    compressor, estimates = started(EF21(inner=inner)), np.zeros((2, 78), np.float32)
    for step, g in enumerate(pushes(40)):
        client = step % 3 % 2
        difference = g - estimates[client]
        sent = np.zeros(78, np.float32)
        if inner["name"] == "top_k":
            for i in sorted(range(78), key=lambda i: (-abs(difference[i]), i))[:7]:
                sent[i] = difference[i]
        else:
            for part in PARTS:
                sent[part] = np.float32(np.abs(difference[part].astype(np.float64)).mean()) * np.sign(difference[part])
        estimates[client] += sent
        before = g.copy()
        out, size = compressor.compress(g, client, step)
        np.testing.assert_array_equal(g, before)
        np.testing.assert_allclose(out, estimates[client], rtol=0, atol=0 if inner["name"] == "top_k" else 1e-6)
        assert size == (56 if inner["name"] == "top_k" else 3 * 4 + 16 + 3 + 2)
        out[...] = np.nan  # a server may write into it
    fresh = started(EF21(inner=inner)).compress(pushes(1)[0], 0, 0)[0]
    np.testing.assert_array_equal(started(compressor).compress(pushes(1)[0], 0, 0)[0], fresh)  # nothing remembered


def test_ef21_comes_to_what_does_not_change() -> None:
    """The k largest differences go to 0 each time: after ⌈P/k⌉ pushes of one array the estimate is that array."""
    (g,), compressor = pushes(1), started(EF21(inner={"name": "top_k", "k": 10}))
    left = [np.count_nonzero(compressor.compress(g, 0, step)[0] != g) for step in range(8)]
    assert left == [max(0, np.count_nonzero(g) - 10 * (step + 1)) for step in range(8)]


@pytest.mark.parametrize("server", [{"name": "sync", "lr": 0.2}, {"name": "asgd", "lr": 0.1}])
def test_ef21_of_everything_is_no_compression(simulate: Simulate, server: dict[str, Any]) -> None:
    """h + (g − h) is g but for its rounding, which is told from 100 values of 1,210."""
    plain = simulate({"server": server})
    far = []
    for k in (1210, 100):
        run = simulate({"server": server, "compress": {"name": "ef21", "inner": {"name": "top_k", "k": k}}})
        far.append(max(np.abs(run.params[name] - value).max() for name, value in plain.params.items()))
        assert run.summary["bytes_pushed"] == 50 * 8 * k
    assert far[0] < 1e-6 < 1e-3 < far[1]


def test_a_key_of_the_inner_compressor_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"^compress\.inner\.k is 79; there are only 78 parameters$"):
        started(EF21(inner={"name": "top_k", "k": 79}))
