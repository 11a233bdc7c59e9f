"""Runs of PyTorch modules that fredsim computes itself: their bits, what is kept, and verifying without PyTorch."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.networks.saved import graph_of_text

Command = Callable[..., tuple[int, str, str]]

MODULES = """
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
    assert [summary(out)["numerics"] for out in ("portable", "native")] == ["portable", "native"]
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
