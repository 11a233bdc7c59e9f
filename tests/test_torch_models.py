"""PyTorch modules as models: the same bits in two processes, what is refused, and what stays as it was."""

import contextlib
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.compute.graph_engine import GraphEngine
from fredsim.config.resolution import resolve
from fredsim.data.datasets import Dataset, data_root, load_dataset
from fredsim.errors import ConfigError, SimulationError
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.simulation.paths.backends import make_engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim import zoo
from fredsim.native.engine import TorchEngine
from fredsim.native.model import TorchModel
from fredsim.native.settings import deterministic

HERE = Path(__file__).parent
Array = NDArray[np.float32]
Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of own_modules.py, beside this file, as a user's."""
    monkeypatch.syspath_prepend(HERE)


def own(name: str, **hyper: Any) -> dict[str, Any]:
    return {"name": f"torch:own_modules:{name}", "numerics": "native", **hyper}


def engine_of(digits: Dataset, name: str, mu: int = 4, seed: int = 0, **hyper: Any) -> tuple[TorchModel, TorchEngine]:
    model = TorchModel(f"torch:own_modules:{name}", hyper, "cpu", digits.shape, digits.classes, seed)
    engine = make_engine("numpy", model, digits, mu, 2)
    assert isinstance(engine, TorchEngine)
    return model, engine


def held_by(model: TorchModel, clients: int) -> list[Array]:
    rng = np.random.default_rng(0)
    start = model.initial(Streams(0))
    return [start + rng.normal(0, 0.1, len(start)).astype(np.float32) for _ in range(clients)]


def test_the_gradient_is_that_of_the_same_network_in_portable_numerics(digits: Dataset) -> None:
    model, engine = engine_of(digits, "dense")
    portable = Mlp((64, 16, 10))
    start = portable.initial(Streams(3))
    rows = np.arange(12).reshape(3, 4)
    expected, losses = GraphEngine(portable.graph, digits).gradients([start] * 3, rows)

    def turned(flat: Array) -> Array:  # torch keeps a weight as (outputs, inputs)
        return np.concatenate([part.T.reshape(-1) for part in portable.layout.split(flat).values()])

    assert model.layout.tensors == (
        ("1.weight", (16, 64)), ("1.bias", (16,)), ("3.weight", (10, 16)), ("3.bias", (10,)),
    )  # fmt: skip
    found, its_losses = engine.gradients([turned(start)] * 3, rows)
    np.testing.assert_allclose(found, [turned(row) for row in expected], rtol=0, atol=1e-6)
    np.testing.assert_allclose(its_losses, losses, rtol=1e-5)
    ours, theirs = GraphEngine(portable.graph, digits).evaluate(start, "test"), engine.evaluate(turned(start), "test")
    assert theirs[0] == pytest.approx(ours[0], rel=1e-5)
    assert theirs[1] == ours[1]
    found_losses, found_wrong = engine.outcomes(turned(start), "train")
    expected_losses, expected_wrong = GraphEngine(portable.graph, digits).outcomes(start, "train")
    np.testing.assert_allclose(found_losses, expected_losses, rtol=1e-5)
    np.testing.assert_array_equal(found_wrong, expected_wrong)


@pytest.mark.parametrize(("name", "window"), [("dense", None), ("dense", 4), ("images", 3), ("Decides", 4)])
def test_a_gradient_does_not_depend_on_who_is_computed_beside(digits: Dataset, name: str, window: int | None) -> None:
    model, engine = engine_of(digits, name)
    at_once = engine.fix_window(window, 32)
    assert at_once in ((1, 2) if window is None else (1 if name == "Decides" else window,))
    held, rows = held_by(model, 7), np.arange(28).reshape(7, 4)
    together, losses = (array.copy() for array in engine.gradients(held, rows))
    for chosen in ([0], [6], [2, 5], [6, 5, 4, 3, 2, 1, 0]):
        found, its_losses = engine.gradients([held[i] for i in chosen], rows[chosen])
        assert found.tobytes() == together[chosen].tobytes()
        assert its_losses.tobytes() == losses[chosen].tobytes()


def test_clients_that_vmap_would_tell_apart_are_computed_alone(simulate: Simulate) -> None:
    summary = simulate({"model": own("Placed"), "threads": 1, "iterations": 4, "window": 2}).summary
    assert summary["vmap"] == "one client after the other: under vmap a gradient depends on its place among the others"


