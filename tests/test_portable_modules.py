"""Runs of PyTorch modules that fredsim computes itself: their bits, what is kept, and verifying without PyTorch."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.data.datasets import data_root, load_dataset
from fredsim.native.model import TorchModel
from fredsim.native.portable import captured
from fredsim.networks.saved import graph_of_text
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]

MODULES = """
import functools

import torch
from torch import nn


def images(channels=4, classes=10, activation="GELU", p=0.0):
    layers = nn.Conv2d(1, channels, 3), getattr(nn, activation)(), nn.Dropout(p), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36 * channels, classes))


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x):
        return self.dense(x.flatten(1)) + x.sum()


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(self.body(x[:, 0])[0][:, -1])


def normed(channels=4):
    layers = nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(36 * channels, 10))


def mask(length):
    return torch.tril(torch.ones(length, length))


cached = functools.cache(mask)


class Masked(nn.Module):
    def __init__(self, how, classes, odd=False):
        super().__init__()
        self.how, self.odd, self.tokens, self.head = how, odd, nn.Embedding(classes, 8), nn.Linear(8, classes)

    def made(self, length):
        if self.how == "cached":
            return cached(length)
        if self.how == "attribute":
            if not hasattr(self, "known"):
                self.known = mask(length)
            return self.known
        if self.how == "buffer":
            if not hasattr(self, "seen"):
                self.register_buffer("seen", mask(length), persistent=False)
            return self.seen
        return mask(length)

    def forward(self, x):
        h = self.tokens(x)
        h = h * self.made(x.shape[1]).mean(1, keepdim=True)
        return self.head(nn.functional.softshrink(h) if self.odd else h)


def tokens(rows):
    return nn.Sequential(nn.Embedding(rows, 8), nn.Linear(8, 11))
"""
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from fredsim.cli import main
sys.argv[1:] = {words!r}
main()
"""


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put a user's module into a folder of its own."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "their_nets.py").write_text(MODULES, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return folder


def run(command: Command, yaml: Path, out: str, model: str, *words: str) -> tuple[int, str]:
    code, _, messages = command("run", yaml, f"model={{{model}}}", "iterations=20", "--quiet", "--out", out, *words)
    return code, messages


def summary(out: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(out, "summary.json").read_text(encoding="utf-8"))
    return found


