"""Data sets in folders of NPY files, by a user's own class, and of PyTorch; in memory, and read on demand."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.compute import staged
from fredsim.compute.metrics import Metrics, PerClass, TopK
from fredsim.config.document import dump_yaml
from fredsim.config.partition import PARTITIONS, make_shards
from fredsim.data import datasets, npy, npy_datasets, on_demand, own
from fredsim.data.datasets import Dataset, data_root, load_dataset, read_dataset
from fredsim.data.npy_datasets import load_folder
from fredsim.data.npz import read_arrays
from fredsim.data.own import digest_of_named, find_own, load_own
from fredsim.data.targets import Targets, fitted
from fredsim.data.torch_rows import TorchRows
from fredsim.errors import ConfigError, DataError
from fredsim.networks.initial import DrawnNetwork
from fredsim.networks.mlp import Mlp
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.streams import Streams
from fredsim.plugins.modules import allow_code, look_in
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_engine
from fredsim.system.memory import peak_memory, reset_peak_memory
from tests.conftest import needs_cuda
from tests.own_data import SETS, TORCH

Run = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

ROWS = np.array([[3, 700, 1, 44], [512, 8, 9, 1083], [1030, 0, 2, 5]])
EXPERIMENT = (
    "iterations: 24\nmodel: {hidden: [6]}\nclients: {count: 3, batch_size: 4, sampling: shuffled}\n"
    "server: {name: asgd, lr: 0.1}\nevaluation: {every: 12, test: true, per_client: true}\n"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a new folder, with the modules `own_sets` and `torch_sets`."""
    monkeypatch.chdir(tmp_path)
    Path("own_sets.py").write_text(SETS)
    Path("torch_sets.py").write_text(TORCH)
    Path("own.yaml").write_text(EXPERIMENT)
    yield
    npy_datasets._load.cache_clear()