def test_pytorch_has_its_settings_again(simulate: Simulate) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.utils.deterministic.fill_uninitialized_memory = True  # engines of other tests are not closed
    try:
        for name in ("Trains", "Counts"):  # the second is refused
            with contextlib.suppress(ConfigError):
                simulate({"model": own(name), "threads": 1, "iterations": 2})
            assert torch.get_num_threads() == 3, name
            assert torch.utils.deterministic.fill_uninitialized_memory, name
            assert not torch.are_deterministic_algorithms_enabled(), name
    finally:
        torch.set_num_threads(before)


def test_a_module_that_evaluates_otherwise_trains_on_as_before(simulate: Simulate) -> None:
    changes = {"model": own("Trains"), "threads": 1, "iterations": 150}
    often, once = (simulate({**changes, "evaluation": {"every": every}}) for every in (50, 150))
    assert often.summary["digest"] == once.summary["digest"]
    assert once.metrics["train_loss"].iloc[-1] < 2 < once.metrics["validation_loss"].iloc[-1]  # it does so


@pytest.mark.parametrize("numerics", ["native", "portable"])
@pytest.mark.parametrize("kind", ["shift", "bounds", "dropout"])
def test_a_module_may_write_into_what_it_is_given(kind: str, numerics: str, simulate: Simulate) -> None:
    rows = {"name": "digits", "train": 90, "validation": 501}  # the last is evaluated with the 500 before, or alone
    changes = {"data": rows, "threads": 1 if numerics == "native" else None, "iterations": 8}
    changes["evaluation"] = {"every": 4, "gradient_norm": numerics == "native"}
    before = load_dataset("digits", 90, 501, data_root())
    copies = [part.x.copy() for part in before.parts]
    kinds = [own("first", kind=kind, inplace=inplace) | {"numerics": numerics} for inplace in (False, True, True)]
    results = [simulate({**changes, "model": model}) for model in kinds]
    for part, copy in zip(load_dataset("digits", 90, 501, data_root()).parts, copies, strict=True):
        assert part.x.tobytes() == copy.tobytes()
    for one in results[1:]:
        assert one.summary["digest"] == results[0].summary["digest"]
        for column in ("train_loss", "validation_loss", "validation_error"):
            assert one.metrics[column].to_numpy().tobytes() == results[0].metrics[column].to_numpy().tobytes()


def test_a_parameter_without_elements(simulate: Simulate) -> None:
    found, expected = (simulate({"model": own(name), "iterations": 8}) for name in ("Empty", "Remembers"))
    assert found.summary["validation_loss"] == expected.summary["validation_loss"]
    assert found.params["none"].shape == (0, 4)


