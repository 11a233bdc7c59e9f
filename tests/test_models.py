"""Layouts, digests and initial parameters."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.linear import Linear, is_linear
from fredsim.networks.mlp import Mlp, as_mlp
from fredsim.networks.network import Network
from fredsim.numerics.ops import linear as dense
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.pointwise import Tanh
from fredsim.numerics.streams import Stream, Streams, normal_quantile


def test_the_digest_is_of_names_shapes_and_little_endian_bytes() -> None:
    layout = Layout((("W1", (2, 3)), ("b1", (3,))))
    params = np.arange(9, dtype=np.float32)
    expected = hashlib.sha256(b"W1 float32 2,3\n" + params[:6].tobytes() + b"b1 float32 3\n" + params[6:].tobytes())
    assert layout.size == 9
    assert layout.digest(params) == expected.hexdigest()
    views = layout.split(params)
    views["b1"][0] = 100
    assert params[6] == 100


def test_names_and_shapes() -> None:
    assert Mlp((784, 200, 10)).layout.tensors == (("W1", (784, 200)), ("b1", (200,)), ("W2", (200, 10)), ("b2", (10,)))
    assert Mlp((64, 10)).layout.tensors == (("W1", (64, 10)), ("b1", (10,)))


def test_initial_parameters_by_the_contract() -> None:
    streams = Streams(4)
    for step, (inputs, outputs) in enumerate(((30, 20), (20, 7))):
        words = streams.words(Stream.PARAMETERS, np.arange(inputs * outputs), step)
        normal = normal_quantile(words)
        name = f"W{step + 1}"
        he = Mlp((30, 20, 7), "he")
        found = he.layout.split(he.initial(streams))[name].reshape(-1)
        np.testing.assert_array_equal(found, (normal * np.sqrt(2 / inputs)).astype(np.float32))
        scaled = Mlp((30, 20, 7), "normal", 0.5)
        found = scaled.layout.split(scaled.initial(streams))[name].reshape(-1)
        np.testing.assert_array_equal(found, (normal * 0.5).astype(np.float32))
        glorot = Mlp((30, 20, 7), "glorot")
        found = glorot.layout.split(glorot.initial(streams))[name].reshape(-1)
        limit = np.float32(np.sqrt(6 / (inputs + outputs)))
        np.testing.assert_array_equal(found, limit * ((words >> 8) * 2.0**-23 - 1).astype(np.float32))
        assert np.abs(found).max() <= limit
        torch = Mlp((30, 20, 7), "torch")
        views = torch.layout.split(torch.initial(streams))
        words = streams.words(Stream.PARAMETERS, np.arange((inputs + 1) * outputs), step)
        drawn = np.float32(inputs**-0.5) * ((words >> 8) * 2.0**-23 - 1).astype(np.float32)
        np.testing.assert_array_equal(views[name].reshape(-1), drawn[: inputs * outputs])
        np.testing.assert_array_equal(views[f"b{step + 1}"], drawn[inputs * outputs :])
    assert not Mlp((30, 20, 7), "zeros").initial(streams).any()


@pytest.mark.parametrize(("init", "std"), [("he", np.sqrt(2 / 784)), ("normal", 1.0)])
def test_initial_parameters_are_normal(init: str, std: float) -> None:
    model = Mlp((784, 200, 10), init)
    views = model.layout.split(model.initial(Streams(0)))
    weights = views["W1"].reshape(-1) / std
    assert abs(weights.mean()) < 0.01
    assert abs(weights.std() - 1) < 0.01
    assert abs(np.mean(np.abs(weights) < 1) - 0.6827) < 0.005
    assert not views["b1"].any()


def test_weights_beyond_float32_are_infinite_without_a_warning() -> None:
    model = Mlp((4, 3), "normal", 3e38)
    normal = normal_quantile(Streams(0).words(Stream.PARAMETERS, np.arange(12), 0))
    beyond = np.abs(normal * 3e38) > np.finfo(np.float32).max
    assert 0 < beyond.sum() < 12
    np.testing.assert_array_equal(np.isinf(model.initial(Streams(0))[:12]), beyond)


class Tangents(Network):
    """A network that nothing in fredsim knows: 64 inputs, 5 units with tanh, 10 classes."""

    layout = Layout((("in", (5, 64)), ("out", (5, 10))))  # the first in PyTorch's order of axes
    nodes = (
        Node(dense.Linear(5, bias=False, layout="out_in"), (0,), (("weight", "in"),)),
        Node(Tanh(), (1,)),
        Node(dense.Linear(10, bias=False), (2,), (("weight", "out"),)),
    )
    graph = Graph((64,), (), nodes, CrossEntropy(), layout)

    def initial(self, streams: Streams) -> NDArray[np.float32]:
        words = streams.words(Stream.PARAMETERS, np.arange(self.layout.size), 0)
        return (0.1 * normal_quantile(words)).astype(np.float32)


def test_a_new_network_is_asked_not_known(
    simulate: Callable[[dict[str, Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredsim.config.models.MlpChoice.network", lambda *_: Tangents())
    numpy, numba = (simulate({"backend": backend, "iterations": 20}) for backend in ("numpy", "numba"))
    assert numpy.summary["digest"] == numba.summary["digest"]
    assert (numba.summary["numerics"], numba.summary["path"]) == ("portable", "snapshots")
    assert numba.params.keys() == {"in", "out"}
    assert numba.metrics["validation_error"].notna().all()


def test_what_a_graph_is_and_what_it_is_measured_by() -> None:
    mlp, linear, tangents = Mlp((64, 5, 10), "zeros"), Linear(7, "normal"), Tangents()
    assert as_mlp(mlp.graph) == Mlp((64, 5, 10))
    assert as_mlp(linear.graph) is as_mlp(tangents.graph) is None
    assert [is_linear(network.graph) for network in (mlp, linear, tangents)] == [False, True, False]
    assert [network.measured_by for network in (mlp, linear, tangents)] == ["error", "gap", "error"]
    assert MeanSquaredError.measured_by == "loss"
    assert mlp.graph.values == 5 + 5 + 10
