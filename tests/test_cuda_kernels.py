"""Each choice of kernels for a network's layers gives the bits of the NumPy oracle."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from fredsim.compute.graph_engine import GraphEngine
from fredsim.compute.storage import Limits
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from fredsim.numerics.operations import NumpyOperations
from fredsim.servers.fasgd import RULES
from tests.conftest import HAS_CUDA

if not HAS_CUDA:
    pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one", allow_module_level=True)

from fredsim.cuda import layers
from fredsim.cuda.array import upload
from fredsim.cuda.engine import CudaEngine
from fredsim.cuda.kernels import FOLDER, Unit, make_unit, unit_of
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import EMULATED, machine

ROWS = 40
#: The network's shape, the samples of a minibatch, and the minibatches of a window.
CASES: list[tuple[tuple[int, ...], int, int]] = [
    *(((37, 70, 66, 10), mu, 2) for mu in range(1, 11)),
    ((64, 72, 10), 4, 3),
    ((36, 64, 48, 20), 8, 2),
    ((48, 136, 72, 10), 128, 2),
    ((132, 124, 64, 10), 128, 2),
    ((132, 128, 36, 10), 150, 1),
    ((20, 132, 17), 33, 2),
    ((33, 5, 3), 300, 1),
    ((9, 8, 7, 6, 5, 4, 3), 3, 2),
    ((9, 8, 7, 6, 5, 4, 3), 11, 2),
    ((30, 10), 5, 2),
    ((30, 40), 20, 2),
    ((1, 1, 2), 1, 1),
]
WINDOW = [(0, 2), (2, 5)]
#: One size of tiles alone, so that it is chosen.
TILES: list[dict[str, Any]] = [{"TILES": (tile,)} for tile in layers.TILES]


def data(inputs: int, classes: int) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, inputs)).astype(np.float32)
    x *= rng.random(x.shape) < 0.4
    x[0], x[1] = -0.0, np.exp(rng.uniform(-60, 0, inputs))
    split = Split(x, rng.integers(0, classes, ROWS))
    return Dataset(split, split, split, classes)


def parameters(model: Mlp, count: int) -> list[Any]:
    rng = np.random.default_rng(1)
    held = [(rng.standard_normal(model.layout.size) * 0.3).astype(np.float32) for _ in range(count)]
    for params in held:
        params[::7] = 0.0
    return held


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the kernels that are launched."""
    names: set[str] = set()
    add = Launches.add

    def noted(self: Launches, kernel: Any, grid: Any, *where: Any, **fields: Any) -> None:
        names.add(kernel.name)
        add(self, kernel, grid, *where, **fields)

    monkeypatch.setattr(Launches, "add", noted)
    return names


