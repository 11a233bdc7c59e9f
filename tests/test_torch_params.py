"""What clients hold becomes a module's own parameters, without a copy where that is the same: their gradients' bits."""

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import aligned
from fredsim.simulation.paths.backends import make_engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.native import params
from fredsim.native.model import TorchModel
from tests import own_modules

Array = NDArray[np.float32]
MU = 4


pytestmark = pytest.mark.usefixtures("modules")


@pytest.fixture(autouse=True)
def views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let modules of few parameters view what clients hold, as those of many do."""
    monkeypatch.setattr(params, "MANY", 0)


def engine_of(digits: Dataset, name: str) -> tuple[TorchModel, Any]:
    model = TorchModel(f"torch:own_modules:{name}", {}, "cpu", digits.shape, digits.classes, 0)
    return model, make_engine("numpy", model, digits, MU, 1)


def held_by(model: TorchModel, clients: int, misaligned: int = 0) -> list[Array]:
    rng, found = np.random.default_rng(1), []
    for _ in range(clients):
        array = aligned(model.layout.size + 1)[misaligned:][: model.layout.size]
        array[...] = model.initial_params + rng.normal(0, 0.1, array.size).astype(np.float32)
        found.append(array)
    return found


def by_copies(name: str, digits: Dataset, params: Array, rows: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return what plain PyTorch computes when the parameters are copied into the module: gradient, and losses."""
    module = getattr(own_modules, name)()
    with torch.no_grad():
        for own, part in zip(module.parameters(), np.split(params, np.cumsum(sizes(module))), strict=False):
            own.copy_(torch.from_numpy(part).view(own.shape))
    if name == "filters":
        module = module.to(memory_format=torch.channels_last)
    x = torch.from_numpy(digits.train.x[rows]).reshape(-1, *digits.shape)
    losses = torch.nn.functional.cross_entropy(module(x), torch.from_numpy(digits.train.y[rows]), reduction="none")
    losses.mean().backward()
    parts = [own.grad.contiguous().reshape(-1) for own in module.parameters()]
    return torch.cat(parts).numpy(), losses.detach().numpy()


def sizes(module: Any) -> list[int]:
    return [value.numel() for value in module.parameters()]


