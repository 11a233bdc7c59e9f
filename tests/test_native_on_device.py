"""Native modules with `backend: cuda`: gradients are computed where clients, server and rule are.

On an emulated device PyTorch computes with tensors on the processor. So of dense layers it gives the bits of the
backend numba, whose parameters it takes from other memory.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.config.document import dump_yaml, read_document
from fredsim.config.resolution import resolve
from fredsim.data.datasets import Dataset
from fredsim.native.model import TorchModel
from fredsim.native.on_device import DeviceTorchEngine
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.pace import SharedPace
from tests.conftest import EMULATED, needs_cuda

Array = NDArray[np.float32]
Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]

pytestmark = [
    pytest.mark.usefixtures("modules"),
    needs_cuda,
    pytest.mark.skipif(not EMULATED, reason="compares with the processor's bits"),
]

BASE: dict[str, Any] = {"iterations": 24, "threads": 1, "clients": {"count": 6, "batch_size": 4}}


def own(name: str, **more: Any) -> dict[str, Any]:
    return {"model": {"name": f"torch:own_modules:{name}", "numerics": "native", **more}}


def digest(result: Result) -> str:
    return str(result.summary["digest"])


@pytest.mark.parametrize(("changes", "path"), [
    (own("dense"), "queued"),
    (own("frozen") | {"server": {"name": "fasgd", "lr": 0.01}}, "queued"),
    (own("dropped"), "queued"),
    (own("jittered"), "queued"),
    (own("InPlace"), "queued"),
    (own("normalized", buffers="averaged"), "snapshots"),
    (own("dense") | {"server": {"name": "ternary_sync", "lr": 0.1}}, "snapshots"),
    (own("dropped") | {"data": {"name": "digits", "augment": {"flip": True}}}, "snapshots"),
    (own("dense") | {"clients": {"count": 6, "batch_size": 4, "local_steps": 2, "optimizer": {"name": "adamw",
     "lr": 0.01}}}, "snapshots"),
], ids=["dense", "frozen", "dropped", "jittered", "in place", "statistics", "ternary", "augment", "steps"],
)  # fmt: skip
def test_the_bits_are_those_of_the_processor(changes: dict[str, Any], path: str, simulate: Simulate) -> None:
    expected, found = (simulate(BASE | changes | {"backend": backend}) for backend in ("numba", "cuda"))
    assert (found.summary["path"], found.summary["device"]) == (path, "emulated")
    assert digest(found) == digest(expected)


def test_neither_path_nor_window_nor_evaluation_moves_a_bit(simulate: Simulate) -> None:
    base = BASE | own("filters") | {"backend": "cuda", "clients": {"count": 20, "batch_size": 3}}
    expected = digest(simulate(base))
    assert expected != digest(simulate(base | {"seed": 3}))
    for more in ({"path": "snapshots"}, {"window": 1}, {"window": 3, "path": "snapshots"}):
        assert digest(simulate(base | more)) == expected
    every = {"every": 4, "test": True, "gradient_norm": True, "metrics": ["top5"]}
    seen = [simulate(base | {"evaluation": every, "path": path}) for path in ("queued", "snapshots")]
    assert digest(seen[0]) == digest(seen[1])
    assert (seen[0].folder / "params.safetensors").read_bytes() == (seen[1].folder / "params.safetensors").read_bytes()


def engine_of(digits: Dataset, name: str) -> tuple[TorchModel, Any]:
    model = TorchModel(f"torch:own_modules:{name}", {}, "cpu", digits.shape, digits.classes, 0)
    return model, make_engine("cuda", model, digits, 4, 1)


def test_gradients_and_evaluation_are_autograds(digits: Dataset) -> None:
    """Of more minibatches than are computed at once, against a plain loop."""
    model, engine = engine_of(digits, "Large")
    rng = np.random.default_rng(0)
    count = engine.fix_window(None, 100) + 3
    held = [model.initial_params + rng.normal(0, 0.1, model.layout.size).astype(np.float32) for _ in range(count)]
    rows = rng.integers(0, len(digits.train), (count, 4))
    grads, losses = engine.gradients([engine.operations.array_of(one) for one in held], rows)
    engine.close()
    plain = TorchModel("torch:own_modules:Large", {}, "cpu", digits.shape, digits.classes, 1).module
    values = list(plain.parameters())

    def loss_of(params: Array, x: Any, y: Any) -> Any:
        torch.nn.utils.vector_to_parameters(torch.from_numpy(params), values)
        found = plain(torch.from_numpy(x).reshape(-1, *digits.shape))
        return torch.nn.functional.cross_entropy(found, torch.from_numpy(y).long(), reduction="none")

    for params, some, grad, own_losses in zip(held, rows, grads, losses, strict=True):
        expected = loss_of(params, digits.train.x[some], digits.train.y[some])
        parts = torch.autograd.grad(expected.mean(), values)
        np.testing.assert_allclose(np.asarray(grad), torch.cat([p.reshape(-1) for p in parts]), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own_losses, expected.detach(), rtol=1e-5)
    split = digits.validation
    expected = loss_of(held[0], split.x, split.y).detach().numpy()
    found, _ = engine.outcomes(engine.operations.array_of(held[0]), "validation")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_run_is_verified_and_continued_where_it_was_computed(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = read_document(small_yaml).data | BASE | own("dropped")
    experiment |= {"backend": "cuda", "evaluation": {"every": 6}}
    whole, part = Path("whole"), Path("part")
    execute(resolve(experiment), whole)
    assert command("verify", whole)[:2] == (0, "whole: same bits\n")
    assert command("verify", whole, "--backend", "numba")[0] == 0  # the same here, since it is emulated
    for folder in (part, Path("other")):
        looks = iter([False] * 3 + [True] * 100)
        execute(resolve(experiment), folder, stop=partial(next, looks), policy=CheckpointPolicy(1e9))
        assert Result(folder).summary["status"] == "interrupted"
    execute(resolve(experiment), part)
    assert Result(part).summary["digest"] == Result(whole).summary["digest"]
    monkeypatch.setattr("fredsim.cuda.operations.CudaOperations.where", ("another device", True))
    notes = Notes()
    execute(resolve(experiment), Path("other"), observer=notes)
    assert any("its device is emulated, not another device" in note for note in notes.found)
    assert Result(Path("other")).summary["device"] == "another device"


class Notes(Observer):
    """Keeps what the user is told."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def note(self, text: str) -> None:
        """Keep a note."""
        self.found.append(text)