def last_row(out: str) -> dict[str, str]:
    with Path(out, "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))[-1]


NET = "name: 'torch:their_nets:images'"


def test_the_same_bits_on_every_backend_and_nearly_those_of_pytorch(small_yaml: Path, command: Command) -> None:
    assert run(command, small_yaml, "numba", f"{NET}, numerics: portable") == (0, "")
    assert run(command, small_yaml, "numpy", f"{NET}, numerics: portable", "backend=numpy") == (0, "")
    assert run(command, small_yaml, "native", f"{NET}, numerics: native") == (0, "")
    assert last_row("numba") == last_row("numpy")
    mine, theirs = last_row("numba"), last_row("native")
    assert mine["digest"] != theirs["digest"]
    assert float(mine["validation_loss"]) == pytest.approx(float(theirs["validation_loss"]), rel=1e-5)
    assert [summary(out)["numerics"] for out in ("numba", "numpy", "native")] == ["portable", "portable", "native"]
    graph = graph_of_text(Path("numba", "graph.json").read_bytes())
    assert [name for name, _ in graph.layout.tensors] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert not Path("native", "graph.json").exists()


def test_a_folder_is_verified_without_pytorch_and_the_code(small_yaml: Path, command: Command, modules: Path) -> None:
    assert run(command, small_yaml, "out", NET)[0] == 0
    (modules / "their_nets.py").unlink()

    def verify(*words: str) -> subprocess.CompletedProcess[str]:
        script = WITHOUT_TORCH.format(words=["verify", "out", *words])
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    done = verify()
    assert (done.returncode, done.stdout) == (0, "out: same bits\n"), done.stderr
    path = Path("out", "graph.json")
    path.write_text(path.read_text(encoding="utf-8").replace('"gelu"', '"gelo"'), encoding="utf-8")
    done = verify()
    assert done.returncode == 2
    assert "graph.json" in done.stderr
    assert "Traceback" not in done.stderr
    path.unlink()
    done = verify()
    assert done.returncode == 2
    assert "graph.json" in done.stderr
    assert "Traceback" not in done.stderr


WAYS = {
    "init": "{NET}, numerics: portable, init: he",
    "init of a std": "{NET}, numerics: portable, init: {name: normal, std: 0.1}",
    "trainable": "{NET}, numerics: portable, trainable: '4.*'",
    "buffers": "name: 'torch:their_nets:normed', numerics: portable, buffers: averaged",
    "none": "{NET}, numerics: portable",
    "none of normed": "name: 'torch:their_nets:normed', numerics: portable",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_of_a_module_is_what_its_keys_ask_for(way: str, small_yaml: Path, command: Command) -> None:
    """Weights that were trained before in place of those of `init`, other frozen tensors, other running statistics."""
    from safetensors.numpy import load_file, save_file

    assert run(command, small_yaml, "honest", WAYS[way].replace("{NET}", NET)) == (0, "")
    assert command("verify", "honest")[:2] == (0, "honest: same bits\n")
    graph = json.loads(Path("honest/graph.json").read_bytes())
    initial, names = load_file("honest/initial.safetensors"), [name for name, _ in graph["tensors"]]
    others: dict[str, dict[str, object]] = {
        "other frozen": {"frozen": names[2:] if "frozen" in graph else names[:2]},
        "a frozen one less": {"frozen": graph.get("frozen", [])[:-1]},
        "other statistics": {"running": {"served": "last", "norms": [["1.running_mean", "1.running_var", 0.1]]}},
        "no statistics": {"running": None},
        "other samples of statistics": {},
        "another text": {"another": graph},
    }
    for what, changes in others.items():
        shutil.rmtree("forged", ignore_errors=True)
        shutil.copytree("honest", "forged")
        tensors, path = dict(initial), Path("forged/graph.json")
        text = json.dumps(graph) if "another" in changes else json.dumps(graph | changes)
        if what in {"other samples of statistics"}:
            tensors |= {name: values + 1 for name, values in initial.items() if name == names[0]}
            text = path.read_text(encoding="utf-8")
        if what == "other statistics" and "1.running_mean" not in tensors:
            if "normed" not in WAYS[way]:
                continue
            tensors |= {f"1.running_{name}": np.full(4, start, np.float32) for name, start in (("mean", 0), ("var", 1))}
        elif what == "no statistics":
            tensors = {name: tensors[name] for name in names}
        path.write_text(text, encoding="utf-8")
        save_file(tensors, "forged/initial.safetensors")
        if (path.read_bytes(), what) == (Path("honest/graph.json").read_bytes(), "no statistics"):
            continue
        seal(Path("forged"))
        for words in ((), ("--jobs", "2"))[: 2 if way == "init" else 1]:
            code, output, messages = command("verify", "forged", *words)
            assert (code in (1, 2), "Traceback" in messages, "forged" in output + messages) == (True, False, True), what


NORMED = "name: 'torch:their_nets:normed', numerics: portable"


@pytest.mark.parametrize(
    ("done", "said", "says"),
    [
        (f"{NET}, numerics: portable, initial: first/params.safetensors", f"{NET}, numerics: portable, init: he",
         "different: metrics.csv, line 2, iteration 0: digest is"),
        (f"{NET}, numerics: portable, init: torch", f"{NET}, numerics: portable, init: he",
         "different: metrics.csv, line 2, iteration 0: digest is"),
        (f"{NET}, numerics: portable, trainable: '4.*'", f"{NET}, numerics: portable, trainable: '0.*'",
         "graph.json: is damaged (frozen is '0.weight', '0.bias', and by model.trainable '4.weight', '4.bias')"),
        (f"{NET}, numerics: portable", f"{NET}, numerics: portable, trainable: '0.*'",
         "graph.json: is damaged (frozen is none, and by model.trainable '4.weight', '4.bias')"),
        (f"{NORMED}, buffers: last", f"{NORMED}, buffers: averaged", "running is last, and by model.buffers averaged"),
        (f"{NORMED}, buffers: last", NORMED, "(running is last, and by model.buffers none)"),
        (f"{NORMED}, buffers: local", f"{NORMED}, buffers: last", "(running is none, and by model.buffers last)"),
    ],
)  # fmt: skip
def test_the_folder_of_a_run_of_other_keys(done: str, said: str, says: str, small_yaml: Path, command: Command) -> None:
    """Everything in it is of one run; only the keys are those of another, with its digest of the experiment."""
    assert run(command, small_yaml, "first", f"{NET}, numerics: portable") == (0, "")
    assert run(command, small_yaml, "done", done) == (0, "")
    assert run(command, small_yaml, "said", said) == (0, "")
    assert command("verify", "done")[0] == command("verify", "said")[0] == 0
    shutil.copy("said/config.yaml", "done")
    record = {key: value for key, value in summary("done").items() if key != "model_files"}
    seal(Path("done"), record | {"experiment": summary("said")["experiment"]})
    for words in ((), ("--jobs", "2")):
        code, output, messages = command("verify", "done", *words)
        assert (code in (1, 2), says in output + messages, "Traceback" in messages) == (True, True, False), messages


def test_a_note_says_which_it_took(small_yaml: Path, command: Command) -> None:
    def noted(out: str, model: str) -> list[str]:
        code, _, messages = command("run", small_yaml, f"model={{{model}}}", "iterations=2", "--out", out)
        assert code == 0
        return [line for line in messages.splitlines() if line.startswith("note: model")]

    assert noted("portable", NET) == [
        "note: model.name: torch:their_nets:images is computed by fredsim, with the same bits on every machine "
        "(numerics: portable); with numerics: native PyTorch computes it"
    ]
    assert noted("native", f"{NET}, activation: Softshrink") == [
        "note: model.name: torch:their_nets:images uses softshrink in its layer '1' (Softshrink), which is not among "
        "the operators that fredsim computes itself; the nearest that it does is relu; so PyTorch computes it "
        "(numerics: native)"
    ]
    steps = "name: 'torch:their_nets:Steps'"
    assert noted("steps", steps) == [
        "note: model.name: torch:their_nets:Steps has the recurrent layer 'body', which fredsim writes out step by "
        "step if numerics is portable; so PyTorch computes it (numerics: native)"
    ]
    assert noted("asked", f"{steps}, numerics: portable") == []
    outs = ("portable", "native", "steps", "asked")
    assert [summary(out)["numerics"] for out in outs] == ["portable", "native", "native", "portable"]
    assert command("verify", "native")[:2] == (0, "native: same bits\n")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            f"{NET}, activation: Softshrink, numerics: portable",
            "the nearest that it does is relu; give numerics: native",
        ),
        (f"{NET}, classes: 7, numerics: portable", "maps a sample to (7,); it must give logits, (10,)"),
        ("name: 'torch:their_nets:Odd', numerics: portable", "uses sum in its forward, which is taken over samples"),
        (f"{NET}, numerics: portable, device: cuda", "model: device is cuda, on which PyTorch would compute; with"),
        (f"{NET}, numerics: exact", "model.numerics: is 'exact'; it must be 'portable' or 'native'"),
    ],
)
def test_what_is_refused(small_yaml: Path, command: Command, model: str, says: str) -> None:
    code, messages = run(command, small_yaml, "out", model)
    assert code == 2
    assert says in messages
    assert messages.count("\n") == 1


