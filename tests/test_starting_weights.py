"""Where a network starts from, and which of its tensors are trained: init, initial, trainable, precision."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fredsim.compute.graph_engine import GraphEngine
from fredsim.compute.partly_trained import PartlyTrained
from fredsim.errors import ConfigError
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.given import Weights
from fredsim.networks.initial import initial_parameters
from fredsim.networks.saved import graph_of_text, text_of_graph
from fredsim.networks.zoo.resnet import resnet
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from tests.random_graphs import dataset, initial

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


pytestmark = pytest.mark.usefixtures("modules")


def needs_torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")


def dense(numerics: str, **more: Any) -> dict[str, Any]:
    return {"name": "torch:own_modules:dense", "numerics": numerics, **more}


def losses(result: Result) -> list[float]:
    return list(result.metrics["validation_loss"])


@pytest.mark.parametrize("kind", ["numpy", "numba"])
def test_gradients_of_some_tensors_are_those_of_the_whole(kind: str) -> None:
    graph, rng = resnet(3, (1, 6, 6), width=8), np.random.default_rng(0)
    data, params = dataset(graph, rng), [initial(graph, rng) for _ in range(2)]
    rows = rng.integers(0, len(data.train), (2, 3))
    whole = GraphEngine(graph, data)
    expected, expected_losses = whole.gradients(params, rows)
    frozen = replace(graph, frozen=tuple(name for name, _ in graph.layout.tensors if "norm" not in name))
    engine: Any = NumbaGraphEngine(frozen, data, 3, 1) if kind == "numba" else GraphEngine(frozen, data)
    part = PartlyTrained(engine, frozen, params[0])
    some = frozen.part_of(params[0]), frozen.part_of(params[0])
    found, found_losses = part.gradients(some, rows)
    assert found[0].tobytes() == frozen.part_of(expected[0]).tobytes()
    assert found_losses[0].tobytes() == expected_losses[0].tobytes()
    assert part.outcomes(some[0], "test")[0].tobytes() == whole.outcomes(params[0], "test")[0].tobytes()
    assert frozen.trained.size == sum(part.size for part in frozen.trained.split(some[0]).values()) < graph.layout.size
    assert graph_of_text(text_of_graph(frozen).encode()) == frozen
    assert "frozen" not in text_of_graph(graph)
    part.close()


def test_a_run_goes_on_from_weights(simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = simulate({})
    Path("w.safetensors").write_bytes((first.folder / "params.safetensors").read_bytes())
    model = {"hidden": [16], "initial": "w.safetensors"}
    second = simulate({"model": model})
    assert losses(second)[0] == losses(first)[-1]
    assert [*second.summary["model_files"]] == ["w.safetensors"]
    digest = second.summary["digest"]
    for other in ({"backend": "numpy"}, {"path": "snapshots"}, {"window": 2}):
        assert simulate({"model": model} | other).summary["digest"] == digest
    some = {"model": model | {"trainable": ["W2", "b?"]}}
    frozen = simulate(some)
    assert losses(frozen)[0] == losses(first)[-1]
    assert frozen.summary["bytes_pushed"] == 50 * 4 * (16 + 16 * 10 + 10)
    assert [*load_file(frozen.folder / "params.safetensors")] == ["W2", "b1", "b2"]
    assert simulate(some | {"backend": "numpy", "threads": 2}).summary["digest"] == frozen.summary["digest"]


def test_other_weights_are_another_run(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "--out", "first", "--quiet")[0] == 0
    weights = load_file("first/params.safetensors")
    words = ("run", small_yaml, "model.initial=w.safetensors", "sweep={seed: [0]}", "--out", "out")
    save_file(weights, "w.safetensors")
    assert command(*words, "--quiet")[0] == 0
    assert command("verify", "out")[0] == 0
    assert "1 of them finished before" in command(*words, "--resume")[2]
    weights["b2"] += 1
    save_file(weights, "w.safetensors")
    code, output, messages = command("verify", "out")
    assert (code, "w.safetensors" in output + messages) == (1, True)
    assert "w.safetensors" in command(*words, "--resume")[2]


ODD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda w: w.pop("b1"), "lacks 'b1'; a file of weights has all"),
    "more": (lambda w: w.update(b3=w["b1"]), "has 'b3', which the network lacks; it has 'W1', 'b1', 'W2' and 1 more"),
    "a shape": (lambda w: w.update(b1=w["b2"]), "has 'b1' as float32 (10,); in the network it is float32 (16,)"),
    "a type": (lambda w: w.update(b1=w["b1"].astype(np.float64)), "has 'b1' as float64 (16,); in the network"),
    "NaN": (lambda w: w["b1"].fill(np.nan), "has numbers in 'b1' that are not finite"),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_weights(what: str, small_yaml: Path, refused: Refused) -> None:
    shapes = {"W1": (64, 16), "b1": (16,), "W2": (16, 10), "b2": (10,)}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    change, says = ODD[what]
    change(weights)
    save_file(weights, "w.safetensors")
    refused(
        "run", small_yaml, "model.initial=w.safetensors", "--out", "out", says=["model.initial: w.safetensors", says]
    )


@pytest.mark.parametrize("keys", [("W",), ("W", "b", "head")])
def test_a_part_of_a_module(keys: tuple[str, ...]) -> None:
    tensors, views = ({key: np.zeros(2, np.float32) for key in names} for names in (keys, ("W", "b")))
    weights = Weights("w.safetensors", tensors, {})
    with pytest.raises(ConfigError, match=r"'(b|head)'.*; let the factory load a file of which it uses a part"):
        weights.put(views, {})
    with pytest.raises(ConfigError) as caught:
        weights.put(views)
    assert "factory" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("{hidden: [16], initial: no.safetensors}", "no.safetensors cannot be read (No such file or directory)"),
        ("{hidden: [16], initial: small.yaml}", "small.yaml: it holds no arrays that can be read"),
        ("{hidden: [16], trainable: W3}", "model.trainable: 'W3' fits no tensor of the network; it has 'W1', 'b1'"),
        ("{name: linear, initial: w.safetensors}", "model.initial: unknown key"),
    ],
)
def test_what_is_refused(model: str, says: str, small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, f"model={model}", "--out", "out", says=[says])


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3"])
def test_types_that_numpy_does_not_have(dtype: str, small_yaml: Path, refused: Refused) -> None:
    """As most pretrained weights have."""
    size = {"BF16": 2, "F8_E4M3": 1}[dtype]
    head = json.dumps({"W1": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}).encode()
    Path("half.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(size))
    says = f"half.safetensors: it holds tensors of a type that NumPy does not have: '{dtype}'; give a file of float32 w"
    refused("run", small_yaml, "model={hidden: [16], initial: half.safetensors}", "--out", "out", says=[says])


@pytest.mark.parametrize(("init", "std"), [({"name": "normal", "std": 0.1}, 0.1), ("normal", 1.0)])
def test_modules_start_from_draws_of_fredsims(init: Any, std: float, simulate: Simulate) -> None:
    needs_torch()
    result = simulate({"model": dense("portable", init=init)})
    graph = graph_of_text((result.folder / "graph.json").read_bytes())
    drawn = graph.layout.split(initial_parameters(graph, Streams(0), "normal", std))
    found = load_file(result.folder / "initial.safetensors")
    assert all(found[name].tobytes() == view.tobytes() for name, view in drawn.items())


@pytest.mark.parametrize("numerics", ["portable", "native"])
def test_modules_of_which_a_part_is_trained(
    numerics: str, simulate: Simulate, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_torch()
    monkeypatch.chdir(tmp_path)
    first = simulate({"model": dense("portable")})
    Path("w.safetensors").write_bytes((first.folder / "params.safetensors").read_bytes())
    result = simulate({"model": dense(numerics, initial="w.safetensors", trainable="3.*"), "threads": 1})
    assert losses(result)[0] == pytest.approx(losses(first)[-1], rel=1e-5)
    assert result.summary["bytes_pushed"] == 50 * 4 * (16 * 10 + 10)
    assert command("verify", result.folder)[0] == 0
    own = simulate({"model": {"name": "torch:own_modules:frozen", "numerics": numerics}, "threads": 1})
    assert "1.bias" not in load_file(own.folder / "params.safetensors")
    assert json.loads((own.folder / "summary.json").read_text())["bytes_pushed"] < first.summary["bytes_pushed"]


def test_frozen_and_trained_by_a_plain_loop(simulate: Simulate) -> None:
    """One client, whose steps PyTorch takes here."""
    torch = needs_torch()
    from tests import own_modules

    base = {"clients": {"count": 1, "batch_size": 4}, "iterations": 5, "threads": 1}
    result = simulate(base | {"model": dense("native", trainable="3.*")})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = own_modules.dense(10, (1, 8, 8))
    module[1].requires_grad_(False)
    from fredsim.data.datasets import data_root, load_dataset

    train = load_dataset("digits", None, None, data_root()).train
    for step in range(5):
        x, y = (torch.from_numpy(part[4 * step : 4 * step + 4]) for part in (train.x, train.y))
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y.long()).backward()
        with torch.no_grad():
            for value in module[3].parameters():
                value -= np.float32(0.1) * value.grad
    found = load_file(result.folder / "params.safetensors")
    assert found.keys() == {"3.weight", "3.bias"}
    np.testing.assert_allclose(found["3.weight"], module[3].weight.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_bfloat16_and_activation_checkpointing(simulate: Simulate) -> None:
    needs_torch()
    wide = simulate({"model": dense("native"), "threads": 1})
    narrow = simulate({"model": dense("native", precision="bfloat16"), "threads": 1})
    assert narrow.summary["digest"] != wide.summary["digest"]
    assert losses(narrow)[-1] == pytest.approx(losses(wide)[-1], rel=0.05)
    found = [
        simulate(
            {
                "model": {"name": f"torch:own_modules:{name}", "numerics": "native"},
                "threads": 1,
                "window": 2 if name == "checkpointed" else 1,
            }
        )
        for name in ("tanhs", "checkpointed")
    ]
    assert found[0].summary["digest"] == found[1].summary["digest"]
    assert "under vmap it failed" in found[1].summary["vmap"]


CONTRADICTIONS = {
    "numerics: native, init: he": "init is given, which needs numerics: portable",
    "init: he, initial: w.safetensors": "init and initial are both given",
    "precision: bfloat16, numerics: portable": "precision is bfloat16; with numerics: portable all is float32",
    "numerics: native, trainable: '4.*'": "model.trainable: '4.*' fits no tensor of the network; it has '1.weight'",
}


@pytest.mark.parametrize("keys", CONTRADICTIONS)
def test_contradictions_of_modules(keys: str, small_yaml: Path, refused: Refused) -> None:
    needs_torch()
    model = f"model={{name: 'torch:own_modules:dense', {keys}}}"
    refused("run", small_yaml, model, "--out", "out", says=[CONTRADICTIONS[keys]])
    taken = "model={name: 'torch:own_modules:takes_init', numerics: portable, init: he}"
    refused(
        "run", small_yaml, taken, "--out", "out", says=["model.init: is fredsim's own key, and also an argument of"]
    )