def same(found: Any, expected: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("tiles", TILES, ids=lambda tiles: "{}x{}".format(*tiles["TILES"][0]))
@pytest.mark.parametrize(("sizes", "mu", "batches"), CASES, ids=str)
def test_gradients(sizes: tuple[int, ...], mu: int, batches: int, tiles: dict[str, Any]) -> None:
    model, dataset = Mlp(sizes), data(sizes[0], sizes[-1])
    held, rows = parameters(model, batches), np.random.default_rng(2).integers(0, ROWS, (batches, mu))
    expected, losses = GraphEngine(model.graph, dataset).gradients(held, rows)
    engine = CudaEngine(model, dataset, mu)
    with patch.multiple(layers, **tiles):
        found, found_losses = engine.gradients([upload(params) for params in held], rows)
    same(found, expected)
    same(found_losses, losses)


@pytest.mark.parametrize("mu", [3, 20, 300])
def test_nothing_is_written_between_gradients(mu: int) -> None:
    """They begin at multiples of a cache line; what is between them has no number that a kernel might read."""
    model, between = Mlp((33, 5, 3)), np.float32(7)
    dataset, rows = data(33, 3), np.random.default_rng(2).integers(0, ROWS, (2, mu))
    engine, size = CudaEngine(model, dataset, mu), model.layout.size
    engine.allocate(2)
    engine._grads[...] = between
    engine.gradients([upload(params) for params in parameters(model, 2)], rows)
    assert engine.stride > size
    assert (np.asarray(engine._grads)[:, size:] == between).all()


@pytest.mark.parametrize(("sizes", "mu"), [((20, 30, 10), 1), ((20, 30, 10), 3), ((20, 30, 10), 8), ((20, 30, 10), 9),
                                           ((9, 8, 7, 6, 5, 4, 3), 2), ((30, 10), 4)], ids=str)  # fmt: skip
def test_windows_of_a_queue(sizes: tuple[int, ...], mu: int) -> None:
    """Five events in two windows, the rule applied in between, as one event after the other."""
    rule = RULES["std"]
    model, dataset = Mlp(sizes), data(sizes[0], sizes[-1])
    rng = np.random.default_rng(3)
    rows = rng.integers(0, ROWS, (5, mu)).astype(np.int32)
    held, kept = np.array([0, 0, 1, 2, 1]), np.array([1, 2, -1, 3, 1])
    coefficients = rng.uniform(0.1, 0.9, (5, len(rule.coefficients))).astype(np.float32)
    (start,) = parameters(model, 1)
    arrays = [start.copy(), *(np.full_like(start, 0.25) for _ in rule.state)]
    places = np.tile(start, (4, 1))
    update, oracle, losses = NumpyOperations().compile_rule(rule), GraphEngine(model.graph, dataset), []
    for begin, end in WINDOW:
        gradients, found = oracle.gradients(list(places[held[begin:end]]), rows[begin:end].astype(np.int64))
        losses.append(found)
        for event, gradient in enumerate(gradients, start=begin):
            assert update(*arrays, gradient, 0, len(start), *coefficients[event])
            if kept[event] >= 0:
                places[kept[event]] = arrays[0]
    engine = CudaEngine(model, dataset, mu)
    on_device = [upload(start), *(upload(np.full_like(start, 0.25)) for _ in rule.state)]
    executor = engine.queue_executor(rule, on_device[0], on_device[1:], 4, engine.operations.pool(len(start), Limits()))
    executor.put_places({"places": np.tile(start, (4, 1))})
    found, diverged_at = executor.advance(WINDOW, held, kept, rows, coefficients)
    assert diverged_at == 5
    same(found, np.concatenate(losses))
    same(executor.take_places()["places"], places)
    for array, expected in zip(on_device, arrays, strict=True):
        same(array, expected)


def test_the_first_event_after_which_parameters_are_not_finite() -> None:
    rule = RULES["std"]
    for mu in (2, 9):
        model, dataset = Mlp((20, 30, 10)), data(20, 10)
        engine = CudaEngine(model, dataset, mu)
        arrays = [upload(np.zeros(model.layout.size, np.float32)) for _ in range(1 + len(rule.state))]
        executor = engine.queue_executor(rule, arrays[0], arrays[1:], 2, engine.operations.pool(4, Limits()))
        coefficients = np.full((5, len(rule.coefficients)), 0.5, np.float32)
        coefficients[3] = np.inf
        nowhere = np.full(5, -1)
        rows = np.ones((5, mu), np.int32)
        assert executor.advance(WINDOW, np.zeros(5, np.int64), nowhere, rows, coefficients)[1] == 3


def test_these_cases_launch_every_kernel_of_layers(launched: set[str]) -> None:
    for sizes, mu, batches in CASES:
        dataset = data(sizes[0], sizes[-1])
        engine = CudaEngine(Mlp(sizes), dataset, mu)
        for tiles in TILES:
            launches = Launches(machine())  # never run
            engine.allocate(batches)
            with patch.multiple(layers, **tiles):
                engine.add_passes(launches, batches, held=0, rows=0, losses=0)
            engine.add_gradients(launches, batches, 0)
    families = ("dense", "gradients", "losses", "outputs")
    assert launched >= {name for family in families for name in unit_of(family).kernels}


@pytest.mark.parametrize(("sizes", "mu", "batches", "chosen"), [
    ((784, 200, 10), 128, 39, {"forward_64x32", "gradient_32"}),
    ((784, 200, 10), 32, 2, {"forward_8x16", "gradient_32"}),
    ((784, 2000, 2000, 10), 128, 12, {"forward_64x64", "propagate_64x64", "gradient_64"}),
    ((784, 2000, 2000, 10), 32, 12, {"forward_16x32", "propagate_16x32", "gradient_64"}),  # of 64 rows, 32 are empty
])  # fmt: skip
def test_tiles_that_cost_least(
    sizes: tuple[int, ...], mu: int, batches: int, chosen: set[str], launched: set[str]
) -> None:
    """On 132 multiprocessors: few minibatches are in small tiles, and tiles have few empty rows and columns."""
    space, launches = layers.Workspace(sizes, [0] * len(sizes), [0] * len(sizes)), Launches(machine())  # never run
    layers.add_forward(launches, space, batches, mu, len(sizes) - 2, held=0, rows=0, x=0)
    layers.add_backward(launches, space, batches, mu, 0)
    layers.add_gradients(launches, space, batches, mu, x=0, rows=0, out=0, sums=0, stride=0)
    assert launched - {"propagate_narrow"} == chosen


def test_a_window_has_room_for_all_that_its_minibatches_take() -> None:
    """Gradients, z and errors; of 300 samples, also the sums of three parts."""
    for mu, arrays in ((128, 1), (300, 4)):
        engine, model = CudaEngine(Mlp((33, 5, 3)), data(33, 3), mu), Mlp((33, 5, 3))
        nbytes = 4 * model.layout.size
        most = engine.fix_window(None, 10**9, nbytes)
        assert most == min(65_535, engine.window_bytes // (arrays * nbytes + 2 * 4 * mu * (5 + 3)))


def test_structures_are_read_from_the_sources() -> None:
    kernel = unit_of("gradients").kernels["gradient_64"]
    assert (kernel.threads, kernel.shared) == (128, 4 * (3 * 16 * (64 + 64) + 2 * 8 * 128 * 4 + 2 * 128))
    fields = kernel.arguments.fields
    assert fields is not None
    found = {name: (fields[name][0].base.name, fields[name][1]) for name in ("x", "at", "inputs", "rows", "mu")}
    assert found == {
        "x": ("int64", 0), "at": ("int64", 64), "inputs": ("int32", 96), "rows": ("int64", 160), "mu": ("int32", 188),
    }  # fmt: skip


@pytest.mark.skipif(not EMULATED, reason="on a device, what such a kernel gives is a matter of chance")
@pytest.mark.parametrize("number", range(5))
def test_the_emulation_sees_a_missing_barrier_and_copies_that_are_not_waited_for(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (FOLDER / "outputs.cu").read_text(encoding="utf-8")
    waits = "wait_for<STAGES - 2>();"
    parts = source.replace(waits, waits if number else "wait_for<STAGES - 1>();").split("barrier();")
    assert len(parts) == 5
    text = "".join(part + ("" if at == number else "barrier();") for at, part in enumerate(parts[:-1], start=1))
    changed = make_unit("mistaken outputs", text + parts[-1])

    def chosen(family: str) -> Unit:
        return changed if family == "outputs" else unit_of(family)

    monkeypatch.setattr(layers, "unit_of", chosen)
    model, dataset, rows = Mlp((64, 72, 10)), data(64, 10), np.arange(20).reshape(1, 20)
    held = parameters(model, 1)
    found, _ = CudaEngine(model, dataset, 20).gradients([upload(held[0])], rows)
    assert np.asarray(found).tobytes() != GraphEngine(model.graph, dataset).gradients(held, rows)[0].tobytes()
