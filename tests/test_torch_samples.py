"""What a PyTorch module gets: tokens as the integers that they are, and evaluation's samples in sensible batches."""

import json
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.data import npy, npy_datasets
from fredsim.data.datasets import Dataset, Split, load_dataset
from fredsim.data.npy_datasets import load_folder
from fredsim.errors import ConfigError
from fredsim.simulation.paths.backends import make_engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.native.model import TorchModel
from fredsim.native.settings import deterministic

Command = Callable[..., tuple[int, str, str]]
VOCABULARY, LENGTH = 120, 6

MODULES = """
import torch
from torch import nn


class Embeds(nn.Module):
    def __init__(self, how="long"):
        super().__init__()
        self.how, self.table, self.out = how, nn.Embedding(256, 5), nn.Linear(5, 3)

    def tokens(self, x):
        match self.how:
            case "long": return x.long()
            case "int": return x.int()
            case "to": return x.to(torch.int64)
            case "type": return x.type(torch.LongTensor)
            case "part": return x[:, 1:4].long()
            case "float": return x
            case "bytes": return (x * 255).round().long()
            case "levels": return (x * 4).long()
            case "dark": return (x > 0.25).long()
            case "places": return torch.arange(x.shape[1])[None].expand(len(x), -1)

    def forward(self, x):
        return self.out(self.table(self.tokens(x)).mean(dim=1))


class OneHot(Embeds):
    def forward(self, x):
        return self.out(nn.functional.one_hot(self.tokens(x), 256)[:, 0, :5].float())


class Looks(Embeds):
    def forward(self, x):
        return self.out(self.table.weight[self.tokens(x)].mean(dim=1))


class Bags(Embeds):
    def __init__(self, how="long"):
        super().__init__(how)
        self.table = nn.EmbeddingBag(256, 5)

    def forward(self, x):
        return self.out(self.table(self.tokens(x)))


def flat_norm(track=False):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.BatchNorm1d(7, track_running_stats=track), nn.Linear(7, 10))


def image_norm():
    return nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 10))


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.GELU(), nn.Linear(100, 10))
"""


@pytest.fixture(autouse=True)
def sampled(small_yaml: Path) -> Path:
    """A module with such factories, beside the small experiment."""
    Path("sampled.py").write_text(MODULES, encoding="utf-8")
    sys.path.insert(0, str(small_yaml.parent))
    return small_yaml


def tokens(dtype: type) -> NDArray[Any]:
    found: NDArray[Any] = np.random.default_rng(0).integers(1, VOCABULARY, (120, LENGTH)).astype(dtype)
    return found


def saved(dtype: type, file: str = "tokens.npz") -> Dataset:
    """Save tokens of this type, and load them."""
    x = tokens(dtype)
    y = x.astype(int).sum(axis=1) % 3
    np.savez(file, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return load_dataset(f"npz:{file}", None, None, Path())


def engine_of(dataset: Dataset, name: str, mu: int = 4, **hyper: Any) -> tuple[TorchModel, Any]:
    model = TorchModel(f"torch:sampled:{name}", hyper, "cpu", dataset.shape, dataset.classes, 0)
    return model, make_engine("numpy", model, dataset, mu, 1)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.int32, np.int64])
