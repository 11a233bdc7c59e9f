"""Runs with a loss of the key `loss`: what they compute, which targets they take, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.document import read_document
from fredsim.config.experiment import Experiment
from fredsim.data import own
from fredsim.data.datasets import load_dataset, read_dataset
from fredsim.data.targets import Targets, brought_together, fitted
from fredsim.errors import ConfigError, DataError
from fredsim.runs.folder.result import Result
from tests.conftest import HAS_CUDA
from tests.random_experiments import measured
from tests.test_random_experiments import FEW_WAYS, compare

Simulate = Callable[..., Result]
Refused = Callable[..., None]
RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 4)).astype(np.float32)
TARGETS: dict[str, Any] = {
    "numbers": np.sin(X @ np.array([1.0, -2, 0.5, 0])),
    "grid": np.stack([X, X**2], axis=1),
    "several": (X[:, :3] > 0.2).astype(int),
    "shares": (X[:, :3] > 0.2) * 0.75,
    "some": np.where(X[:, 0] > 1, -100, (X[:, 1] > 0).astype(int)),
    "places": (X[:, :2] > 0).astype(int) + (X[:, 1:3] > 0),
}
MODULES = """
import random
import torch
from torch import nn

def net(classes, shape):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Tanh(), nn.Linear(8, classes))

def alone(shape):
    return nn.Sequential(nn.Linear(shape[0], 1), nn.Flatten(0))

def wide():
    return nn.Linear(4, 7)

def places():
    return nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))

def channels():
    return nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)))

def squared(output, y, scale=1.0):
    return scale * (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(dim=1)

def classes(output, y):
    assert y.dtype == torch.int64
    return nn.functional.cross_entropy(output, y, reduction="none")

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, output, y):
        return self.scale * squared(output, y)

scaled = Scaled()

def by_scaled(output, y):
    return scaled(output, y)

def summed_up(output, y):
    return torch.zeros(len(y), requires_grad=True) + squared(output, y)

def mean(output, y):
    return squared(output, y).mean()

def fails(output, y):
    raise RuntimeError("on purpose")

def exits(output, y):
    raise SystemExit(0)

def overwriting(output, y):
    found = squared(output, y)
    y.zero_()
    return found

def unrelated(output, y):
    return torch.ones(len(y), requires_grad=True)

def detached(output, y):
    return squared(output.detach(), y)

def infinite(output, y):
    return squared(output, y) / 0.0

def noisy(output, y):
    return squared(output + torch.rand_like(output), y)

def shuffling(output, y):
    return squared(output, y) * random.random()

def strict(output, y):
    if not output.isfinite().all():
        raise ValueError("as distributions of PyTorch do")
    return squared(output, y)

generator = torch.Generator()

def its_own(output, y):
    return squared(output, y) * torch.rand(1, generator=generator)

def apart(output, y):
    return (output - y).square().mean(dim=1)

def apart_all(output, y):
    return (output - y).square().flatten(1).mean(dim=1) if y.dim() > 1 or output.dim() > 1 else (output - y).square()

def indexed(output, y):
    return (output[:, 0] - y).square()

def last(output, y):
    return (output[..., 0] - y).square()

def summed(output, y):
    return (output.sum(-1) - y).square()

def pairs(output, y):
    z = output.flatten()
    return nn.functional.softplus((z - z[:, None]) * (y[:, None] - y).sign()).mean(dim=1)

def column(shape):
    return nn.Linear(shape[0], 1)

def dropped(shape):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.Dropout(0.5), nn.Linear(8, 1))

def one(output):
    return output

constant = 7
"""


@pytest.fixture(autouse=True)
def files(small_yaml: Path) -> None:
    """Write the arrays, each as NAME.npz, and a user's modules into a new current folder."""
    del small_yaml
    for name, y in TARGETS.items():
        np.savez(f"{name}.npz", x_train=X[:70], y_train=y[:70], x_test=X[70:], y_test=y[70:])
    Path("mine.py").write_text(MODULES, encoding="utf-8")


def changed(name: str, loss: Any, **changes: Any) -> dict[str, Any]:
    server = {"name": "asgd", "lr": 0.02}
    return {"data": {"name": f"npz:{name}.npz"}, "loss": loss, "iterations": 20, "server": server, **changes}


