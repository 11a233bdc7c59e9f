"""Arrays and tensors that a user's code hands over: of odd types, in odd orders, in memory that it uses again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import fredsim
from fredsim.compute.metrics import Metrics, OwnMetric
from fredsim.compute.storage import Limits
from fredsim.data.datasets import Dataset, read_dataset
from fredsim.data.npy_datasets import load_folder
from fredsim.data.own import load_own
from fredsim.data.targets import Targets, fitted
from fredsim.data.torch_rows import TorchRows
from fredsim.errors import ConfigError, DataError
from fredsim.networks.own_loss import ArrayLoss
from fredsim.numerics.arrays import aligned
from fredsim.numerics.ops.draws import Keys
from fredsim.servers.asgd import ASGD
from fredsim.simulation.paths.backends import make_engine, make_operations

X = np.arange(80, dtype=np.float32).reshape(20, 4) / 8
ANY = Targets("any")


@pytest.fixture
def model_of(modules: None, digits: Dataset) -> Callable[..., Any]:
    """Return what makes a native module of own_modules; the test is skipped without PyTorch."""
    del modules
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever importing it says
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    from fredsim.native.model import TorchModel, TorchOptions

    def made(name: str, loss: Any = None, buffers: Any = None, **hyper: Any) -> Any:
        options = TorchOptions(buffers=buffers)
        return TorchModel(f"torch:own_modules:{name}", hyper, "cpu", digits.shape, digits.classes, 0, loss, options)

    return made


def made_of(dense: Any, x: Any) -> Any:
    """Return what a dense layer of PyTorch's makes of images, in float64."""
    weight, bias = (value.detach().numpy().astype(np.float64) for value in (dense.weight, dense.bias))
    return x.astype(np.float64) @ weight.T + bias


@pytest.mark.parametrize("how", ["negated", "differentiated", "in_one_room"])
def test_outputs_are_those_of_each_sample(how: str, digits: Dataset, model_of: Callable[..., Any]) -> None:
    """Outputs that are views of negated numbers, or differentiated, or of which a block is in the memory of another."""
    model, data, seen = model_of("Handed", how=how), replace(digits, validation=digits.train), []

    def sight(output: Any, y: Any) -> float:
        seen.append(output)
        return float((output.argmax(axis=1) != y).mean())

    engine = make_engine("numpy", model, data, 4, 1)
    found = Metrics([OwnMetric("own", "own", sight, {})], data, engine, test=False)(model.initial_params)
    expected = made_of(model.module.dense, digits.train.x)
    assert np.allclose(seen[0], expected, rtol=1e-4, atol=1e-5)
    assert found["own"] == (expected.argmax(axis=1) != digits.train.y).mean()
    assert engine.evaluate(model.initial_params, "validation")[1] == found["own"]
    engine.close()


@pytest.mark.parametrize(("how", "bits"), [("negated", 0), ("bfloat16", 2.0**-7), ("float16", 2.0**-9)])
def test_losses_of_other_types(how: str, bits: float, digits: Dataset, model_of: Callable[..., Any]) -> None:
    """A loss of the user's own as a view of negated numbers has its bits; one of a short type is only rounded."""
    from fredsim.native.own_loss import OwnLoss

    kinds = {"mean": OwnLoss("own_modules:handed_loss"), "own": OwnLoss("own_modules:handed_loss", {"how": how})}
    rows, found = np.arange(8).reshape(2, 4), {}
    for kind, loss in kinds.items():
        model = model_of("dense", loss)
        engine = make_engine("numpy", model, digits, 4, 1)
        grads, losses = engine.gradients([model.initial_params] * 2, rows)
        found[kind] = [grads.copy(), losses.copy(), np.array(engine.evaluate(model.initial_params, "validation")[:1])]
        engine.close()
    for ours, its in zip(*found.values(), strict=True):
        assert np.abs(its - ours).max() <= bits * np.abs(ours).max()


def test_outputs_in_one_room_of_parameters_by_another_name(digits: Dataset, model_of: Callable[..., Any]) -> None:
    """Whether a module reads its own memory is found out from two outputs, which were one tensor."""
    model = model_of("Handed", how="known_in_one_room")
    engine = make_engine("numpy", model, digits, 4, 1)
    params = 2 * model.initial_params
    weight, bias = (part.astype(np.float64) for part in np.split(params, [640]))
    expected = (digits.validation.x @ weight.reshape(10, 64).T + bias) * (1 + np.mean(weight**2))
    ((_, found),) = engine.outputs(params, "validation")
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)
    engine.close()


