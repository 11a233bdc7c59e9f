"""Data sets of torchvision: by a stand-in, and, where it can be imported, by itself."""

import importlib
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.config.resolution import resolve
from fredsim.data import datasets
from fredsim.data.datasets import load_dataset
from fredsim.errors import ConfigError, DataError
from fredsim.runs.folder.results import Result
from fredsim.runs.single.preloading import warm_up

Refused = Callable[..., None]
Simulate = Callable[..., Result]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for cached in (datasets._load, datasets._read):
        cached.cache_clear()


class Stand:
    """Twelve training and five test images, whose first byte is their number."""

    shape: tuple[int, ...] = (4, 3)
    asked: list[dict[str, Any]]

    def __init__(self, **asked: Any) -> None:
        type(self).asked = [*getattr(type(self), "asked", []), asked]
        training = asked.get("train", asked.get("split") == "train")
        self._count, self._first = (12, 0) if training else (5, 100)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image = np.arange(np.prod(self.shape), dtype=np.uint8).reshape(self.shape)
        image.reshape(-1)[0] = self._first + index
        return image, index % 3


class Grey(Stand):
    def __init__(self, root: str, train: bool = True, download: bool = False) -> None:
        super().__init__(root=root, train=train, download=download)


class Coloured(Stand):
    shape = (4, 3, 3)

    def __init__(self, root: str, split: str = "train") -> None:
        super().__init__(root=root, split=split)


class Whole(Stand):
    def __init__(self, root: str) -> None:
        super().__init__(root=root)


class Absent(Grey):
    def __len__(self) -> int:
        raise RuntimeError("File not found or corrupted")


class Pairs(Grey):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return super().__getitem__(index)[0], (1, 2)


class Ragged(Grey):
    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.zeros((4, 3 + index), np.uint8), 0


class Handing(Grey):
    """As QMNIST does, it passes on what it does not know."""

    def __init__(self, root: str, what: str | None = None, train: bool = True, **others: Any) -> None:
        del what
        super().__init__(root, train=train, **others)


class Passing(Grey):
    """It passes on all that it is given."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)


class Nothing(Grey):
    def __len__(self) -> int:
        return 0


class Chosen(Grey):
    """As EMNIST does, it asks which of several data sets is wanted."""

    def __init__(self, root: str, split: str, **others: Any) -> None:
        del split
        super().__init__(root, **others)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("torchvision"), ModuleType("torchvision.datasets")
    for found in (Grey, Coloured, Whole, Absent, Pairs, Ragged, Handing, Passing, Nothing, Chosen):
        found.asked = []
        setattr(module, found.__name__, found)
    package.datasets = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", module)


@pytest.mark.usefixtures("stand_in")
def test_grey_images(tmp_path: Path) -> None:
    data = load_dataset("torchvision:Grey", None, None, tmp_path)
    assert Grey.asked == [{"root": str(tmp_path), "train": train, "download": True} for train in (True, False)]
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 2, 5)  # the last sixth validates
    assert (data.shape, data.inputs, data.classes) == ((1, 4, 3), 12, 3)
    assert data.train.x[3].tolist() == (np.array([3, *range(1, 12)], np.float32) / np.float32(255)).tolist()
    assert (data.test.x[:, 0] * 255).round().tolist() == [100, 101, 102, 103, 104]
    assert data.validation.y.tolist() == [1, 2]
    assert (data.train.x.dtype.name, data.train.y.dtype.name) == ("float32", "int64")


@pytest.mark.usefixtures("stand_in")
def test_a_class_that_passes_on_what_it_is_given(tmp_path: Path) -> None:
    for found in (Handing, Passing):
        load_dataset(f"torchvision:{found.__name__}", None, None, tmp_path)
        assert found.asked == [{"root": str(tmp_path), "train": train, "download": True} for train in (True, False)]


@pytest.mark.usefixtures("stand_in")
def test_coloured_images_come_with_their_channels_first(tmp_path: Path) -> None:
    data = load_dataset("torchvision:Coloured", 4, 0, tmp_path)
    assert Coloured.asked == [{"root": str(tmp_path), "split": split} for split in ("train", "test")]
    assert data.shape == (3, 4, 3)
    image = (data.train.x[0].reshape(3, 4, 3) * 255).round()
    assert image[1, 0].tolist() == [1, 4, 7]
    assert image[2, 3].tolist() == [29, 32, 35]


@pytest.mark.usefixtures("stand_in")
def test_what_cannot_be_read(tmp_path: Path) -> None:
    for name, kind, says in (
        ("Gray", ConfigError, r"torchvision.datasets has no class 'Gray'; did you mean 'Grey'\?"),
        ("Whole", ConfigError, r"no training and test part .*npz:PATH"),
        ("Absent", DataError, r"corrupted.*data_root=… or FREDSIM_DATA"),
        ("Pairs", DataError, "one integer label each"),
        ("Nothing", DataError, r"holds float64 \(0,\) with labels float64 \(0,\)"),
        ("Ragged", DataError, r"images of shapes \(4, 3\) and \(4, 14\); save such of one shape as npz:PATH"),
        ("Chosen", ConfigError, "torchvision.datasets.Chosen needs split, which cannot be given here; .*npz:PATH"),
    ):
        with pytest.raises(kind, match=says):
            load_dataset(f"torchvision:{name}", None, None, tmp_path)


@pytest.mark.usefixtures("stand_in")
def test_an_experiment(simulate: Simulate) -> None:
    result = simulate({"data": {"name": "torchvision:Grey"}, "iterations": 4, "clients": {"count": 2, "batch_size": 2}})
    assert result.summary["status"] == "finished"
    assert result.params["W1"].shape == (12, 16)


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_is_forked_later_does_not_read_it(digits_experiment: dict[str, Any]) -> None:
    """PyTorch may start threads to read it, which do not survive a fork."""
    warm_up(resolve(digits_experiment | {"data": {"name": "torchvision:Grey"}, "backend": "numpy"}), None)
    assert Grey.asked == []


@pytest.mark.parametrize("absent", ["torch", "torchvision"])
def test_what_is_not_installed(
    absent: str, small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    monkeypatch.delitem(sys.modules, "torchvision.datasets", raising=False)
    override, what = {
        "torch": ("model={name: 'torch:fredsim.zoo:lenet'}", "needs PyTorch"),
        "torchvision": ("data.name=torchvision:FashionMNIST", "needs torchvision"),
    }[absent]
    says = (f"override '{override[:10]}", what, 'pip install -c constraints.txt -e ".[torch]"')
    refused("run", small_yaml, override, "--out", "out", says=says)


def test_torchvision_itself(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            importlib.import_module("torchvision.datasets")
        except Exception as error:  # beside a PyTorch of another build it fails in ways of its own
            pytest.skip(f"torchvision cannot be imported: {error}")
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 12), ("t10k", 5)):
        pixels = (np.arange(count * 28 * 28) % 251).astype(np.uint8)
        header = struct.pack(">4I", 0x0803, count, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x0801, count) + labels.tobytes())
    data = load_dataset("torchvision:FashionMNIST", None, None, tmp_path)
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 2, 5)
    assert (data.shape, data.classes) == ((1, 28, 28), 10)
    assert (data.train.x[0, :3] * 255).round().tolist() == [0, 1, 2]
    assert data.test.y.tolist() == [0, 1, 2, 3, 4]