def test_tokens_need_their_rows(small_yaml: Path, command: Command) -> None:
    data = "data={name: modular}"
    code, messages = run(
        command, small_yaml, "out", "name: 'torch:their_nets:tokens', rows: 4, numerics: portable", data
    )
    assert code == 2
    assert "has a table of 4 rows; samples choose the rows " in messages


TOKENS = "data={name: modular, p: 11, train: 96, validation: 25}", "backend=numpy", "threads=1"


@pytest.mark.parametrize("how", ["cached", "attribute", "buffer"])
def test_what_a_module_makes_once_is_real(how: str, small_yaml: Path, command: Command) -> None:
    """Not what torch.export calls it with; nor does PyTorch meet that where fredsim cannot compute the module."""
    model = "name: 'torch:their_nets:Masked', how: {}"
    for name in (how, "always"):
        assert run(command, small_yaml, name, model.format(name), *TOKENS)[0] == 0
    assert summary(how)["numerics"] == "portable"
    assert last_row(how) == last_row("always")
    if how != "buffer":
        assert run(command, small_yaml, "odd", f"{model.format(how)}, odd: true", *TOKENS)[0] == 0
        assert summary("odd")["numerics"] == "native"


CELL = """
from torch import nn

class Block(nn.Module):
    def forward(self, x):
        return nn.functional.{}(x)
"""
FACTORY = """
def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), Block(), nn.Linear(WIDTH, classes))
"""


def test_a_notebook_is_captured_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its factory is the same object when what that uses has changed."""
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    digits, found = load_dataset("digits", None, None, data_root()), []
    for number, (code, width) in enumerate([("relu", 8), ("gelu", 8), ("gelu", 5)]):
        exec(CELL.format(code) + FACTORY * (number == 0), vars(cells))
        vars(cells)["WIDTH"] = width
        model = TorchModel("torch:cells:net", {}, "cpu", digits.shape, digits.classes, 0)
        network = captured(model, digits, CrossEntropy(), chosen=True)
        kinds = [type(node.operator).__name__ for node in network.graph.nodes]
        found.append(({"Relu", "Gelu"} & {*kinds}, network.layout.tensors[0][1]))
    assert found == [({"Relu"}, (8, 64)), ({"Gelu"}, (8, 64)), ({"Gelu"}, (5, 64))]