def test_what_pytorch_cannot_compute_there_is_computed_on_the_processor(
    simulate: Simulate, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As by a build without CUDA."""
    expected, notes = simulate(BASE | own("dense")), Notes()
    monkeypatch.setattr("fredsim.cuda.operations.EMULATED", False)
    execute(resolve(expected.config | {"backend": "cuda"}), tmp_path / "no", observer=notes)
    found = Result(tmp_path / "no")
    assert (found.summary["device"], found.summary["path"], digest(found)) == (None, "snapshots", digest(expected))
    text = "the gradients of model.name: torch:own_modules:dense are computed on the processor: this PyTorch finds no"
    assert [note for note in notes.found if note.startswith(text)]
    assert command("verify", found.folder)[:2] == (0, f"{found.folder}: same bits\n")


class Recorded:
    """In the place of a CUDA graph: what was captured is done again."""

    capturing: ClassVar[Any] = None

    def __init__(self) -> None:
        self.lanes: list[Any] = []
        self.replayed = 0

    def pool(self) -> None:
        """Have no pool."""

    def replay(self) -> None:
        """Compute all lanes."""
        self.replayed += 1
        for engine, lane in self.lanes:
            PASS(engine, lane)


PASS = DeviceTorchEngine._pass


def _pass(engine: Any, lane: Any) -> None:
    if Recorded.capturing is not None:
        Recorded.capturing.lanes.append((engine, lane))
    PASS(engine, lane)


@contextmanager
def _capture(graph: Recorded, pool: Any, stream: Any) -> Iterator[None]:
    del pool, stream
    Recorded.capturing = graph
    try:
        yield
    finally:
        Recorded.capturing = None


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What of PyTorch's needs a device, on the processor."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    found: dict[str, Any] = {
        "is_available": lambda: True, "synchronize": lambda: None, "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: 0, "max_memory_allocated": lambda: 1000, "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: None, "Stream": lambda: stream, "stream": lambda one: nullcontext(),
        "graph": _capture, "CUDAGraph": Recorded, "current_stream": lambda: stream, "set_stream": lambda one: None,
    }  # fmt: skip
    for name, function in found.items():
        monkeypatch.setattr(torch.cuda, name, function)
    move = TorchModel.move
    monkeypatch.setattr(TorchModel, "move", lambda model, device: move(model, "cpu"))
    monkeypatch.setattr(DeviceTorchEngine, "_pass", _pass)
    monkeypatch.setattr("fredsim.cuda.operations.CudaOperations.where", ("a device", False))


@pytest.mark.usefixtures("graphs")
def test_graphs_compute_windows(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = BASE | own("filters") | {"clients": {"count": 30, "batch_size": 3}}
    found = simulate(changes | {"backend": "cuda"})
    assert found.summary["vmap"] == "up to 8 clients at once, by CUDA graphs"
    assert digest(found) == digest(simulate(changes | {"backend": "cuda", "path": "snapshots", "window": 5}))
    monkeypatch.setattr(DeviceTorchEngine, "_obstacle", lambda engine: "none")
    without = simulate(changes | {"backend": "cuda"})
    assert without.summary["vmap"] == "one client after the other, without a CUDA graph: none"
    assert digest(without) == digest(found)


@pytest.mark.usefixtures("graphs")
def test_a_graph_that_draws_has_one_generator(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest(simulate(BASE | own("dropped")))
    monkeypatch.setattr(DeviceTorchEngine, "_draws_on_host", lambda engine: False)
    found = simulate(BASE | own("dropped") | {"backend": "cuda"})
    assert found.summary["vmap"] == "one client after the other, by a CUDA graph"
    assert digest(found) == expected


def _fails() -> Any:
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(("module", "patch", "why"), [
    ("dropped", {}, "it draws random numbers on the host"),
    ("Remembers", {}, "it changes attributes of its own"),
    ("dense", {"torch.cuda.graph": lambda *given, **named: _fails()}, "capturing fails (operation not permitted"),
    ("dense", {"torch.cuda.set_sync_debug_mode": lambda mode: _fails() if mode == "error" else None},
     "it waits for values of the device, such as by .item()"),
])  # fmt: skip
def test_what_is_not_captured(
    module: str, patch: dict[str, Any], why: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digest(simulate(BASE | own(module)))
    for name, function in patch.items():
        monkeypatch.setattr(name, function)
    found = simulate(BASE | own(module) | {"backend": "cuda"})
    assert found.summary["vmap"].startswith(f"one client after the other, without a CUDA graph: {why}")
    assert digest(found) == expected


@pytest.mark.usefixtures("graphs")
def test_a_graph_that_computes_something_else_is_not_used(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first graph: none is; a later one: smaller ones are."""
    replay = Recorded.replay

    def odd(least: int) -> Callable[[Recorded], None]:
        def replayed(graph: Recorded) -> None:
            replay(graph)
            if len(graph.lanes) >= least:
                graph.lanes[-1][1].grad.mul_(1.5)

        return replayed

    changes = BASE | own("dense") | {"clients": {"count": 20, "batch_size": 3}}
    expected = digest(simulate(changes))
    for least, how in ((1, "without a CUDA graph: captured, it computes another gradient"), (4, "up to 3 clients")):
        monkeypatch.setattr(Recorded, "replay", odd(least))
        found = simulate(changes | {"backend": "cuda"})
        assert how in found.summary["vmap"]
        assert digest(found) == expected


def test_memory_that_a_module_keeps_by_another_name(simulate: Simulate) -> None:
    """Such a module is left to the processor."""
    for name in ("KeepsData", "KeepsFilters"):
        expected, found = (simulate(BASE | own(name) | {"backend": backend}) for backend in ("numba", "cuda"))
        assert digest(found) == digest(expected)
        assert found.summary["validation_loss"] == expected.summary["validation_loss"]
        assert "CUDA graph" not in found.summary["vmap"]


def test_such_runs_are_not_side_by_side(small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they change how many events those that are process at once: one, of a module's."""
    paces: list[Any] = []

    class Noted(SharedPace):
        def __init__(self) -> None:
            super().__init__()
            paces.append(self)

    monkeypatch.setattr("fredsim.runs.many.side_by_side.SharedPace", Noted)
    experiment = read_document(small_yaml).data | BASE | {"backend": "cuda", "cases": [{"seed": 1}, {"seed": 2}]}
    model = {"model": {"name": "torch:fredsim.zoo:vgg", "widths": [2], "numerics": "native"}}
    small_yaml.write_text(dump_yaml(experiment | model), encoding="utf-8")
    code, _, messages = command("run", small_yaml, "--jobs", "device", "--out", "out")
    assert code == 0
    assert "not side by side with other runs; PyTorch computes its gradients" in messages
    assert [pace.events for pace in paces] == [SharedPace().events]