@pytest.fixture
def nothing_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all samples be read on demand."""
    for module in (npy, own, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)


def save_digits(folder: str, dtype: Any = np.float32) -> None:
    """Save the digits as NPY files; as bytes the levels are 0, 15, … 240."""
    data = load_dataset("digits", 1200, 297, data_root())
    os.makedirs(folder)
    for part, split in (("train", data.train), ("test", data.test)):
        x = split.x * (240 if dtype == np.uint8 else 1)
        np.save(f"{folder}/x_{part}.npy", x.reshape(-1, 1, 8, 8).astype(dtype))
        np.save(f"{folder}/y_{part}.npy", split.y.astype(np.int32))


def bits(result: Result) -> tuple[Any, ...]:
    """Return what must not depend on where samples are."""
    return result.metrics.to_csv(), (result.folder / "clients.csv").read_text(), result.summary["test_error"]


def changes(name: str, **data: Any) -> dict[str, Any]:
    return {
        "iterations": 24, "data": {"name": name, "train": 120, "validation": 60, **data}, "model": {"hidden": [6]},
        "clients": {"count": 3, "batch_size": 4, "sampling": "shuffled"},
        "evaluation": {"every": 12, "test": True, "per_client": True, "gradient_norm": True},
    }  # fmt: skip


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.dtype(">f4"), np.int16])
def test_files_have_the_bits_of_arrays(dtype: Any, simulate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save_digits("digits", dtype)
    arrays = {path.stem: np.load(path) for path in Path("digits").iterdir()}
    np.savez("digits.npz", **arrays)
    more: dict[str, Any] = {"normalize": {"mean": 0.25, "std": 2.0}} if dtype == np.float32 else {}
    expected = simulate(changes("npz:digits.npz", **more))
    found = simulate(changes("npy:digits", **more))
    assert bits(found) == bits(expected)
    assert (found.summary["path"], expected.summary["path"]) == ("snapshots", "hand")
    assert bits(simulate(changes("npy:digits", **more) | {"backend": "numpy", "window": 2})) == bits(expected)
    monkeypatch.setattr(npy, "MOST_IN_MEMORY", 2**20)
    small = simulate(changes("npy:digits", **more))
    assert (bits(small), small.summary["data"]) == (bits(expected), expected.summary["data"])


@pytest.mark.usefixtures("nothing_in_memory")
def test_what_works_with_rows_on_demand(simulate: Run, command: Command) -> None:
    """Shards by label, convolutions, augmentation, bytes as they are: as with the same samples in memory."""
    save_digits("digits", np.uint8)
    np.savez("digits.npz", **{path.stem: np.load(path) for path in Path("digits").iterdir()})
    ways: list[dict[str, Any]] = [
        {"data": {"scale": "none"}, "server": {"name": "fasgd", "lr": 1e-4}},
        {"data": {"augment": {"flip": True, "crop": 2}}, "dispatcher": {"name": "uniform", "wait": False}},
        {"clients": {"count": 3, "batch_size": 4, "partition": {"name": "dirichlet", "alpha": 0.3}, "local_steps": 2}},
    ]
    for way in ways:
        pairs = []
        for name in ("npz:digits.npz", "npy:digits"):
            given = changes(name, **way.get("data", {}))
            pairs.append(simulate(given | {key: value for key, value in way.items() if key != "data"}))
        assert bits(pairs[0]) == bits(pairs[1])
    assert command("verify", pairs[1].folder)[:2] == (0, f"{pairs[1].folder}: same bits\n")


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_large_file_takes_no_memory() -> None:
    """A sparse file of 200 MB."""
    os.makedirs("big")
    x = np.lib.format.open_memmap("big/x_train.npy", "w+", np.float32, (500_000, 100))
    x[-1] = 1
    del x
    np.save("big/y_train.npy", np.arange(500_000, dtype=np.uint8) % 3)
    reset_peak_memory()
    before = peak_memory()
    data = load_folder("npy:big", None, None, Path())
    assert (len(data.train), len(data.validation), len(data.test), data.classes) == (416_667, 83_333, 0, 3)
    assert data.validation.x[-1:].tolist() == [[1.0] * 100]
    for begin in range(0, 10**5, 10**4):
        assert not data.train.rows(np.arange(begin, begin + 10**4))[0].any()
    assert peak_memory() - before < 60 * 10**6


@pytest.mark.usefixtures("nothing_in_memory")
def test_large_targets_take_no_memory() -> None:
    """Numbers, and classes at several places: sparse files of 100 MB."""
    os.makedirs("wide")
    x = np.lib.format.open_memmap("wide/x_train.npy", "w+", np.uint8, (250_000, 2))
    y = np.lib.format.open_memmap("wide/y_train.npy", "w+", np.float32, (250_000, 100))
    y[-1] = 2
    del x, y
    reset_peak_memory()
    before = peak_memory()
    data = fitted(load_folder("npy:wide", None, None, Path(), numbers=True), Targets("numbers"), "npy:wide")
    assert data.validation.rows(np.array([41_665]))[1].tolist() == [[2.0] * 100]
    os.makedirs("masks")
    y = np.lib.format.open_memmap("masks/y_train.npy", "w+", np.uint8, (100_000, 50))
    y[-1] = 2
    del y
    np.save("masks/x_train.npy", np.zeros((100_000, 2), np.uint8))
    masks = fitted(load_folder("npy:masks", None, None, Path()), Targets(positions=True), "npy:masks")
    assert masks.classes == 3
    assert peak_memory() - before < 60 * 10**6
    y = np.lib.format.open_memmap("wide/y_train.npy", "r+")
    y[-3, 1] = np.nan
    del y
    with pytest.raises(DataError, match="y of validation rows: row 41663 holds nan, not finite in float32: remove"):
        fitted(load_folder("npy:wide", None, None, Path(), numbers=True), Targets("numbers"), "npy:wide")


def test_the_digest_of_a_folder_is_what_sha256sum_prints() -> None:
    save_digits("digits")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(Path("digits").iterdir())
    ]
    for name in ("mean.npy", "x_valid.npy", "notes.txt"):  # which are no part of it
        Path("digits", name).write_text("1", encoding="utf-8")
    assert npy.digest_of_folder("digits") == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_digest_of_files_that_keys_name_is_what_sha256sum_prints() -> None:
    found = {}
    for name in ("second", "first", "third"):
        Path(name).write_text(name, encoding="utf-8")
        found[name] = hashlib.sha256(name.encode()).hexdigest()
    lines = [f"{digest}  {name}\n" for name, digest in found.items()]
    assert digest_of_named({"file": "second", "spread": 2}) == found["second"]
    assert digest_of_named({"files": ["second", "first"]}) == hashlib.sha256("".join(lines[:2]).encode()).hexdigest()
    named = {"a": "second", "b": {"c": ["first", "third"]}}
    assert digest_of_named(named) == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert digest_of_named({"file": "fourth"}) is None


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.usefixtures("nothing_in_memory")
def test_targets_on_demand_may_be_numbers(wide: bool, simulate: Run, refused: Refused) -> None:
    save_digits("digits")
    for part in ("train", "test"):
        x = np.load(f"digits/x_{part}.npy").reshape(-1, 64)
        np.save(f"digits/y_{part}.npy", x[:, 20:23] * 2 if wide else x.mean(axis=1))
    np.savez("digits.npz", **{path.stem: np.load(path) for path in Path("digits").iterdir()})
    found, expected = (simulate(changes(name) | {"loss": "mse"}) for name in ("npy:digits", "npz:digits.npz"))
    assert found.metrics.to_csv() == expected.metrics.to_csv()
    assert (found.summary["path"], found.summary["status"]) == ("snapshots", "finished")
    refused("run", "own.yaml", "data.name=npy:digits", says=["for targets that are no classes give a loss"])


@needs_cuda
@pytest.mark.usefixtures("nothing_in_memory")
def test_a_device_gets_rows_on_demand(simulate: Run) -> None:
    save_digits("digits")
    expected = simulate(changes("npy:digits"))
    assert bits(simulate(changes("npy:digits") | {"backend": "cuda"})) == bits(expected)


def damaged(what: str) -> None:
    """Damage the folder `digits`."""
    path = Path("digits/x_train.npy")
    x = np.load(path)
    if what == "not finite":
        x[30, 0, 2, 2] = np.inf
    if what == "missing":
        path.unlink()
    elif what == "gone":
        shutil.rmtree("digits")
    elif what == "a folder":
        path.unlink()
        path.mkdir()
    elif what == "no targets":
        np.save("digits/y_train.npy", np.zeros((1497, 0)))
    elif what in {"cut", "longer", "no array"}:
        content = path.read_bytes()
        path.write_bytes({"cut": content[:-4], "longer": content + b"....", "no array": b"x" * 4000}[what])
    elif what in {"fractions", "negative", "all fractions"}:
        for part in ("train", "test")[: 1 + (what == "all fractions")]:
            y = np.load(f"digits/y_{part}.npy")
            np.save(f"digits/y_{part}.npy", y - 1 if what == "negative" else y / 2)
    else:
        arrays: dict[str, Any] = {
            "objects": x.astype(object), "fortran": np.asfortranarray(x), "fewer": x[:-1], "not finite": x,
            "another shape": x[:, :, :7], "one number": np.float32(3), "no values": x[:, :0],
        }  # fmt: skip
        np.save(path, arrays[what])


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("missing", "digits/x_train.npy: cannot be read (No such file or directory); it must be a folder of NPY files"),
        ("gone", "digits: is no folder; it must be a folder of NPY files"),
        ("cut", "digits/x_train.npy: is damaged (its header says float32 (1497, 1, 8, 8), "),
        ("longer", "digits/x_train.npy: is damaged"),
        ("no array", "digits/x_train.npy: is no NPY file ("),
        ("objects", "digits/x_train.npy: holds object; it must hold real numbers"),
        ("fortran", "digits/x_train.npy: is in Fortran's order; save numpy.ascontiguousarray of the array"),
        ("fewer", "digits: x_train has shape (1496, 1, 8, 8) and y_train (1497,); expected"),
        ("no values", "digits: x_train has shape (1497, 0, 8, 8) and y_train (1497,); expected (n, …) and"),
        ("no targets", "digits: x_train has shape (1497, 1, 8, 8) and y_train (1497, 0); expected (n, …) and"),
        ("another shape", "x_train holds float32 (1497, 1, 7, 8) and x_test float32 (300, 1, 8, 8); rows must have"),
        ("one number", "digits/x_train.npy: holds one number; it must hold one row a sample"),
        ("a folder", "digits/x_train.npy: cannot be read (it is a folder)"),
        ("not finite", "digits/x_train.npy: row 30 holds a value that is not finite in float32; remove or replace it"),
        ("fractions", "y_train holds float64 (1497,) and y_test int64 (300,); rows must have one shape and type"),
        ("all fractions", "digits: y of train rows holds float32 from 0.0 to 4.5; it must hold integers from 0"),
        ("negative", "digits: y of train rows holds int64 from -1 to 8; it must hold integers from 0"),
    ],
)
def test_damaged_folders_are_refused(what: str, says: str, refused: Refused) -> None:
    data = load_dataset("digits", 1497, 0, data_root())
    os.makedirs("digits")
    for part, split in (("train", data.train), ("test", data.test)):
        np.save(f"digits/x_{part}.npy", split.x.reshape(-1, 1, 8, 8))
        np.save(f"digits/y_{part}.npy", split.y)
    damaged(what)
    refused("run", "own.yaml", "data.name=npy:digits", says=[says])


@pytest.mark.parametrize(
    ("axis", "value", "dtype"), [("y", 2**32 - 1, np.uint32), ("x", 2**32 + 5, np.int64), ("y", -(2**40), np.int64)]
)
def test_integers_that_no_token_can_be(
    axis: str, value: int, dtype: Any, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cast to the type of tokens, they would become such: −1, which does not count, and 5."""
    os.makedirs("wide")
    for part, count in (("train", 60), ("test", 6)):
        values = (np.arange(count * 4).reshape(count, 4) % 7).astype(dtype)
        for letter in "xy":
            changed = values.copy()
            if (letter, part) == (axis, "train"):
                changed[5, 2] = value
            np.save(f"wide/{letter}_{part}.npy", changed)
    words = "run", "own.yaml", "data.name=npy:wide", "model={name: gpt, width: 4, layers: 1, heads: 1}"
    known = f"from {min(0, value)} to {max(6, value)}"
    refused(*words, says=[f"wide: {axis}_train holds {np.dtype(dtype)} {known}; it must hold integers from"])
    for module in (npy, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    refused(*words, says=[f"{axis}_train.npy: row 5 holds integers {known}; int32 does not hold them"])


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize(("value", "dtype"), [(2**24 + 1, np.uint32), (-(2**24) - 1, np.int64), (2**63 - 1, np.int64)])
def test_tokens_of_which_float32_would_make_one(
    loss: str, value: int, dtype: Any, simulate: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples of one label each are float32, in which 2²⁴ and 2²⁴ + 1 are one; with a loss of numbers they are none."""
    x, y = (np.arange(240) % 7).reshape(60, 4).astype(dtype), np.arange(60) % 3
    x[5, 2] = value
    assert np.float32(value) in {np.float32(value - 1), np.float32(value + 1)}
    os.makedirs("wide")
    np.save("wide/x_train.npy", x)
    np.save("wide/y_train.npy", y)
    np.savez("wide.npz", x_train=x, y_train=y, x_test=np.array([]), y_test=np.array([]))
    given = {"loss": loss, "iterations": 1, "server": {"name": "asgd", "lr": 1e-30}, "model": {"hidden": [6]}}
    given["clients"] = {"count": 1, "batch_size": 10}
    for name, most in (("npz:wide.npz", 2**28), ("npy:wide", 2**28), ("npy:wide", 0)):
        for module in (npy, npy_datasets):
            monkeypatch.setattr(module, "MOST_IN_MEMORY", most)
        if loss == "mse":
            simulate(given | {"data": {"name": name}})
            continue
        with pytest.raises(
            DataError, match=f"row 5 holds integers from .*{value}.*float32.* holds each to 16777216 al"
        ):
            simulate(given | {"data": {"name": name}})


@pytest.mark.parametrize("beyond", [-(2**31) - 1, 2**31])
def test_integers_at_the_ends_of_those_of_tokens(beyond: int) -> None:
    rows = np.array([[0, -(2**31)], [2**31 - 1, 0], [1, beyond]])
    np.save("whole.npy", rows[:2])
    np.save("beyond.npy", rows)
    files = npy.NpyFile(Path("whole.npy")), npy.NpyFile(Path("beyond.npy"))
    x, y = npy.NpyReader(files[0], files[0]).rows(np.arange(2))
    assert (x.dtype.name, x.tolist(), y.tolist()) == ("int32", rows[:2].tolist(), rows[:2].tolist())
    with pytest.raises(DataError, match=r"^beyond\.npy: row 2 holds integers from"):
        npy.NpyReader(files[1], files[1]).rows(np.arange(3))


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("least", [-1, 0])
def test_a_label_of_tokens_on_demand_that_does_not_count(least: int) -> None:
    x = np.arange(24).reshape(6, 4) % 5
    os.makedirs("tokens")
    np.save("tokens/x_train.npy", x)
    np.save("tokens/y_train.npy", np.maximum(x - 1, least))
    data = load_folder("npy:tokens", None, None, Path())
    assert data.train.on_demand
    assert (data.classes, data.ignored) == (5, -1 if least < 0 else None)


def test_two_classes_may_be_bool(monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs("flags")
    x, y = np.linspace(0, 1, 36, dtype=np.float32).reshape(12, 3), np.arange(12) % 3 == 0
    np.save("flags/x_train.npy", x)
    np.save("flags/y_train.npy", y)
    np.savez("flags.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    found = [load_dataset("npz:flags.npz", 10, 2, Path()), load_folder("npy:flags", 10, 2, Path())]
    for module in (npy, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    found.append(load_folder("npy:flags", 10, 2, Path()))
    assert [data.train.on_demand for data in found] == [False, False, True]
    for data in found:
        assert (data.classes, data.train.unfit, data.train.y.dtype) == (2, "", np.int64)
        assert data.train.targets.tolist() == [1, 0, 0] * 3 + [1]


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("change", ["shorter", "other numbers"])
def test_files_that_change_during_a_run(change: str) -> None:
    save_digits("digits")
    data, path = load_folder("npy:digits", None, None, Path()), Path("digits/x_train.npy")
    assert data.train.x[:3].shape == (3, 64)
    content = path.read_bytes()
    os.utime(path, ns=(1, 1))
    path.write_bytes(content[:-100] if change == "shorter" else content[:-4] + b"...!")
    with pytest.raises(DataError, match=r"digits/x_train.npy: has changed since the run began"):
        data.train.rows(np.array([4]))


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_file_of_a_class_that_changes_during_a_run() -> None:
    np.save("shift.npy", np.float32(0.25))
    data = load_own("python:own_sets:Blobs", {"file": "shift.npy"}, None, None)
    assert data.train.x[:3].shape == (3, 5)
    np.save("shift.npy", np.float32(0.5))
    os.utime("shift.npy", ns=(1, 1))
    with pytest.raises(DataError, match=r"^shift\.npy: has changed since the run began; leave it as it is"):
        data.train.x[:3]


@pytest.mark.usefixtures("nothing_in_memory")
def test_other_rows_on_demand_have_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no checkpoint goes on with them, and no worker has them."""

    def digest(train: int = 60) -> str:
        own._load.cache_clear()
        data = load_own("python:own_sets:Blobs", {}, train, 20)
        assert data.train.on_demand
        return data.digest

    found, blobs = {"as it is": digest(), "fewer": digest(59)}, importlib.import_module("own_sets").Blobs
    assert digest() == found["as it is"]
    rows = blobs.rows
    for name in "xy":

        def other(self: Any, part: str, numbers: Any, name: str = name) -> Any:
            x, y = rows(self, part, numbers)
            return (x + np.float32(1), y) if name == "x" else (x, 2 - y)

        monkeypatch.setattr(blobs, "rows", other)
        found[name] = digest()
    assert len({*found.values()}) == 4, found


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_file_on_demand_that_was_moved_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for folder, shift in (("here", 1), ("there", 1), ("other", 2)):
        path = tmp_path / folder / "shift.npy"
        path.parent.mkdir()
        np.save(path, np.float32(shift))
        monkeypatch.setattr(find_own("python:own_sets:Blobs"), "files", [path], raising=False)
        own._load.cache_clear()
        digests.append(load_own("python:own_sets:Blobs", {}, 60, 20).digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("most", [2**28, 0])
def test_the_order_of_keys_does_not_matter(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (own, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", most)
    digests = []
    for keys in ({"file": "", "spread": 0.5}, {"spread": 0.5, "file": ""}):
        own._load.cache_clear()
        digests.append(load_own("python:own_sets:Blobs", keys, 60, 20).digest)
    assert digests[0] == digests[1]


@pytest.mark.usefixtures("nothing_in_memory")
def test_files_that_are_written_again_as_they_were(simulate: Run) -> None:
    """They can be used again in the same process: those of a folder, and those of a class."""
    save_digits("digits")
    np.save("shift.npy", np.float32(0.25))
    points = changes("python:own_sets:Blobs", file="shift.npy", train=60, validation=20)
    results = []
    for _ in range(2):
        results.append([simulate(changes("npy:digits")), simulate(points)])
        for path in (Path("digits/x_train.npy"), Path("shift.npy")):
            content = path.read_bytes()
            path.write_bytes(content)
            os.utime(path, ns=(7, 7))
    assert [bits(one) for one in results[0]] == [bits(one) for one in results[1]]


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_folder_that_has_changed_since_the_run(simulate: Run, command: Command) -> None:
    save_digits("digits")
    result = simulate(changes("npy:digits"))
    assert result.config["data"]["sha256"] == npy.digest_of_folder("digits")
    y = np.load("digits/y_train.npy")
    y[:2] = y[1::-1]
    np.save("digits/y_train.npy", y)
    code, _, said = command("verify", result.folder)
    assert code == 2
    assert "put the files back, or change the key" in said


@pytest.mark.parametrize(
    "name", [f"python:own_sets:{name}" for name in ("Blobs", "Long", "Known", "Unsigned", "WithValidation")]
)
def test_own_classes_have_the_bits_of_arrays(name: str, simulate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save("shift.npy", np.float32(0.25))
    data = load_own(name, {"file": "shift.npy", "spread": 0.75}, None, None)
    parts = {"train": [data.train, data.validation], "test": [data.test]}
    arrays: dict[str, Any] = {
        f"{a}_{p}": np.concatenate([getattr(s, a) for s in some]) for p, some in parts.items() for a in "xy"
    }
    assert arrays["x_train"].shape == (90, 5)
    np.savez("blobs.npz", **arrays)
    rows = {"train": len(data.train), "validation": len(data.validation)}
    expected = simulate(changes("npz:blobs.npz", **rows))
    keys = {"file": "shift.npy", "spread": 0.75, "train": None, "validation": None}
    inside = simulate(changes(name, **keys))
    assert (bits(inside), inside.summary["data"]) == (bits(expected), expected.summary["data"])
    assert inside.config["data"]["sha256"] == hashlib.sha256(Path("shift.npy").read_bytes()).hexdigest()
    assert list(inside.summary["model_files"]) == ["shift.npy"]
    assert list(inside.summary["code"]) == ["own_sets"]
    for module in (own, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", 0)
    own._load.cache_clear()
    data = load_own(name, {"file": "shift.npy", "spread": 0.75}, None, None)
    assert data.train.on_demand
    for part in ("train", "validation", "test"):
        x, y = getattr(data, part).rows(slice(None))
        at = {"train": ("train", 0), "validation": ("train", rows["train"]), "test": ("test", 0)}[part]
        assert x.tobytes() == arrays[f"x_{at[0]}"][at[1] :][: len(x)].tobytes()
        assert y.tolist() == arrays[f"y_{at[0]}"][at[1] :][: len(y)].tolist()


def digest_of_points(shift: float) -> str:
    """Return that of the class `Opened`, of whose training rows 60 are for training and 20 for validation."""
    points = sys.modules["own_sets"].Blobs()
    x, y = points.x + np.float32(shift), points.y
    parts = (x[:60], y[:60], x[70:90], y[70:90], x[90:], y[90:])
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


OPENED: dict[str, Any] = {
    **changes("python:own_sets:Opened", train=60, validation=20), "name": "own", "backend": "numpy",
    "server": {"name": "asgd", "lr": 0.1},
}  # fmt: skip
OPENED["clients"] |= {"partition": {"name": "shards", "per_client": 2}}


@pytest.mark.filterwarnings("ignore::fredsim.FredsimWarning")
def test_each_command_reads_data_of_own_code_anew(command: Command) -> None:
    """The runs of one share it: nobody knows what a class reads between two commands of a notebook."""
    made = find_own("python:own_sets:Opened").made
    for shift in (0.25, 0.5):
        np.save("shift.npy", np.float32(shift))
        results = fredsim.sweep({**OPENED, "sweep": {"seed": [0, 1]}}, out=f"by_{shift}")
        assert [result.summary["data"] for result in results] == [digest_of_points(shift)] * 2
        assert made == [1]
        made.clear()
    Path("opened.yaml").write_text(dump_yaml(OPENED), encoding="utf-8")
    doors: dict[str, Callable[[], object]] = {
        "verify": results.verify,
        "plot": lambda: results[0].plot("shards"),
        "plan": lambda: command("plan", "opened.yaml"),
        "run": lambda: fredsim.run(OPENED, out="one", progress=False),
    }
    for name, door in doors.items():
        door()
        assert made == [1], name
        made.clear()
    np.save("shift.npy", np.float32(0.75))
    assert len(results.verify()) == 2
    assert fredsim.run(OPENED, out="one").summary["data"] == digest_of_points(0.75)


@pytest.mark.filterwarnings("ignore::fredsim.FredsimWarning")
def test_a_finished_run_of_other_data_is_done_again() -> None:
    """The class says in `files` what it reads."""
    for shift in (0.25, 0.5):
        np.save("shift.npy", np.float32(shift))
        changed = {**OPENED, "data": {**OPENED["data"], "name": "python:own_sets:Filed"}}
        result = fredsim.run(changed, out="filed", resume=True)
        assert result.summary["data"] == digest_of_points(shift)
        content = Path("shift.npy").read_bytes()
        assert result.summary["model_files"] == {"shift.npy": hashlib.sha256(content).hexdigest()}


def test_bytes_and_tokens_of_own_classes() -> None:
    data = load_own("python:own_sets:Bytes", {}, None, None)
    assert (data.shape, data.train.divisor, data.train.x.dtype) == ((1, 4, 4), 255, np.float32)
    assert data.train.x[2, 5] == np.float32(14 + 15) / np.float32(255)
    data = load_own("python:own_sets:Sentences", {}, None, None)
    text = np.arange(200) ** 2 % 11
    assert (data.sequences, data.classes, data.shape) == (True, 10, (6,))
    assert data.train.x[7].tolist() == text[7:13].tolist()
    assert data.train.y[7].tolist() == text[8:14].tolist()
    for numbers in (False, True):
        integers = load_own("python:own_sets:Integers", {}, None, None, numbers=numbers)
        expected = abs(10 * sys.modules["own_sets"].Blobs().x[:75]).astype(np.int64)
        assert integers.train.x.tolist() == expected.tolist()  # which were no bytes: nothing divides them


def test_what_a_class_draws_from_shared_generators() -> None:
    """Always the same, and nothing of what others draw."""
    expected = np.float32(np.random.RandomState(0).random_sample() + random.Random(0).random())
    others = random.getstate()
    for _ in range(2):
        own._load.cache_clear()
        data = load_own("python:own_sets:Drawn", {}, None, None)
        assert data.train.x.tolist() == (sys.modules["own_sets"].Blobs().x[:75] + expected).tolist()
    assert random.getstate() == others


@pytest.mark.parametrize("most", [2**28, 0])
def test_labels_with_gaps(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (own, npy_datasets):
        monkeypatch.setattr(module, "MOST_IN_MEMORY", most)
    data = load_own("python:own_sets:Doubled", {}, None, None)
    assert (data.train.on_demand, data.classes, data.unused) == (most == 0, 5, (1, 3))


@pytest.mark.parametrize("declared", [None, 99])
@pytest.mark.parametrize(("name", "classes"), [("Rising", 93), ("Marked", 7), ("Maps", 7)])
def test_classes_do_not_depend_on_which_rows_are_used(
    name: str, classes: int, declared: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on whether they are in memory; with a target that does not count."""
    targets, found = Targets(positions=True, ignored=-100), set[tuple[int, int | None]]()
    monkeypatch.setattr(find_own(f"python:own_sets:{name}"), "classes", declared, raising=False)
    for most in (2**28, 0):
        own._load.cache_clear()
        for module in (own, npy_datasets):
            monkeypatch.setattr(module, "MOST_IN_MEMORY", most)
        for train in (10, None):
            data = load_own(f"python:own_sets:{name}", {}, train, 0, -100)
            assert data.train.on_demand == (most == 0)
            fit = fitted(data, targets, name)
            found.add((fit.classes, fit.ignored))
    assert found == {(declared or classes, -100)}
    inside = load_own(f"python:own_sets:{name}", {}, 90, 0, -100)
    arrays: dict[str, Any] = dict(zip(("x_train", "y_train"), inside.train.rows(slice(None)), strict=True))
    arrays |= {f"{axis}_test": arrays[f"{axis}_train"][:3] for axis in "xy"}
    np.savez("whole.npz", **arrays)
    of_file = read_dataset("npz:whole.npz", 10, 0, Path(), ignored=-100)
    assert fitted(of_file, targets, "npz:whole.npz").classes == classes


@pytest.mark.parametrize("ignored", [1, 2, -100])
def test_a_label_that_does_not_count_is_no_gap(ignored: int) -> None:
    """Rows have 1, so that no note says that none does; none has 2."""
    y = np.array([0, 1, 3, 4, 1, 0])
    np.savez("gap.npz", x_train=np.ones((6, 2)), y_train=y, x_test=np.array([]), y_test=np.array([]))
    data = read_dataset("npz:gap.npz", None, 0, Path(), ignored=ignored)
    data = fitted(data, Targets("classes", positions=True, ignored=ignored), "npz:gap.npz")
    assert (data.classes, data.unused) == (5, (2,))


@pytest.mark.usefixtures("nothing_in_memory")
def test_bounds_of_tokens_on_demand_are_those_of_the_tokens() -> None:
    """Tokens with one label each may be higher than the labels; kernels rely on the bounds."""
    data = load_own("python:own_sets:Words", {}, None, None)
    assert data.train.on_demand
    assert data.classes == 2
    for part in data.parts:
        assert (part.x.min(), part.x.max()) == (0, 11)
    later = load_own("python:own_sets:Later", {}, None, None)
    assert later.train.x[:9].max() == 8
    importlib.import_module("own_sets").Later.later += 4
    with pytest.raises(DataError, match="x of train rows holds integers from 4 to 12, and from 0 to 11 when the run"):
        later.train.x[:9]
    following = load_own("python:own_sets:Following", {}, None, None)
    assert following.classes == 94
    assert following.train.y[:9].max() == 12
    importlib.import_module("own_sets").Following.later += 90
    with pytest.raises(DataError, match="y of row 0 of train holds integers from 91 to 102; with 94 classes they must"):
        following.train.y[:9]


@pytest.mark.usefixtures("nothing_in_memory")
def test_sequences_on_demand_have_the_bits_of_arrays(simulate: Run) -> None:
    data = load_own("python:own_sets:Sentences", {}, None, None)
    assert data.train.on_demand
    os.makedirs("sentences")
    for part, split in (("train", data.train), ("test", data.test)):
        x, y = (np.concatenate(both) for both in zip(split.rows(slice(None)), *_more(data, part), strict=True))
        np.save(f"sentences/x_{part}.npy", x.astype(np.int64))
        np.save(f"sentences/y_{part}.npy", y.astype(np.uint8))
    np.savez("sentences.npz", **{path.stem: np.load(path) for path in Path("sentences").iterdir()})
    found = []
    for name in ("npz:sentences.npz", "npy:sentences", "python:own_sets:Sentences"):
        given = changes(name, train=60, validation=20) | {"evaluation": {"every": 12, "test": True}}
        found.append(simulate(given | {"model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2}}))
    expected = found[0].metrics.to_csv()
    assert [result.metrics.to_csv() == expected for result in found] == [True, True, True]
    assert [result.summary["status"] for result in found] == ["finished"] * 3


def _more(data: Dataset, part: str) -> list[Any]:
    """Return the rows after those to train on, of the training part."""
    return [data.validation.rows(slice(None))] if part == "train" else []


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_rows_whose_columns_lie_one_after_the_other(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each minibatch and each block has its own samples, also where there is room for one minibatch alone."""
    monkeypatch.setattr(staged, "MOST_MINIBATCHES", 1)
    data = load_own("python:own_sets:Table", {}, None, 0)
    x, y = data.train.rows(slice(None))
    assert x.flags.f_contiguous
    graph = Mlp((5, 4, 2)).graph
    network = DrawnNetwork(replace(graph, loss=MeanSquaredError(), target=(2,)), "he")
    engine, params = make_engine(backend, network, data, 4, 1), network.initial(Streams(0))
    losses, _ = engine.outcomes(params, "train")
    expected = graph.forward(params, np.ascontiguousarray(x)).output
    np.testing.assert_allclose(losses, ((expected - y) ** 2).mean(axis=1), rtol=1e-5)
    held = np.append(params, np.zeros(MARGIN, np.float32))[:-MARGIN]
    _, found = engine.gradients([held] * 3, ROWS)
    assert found.tolist() == losses[ROWS].tolist()
    engine.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the class `Counted` was asked for, each time; blocks are of four samples."""
    monkeypatch.setattr(on_demand, "BLOCK_BYTES", 4 * (5 * 4 + 8))
    load_own("python:own_sets:Counted", {}, 60, 30)
    found: list[int] = sys.modules["own_sets"].Counted.asked
    return found


@pytest.mark.usefixtures("nothing_in_memory")
def test_targets_on_demand_are_read_once_for_metrics(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A later row of metrics.csv reads samples alone, unless targets are more than what is kept."""
    data = load_own("python:own_sets:Counted", {}, 60, 30)
    network = DrawnNetwork(Mlp((5, 4, 3)).graph, "he")
    engine, params = make_engine("numpy", network, data, 4, 1), network.initial(Streams(0))
    measure, counts = Metrics([TopK(1), PerClass()], data, engine, test=False), []
    for most in (2**20, 2**20, 0):
        monkeypatch.setattr(datasets, "MOST_IN_MEMORY", most)
        asked.clear()
        found = measure(params)
        counts.append(sum(asked))
    assert counts == [30, 30, 60]
    labels = sys.modules["own_sets"].Blobs().y[60:90]
    wrong = network.graph.forward(params, np.asarray(data.validation.x)).output.argmax(axis=1) != labels
    assert found == {"top1": wrong.mean()} | {f"error_class_{c}": wrong[labels == c].mean() for c in range(3)}
    engine.close()


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize(
    "partition",
    [
        {"name": "dirichlet", "alpha": 1.0},
        {"name": "dirichlet", "alpha": 1.0, "equal_sizes": True},
        {"name": "pathological", "classes": 2},
        {"name": "shards", "per_client": 2},
    ],
    ids=str,
)
def test_labels_on_demand_are_read_once(partition: dict[str, Any], asked: list[int]) -> None:
    """For any number of classes, and a few samples at a time: the class reads these, too."""
    data = load_own("python:own_sets:Counted", {}, 60, 30)
    choice: Any = PARTITIONS[str(partition["name"])].model_validate(partition)
    asked.clear()
    found = make_shards(choice, data.train.y, 3, 5)
    assert asked == [4] * 15
    labels = sys.modules["own_sets"].Blobs().y[:60]
    expected = make_shards(choice, labels, 3, 5)
    assert found is not None
    assert expected is not None
    for one, other in zip(found.blocks(), expected.blocks(), strict=True):
        assert [array.tolist() for array in one] == [array.tolist() for array in other]


@pytest.mark.usefixtures("nothing_in_memory")
def test_targets_on_demand_are_read_in_blocks(asked: list[int]) -> None:
    data = load_own("python:own_sets:Counted", {}, 60, 30)
    asked.clear()
    assert data.train.targets.tolist() == sys.modules["own_sets"].Blobs().y[:60].tolist()
    assert asked == [4] * 15
    sentences, metric = load_own("python:own_sets:CountedSentences", {}, 60, 30), PerClass()
    known = metric.columns(sentences)
    assert known == tuple(f"error_class_{label}" for label in (0, 1, 3, 4, 5, 9))
    asked.clear()
    output, y = np.zeros((2, 6, 10), np.float32), np.arange(200)[1:13].reshape(2, 6) ** 2 % 11
    assert metric.block(output, y.astype(np.int32), sentences).shape == (1, 2, len(known))
    assert not asked  # one pass over all rows was enough
    ignoring = load_own("python:own_sets:CountedSentences", {}, 60, 30, -100)
    asked.clear()
    assert fitted(ignoring, Targets(ignored=-100), "own").classes == 10
    assert not asked  # its class says how many there are
    points = load_own("python:own_sets:Counted", {}, 60, 30, -100)
    asked.clear()
    assert fitted(points, Targets(ignored=-100), "own").classes == 3
    assert not asked


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Shorter", "rows('train', …) failed for the rows 0, 179 of 180 (IndexError: index 179 is out of bounds"),
        ("Fewer", "gave x float32 (7, 5) for 8 rows; by its shape and dtype it is float32 (8, 5)"),
        ("Ragged", "rows('train', …) gave no arrays (ValueError: "),
        ("OtherWidth", "gave x float32 (90, 6) for 90 rows; by its shape and dtype it is float32 (90, 5)"),
        ("Objects", "its dtype is object; samples must be real numbers"),
        ("Wider", "gave x float64 (2, 5) for 2 rows; by its shape and dtype it is float32 (2, 5)"),
        ("NoNumber", "x of row 41 of train holds a value that is not finite in float32; remove or replace it"),
        ("Restless", "row 0 of train is another the second time; it must always be the same; change samples at random"),
        ("TooManyClasses", "y of row 42 of train holds integers from 0 to"),
        ("Negative", "y of train rows holds int64 from -"),
        ("Marked", "if -100 is for what does not count, give loss: {name: cross_entropy, ignore_index: -100}"),
        (
            "MarkedOfSeven",
            "with 7 classes they must lie in 0 to 6; what does not count is named by loss: {name: cross_",
        ),
        ("Integers", "model.name is mlp; samples are integers, which are tokens, with one target each: give them as"),
        ("Grids", "model.name is mlp; samples are integers, which are tokens, with targets of the shape (2, 2): give"),
        ("Masked", "rows('train', …) gave x as a masked array; give .filled(0)"),
        ("Exiting", "rows('train', …) failed for the rows 0, 89 of 90 (SystemExit: 0) (own_sets.py:"),
        ("Sorted", "row 89 of train is another the second time"),
        ("Grown", "row 89 of train is another the second time"),
        ("Unshaped", "cannot be made (SystemExit: 0) (own_sets.py:"),
        ("Unfiled", "its files cannot be had (SystemExit: 0) (own_sets.py:"),
        ("Alone", "rows('train', …) gave a ndarray; it must give x and y"),
        ("Raising", "(OSError: the disk is on fire) (own_sets.py:"),
        ("Empty", "len('train') is 0; training needs one row at least"),
        ("Fraction", "len('train') is 2.5; it must be a whole number"),
        ("BelowZero", "x of row 0 of train holds integers from -1 to 7; of tokens and classes they must lie in 0 to"),
        ("NumbersToTest", "test rows have targets float32 (), and train rows int64 (); they must agree"),
        ("PairsToTest", "test rows have targets int64 (2,), and train rows int64 (); they must agree"),
        ("Named", "rows('train', …) gave y <U1 (2,) for 2 rows; expected numbers"),
        ("TooMany", "len('train') is 2147483648; it must be a whole number from 0 to 2³¹ − 1"),
        ("NoRows", "data.name: python:own_sets:NoRows has no rows; a data set needs shape, dtype, len(part)"),
        ("NoShape", "its shape is (); it must be of whole numbers above 0, such as (28, 28)"),
        ("Halves", "its shape is (4.5,); it must be of whole numbers above 0"),
        ("Missing", "nowhere.bin: cannot be read; its class names it in files"),
        ("Failing", "cannot be made (RuntimeError: no such corpus) (own_sets.py:"),
        ("number", "own_sets:number is a int; it must be a class"),
        ("Nothing", "module 'own_sets' has no 'Nothing'"),
    ],
)
def test_own_classes_that_are_wrong(name: str, says: str, refused: Refused) -> None:
    refused("run", "own.yaml", f"data.name=python:own_sets:{name}", says=[says])


def test_keys_of_own_classes(refused: Refused) -> None:
    name = "data.name=python:own_sets:Blobs"
    refused("run", "own.yaml", name, "data.spraed=1", says=["data.spraed: unknown key; did you mean 'spread'?"])
    refused("run", "own.yaml", name, "data.train=80", "data.validation=11", says=["overlap: the training part has 90"])
    refused("run", "own.yaml", name, "data.scale=all", says=["data.scale"])
    refused("run", "own.yaml", name, f"data.sha256={'a' * 64}", says=["that data names, None, is not data.sha256, aaa"])
    refused("run", "own.yaml", "data.name=python:own_sets:Asking", says=["data.split: is required"])
    name = "data.name=python:own_sets:WithValidation"
    refused("run", "own.yaml", name, "data.validation=31", says=["data.validation is 31; there are 30 such rows"])
    refused("run", "own.yaml", "data={name: 'python:nothing'}", says=["must have the form python:package.module:Class"])


def test_a_received_folder_runs_no_class(
    simulate: Run, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = simulate(changes("python:own_sets:Blobs", train=60, validation=20))
    assert command("verify", result.folder)[0] == 0
    look_in(Path.cwd())  # as a new process does
    monkeypatch.setenv("FREDSIM_STATE", str(tmp_path / "another user"))
    shards = ("plot", result.folder, "--kind", "shards", "-o", "shards.svg")
    for words in (shards, ("verify", result.folder), ("run", result.folder)):
        code, _, said = command(*words)
        assert code == 2, said
        assert "names code, own_sets:Blobs" in said
        assert "if you trust it, give --allow-code" in said
    with pytest.raises(ConfigError, match="if you trust it, give allow_code=True"):
        fredsim.Result(result.folder).plot("shards")
    for words in (shards, ("verify", result.folder)):  # what is asked for is taken
        assert command(*words, "--allow-code")[0] == 0
    look_in(Path.cwd())
    allow_code(False)
    fredsim.Result(result.folder).plot("shards", allow_code=True)
    assert "allow" not in Path("shards-table.md").read_text(encoding="utf-8")


MODULE = """
import torch


def small(classes, shape):
    layers = [torch.nn.Conv2d(1, 3, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(108, classes)]
    return torch.nn.Sequential(*layers)
"""


@pytest.mark.usefixtures("nothing_in_memory")
def test_pytorch_computes_from_rows_on_demand(simulate: Run) -> None:
    pytest.importorskip("torch")
    Path("torch_sets.py").write_text(MODULE)
    save_digits("digits")
    np.savez("digits.npz", **{path.stem: np.load(path) for path in Path("digits").iterdir()})
    model = {"name": "torch:torch_sets:small", "numerics": "native"}
    on_demand, inside = (
        simulate(changes(name, augment={"flip": True, "crop": 1}) | {"model": model, "threads": 1})
        for name in ("npy:digits", "npz:digits.npz")
    )
    assert on_demand.summary["numerics"] == "native"
    assert bits(on_demand) == bits(inside)
    plain = simulate(changes("npz:digits.npz") | {"model": model, "threads": 1})
    assert plain.summary["digest"] != inside.summary["digest"]


class Picture:
    """An image as PIL has it, with its channels last."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.arange(16 * 8 * 4, dtype=np.uint8).reshape(16, 8, 4)

    def getbands(self) -> tuple[str, ...]:
        return tuple("RGBA")


def test_channels_of_pictures_alone_are_exchanged() -> None:
    """An array may have an axis as short as that of the channels."""
    plain = np.asarray(Picture())
    array, picture = (TorchRows("own", lambda one=one: [(one, 0)] * 3, {}) for one in (plain, Picture()))
    assert (array.shape, picture.shape) == ((16, 8, 4), (4, 16, 8))
    assert np.array_equal(array.rows("train", np.array([2]))[0][0], plain)
    assert np.array_equal(picture.rows("train", np.array([2]))[0][0], plain.transpose(2, 0, 1))


def test_a_class_of_pytorchs_with_both_arguments_is_told_by_train_which_part_it_makes() -> None:
    """Its `split` is then something else, as of torchvision's EMNIST: what it is by default, or by its key."""

    def made(train: bool = True, split: str = "letters") -> list[tuple[np.ndarray, int]]:
        return [(np.full(3, len(split), np.float32), int(train))] * (5 if train else 2)

    for arguments, value in (({}, 7), ({"split": "mnist"}, 5)):
        rows = TorchRows("own", made, arguments)
        assert [rows.len(part) for part in ("train", "validation", "test")] == [5, 0, 2]
        for part, label in (("train", 1), ("test", 0)):
            x, y = rows.rows(part, np.array([1]))
            assert (x.tolist(), y.tolist()) == ([[value] * 3], [label])


TORCH_WRONG = [
    ("Lying", "item 499 of train cannot be had, of 500 by its length (IndexError"),
    ("Half", "item 0 of train is no pair of arrays (NumPy cannot have a torch.bfloat16 tensor; give .detach().cpu()"),
    ("Trained", "(NumPy cannot have a torch.float32 tensor that needs a gradient; give .detach().cpu().float())"),
    ("Singles", "item 0 of train is a Tensor; it must be a pair"),
    (
        "Objects",
        "item 0 of train is no array, but a object; give an array or a tensor of numbers, as by a transform of it",
    ),
    ("Mixed", "train rows have x float32 (4,) and float32 (5,); they must have one shape and type"),
    ("Types", "train rows have x float32 (5,) and float64 (5,); they must have one shape and type"),
    ("MaskedItems", "item 0 of train has a masked array; give .filled(0)"),
    ("Noisy", "row 0 of train is another the second time"),
]


def test_data_sets_of_pytorch(simulate: Run, refused: Refused) -> None:
    pytest.importorskip("torch")
    expected = simulate(changes("python:own_sets:Blobs", train=60, validation=20))
    found = simulate(changes("torch:torch_sets:Items", train=60, validation=20))
    assert (bits(found), found.summary["data"]) == (bits(expected), expected.summary["data"])
    one, unsigned = (
        simulate(changes(f"torch:torch_sets:{name}", train=60, validation=20) | {"evaluation": {"every": 12}})
        for name in ("OnlyOne", "Unsigned")
    )
    assert one.summary["test_error"] is None
    assert one.summary["digest"] == unsigned.summary["digest"] == expected.summary["digest"]
    for name, says in TORCH_WRONG:
        refused("run", "own.yaml", f"data.name=torch:torch_sets:{name}", says=[says])


def test_files_of_python_2(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """Their headers have long integers, of which NumPy warns; the file is read without a word."""
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "new.npy", x)
    old = (tmp_path / "new.npy").read_bytes().replace(b"(4, 3), }  ", b"(4L, 3L), }", 1)
    assert b"(4L, 3L)" in old
    (tmp_path / "x_train.npy").write_bytes(old)
    np.save(tmp_path / "y_train.npy", np.arange(4))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("x_train.npy", old)
    assert read_arrays(str(tmp_path / "x.npz"), None, "")["x_train"].tolist() == x.tolist()
    assert npy.read_arrays_of(npy.open_arrays(str(tmp_path)))["x_train"].tolist() == x.tolist()
    assert not recwarn.list