def test_outputs_whose_axes_depend_on_the_number_of_samples(simulate: Simulate) -> None:
    changes = {"model": own("Pairs"), "loss": "own_modules:one_of", "iterations": 4, "threads": 1}
    metrics = {"evaluation": {"metrics": ["own_modules:largest"]}}
    rows = {"data": {"name": "digits", "train": 100, "validation": 600}}
    assert simulate(changes | metrics).summary["status"] == "finished"  # all in one block
    assert simulate(changes | rows).summary["status"] == "finished"
    with pytest.raises(SimulationError) as caught:
        simulate(changes | metrics | rows)
    assert "100 samples have outputs (100, 100), and 500 have (500, 500); but for the first axis" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_how_many_clients_are_computed_at_once(digits: Dataset) -> None:
    _, engine = engine_of(digits, "dense")
    assert engine.fix_window(None, 1) == 1
    assert engine.facts()["vmap"] == "one client after the other: no more are taken at once"
    assert engine.fix_window(6, 5) == 5
    assert engine.facts()["vmap"] == "5 clients at once"
    assert engine.fix_window(1, 1000) == 1
    assert engine.facts()["vmap"].startswith("one client after the other")


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))],
)
def test_two_processes_give_the_same_bits(device: str, tmp_path: Path) -> None:
    experiment = tmp_path / "twice.yaml"
    experiment.write_text(
        "iterations: 12\n"
        "data: {name: digits}\n"
        f'model: {{name: "torch:own_modules:images", numerics: native, device: {device}}}\n'
        "clients: {count: 5, batch_size: 3}\n"
        "server: {name: fasgd, lr: 0.01}\n"
        "evaluation: {every: 6}\n"
        "threads: 2\n",
        encoding="utf-8",
    )
    for out in ("one", "other"):
        words = [sys.executable, "-m", "fredsim", "run", str(experiment), "--quiet", "--out", str(tmp_path / out)]
        subprocess.run(words, cwd=HERE, check=True, capture_output=True)
    for name in ("config.yaml", "metrics.csv", "staleness.csv", "params.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes(), name
    expected = torch.cuda.get_device_name() if device == "cuda" else None
    assert json.loads((tmp_path / "one" / "summary.json").read_text(encoding="utf-8"))["device"] == expected


def test_the_summary_says_what_the_numerics_are(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+own")  # the build, which the package's metadata may leave out
    summary = simulate({"model": own("dense"), "threads": 1}).summary
    assert {key: summary[key] for key in ("numerics", "device", "threads", "vmap", "path")} == {
        "numerics": "native", "device": None, "threads": 1, "path": "queued",
        "vmap": "one client after the other: no more are taken at once",
    }  # fmt: skip
    assert summary["versions"]["torch"] == "2.13.0+own"
    portable = simulate({}).summary
    assert portable["numerics"] == "portable"
    assert "torch" not in portable["versions"]


def test_threads_and_window_belong_to_such_an_experiment(digits_experiment: dict[str, Any]) -> None:
    for changes, moves in (({"threads": 3}, True), ({"window": 3}, True), ({"backend": "numpy"}, False)):
        one, other = (resolve({**digits_experiment, "model": own("dense"), **c}).digest for c in ({}, changes))
        assert (one != other) == moves
        one, other = (resolve({**digits_experiment, **c}).digest for c in ({}, changes))
        assert one == other


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"server": {"name": "ternary_sync", "lr": 0.1}},
        {"server": {"name": "bfasgd", "lr": 0.01}},
        {"server": {"name": "easgd", "lr": 0.1, "alpha": 0.1, "period": 2}},
        {"server": {"name": "ringmaster", "lr": 0.1, "threshold": 2, "stop": True}},
        {"compress": {"name": "sign"}, "dispatcher": {"name": "uniform", "wait": False}},
        {"average": {"name": "window", "rate": 0.5, "min_window": 2, "max_window": 9}},
    ],
    ids=str,
)
def test_servers_keep_their_bits_on_every_backend(simulate: Simulate, changes: dict[str, Any]) -> None:
    digests = set()
    for backend in ("numba", "numpy"):
        result = simulate({"iterations": 24, "model": own("images"), "threads": 1, "backend": backend, **changes})
        digests.add((result.summary["digest"], (result.folder / "metrics.csv").read_bytes()))
        if "easgd" in str(changes) or "ringmaster" in str(changes):  # clients that cannot be taken together
            assert result.summary["vmap"].startswith("one client after the other")
    assert len(digests) == 1


def test_it_learns_and_a_divergence_keeps_what_was(simulate: Simulate) -> None:
    changes = {"model": own("images"), "iterations": 400, "threads": 1, "evaluation": {"every": 100}}
    assert simulate(changes).summary["test_error"] < 0.25
    diverged = simulate({**changes, "server": {"name": "asgd", "lr": 1e37}})
    assert diverged.summary["status"] == "diverged"
    assert all(np.isfinite(value).all() for value in diverged.params.values())