def outputs_of(result: Result, x: Any) -> Any:
    """Return what an MLP with one hidden layer, or none, gives in float64."""
    params = {name: value.astype(np.float64) for name, value in result.params.items()}
    for layer in range(1, len(params) // 2 + 1):
        x = (x if layer == 1 else np.maximum(x, 0)) @ params[f"W{layer}"] + params[f"b{layer}"]
    return x


def log_p(z: Any) -> Any:
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def of_classes(z: Any, y: Any, smoothing: float = 0.0, ignored: int | None = None) -> Any:
    log, counts = log_p(z), y != ignored
    own = np.take_along_axis(log, np.where(counts, y, 0)[..., None], -1)[..., 0]
    each = np.where(counts, -(1 - smoothing) * own - smoothing * log.mean(axis=-1), 0.0).reshape(len(y), -1)
    return (each.sum(axis=1) / np.maximum(counts.reshape(len(y), -1).sum(axis=1), 1)).mean()


def of_logits(z: Any, y: Any) -> Any:
    return (-(y * np.log(1 / (1 + np.exp(-z))) + (1 - y) * np.log(1 - 1 / (1 + np.exp(-z))))).mean()


LOSSES: dict[str, tuple[str, Any, Callable[[Any, Any], Any]]] = {
    "numbers": ("numbers", "mse", lambda z, y: ((z[:, 0] - y) ** 2).mean()),
    "grid": ("grid", "mse", lambda z, y: ((z.reshape(y.shape) - y) ** 2).mean()),
    "integers as numbers": ("several", {"name": "mse"}, lambda z, y: ((z - y) ** 2).mean()),
    "several": ("several", "bce", of_logits),
    "shares": ("shares", "bce", of_logits),
    "smoothed": ("several", {"name": "cross_entropy", "label_smoothing": 0.2},
                 lambda z, y: of_classes(z.reshape(-1, 3, 2), y, 0.2)),
    "ignored": ("some", {"name": "cross_entropy", "ignore_index": -100}, lambda z, y: of_classes(z, y, 0.0, -100)),
    "places": ("places", "cross_entropy", lambda z, y: of_classes(z.reshape(-1, 2, 3), y)),
}  # fmt: skip


@pytest.mark.parametrize("hidden", [[], [5]], ids=str)
@pytest.mark.parametrize(("name", "loss", "expected"), LOSSES.values(), ids=LOSSES)
def test_validation_loss(
    name: str, loss: Any, expected: Callable[[Any, Any], Any], hidden: list[int], simulate: Simulate
) -> None:
    result = simulate(changed(name, loss, model={"hidden": hidden}, backend="numpy"))
    rows = slice(70 - 11, 70)  # the last sixth
    want = expected(outputs_of(result, X[rows].astype(np.float64)), TARGETS[name][rows])
    assert result.summary["validation_loss"] == pytest.approx(want, rel=1e-5)
    assert (result.summary["validation_error"] is None) == ("mse" in str(loss))
    assert result.summary["validation_loss"] < result.metrics["validation_loss"][0]


@pytest.mark.parametrize(("name", "loss", "expected"), LOSSES.values(), ids=LOSSES)
def test_every_backend_has_the_same_bits(name: str, loss: Any, expected: object, simulate: Simulate) -> None:
    del expected
    one, other = (simulate(changed(name, loss, backend=backend)).metrics for backend in ("numpy", "numba"))
    assert one.to_csv() == other.to_csv()


def test_error_of_several_labels(simulate: Simulate) -> None:
    result = simulate(changed("several", "bce", backend="numpy"))
    wrong = (outputs_of(result, X[59:70].astype(np.float64)) > 0) != (TARGETS["several"][59:70] > 0)
    assert result.summary["validation_error"] == pytest.approx(wrong.mean())


def test_a_step_of_least_squares(simulate: Simulate) -> None:
    result = simulate(changed("numbers", "mse", model={"hidden": [], "init": "zeros"}, iterations=1,
                              clients={"count": 1, "batch_size": 2}, backend="numpy"))  # fmt: skip
    step = 0.02 * 2 * (X[:2] * TARGETS["numbers"][:2, None]).mean(axis=0)  # gradient of (w·x − y)² at 0
    np.testing.assert_allclose(result.params["W1"][:, 0], step, rtol=1e-5)


LINEAR: dict[str, tuple[str, Any, int]] = {
    "regression": ("numbers", "mse", 1), "a grid": ("grid", "mse", 8), "labels": ("several", "bce", 3),
    "classes": ("digits", "cross_entropy", 10),
}  # fmt: skip


@pytest.mark.parametrize(("name", "loss", "outputs"), LINEAR.values(), ids=LINEAR)
def test_a_linear_model_is_a_dense_layer_without_a_bias(name: str, loss: Any, outputs: int, simulate: Simulate) -> None:
    data = {} if name != "digits" else {"data": {"name": name}}
    one = {"clients": {"count": 1, "batch_size": 4}, "iterations": 1, "backend": "numpy"} | data
    linear = simulate(changed(name, loss, model={"name": "linear", "init": "zeros"}) | one)
    dense = simulate(changed(name, loss, model={"hidden": [], "init": "zeros"}) | one)
    assert linear.params.keys() == {"W1"}
    assert linear.params["W1"].shape[1] == outputs
    np.testing.assert_array_equal(linear.params["W1"], dense.params["W1"])  # as the biases are 0 at first
    ways = [simulate(changed(name, loss, model={"name": "linear", "init": "normal"}, backend=backend) | data)
            for backend in ("numpy", "numba")]  # fmt: skip
    assert ways[0].metrics.to_csv() == ways[1].metrics.to_csv()
    assert "gap" not in ways[0].metrics
    assert ways[0].summary["validation_loss"] < ways[0].metrics["validation_loss"][0]
    assert "loss" not in ways[0].config["model"]


def test_nothing_changes_without_the_key(simulate: Simulate) -> None:
    usual, given = simulate({}), simulate({"loss": "cross_entropy"})
    assert "loss" not in read_document(usual.folder / "config.yaml").data
    assert "metrics" not in {**usual.config["evaluation"], **usual.summary}
    assert (usual.summary["digest"], usual.summary["path"]) == (given.summary["digest"], given.summary["path"])
    assert read_document(given.folder / "config.yaml").data["loss"]["name"] == "cross_entropy"


def test_bytes_whose_targets_are_as_many_bytes_are_images() -> None:
    images = RNG.integers(0, 256, (20, 6)).astype(np.uint8)
    np.savez("coded.npz", x_train=images, y_train=images, x_test=images[:4], y_test=images[:4])
    assert load_dataset("npz:coded.npz", None, None, Path()).sequences
    pixels = read_dataset("npz:coded.npz", None, None, Path(), numbers=True)
    found = fitted(pixels, Targets("numbers"), "npz:coded.npz")
    assert not found.sequences
    np.testing.assert_array_equal(found.train.x, images[:17].astype(np.float32) / np.float32(255))
    np.testing.assert_array_equal(found.train.y, images[:17].astype(np.float32))


def saved(name: str, **arrays: Any) -> None:
    """Save arrays as NAME.npz, and as the folder NAME of NPY files."""
    np.savez(f"{name}.npz", **arrays)
    Path(name).mkdir()
    for key, array in arrays.items():
        np.save(f"{name}/{key}.npy", array)


READ = """
import numpy as np

class Rows:
    def __init__(self, file, classes=0):
        self.arrays = np.load(file)
        self.shape, self.dtype = self.arrays["x_train"].shape[1:], self.arrays["x_train"].dtype
        if classes:
            self.classes = classes

    def len(self, part):
        return len(self.arrays[f"y_{part}"]) if part != "validation" else 0

    def rows(self, part, numbers):
        return self.arrays[f"x_{part}"][numbers], self.arrays[f"y_{part}"][numbers]

class Items:
    def __init__(self, file, train=True):
        arrays = np.load(file)
        self.x, self.y = (arrays[f"{letter}_{'train' if train else 'test'}"] for letter in "xy")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return self.x[number], self.y[number]
"""


def ways(name: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Return the ways in which arrays that were saved can be read."""
    file = {"file": f"{name}.npz"}
    return {
        "npz": {"name": f"npz:{name}.npz"},
        "npy": {"name": f"npy:{name}"},
        "python": {"name": "python:read:Rows", **file, **more},
        "torch": {"name": "torch:read:Items", **file},
    }


@pytest.fixture(params=[2**28, 0], ids=["in memory", "on demand"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep data sets in memory, or read them on demand; have the classes that read them."""
    for module in ("own", "npy"):
        monkeypatch.setattr(f"fredsim.data.{module}.MOST_IN_MEMORY", request.param)
    own._load.cache_clear()
    Path("read.py").write_text(READ, encoding="utf-8")


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("classes", [{}, {"classes": 7}], ids=["unknown", "known"])
def test_a_label_that_does_not_count_in_sequences(classes: dict[str, int], simulate: Simulate) -> None:
    """As Hugging Face's -100: the same numbers as with -1, which is ours."""
    rng, arrays = np.random.default_rng(4), dict[str, Any]()
    for part, count in (("train", 40), ("test", 9)):
        arrays[f"x_{part}"], y = rng.integers(0, 7, (count, 5)), rng.integers(-1, 7, (count, 5))
        arrays[f"y_{part}"] = np.where(y < 0, -100, y)
    saved("hugging", **arrays)
    saved("ours", **{key: np.where(array < 0, -1, array) for key, array in arrays.items()})
    changes = {
        "iterations": 6,
        "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
        "evaluation": {"test": True},
    }
    expected = simulate({**changes, "data": {"name": "npz:ours.npz"}})
    loss = {"name": "cross_entropy", "ignore_index": -100}
    for data in ways("hugging", **classes).values():
        found = simulate({**changes, "data": data, "loss": loss})
        assert found.metrics.to_csv() == expected.metrics.to_csv(), data
        with pytest.raises(DataError, match="-100"):
            simulate({**changes, "data": data})
    for data in ways("ours", **classes).values():  # which then does not say which does not count
        with pytest.raises(DataError, match="-1"):
            simulate({**changes, "data": data, "loss": loss})


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64])
@pytest.mark.parametrize("more", [{}, {"scale": "none"}], ids=["scaled", "as they are"])
@pytest.mark.parametrize("shape", [(6,), (2, 3)])
def test_bytes_whose_targets_have_their_shape(
    shape: tuple[int, ...], more: dict[str, str], dtype: Any, simulate: Simulate
) -> None:
    """Those of an autoencoder are bytes, of whatever type its targets are, and by whatever they are read."""
    images = np.random.default_rng(1).integers(0, 256, (40, *shape)).astype(np.uint8)
    x, y = {"x_train": images[:30], "x_test": images[30:]}, {"y_train": images[:30] // 2, "y_test": images[30:] // 2}
    saved("coded", **x, **{key: array.astype(dtype) for key, array in y.items()})
    plain = {key: array / np.float32(1 if more else 255) for key, array in x.items()}
    saved("plain", **plain, **{key: array.astype(np.float32) for key, array in y.items()})
    changes = {"iterations": 4, "loss": "mse", "server": {"name": "asgd", "lr": 1e-7}}
    expected = simulate({**changes, "data": {"name": "npz:plain.npz"}})
    for data in ways("coded").values():
        found = simulate({**changes, "data": data | more})
        assert found.metrics.to_csv() == expected.metrics.to_csv(), data


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("signs", ["of all", "of those to test on", "of none"])
def test_integers_whose_targets_are_integers_that_no_class_is(signs: str, simulate: Simulate) -> None:
    """They are numbers, also where some could be tokens, and by whatever they are read."""
    rng = np.random.default_rng(1)
    least, most = (-5, 2**40) if signs == "of all" else (0, 9)
    x, y = rng.integers(0, 9, (40, 3)), rng.integers(least, most, (40, 3))
    y[35] = -7
    y[:3, 0] = most
    targets: Any = abs(y).astype(np.uint64) + np.uint64(2**63) if signs == "of none" else y
    given = {"x_train": x[:30], "y_train": targets[:30], "x_test": x[30:], "y_test": targets[30:]}
    saved("counts", **given)
    saved("plain", **{key: array.astype(np.float32) for key, array in given.items()})
    changes = {"iterations": 4, "loss": "mse", "server": {"name": "asgd", "lr": 1e-7}, "evaluation": {"test": True}}
    expected = simulate({**changes, "data": {"name": "npz:plain.npz"}})
    for data in ways("counts").values():
        found = simulate({**changes, "data": data})
        assert found.metrics.to_csv() == expected.metrics.to_csv(), data


def test_bytes_whose_targets_have_their_shape_are_normalized(simulate: Simulate) -> None:
    images = np.random.default_rng(1).integers(0, 256, (40, 6)).astype(np.uint8)
    saved("coded", x_train=images[:30], y_train=images[:30], x_test=images[30:], y_test=images[30:])
    numbers = {"normalize": {"mean": 0.5, "std": 0.25}}
    data = Experiment.model_validate(
        {"data": {"name": "npz:coded.npz", **numbers}, "model": {"hidden": [4]}, "loss": "mse", "iterations": 1,
         "clients": {"count": 2, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.1}}
    ).load(Path())  # fmt: skip
    x = images[:25].astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(data.train.x, (x - np.float32(0.5)) / np.float32(0.25))
    with pytest.raises(ConfigError, match=r"data\.normalize is given, and the samples are tokens; leave it out"):
        simulate({"data": {"name": "npz:coded.npz", **numbers}})


def test_bytes_beside_other_integers(simulate: Simulate) -> None:
    numbers = np.random.default_rng(1).integers(0, 256, (40, 6))
    saved(
        "mixed", x_train=numbers[:30], y_train=numbers[:30], x_test=numbers[30:].astype(np.uint8), y_test=numbers[30:]
    )
    with pytest.raises(DataError, match=r"^mixed.npz: x_train holds int64 and x_test uint8; save both as bytes"):
        simulate({"data": {"name": "npz:mixed.npz"}, "loss": "mse"})


@pytest.mark.usefixtures("kept")
def test_masks_of_images_by_own_classes() -> None:
    """A class for each pixel of a grey image: the pixels are bytes, not tokens."""
    images = np.random.default_rng(1).integers(0, 256, (40, 2, 3)).astype(np.uint8)
    masks = images // np.uint8(90)
    saved("masks", x_train=images[:30], y_train=masks[:30], x_test=images[30:], y_test=masks[30:])
    targets = Targets("classes", positions=True)
    for way, data in ways("masks").items():
        if way in {"python", "torch"}:
            found = fitted(own.load_own(data["name"], {"file": data["file"]}, None, None), targets, data["name"])
            assert (found.classes, found.sequences, found.train.divisor) == (3, False, 255)
            x, y = found.train.rows(slice(0, 4))
            np.testing.assert_array_equal(x, images[:4].reshape(4, 6).astype(np.float32) / np.float32(255))
            np.testing.assert_array_equal(y, masks[:4])


@pytest.mark.usefixtures("kept")
def test_classes_are_not_those_of_tokens_with_one_label_each() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 50, (40, 6)), rng.integers(0, 2, 40)
    saved("words", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    found = own.load_own("python:read:Rows", {"file": "words.npz", "classes": 2}, None, None)
    assert (found.classes, found.train.x.dtype, found.train.x[:2].tolist()) == (2, np.int32, x[:2].tolist())


def test_an_ignored_class_is_no_class() -> None:
    data = read_dataset("npz:some.npz", None, None, Path())
    found = fitted(data, Targets("classes", positions=True, ignored=-100), "npz:some.npz")
    assert (found.classes, found.ignored, found.unused) == (2, -100, ())
    again = fitted(load_dataset("digits", None, None, Path()), Targets("classes", positions=True, ignored=9), "digits")
    assert (again.classes, again.ignored) == (9, 9)


def test_classes_beyond_int64_are_refused_whatever_is_ignored() -> None:
    y = np.array([0, 1, 2**63 + 1, 5], np.uint64)
    np.savez("beyond.npz", x_train=X[:4], y_train=y, x_test=X[:4], y_test=y)
    data = read_dataset("npz:beyond.npz", 4, 0, Path())
    with pytest.raises(DataError, match=r"^beyond\.npz: its classes are integers from 0 to 9223372036854775809; "):
        fitted(data, Targets(ignored=5), "npz:beyond.npz")


@pytest.mark.parametrize(
    ("output", "target", "remedy"),
    [
        ((5, 1), (5,), "take output[:, 0], or save y as (n, 1)"),
        ((5, 2, 1), (5, 2), "take output[:, :, 0], or save y as (n, 2, 1)"),
        ((5, 1, 2), (5, 2), "take output.reshape(y.shape)"),
        ((5,), (5, 1), "take output.reshape(y.shape)"),
        ((5, 2), (5, 2), ""),
        ((5, 2), (5, 3), ""),
        ((1, 5), (5,), ""),  # not as many samples
    ],
)
def test_how_outputs_get_the_shape_of_targets(output: tuple[int, ...], target: tuple[int, ...], remedy: str) -> None:
    assert brought_together(output, target) == remedy


CLASS = """
import numpy as np

class Rows:
    shape, dtype = (4,), np.float32

    def __init__(self):
        self.arrays = np.load("grid.npz")

    def len(self, part):
        return len(self.arrays[f"y_{part}"]) if part != "validation" else 0

    def rows(self, part, numbers):
        return self.arrays[f"x_{part}"][numbers], self.arrays[f"y_{part}"][numbers]
"""


@pytest.mark.parametrize("most", [2**28, 0], ids=["in memory", "on demand"])
def test_targets_of_other_data(most: int, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.data.own.MOST_IN_MEMORY", most)
    monkeypatch.setattr("fredsim.data.npy.MOST_IN_MEMORY", most)
    Path("rows.py").write_text(CLASS, encoding="utf-8")
    Path("folder").mkdir()
    for name, array in np.load("grid.npz").items():
        np.save(f"folder/{name}.npy", array)
    own, also = {"evaluation": {"metrics": ["mine:apart"]}}, {"data": {"name": "npy:folder"}}
    Path("mine.py").write_text(MODULES + "def apart(output, y): return abs(output - y.reshape(len(y), 2, 4)).max()\n",
                               encoding="utf-8")  # fmt: skip
    mine: dict[str, Any] = {"data": {"name": "python:rows:Rows"}}
    runs = [simulate(changed("grid", "mse") | own | data) for data in ({}, also, mine)]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert len({run.summary["validation_loss"] for run in runs}) == 1
    assert len({run.summary["metrics"]["apart"] for run in runs}) == 1
    for data in (also, mine):
        with pytest.raises(DataError, match="expected"):
            simulate(data)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "numbers without a loss": ({"loss": None}, "y_train holds float64"),
    "classes that are numbers": ({"loss": "cross_entropy"}, "cross_entropy takes classes"),
    "numbers for bce": ({"loss": "bce"}, "bce takes targets from 0 to 1"),
    "no such loss": ({"loss": "msee"}, "did you mean 'mse'?"),
    "no such option": ({"loss": {"name": "mse", "by": 1}}, "loss.by: unknown key (known: name)"),
    "a misspelt option": (
        {"loss": {"name": "cross_entropy", "label_smothing": 0.1}},
        "label_smothing: unknown key; did you mean 'label_smoothing'? (known: name, label_smoothing, ignore_index)",
    ),
    "too much smoothing": ({"loss": {"name": "cross_entropy", "label_smoothing": 1.0}}, "label_smoothing: is 1.0"),
    "a loss of a quadratic": ({"data": {"name": "quadratic"}, "model": {"name": "linear"}}, "leave loss out"),
    "classes of least squares": (
        {"data": {"name": "least_squares"}, "model": {"name": "linear"}, "loss": "cross_entropy"},
        "cross_entropy takes classes",
    ),
    "a linear model of classes": (
        {"data": {"name": "digits"}, "model": {"name": "linear"}, "loss": None},
        "or loss: cross_entropy, mse or bce",
    ),
    "a gap with a loss": (
        {"data": {"name": "mishchenko"}, "model": {"name": "linear"}, "until": {"gap": 0.1}},
        "give validation_loss",
    ),
    "targets of a quadratic": ({"data": {"name": "quadratic"}, "loss": None}, "data quadratic has no classes"),
    "an error": ({"until": {"validation_error": 0.1}}, "runs of loss mse have neither an error nor a gap"),
    "shards by class": (
        {"clients": {"count": 2, "batch_size": 2, "partition": {"name": "shards", "per_client": 1}}},
        "the data set's labels are float32, not classes",
    ),
    "shards by classes of which a row has several": (
        changed("several", "mse")
        | {"clients": {"count": 2, "batch_size": 2, "partition": {"name": "shards", "per_client": 1}}},
        "the data set's labels are several for each row, not classes",
    ),
}


@pytest.mark.parametrize(("changes", "says"), BAD.values(), ids=BAD)
def test_what_is_refused(changes: dict[str, Any], says: str, simulate: Simulate) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        simulate(changed("numbers", "mse") | changes)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_below_zero_are_told_what_leaves_them_out(simulate: Simulate) -> None:
    """PyTorch's −100, if it is the only one."""
    with pytest.raises(
        DataError, match=r"if -100 is for what .* give loss: \{name: cross_entropy, ignore_index: -100\}$"
    ):
        simulate(changed("some", "cross_entropy") | {"loss": None})
    np.savez("two.npz", x_train=X, y_train=np.arange(90) % 4 - 2, x_test=X, y_test=np.arange(90) % 4)
    with pytest.raises(
        DataError, match=r"y_train holds int64 from -2 to 1; .*; for targets that are no classes give a"
    ):
        simulate({"data": {"name": "npz:two.npz"}})


@pytest.mark.parametrize(
    ("y", "says"),
    [(1j * X, "y_train holds complex64; it must hold real numbers$"), (X[:, :0], "one number a row at l")],
)
def test_targets_that_are_no_numbers(y: Any, says: str, simulate: Simulate) -> None:
    """They need not be classes."""
    np.savez("grid.npz", x_train=X, y_train=y, x_test=X, y_test=y)
    with pytest.raises(DataError, match=says):
        simulate(changed("grid", "mse"))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_targets_that_are_not_finite(value: float, simulate: Simulate) -> None:
    y = TARGETS["grid"].astype(np.float64)
    y[[5, 9], 1, 2] = value
    np.savez("grid.npz", x_train=X[:70], y_train=y[:70], x_test=X[70:], y_test=y[70:])
    with pytest.raises(DataError, match=r"y of train rows: row 5 holds .*, not finite in float32; 2 rows"):
        simulate(changed("grid", "mse"))
    y[5] = 0
    np.savez("grid.npz", x_train=X[:70], y_train=y[:70], x_test=X[70:], y_test=y[70:])
    with pytest.raises(DataError, match=r"y of train rows: row 9 holds .*, not finite in float32: remove or replace"):
        simulate(changed("grid", "mse"))


def test_digests_of_old_experiments(digits_experiment: dict[str, Any]) -> None:
    plain = Experiment.model_validate(digits_experiment).plain()
    assert "loss" not in plain
    assert "metrics" not in plain["evaluation"]


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

NET = {"name": "torch:mine:net"}


@pytest.mark.parametrize(("name", "loss"), [("numbers", "mse"), ("several", "bce"), ("shares", "bce"),
    ("some", {"name": "cross_entropy", "ignore_index": -100, "label_smoothing": 0.1})], ids=str)  # fmt: skip
def test_modules_by_both_numerics(name: str, loss: Any, simulate: Simulate) -> None:
    runs = [simulate(changed(name, loss, model=NET | {"numerics": one})) for one in ("portable", "native")]
    for column in ("validation_loss", "validation_error", "train_loss"):
        one, other = (run.metrics[column].dropna().to_numpy() for run in runs)
        np.testing.assert_allclose(one, other, rtol=2e-5)
    assert runs[0].summary["digest"] != runs[1].summary["digest"]


def test_places_of_a_module(simulate: Simulate) -> None:
    runs = [simulate(changed("places", "cross_entropy", model={"name": "torch:mine:places", "numerics": one}))
            for one in ("portable", "native")]  # fmt: skip
    assert runs[0].summary["validation_loss"] == pytest.approx(runs[1].summary["validation_loss"], rel=2e-5)
    with pytest.raises(ConfigError, match=r"put the classes last, such as by x\.movedim\(1, -1\)"):
        simulate(changed("places", "cross_entropy", model={"name": "torch:mine:channels", "numerics": "native"}))


def test_an_own_loss_is_the_same_as_ours(simulate: Simulate) -> None:
    native = NET | {"numerics": "native"}
    ours = simulate(changed("numbers", "mse", model=native))
    own = simulate(changed("numbers", "mine:squared", model=NET))
    scaled = simulate(changed("numbers", {"name": "mine:squared", "scale": 2.0}, model=NET))
    assert own.summary["digest"] == ours.summary["digest"] != scaled.summary["digest"]
    assert own.summary["validation_loss"] == ours.summary["validation_loss"]
    assert "mine" in own.summary["code"]
    assert own.summary["numerics"] == "native"


def test_an_own_loss_of_classes(simulate: Simulate) -> None:
    kinds = TARGETS["some"].clip(0)
    np.savez("kinds.npz", x_train=X[:70], y_train=kinds[:70], x_test=X[70:], y_test=kinds[70:])
    own, ours = (simulate(changed("kinds", loss, model=NET | {"numerics": "native"}))
                 for loss in ("mine:classes", "cross_entropy"))  # fmt: skip
    assert own.summary["digest"] == ours.summary["digest"]


def test_outputs_of_one_number(simulate: Simulate) -> None:
    found = [simulate(changed("numbers", "mse", model={"name": "torch:mine:alone", "numerics": one}))
             for one in ("portable", "native")]  # fmt: skip
    assert found[0].summary["validation_loss"] == pytest.approx(found[1].summary["validation_loss"], rel=2e-5)


BAD_OWN = {
    "mine:mean": "returned torch.float32 () for 3 samples; it must return each sample's loss",
    "mine:scaled": "loss: mine:scaled has parameters of its own, which nobody trains; put them into the module",
    "mine:by_scaled": "loss: mine:by_scaled has parameters of its own, which nobody trains",
    "mine:fails": "failed on outputs (3, 1) and targets (3,), tensors of PyTorch: RuntimeError: on purpose (mine.py:",
    "mine:exits": "failed on outputs (3, 1) and targets (3,), tensors of PyTorch: SystemExit: 0 (mine.py:",
    "mine:unrelated": "has no gradient by the outputs",
    "mine:detached": "has no gradient by the outputs",
    "mine:infinite": "is inf for sample 0 of the first minibatch",
    "mine:one": "takes ('output',); it must take the output and y first",
    "mine:constant": "is a int; it must be a function",
    "mine:gone": "has no 'gone'",
    "mine:noisy": "loss: mine:noisy draws random numbers; it must depend on what it is given alone: let the module",
    "mine:shuffling": "loss: mine:shuffling draws random numbers; it must",
    "mine:its_own": "loss: mine:its_own returns other numbers for the same outputs",
    "torch.nn.functional:mse_loss": "is a library's; name a function of a module of your own",
}


def test_a_loss_that_takes_finite_outputs_alone_ends_no_run(simulate: Simulate) -> None:
    """The run diverges, at the event at which it does so by a loss that takes any outputs."""
    more: dict[str, Any] = {"model": NET, "server": {"name": "asgd", "lr": 2e38}, "evaluation": {"every": 1}}
    found, expected = (simulate(changed("numbers", f"mine:{name}", **more)) for name in ("strict", "squared"))
    assert found.has_diverged
    assert found.summary["digest"] == expected.summary["digest"]
    assert found.summary["iterations"] == expected.summary["iterations"] > 0


@pytest.mark.parametrize("name", ["overwriting", "summed_up"])
def test_a_loss_that_overwrites_its_targets_or_begins_with_a_tensor_of_its_own(name: str, simulate: Simulate) -> None:
    found, expected = (simulate(changed("numbers", f"mine:{loss}", model=NET)) for loss in (name, "squared"))
    assert found.summary["digest"] == expected.summary["digest"]
    assert found.summary["validation_loss"] == expected.summary["validation_loss"]


@pytest.mark.parametrize(("loss", "says"), BAD_OWN.items())
def test_own_losses_that_are_refused(loss: str, says: str, simulate: Simulate) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(changed("numbers", loss, model=NET))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loss_that_draws_beside_a_module_that_does(simulate: Simulate) -> None:
    with pytest.raises(ConfigError, match="loss: mine:noisy draws random numbers"):
        simulate(changed("numbers", "mine:noisy", model={"name": "torch:mine:dropped"}))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("loss", ["apart", "apart_all"])
def test_a_loss_in_which_each_output_meets_each_target(loss: str, size: int, simulate: Simulate) -> None:
    changes = {"model": {"name": "torch:mine:column"}, "clients": {"count": 8, "batch_size": size}}
    with pytest.raises(ConfigError) as caught:
        simulate(changed("numbers", f"mine:{loss}", **changes))
    shapes = f"outputs ({max(size, 4)}, 1) and targets ({max(size, 4)},), of which each meets each"
    assert f"of {shapes}, and " in str(caught.value)
    assert str(caught.value).endswith("for the sample alone; take output[:, 0], or save y as (n, 1)")


@pytest.mark.parametrize("loss", ["indexed", "last", "summed", "squared"])
def test_losses_that_bring_outputs_and_targets_together(loss: str, simulate: Simulate) -> None:
    model = {"name": "torch:mine:column", "numerics": "native"}
    found, expected = (simulate(changed("numbers", one, model=model)) for one in (f"mine:{loss}", "mse"))
    assert found.summary["validation_loss"] == pytest.approx(expected.summary["validation_loss"], rel=1e-5)
    assert simulate(changed("numbers", "mine:pairs", model=model)).summary["status"] == "finished"


JOINED = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.one, self.other = nn.Linear(shape[0], 1), nn.Linear(shape[0], 2)

    def forward(self, x):
        return self.one(x), self.other(x)

class Joined(Pair):
    def forward(self, x):
        return torch.cat(super().forward(x), 1)

def loss(output, y):
    return (output[:, 0] - y) ** 2 + (output[:, 1:] ** 2).mean(1)
"""


@pytest.mark.parametrize("numerics", ["native", "portable"])
def test_several_outputs_are_joined_for_an_own_loss(numerics: str, simulate: Simulate) -> None:
    """The message says how, and a module that does so runs."""
    Path("joined.py").write_text(JOINED, encoding="utf-8")
    several, one = ({"name": f"torch:joined:{name}", "numerics": numerics} for name in ("Pair", "Joined"))
    with pytest.raises(ConfigError, match=r"; .*join what .*loss.* needs.* by torch\.cat"):
        simulate(changed("numbers", "joined:loss", model=several))
    if numerics == "native":
        assert simulate(changed("numbers", "joined:loss", model=one)).summary["status"] == "finished"


def test_what_modules_are_refused(simulate: Simulate) -> None:
    with pytest.raises(ConfigError, match=r"must give outputs of the targets' shape, torch.float32 \(3, 1\)"):
        simulate(changed("numbers", "mse", model={"name": "torch:mine:wide", "numerics": "native"}))
    with pytest.raises(ConfigError, match=r"loss.scal: unknown key; did you mean 'scale'"):
        simulate(changed("numbers", {"name": "mine:squared", "scal": 2.0}, model=NET))
    with pytest.raises(ConfigError, match=r"loss.y: is what fredsim gives the function itself"):
        simulate(changed("numbers", {"name": "mine:squared", "y": 2.0}, model=NET))


@pytest.mark.parametrize("number", range(12))
def test_random_losses_and_metrics(number: int) -> None:
    """With any server, dispatcher, gate: the same bytes on every backend, path and window, and some go on."""
    assert compare(number, FEW_WAYS, of=measured) in {"finished", "diverged"}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_losses_and_metrics(part: int) -> None:
    for number in range(12 + part, 400, 8):
        assert compare(number, 4, device=HAS_CUDA, of=measured) in {"finished", "diverged"}, number