@pytest.mark.parametrize("views", [False, True])
def test_a_gradient_that_is_another_parameter(
    views: bool, digits: Dataset, model_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be where the client holds it, and there the next parameters are written while they are computed."""
    from fredsim.native import params
    from fredsim.native.engine import TorchEngine

    for name in ("MANY", "LARGE") if views else ():
        monkeypatch.setattr(params, name, 0)
    model, operations = model_of("Crossed"), make_operations("numba", 1)
    engine = TorchEngine(model, digits, 4, 1, operations)
    engine.fix_window(None, 1)
    assert engine._own.by_views == views
    theta, here = aligned(model.layout.size), np.zeros(1, np.int64)
    theta[...] = model.initial_params
    executor = engine.queue_executor(ASGD.rule, theta, [], 1, operations.pool(len(theta), Limits()))
    executor.advance([(0, 1)], here, here, np.arange(4, dtype=np.int32)[None], np.full((1, 1), 0.5, np.float32))
    executor.update_server()
    assert theta[:8].tolist() == (np.arange(8) - 2).tolist()
    assert theta[8:16].tolist() == (4 - np.arange(8) / 2).tolist()
    engine.close()


def test_statistics_in_one_room_are_each_clients_own(digits: Dataset, model_of: Callable[..., Any]) -> None:
    model = model_of("in_one_room", buffers="averaged")
    engine, rows = make_engine("numpy", model, digits, 4, 1), np.arange(12).reshape(3, 4)
    engine.statistics.begin()
    engine.gradients([model.initial_params] * 3, rows, Keys(0, np.array([0, 1, 0]), np.array([0, 0, 1])))
    first, second, third = (digits.train.x[own].astype(np.float64).mean(axis=0) for own in rows)
    for client, expected in ((0, (first / 2 + third) / 2), (1, second / 2)):
        assert np.allclose(engine.statistics.of(client)[0], expected, atol=1e-6)
    engine.close()


@pytest.mark.parametrize(("how", "says"), [("repeated", "share memory with each other"), ("negated", "are negated")])
def test_parameters_that_nobody_can_write(how: str, says: str, model_of: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=rf"has a parameter 'scale' whose numbers {says}.*; give \.clone\(\)"):
        model_of("Stretched", how=how)
    assert model_of("Stretched", how=how, trained=False).frozen == ("scale",)


@pytest.mark.parametrize("trained", [None, False])
@pytest.mark.parametrize("how", ["repeated", "negated"])
def test_a_captured_module_may_have_others(
    how: str, trained: bool | None, digits: Dataset, model_of: Callable[..., Any]
) -> None:
    """A buffer, or a parameter that stays as it is, of such numbers."""
    from fredsim.native.portable import captured
    from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy

    model = model_of("Stretched", how=how, trained=trained)
    network = captured(model, digits, CrossEntropy(), chosen=True)
    assert network.graph is not None
    passed = network.graph.forward(network.values, digits.test.x.reshape(-1, 1, 8, 8))
    assert np.allclose(passed.output, 2 * made_of(model.module.dense, digits.test.x), rtol=1e-4, atol=1e-5)


def test_weights_beside_a_buffer_of_conjugates(digits: Dataset, model_of: Callable[..., Any], tmp_path: Path) -> None:
    from fredsim.native.model import TorchModel, TorchOptions

    weights = {"dense.weight": np.full((10, 64), 0.5, np.float32), "dense.bias": np.arange(10, dtype=np.float32)}
    save_file(weights, tmp_path / "w.safetensors")
    options, name = TorchOptions(initial=str(tmp_path / "w.safetensors")), model_of("Stretched", how="conjugate").name
    model = TorchModel(name, {"how": "conjugate", "trained": None}, "cpu", digits.shape, 10, 0, None, options)
    assert model.initial_params.tolist() == [0.5] * 640 + [*range(10)]


class TwoInOne:
    """A server that computes in float64, and hands over its parameters, and their average, in the same array."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def init(self, params: Any, clients: int) -> None:
        self.theta, self.mean, self.room = params.astype(np.float64), params.astype(np.float64), params.copy()

    def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
        self.theta -= self.lr * grad
        self.mean += (self.theta - self.mean) / 2

    @property
    def params(self) -> Any:
        self.room[...] = self.theta
        return self.room

    @property
    def averaged_params(self) -> Any:
        self.room[...] = self.mean
        return self.room


class Apart(TwoInOne):
    """The same, in arrays of their own."""

    params = property(lambda self: self.theta.astype(np.float32))
    averaged_params = property(lambda self: self.mean.astype(np.float32))


class ThreeInOne(TwoInOne):
    """Hands over what a client fetches in the same array, too."""

    def fetch(self, client_id: int) -> Any:
        self.room[...] = self.theta + 0.01 * client_id
        return self.room


class AllApart(Apart):
    """The same, in arrays of their own."""

    def fetch(self, client_id: int) -> Any:
        return (self.theta + 0.01 * client_id).astype(np.float32)


@pytest.mark.parametrize("kinds", [(TwoInOne, Apart), (ThreeInOne, AllApart)])
def test_parameters_and_their_average_in_one_array(
    kinds: tuple[type, type], digits_experiment: dict[str, Any], tmp_path: Path
) -> None:
    found = {}
    for kind in kinds:
        server = {"name": f"{__name__}:{kind.__name__}", "lr": 0.05}
        changed = {**digits_experiment, "server": server, "iterations": 40}
        folder = fredsim.run(changed, out=tmp_path / kind.__name__).folder
        found[kind] = [(folder / name).read_bytes() for name in ("params.safetensors", "params_raw.safetensors")]
    assert found[kinds[0]] == found[kinds[1]]
    assert len({*found[kinds[0]]}) == 2


def test_a_loss_of_arrays_gets_them_in_one_order() -> None:
    """Whoever computes it: a sum over several axes may have other bits in another order."""
    z, y = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(24).reshape(2, 3, 4)
    seen: list[Any] = []

    def squared(output: Any, target: Any) -> Any:
        seen.extend([output, target])
        return ((output - target) ** 2).sum(axis=(1, 2)), 2 * (output - target)

    loss = ArrayLoss.of("own:squared", {})
    loss.__dict__["called"] = squared
    loss.losses(np.asfortranarray(z), np.asfortranarray(y))
    assert all(one.flags.c_contiguous for one in seen)
    assert [one.tolist() for one in seen] == [z.tolist(), y.tolist()]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Return what writes the arrays of an NPZ file or, if `folder`, of a folder of NPY files, and returns its name."""

    def write(*, folder: bool = False, **arrays: Any) -> str:
        path = tmp_path / ("arrays" if folder else "arrays.npz")
        if not folder:
            np.savez(path, **arrays)
            return f"npz:{path}"
        path.mkdir()
        for name, one in arrays.items():
            np.save(path / f"{name}.npy", one)
        return f"npy:{path}"

    return write


def test_integers_beyond_int64_are_no_targets(saved: Callable[..., str]) -> None:
    """With a loss of the user's own they became negative numbers."""
    y = np.arange(20, dtype=np.uint64)
    y[3] += np.uint64(2**63)
    name = saved(x_train=X, y_train=y, x_test=X[:2], y_test=y[:2])
    says = "row 3 holds integers from 0 to 9223372036854775811; int64 does not hold them"
    with pytest.raises(DataError, match=f"arrays.npz: y of train rows: {says}"):
        fitted(read_dataset(name, None, None, Path()), ANY, name)

    class Own:
        shape, dtype = (4,), "float32"

        def len(self, part: str) -> int:
            return 20 if part == "train" else 0

        def rows(self, part: str, numbers: Any) -> Any:
            return X[numbers], y[numbers]

    with own_class(Own) as own, pytest.raises(DataError, match=f"{own}: y of train rows: {says}"):
        load_own(own, {}, None, None)


class own_class:  # noqa: N801  used as a function is
    """Let a class be found as a user's in a `with` block, under the name that this gives."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __enter__(self) -> str:
        globals()["Found"] = self._kind
        return f"python:{__name__}:Found"

    def __exit__(self, *error: object) -> None:
        del globals()["Found"]


@pytest.mark.parametrize("folder", [False, True])
def test_no_rows_to_test_on_have_no_type(folder: bool, saved: Callable[..., str]) -> None:
    read = load_folder if folder else read_dataset
    name = saved(folder=folder, x_train=X, y_train=np.arange(20) % 3, x_test=X[:0], y_test=np.array([]))
    found = read(name, None, None, Path())
    assert (found.classes, len(found.train), len(found.test), found.test.y.dtype) == (3, 17, 0, np.int64)


def test_neither_have_they_a_shape(saved: Callable[..., str]) -> None:
    name = saved(x_train=X, y_train=X[:, :2], x_test=np.array([]), y_test=np.array([]))
    found = fitted(read_dataset(name, None, None, Path(), numbers=True), Targets("numbers"), name)
    assert (found.test.x.shape, found.test.y.shape) == ((0, 4), (0, 2))
    name = saved(x_train=X, y_train=X[:, :2], x_test=X[:2], y_test=np.array([]))
    with pytest.raises(DataError, match=r"x_test has shape \(2, 4\) and y_test \(0,\)"):
        read_dataset(name, None, None, Path(), numbers=True)


def test_targets_in_the_order_of_columns(saved: Callable[..., str]) -> None:
    y = np.arange(40).reshape(20, 2)
    name = saved(x_train=X, y_train=np.asfortranarray(y), x_test=X[:2], y_test=y[:2])
    found = fitted(read_dataset(name, 20, 0, Path()), ANY, name)
    assert found.train.y.flags.c_contiguous
    assert found.train.y.tolist() == y.tolist()


def test_items_of_a_data_set_in_one_memory() -> None:
    """As of one that reads each sample into the same array."""
    room = np.empty(4, np.float32)

    class Items:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, number: int) -> Any:
            room[...] = X[number]
            return room, number % 3

    x, y = TorchRows("own", Items, {}).rows("train", np.array([7, 2, 11]))
    assert x.tolist() == X[[7, 2, 11]].tolist()
    assert y.tolist() == [1, 2, 2]


def test_items_of_another_byte_order() -> None:
    made = TorchRows("own", lambda: [(row, 0) for row in X.astype(">f4")], {})
    x, _ = made.rows("train", np.array([7, 2]))
    assert (x.dtype, x.tolist()) == (made.dtype, X[[7, 2]].tolist())