@pytest.mark.parametrize(
    ("name", "by_views"),
    [
        ("Large", True), ("filters", True), ("InPlace", False), ("LimitsData", False), ("KeepsData", False),
        ("KeepsFilters", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("misaligned", [0, 1])
def test_the_bits_are_those_of_copies(digits: Dataset, name: str, by_views: bool, misaligned: int) -> None:
    """And nobody but a client itself changes what it holds."""
    model, engine = engine_of(digits, name)
    assert (engine._own.by_views and len(engine._own._large) == 1) == by_views
    threads, rows = torch.get_num_threads(), np.arange(5 * MU).reshape(5, MU)
    held = held_by(model, 5, misaligned)
    before = [array.copy() for array in held]
    for chosen in ([0], [3], [1, 2], [4, 3, 0], [0]):
        found, losses = engine.gradients([held[i] for i in chosen], rows[chosen])
        for gradient, its_losses, i in zip(found, losses, chosen, strict=True):
            torch.set_num_threads(1)
            expected, expected_losses = by_copies(name, digits, before[i], rows[i])
            torch.set_num_threads(threads)
            assert gradient.tobytes() == expected.tobytes()
            assert its_losses.tobytes() == expected_losses.tobytes()
    twice, _ = engine.gradients_at_two([held[1]], [held[1]], rows[1:2])
    assert twice.tobytes() == engine.gradients([held[1]], rows[1:2])[0].tobytes()
    assert [array.tobytes() for array in held] == [array.tobytes() for array in before]
    engine.close()
    own = next(model.module.parameters()).data_ptr()
    assert not any(array.ctypes.data <= own < array.ctypes.data + array.nbytes for array in held)


@pytest.mark.parametrize(("many", "by_views"), [(6_010, True), (6_011, False)])
def test_few_parameters_are_copied(many: int, by_views: bool, digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(params, "MANY", many)
    model, engine = engine_of(digits, "Large")
    assert (model.layout.size, engine._own.by_views) == (6_010, by_views)


@pytest.mark.parametrize(
    ("path", "server"), [("fused", "asgd"), ("snapshots", "asgd"), ("snapshots", "fedbuff"), ("snapshots", "sync")]
)
def test_measures_change_nothing_that_clients_hold(path: str, server: str, simulate: Any) -> None:
    """Clients hold one version, which the module's parameters view when a row computes gradients elsewhere."""
    base = {"clients": {"count": 8, "batch_size": 20}, "path": path, "iterations": 20, "threads": 1}
    base |= {"server": {"name": server, "lr": 0.1} | ({"buffer": 3} if server == "fedbuff" else {})}
    base |= {"model": {"name": "torch:own_modules:Large", "numerics": "native"}}
    without = simulate(base | {"evaluation": {"every": 1}})
    measured = simulate(base | {"evaluation": {"every": 1, "gradient_norm": True}})
    assert measured.summary["digest"] == without.summary["digest"]
    assert list(measured.metrics["validation_loss"]) == list(without.metrics["validation_loss"])


def test_a_module_that_comes_back_lies_where_it_was_made(digits: Dataset) -> None:
    """As after a device on which it cannot be computed; it may know that memory by another name."""
    model = TorchModel("torch:own_modules:KeepsData", {}, "cpu", digits.shape, digits.classes, 0)
    model.device = torch.device("meta")  # for one on which PyTorch has put copies
    for value in model.module.parameters():
        value.data = value.data + 1
    model.move("cpu")
    known, weight = model.module.known[0], model.module.first.weight
    assert known.data_ptr() == weight.data_ptr() == model.own_memory["first.weight"].data_ptr()
    assert torch.equal(known, torch.from_numpy(model.initial_params[:5120]).view(80, 64) + 1)


@pytest.mark.parametrize("name", ["Large", "filters", "KeepsData"])
def test_engines_take_turns_with_a_module(digits: Dataset, name: str) -> None:
    """As the one of minibatches and the one of single samples do, of which only one may view what clients hold."""
    model, first = engine_of(digits, name)
    second: Any = make_engine("numpy", model, digits, 1, 1)
    held, rows = held_by(model, 3), np.arange(3 * MU).reshape(3, MU)
    for views in (None, True, False):
        if views is not None:
            first._own.by_views, second._own.by_views = views and name != "KeepsData", False
        for i in (0, 1, 2, 0):
            before = [one.copy() for one in held]
            for engine, j, some in ((first, i, rows[i]), (second, (i + 1) % 3, rows[i][:1])):
                (found,), _ = engine.gradients([held[j]], some[None])
                expected, _ = by_copies(name, digits, before[j], some)
                assert found.tobytes() == expected.tobytes()
                assert [one.tobytes() for one in held] == [one.tobytes() for one in before]
    second.close()
    (found,), _ = first.gradients([held[1]], rows[1:2])
    assert found.tobytes() == by_copies(name, digits, held[1], rows[1])[0].tobytes()


def test_a_module_that_writes_to_what_a_client_holds_later_is_refused(digits: Dataset) -> None:
    model, engine = engine_of(digits, "InPlaceLater")
    sums = digits.train.x.sum(axis=1)
    bright = np.argsort(-sums)[:MU]
    assert sums[:MU].sum() < 90 < sums[bright].sum()
    engine.gradients(held_by(model, 1), np.arange(MU)[None])
    with pytest.raises(ConfigError, match="InPlaceLater changes its parameters in place in some forward passes"):
        engine.gradients(held_by(model, 1), bright[None])


@pytest.mark.parametrize("new", [lambda size: np.zeros(size, np.float32), aligned], ids=["its own", "aligned"])
def test_what_a_client_held_is_not_kept(digits: Dataset, new: Callable[[int], Array]) -> None:
    """As of a worker of a live run, which gets other arrays for each task."""
    model, engine = engine_of(digits, "Large")
    known, rows = [], np.arange(MU)[None]
    for _ in range(6):
        array = new(model.layout.size)
        array[...] = model.initial_params
        known.append(weakref.ref(array if array.base is None else array.base))
        engine.gradients([array], rows)
        del array
    engine.gradients(held_by(model, 1), rows)  # the module's own parameters view the last one
    assert [one() for one in known] == [None] * 6
    assert len(engine._own._views) <= 2


def test_shares_of_samples_are_what_a_mean_gives_them() -> None:
    for count in (*range(1, 300), 1000, 4095, 60000):
        losses = torch.ones(count, requires_grad=True)
        (expected,) = torch.autograd.grad(losses.mean(), losses)
        assert torch.equal(torch.full((count,), 1 / count), expected)