@pytest.mark.parametrize("name", ["Embeds", "OneHot", "Looks", "Bags"])
def test_tokens_arrive_as_the_integers_they_are(name: str, dtype: type) -> None:
    dataset = saved(dtype)
    model, engine = engine_of(dataset, name)
    rows = np.array([[7, 3, 90, 41]])
    found, losses = engine.gradients([model.initial_params], rows)
    module, x = model.module, torch.from_numpy(tokens(dtype)[rows[0]].astype(np.int64))
    expected = torch.nn.functional.cross_entropy(
        module(x), torch.from_numpy(dataset.train.y[rows[0]]), reduction="none"
    )
    gradient = torch.autograd.grad(expected.mean(), list(module.parameters()), materialize_grads=True)
    np.testing.assert_allclose(losses[0], expected.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(found[0], np.concatenate([g.numpy().reshape(-1) for g in gradient]), atol=1e-6)


CUT = ("cuts samples off to integers", "divided these by 255", "save tokens as int32 in an NPZ file")


@pytest.mark.parametrize("how", ["long", "int", "to", "type", "part"])
@pytest.mark.parametrize("name", ["Embeds", "Looks", "Bags"])
def test_bytes_that_are_used_as_tokens_are_refused(name: str, how: str) -> None:
    with pytest.raises(ConfigError) as refused:
        engine_of(saved(np.uint8), name, how=how)
    assert [part for part in CUT if part not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize("numerics", ["", ", numerics: portable", ", numerics: native"])
def test_bytes_as_tokens_are_refused_whoever_computes(sampled: Path, command: Command, numerics: str) -> None:
    saved(np.uint8)
    words = f"model={{name: 'torch:sampled:Embeds'{numerics}}}", "data={name: 'npz:tokens.npz'}", "--out", "out"
    code, _, messages = command("run", sampled, *words)
    assert code == 2
    assert [part for part in CUT if part not in messages] == [], messages


def test_one_hot_bytes_and_normalized_ones_are_refused(sampled: Path, command: Command) -> None:
    saved(np.uint8)
    for name, more in (("OneHot", ""), ("Embeds", ", normalize: {mean: 0.5, std: 0.01}")):
        words = (
            f"model={{name: 'torch:sampled:{name}', numerics: native}}",
            f"data={{name: 'npz:tokens.npz'{more}}}",
            "--out",
            "out",
        )
        code, _, messages = command("run", sampled, *words)
        assert code == 2
        assert [part for part in CUT if part not in messages] == [], messages


@pytest.mark.parametrize("how", ["bytes", "levels", "dark", "places"])
def test_integers_that_are_made_of_bytes_on_purpose_are_taken(how: str) -> None:
    dataset = saved(np.uint8)
    model, engine = engine_of(dataset, "Embeds", how=how)
    rows = np.array([[7, 3, 90, 41]])
    raw = torch.from_numpy(tokens(np.uint8)[rows[0]].astype(np.int64))
    made = {"bytes": raw, "levels": raw * 4 // 255, "dark": (raw > 63).long()}
    module = model.module
    used = made.get(how, torch.arange(LENGTH)[None].expand(4, -1))
    logits = module.out(module.table(used).mean(dim=1))
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(dataset.train.y[rows[0]]), reduction="none")
    np.testing.assert_allclose(
        engine.gradients([model.initial_params], rows)[1][0], expected.detach().numpy(), rtol=1e-5
    )


def test_an_embedding_of_floats_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"samples are float32: make tokens integers in forward, by x.long\(\)"):
        engine_of(saved(np.int32), "Embeds", how="float")


def test_data_that_are_no_bytes_may_be_cut_off() -> None:
    x = np.random.default_rng(0).random((60, LENGTH)).astype(np.float32)
    np.savez("floats.npz", x_train=x, y_train=np.arange(60) % 3, x_test=x[:9], y_test=np.arange(9) % 3)
    engine_of(load_dataset("npz:floats.npz", None, None, Path()), "Embeds")


def images(rows: int) -> Dataset:
    rng = np.random.default_rng(1)

    def split(n: int) -> Split:
        return Split(rng.random((n, 64)).astype(np.float32), rng.integers(0, 10, n))

    return Dataset(split(50), split(rows), split(rows), 10, (1, 8, 8))


def plainly(model: TorchModel, dataset: Dataset, batches: list[slice]) -> NDArray[np.float32]:
    """Return the losses that plain PyTorch computes from these batches."""
    x = torch.from_numpy(dataset.test.x).reshape(-1, 1, 8, 8)
    model.module.eval()
    with torch.no_grad():
        logits = torch.cat([model.module(x[some]) for some in batches])
        found = torch.nn.functional.cross_entropy(logits, torch.from_numpy(dataset.test.y), reduction="none")
    model.module.train()
    array: NDArray[np.float32] = found.numpy()
    return array


@pytest.mark.parametrize("rows", [2, 499, 500, 501, 502, 1000, 1001, 1501])
def test_no_sample_is_evaluated_alone_where_that_fails(rows: int) -> None:
    dataset = images(rows)
    model, engine = engine_of(dataset, "flat_norm")
    ends = {501: [0, 501], 1001: [0, 500, 1001], 1501: [0, 500, 1000, 1501]}.get(rows, [*range(0, rows, 500), rows])
    batches = [slice(begin, end) for begin, end in pairwise(ends)]
    losses, wrong = engine.outcomes(model.initial_params, "test")
    np.testing.assert_allclose(losses, plainly(model, dataset, batches), rtol=1e-4, atol=1e-5)
    assert len(wrong) == rows


@pytest.mark.parametrize("name", ["dense", "image_norm"])
@pytest.mark.parametrize("rows", [1, 500, 501, 1001])
def test_what_could_be_evaluated_alone_keeps_its_bits(name: str, rows: int) -> None:
    dataset = images(rows)
    model, engine = engine_of(dataset, name)
    losses, _ = engine.outcomes(model.initial_params, "test")
    with deterministic(1):
        expected = plainly(model, dataset, [slice(begin, begin + 500) for begin in range(0, rows, 500)])
    assert losses.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", ["dense", "image_norm", "flat_norm"])
def test_samples_on_demand_are_evaluated_with_the_same_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one is alone where that can be, and with those before it where it cannot."""
    for module in (npy, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    Path("few").mkdir()
    for part, split in (("train", images(501).train), ("test", images(501).test)):
        np.save(f"few/x_{part}.npy", split.x.reshape(-1, 1, 8, 8))
        np.save(f"few/y_{part}.npy", split.y.astype(np.int32))
    np.savez("few.npz", **{path.stem: np.load(path) for path in Path("few").iterdir()})
    found = []
    for load, data in ((load_folder, "npy:few"), (load_dataset, "npz:few.npz")):
        dataset = load(data, 40, 10, Path())
        assert dataset.test.on_demand == (data == "npy:few")
        model, engine = engine_of(dataset, name)
        losses, wrong = engine.outcomes(model.initial_params, "test")
        found.append((losses.tobytes(), wrong.tobytes()))
        engine.close()
    assert found[0] == found[1]


def test_a_run_with_such_an_evaluation(sampled: Path, command: Command) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random((600, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 600)
    np.savez("many.npz", x_train=x, y_train=y, x_test=x[:501], y_test=y[:501])
    words = (
        "model={name: 'torch:sampled:flat_norm', numerics: native}",
        "data={name: 'npz:many.npz', validation: 1, train: 599}",
    )
    code, _, messages = command("run", sampled, *words, "iterations=4", "--out", "out")
    assert code == 2  # one row for validation: it can be with no others
    assert "failed on samples of shape (n, 1, 8, 8): ValueError: Expected more than 1 value per channel" in messages
    words = words[0], "data={name: 'npz:many.npz', validation: 99, train: 501}"
    assert command("run", sampled, *words, "iterations=4", "--quiet", "--out", "out")[0] == 0
    assert json.loads(Path("out/summary.json").read_text(encoding="utf-8"))["test_error"] > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("clients.batch_size=1", ("clients.batch_size is 1", "one element a channel (PyTorch: Expected", "): give 2")),
        ("data.validation=513", ("513 rows for validation", "512 at a time, the last by itself", "model.buffers")),
        ("data.name=npz:odd.npz", ("513 rows for test",)),
        ("clients.clip_each_sample=1", ("clients.clip_each_sample is 1", "one element a channel", "clients.clip")),
        ("data.train=513 evaluation.gradient_norm=true", ("513 rows for training, of which evaluation.gradient_norm",)),
        ("data.train=513 evaluation.per_client=true", ("513 rows for training, which are evaluated",)),
    ],
)
def test_a_portable_batch_norm_of_one_element_is_refused(
    sampled: Path, command: Command, words: str, says: tuple[str, ...]
) -> None:
    rng = np.random.default_rng(2)
    x, y = rng.random((1200, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, 1200)
    for file, rows in (("many.npz", 514), ("odd.npz", 513)):
        np.savez(file, x_train=x, y_train=y, x_test=x[:rows], y_test=y[:rows])
    model = "model={name: 'torch:sampled:flat_norm', numerics: portable}"
    data = "data={name: 'npz:many.npz', train: 600, validation: 514}"
    given = (model, data, "iterations=2", "--quiet", "--out", "out")
    assert command("run", sampled, *given, "clients.batch_size=2")[0] == 0
    code, _, messages = command("run", sampled, *given[:3], *words.split(), "--out", "other")
    assert code == 2
    assert [part for part in says if part not in messages] == [], messages
    if "model.buffers" in says:  # of which none is by itself: evaluated with running statistics
        averaged = ("model.track=true", "model.buffers=averaged", "--out", "kept")
        assert command("run", sampled, *given[:3], *words.split(), *averaged)[0] == 0
    if (key := words.split()[-1].partition("=")[0]) in {"clients.clip_each_sample", "evaluation.gradient_norm"}:
        code, _, messages = command(
            "run", sampled, *given[:3], *words.split(), "model.numerics=native", "--out", "native"
        )
        assert code == 2
        assert key in messages
        assert "Expected more than 1 value per channel" in messages