def test_an_interrupted_run_is_the_beginning_of_the_whole(tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    settings = {"model": own("images"), "threads": 1, "evaluation": {"every": 7}}
    experiment = resolve({**digits_experiment, **settings})
    execute(experiment, tmp_path / "whole")
    execute(experiment, tmp_path / "part", most_iterations=21)
    whole, part = ((tmp_path / name / "metrics.csv").read_text().splitlines() for name in ("whole", "part"))
    assert part == whole[: len(part)]
    assert len(part) == 5


def test_the_initial_parameters_are_the_modules_own_under_the_seed(digits: Dataset) -> None:
    state = torch.get_rng_state()
    model, _ = engine_of(digits, "images", seed=11)
    assert torch.equal(state, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        expected = sys.modules["own_modules"].images()
    flat = np.concatenate([value.detach().numpy().reshape(-1) for value in expected.parameters()])
    assert model.initial(Streams(11)).tobytes() == flat.tobytes()
    assert engine_of(digits, "images", seed=12)[0].initial(Streams(11)).tobytes() != flat.tobytes()


def test_settings_are_put_back(simulate: Simulate) -> None:
    torch.set_num_threads(2)
    for name in ("images", "Decides"):
        simulate({"model": own(name), "threads": 1, "iterations": 4})
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.get_num_threads() == 2


def test_a_lower_precision_of_products_is_not_used() -> None:
    """Which a user's module may have asked for, for all that follows in the process; it stays as it was outside."""
    torch.set_float32_matmul_precision("medium")
    seen: list[str] = []
    try:
        with deterministic(1):
            seen.append(torch.get_float32_matmul_precision())
        seen.append(torch.get_float32_matmul_precision())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["highest", "medium"]


def test_no_package_orders_an_einsum() -> None:
    """Of three operands, whose products from left to right have other bits."""
    if not torch.backends.opt_einsum.is_available():
        pytest.skip("opt_einsum is not installed")
    a, b, c = (torch.randn(shape, generator=torch.manual_seed(0)) for shape in ((64, 48), (48, 32), (32, 2)))
    with deterministic(1):
        assert not torch.backends.opt_einsum.enabled
        found = torch.einsum("ij,jk,kl->il", a, b, c)
    assert torch.backends.opt_einsum.enabled
    assert torch.equal(found, torch.einsum("ik,kl->il", torch.einsum("ij,jk->ik", a, b), c))
    assert not torch.equal(found, torch.einsum("ij,jk,kl->il", a, b, c))


def test_what_may_be_kept(simulate: Simulate) -> None:
    for model in (own("normalized", track_running_stats=False), own("dropped", p=0.0)):
        assert simulate({"model": model, "threads": 1, "iterations": 8}).summary["status"] == "finished"


@pytest.mark.parametrize("numerics", ["native", "portable"])
def test_what_a_factory_takes_need_not_be_known(numerics: str, simulate: Simulate) -> None:
    ways = (
        {"name": f"torch:own_modules:{name}", "channels": 2, "numerics": numerics} for name in ("images", "Unsigned")
    )
    usual, found = (simulate({"model": model, "threads": 1, "iterations": 8}).summary["digest"] for model in ways)
    assert found == usual


def test_commands(small_yaml: Path, command: Command) -> None:
    model = "model={name: 'torch:own_modules:images', numerics: native, channels: 2}"
    assert command("run", small_yaml, model, "iterations=10", "--quiet", "--out", "out")[0] == 0
    assert command("verify", "out")[:2] == (0, "out: same bits\n")
    assert command("verify", "out", "--backend", "numpy")[:2] == (0, "out: same bits\n")
    assert "torch:own_modules:images, device: cpu, numerics: native, channels: 2" in command("show", "out")[1]
    code, output, _ = command("plan", small_yaml, model, "iterations=10")
    assert code == 0
    assert "queued: all that an event depends on is known ahead" in output
    assert command("run", small_yaml, model, "iterations=10", "seed=1", "--quiet", "--out", "other")[0] == 0
    assert command("compare", "out", "other")[0] == 1


def test_the_zoo(simulate: Simulate) -> None:
    images = torch.rand(2, 1, 28, 28)
    with torch.random.fork_rng(devices=[]):
        lenet, resnet = zoo.lenet(10, (1, 28, 28)), zoo.resnet(7, (3, 32, 32), depth=20)
    assert lenet(images).shape == (2, 10)
    assert sum(value.numel() for value in lenet.parameters()) == 431_080
    assert resnet(torch.rand(2, 3, 32, 32)).shape == (2, 7)
    assert len([part for part in resnet.modules() if isinstance(part, torch.nn.Conv2d)]) == 19 + 2
    assert not any(value.any() for name, value in lenet.named_parameters() if name.endswith("bias"))
    model = {"name": "torch:fredsim.zoo:resnet", "numerics": "native", "width": 8}
    trained = simulate({"model": model, "threads": 1, "iterations": 3, "data": {"name": "digits", "validation": 10}})
    assert trained.summary["vmap"] == "one client after the other: no more are taken at once"


def test_the_manual(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (HERE.parent / "docs/models.md").read_text(encoding="utf-8")
    program, experiment = (
        re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)[0] for language in ("python", "yaml")
    )
    (tmp_path / "my_models.py").write_text(program, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(experiment, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert command("run", "own.yaml", "--quiet", "--out", "out")[0] == 0
    assert json.loads(Path("out/summary.json").read_text())["test_error"] < 0.5
