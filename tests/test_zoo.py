"""The networks that come with fredsim: as graphs they compute what the PyTorch modules of the same names compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine, NumpyBackendOperations
from fredsim.data.problems import modular
from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph
from fredsim.networks.saved import text_of_graph
from fredsim.networks.zoo.gpt import gpt
from fredsim.networks.zoo.lenet import lenet
from fredsim.networks.zoo.resnet import resnet
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.arrays import aligned
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim import zoo
from fredsim.native.engine import TorchEngine
from fredsim.native.model import TorchModel
from fredsim.networks.capture.module import capture

F = np.float32
GRAPHS: dict[str, Callable[..., Graph]] = {"gpt": gpt, "lenet": lenet, "resnet": resnet, "vgg": vgg}
NETWORKS: list[tuple[str, int, tuple[int, ...], dict[str, Any]]] = [
    ("lenet", 4, (2, 16, 18), {}),
    ("resnet", 5, (1, 6, 7), {"width": 8}),
    ("resnet", 3, (2, 4, 4), {"depth": 14, "width": 8}),
    ("vgg", 3, (1, 6, 5), {"widths": [4, 6]}),
    ("gpt", 11, (5,), {"width": 12, "layers": 2, "heads": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "classes", "shape", "options"), NETWORKS, ids=lambda value: str(value))
def test_outputs_and_gradients_are_those_of_the_module(
    name: str, classes: int, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    ignored = -1 if name == "gpt" else None
    graph = GRAPHS[name](classes, shape, **options, loss=CrossEntropy(ignored=ignored))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = getattr(zoo, name)(classes, shape, **options)
    tensors = dict(module.named_parameters())
    assert [(key, tuple(value.shape)) for key, value in tensors.items()] == list(graph.layout.tensors)

    rng, mu = np.random.default_rng(1), 4
    params = rng.normal(scale=0.3, size=graph.layout.size).astype(F)
    module.load_state_dict(
        {key: torch.from_numpy(view) for key, view in graph.layout.split(params).items()}, strict=False
    )
    module.double()
    x: Any = rng.normal(size=(mu, *shape)).astype(F) if name != "gpt" else rng.integers(0, classes, (mu, *shape))
    y = rng.integers(0, classes, (mu, *graph.target))
    if ignored is not None:
        y[:, ::2] = ignored
    wide = torch.from_numpy(x)
    logits = module(wide.double() if x.dtype == F else wide)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), torch.from_numpy(y).flatten(), ignore_index=-1)
    loss.backward()

    output = graph.forward(params, x).output
    np.testing.assert_allclose(output, logits.detach().numpy(), rtol=2e-4, atol=2e-4)
    grad, losses = graph.gradient(params, x, y)
    np.testing.assert_allclose(losses.mean(), loss.item(), rtol=1e-5)
    for key, found in graph.layout.split(grad).items():
        wanted = tensors[key].grad.numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max(), err_msg=key)


DROPPED: list[tuple[str, int, tuple[int, ...], dict[str, Any]]] = [
    ("vgg", 3, (1, 6, 5), {"widths": [4], "dropout": 0.5}),
    ("gpt", 11, (5,), {"width": 12, "layers": 2, "heads": 3, "dropout": 0.1}),
]


@pytest.mark.parametrize(("name", "classes", "shape", "options"), [*NETWORKS, *DROPPED], ids=lambda value: str(value))
def test_the_module_is_captured_as_the_same_graph(
    name: str, classes: int, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    graph, rng = GRAPHS[name](classes, shape, **options), np.random.default_rng(2)
    x: Any = rng.normal(size=(3, *shape)).astype(F) if name != "gpt" else rng.integers(0, classes, (3, *shape))
    captured = capture(getattr(zoo, name)(classes, shape, **options), x, graph.target, ConfigError)
    assert text_of_graph(captured.graph) == text_of_graph(graph)
    assert captured.graph == graph
    assert captured.remarks == ()


def test_what_a_network_refuses() -> None:
    calls: list[tuple[Callable[[], Graph], str]] = [
        (lambda: resnet(10, (1, 8, 8), depth=9), "depth is 9; it must be 6n . 2, such as 8, 14 or 20"),
        (lambda: resnet(10, (1, 8, 8), width=12), "width is 12; it must be a multiple of 8"),
        (lambda: resnet(10, (64,)), r"resnet takes images .* has the shape \(64,\)"),
        (lambda: lenet(10, (1, 8, 8)), "lenet needs images of 16×16 at least, .* these are 8×8"),
        (lambda: vgg(10, (1, 7, 8)), "vgg halves an image for each of its 3 widths; these are 7×8"),
        (lambda: gpt(10, (1, 8, 8)), r"gpt takes sequences of tokens; a sample has the shape \(1, 8, 8\)"),
        (lambda: gpt(10, (8,), heads=3), "width is 64 and heads 3; the width must be a multiple of the heads"),
        (lambda: gpt(10, (8,), layers=0), "layers is 0; it must be 1 at least"),
    ]  # fmt: skip
    for call, text in calls:
        with pytest.raises(ValueError, match=text):
            call()


def test_pytorch_computes_sequences_as_the_graph_does() -> None:
    data = modular(5, 2, 0, 14, 8)
    model = TorchModel("torch:fredsim.zoo:gpt", {"width": 8, "layers": 1, "heads": 2}, "cpu", (3,), 6, 0)
    native = TorchEngine(model, data, 4, 1, NumpyBackendOperations())
    portable = GraphEngine(gpt(6, (3,), width=8, layers=1, heads=2, loss=CrossEntropy(ignored=-1)), data)
    params, rows = aligned(model.layout.size), np.arange(8).reshape(2, 4)
    params[...] = model.initial_params * F(20)
    for ours, theirs in zip(portable.gradients([params] * 2, rows), native.gradients([params] * 2, rows), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    losses, wrong = native.outcomes(params, "validation")
    expected = portable.outcomes(params, "validation")
    np.testing.assert_allclose(losses, expected[0], rtol=1e-4)
    assert wrong.tolist() == expected[1].tolist()
