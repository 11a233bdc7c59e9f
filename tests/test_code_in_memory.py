"""Code of a notebook, which is in no file: what a run is made from is known, and a changed class is another run."""

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fredsim
from docs.generate.links import ROOT
from fredsim.plugins.code_in_memory import digest_of_code
from fredsim.runs.processes.isolation import must_be_apart
from fredsim.runs.single import execution

CELL = """
import numpy as np

RATE = {rate}
calls, unused = 0, 0
SCALES = {{"weight": [1.0, {{1, 2}}, (np.float32(1), np.arange(2.0))]}}
SEEN, KEPT = [], {{}}


def step_of(grad):
    return np.float32(RATE * SCALES["weight"][0]) * grad


class Plain:
    kinds, made = ("a", 1), 0

    def __init__(self, lr):
        self.lr = lr
        Plain.made += 1

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        global calls
        calls += 1
        SEEN.append(client_id)
        KEPT[client_id] = timestamp
        if client_id in {{"nobody", "none"}}:
            return
        self.params -= np.float32(self.lr) * step_of(grad)
"""
Cell = Callable[..., ModuleType]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Run a cell of a notebook, whose module has no file."""
    module = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", module)

    def run(text: str = CELL, rate: float = 1.0) -> ModuleType:
        exec(compile(text.format(rate=rate), "<cell>", "exec"), vars(module))
        return module

    return run


def test_a_class_that_was_edited_is_another_run(cell: Cell, digits_experiment: dict[str, Any], tmp_path: Path) -> None:
    def by_asgd(rate: float) -> str:
        plain = digits_experiment | {"server": {"name": "asgd", "lr": rate}}
        return str(fredsim.run(plain, out=tmp_path / f"asgd{rate}").summary["digest"])

    own = digits_experiment | {"server": {"name": "cells:Plain", "lr": 0.25}, "evaluation": {"every": 10}}
    cell()
    first = fredsim.run(own, out=tmp_path / "own")
    assert first.summary["digest"] == by_asgd(0.25)
    written = (tmp_path / "own" / "summary.json").stat().st_mtime_ns
    cell()  # the same cell once more, as after a restart of the kernel
    assert fredsim.run(own, out=tmp_path / "own", resume=True).summary["digest"] == first.summary["digest"]
    assert (tmp_path / "own" / "summary.json").stat().st_mtime_ns == written
    cell(rate=2.0)
    assert fredsim.run(own, out=tmp_path / "own", resume=True).summary["digest"] == by_asgd(0.5)
    cell(CELL.replace("[1.0, ", "[0.5, "), rate=2.0)  # a list that it names
    assert fredsim.run(own, out=tmp_path / "own", resume=True).summary["digest"] == by_asgd(0.25)


def test_no_checkpoint_of_other_code_is_continued(
    cell: Cell, digits_experiment: dict[str, Any], tmp_path: Path
) -> None:
    own = digits_experiment | {"server": {"name": "cells:Plain", "lr": 0.25}, "evaluation": {"every": 10}}
    keeps = ("Plain.made", "calls +=", "SEEN.", "KEPT[")
    stateless = "".join(line for line in CELL.splitlines(True) if not line.strip().startswith(keeps))

    def stop(row: dict[str, Any]) -> None:
        if row["iteration"] == 10:
            raise ZeroDivisionError

    cell(stateless)
    with pytest.raises(ZeroDivisionError):
        fredsim.run(own, out=tmp_path / "own", on_row=stop)
    assert fredsim.Result(tmp_path / "own").summary["status"] == "interrupted"
    assert [*(tmp_path / "own" / "checkpoint").iterdir()]
    cell(stateless, rate=2.0)
    found = fredsim.run(own, out=tmp_path / "own")
    whole = fredsim.run(own, ["server={name: asgd, lr: 0.5}"], out=tmp_path / "asgd")
    assert found.summary["digest"] == whole.summary["digest"]


@pytest.mark.parametrize("imported", [False, True])
def test_a_file_that_was_edited_is_another_run(
    imported: bool, digits_experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a notebook, whose process has imported it, by a run before or by itself."""
    name = f"edited_{imported}".lower()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(execution, "must_be_apart", must_be_apart)
    own = digits_experiment | {"server": {"name": f"{name}:Plain", "lr": 0.25}}
    for rate, more in ((1.0, ""), (2.0, ", beta=1")):
        text = CELL.format(rate=rate).replace("(self, lr)", f"(self, lr{more})")
        Path(f"{name}.py").write_text(text, encoding="utf-8")
        if imported and not more:
            importlib.import_module(name)
        plain = digits_experiment | {"server": {"name": "asgd", "lr": 0.25 * rate}}
        digest = fredsim.run(plain, out=f"asgd{rate}").summary["digest"]
        result = fredsim.run(own, out="own", resume=True)
        assert result.summary["digest"] == digest
        with warnings.catch_warnings(action="error"):
            assert result.verify() == []
        swept = fredsim.sweep(own | {"sweep": {"seed": [own.get("seed", 0)]}}, out=f"swept{rate}")
        assert [run.summary["digest"] for run in swept] == [digest]
    if not imported:  # its arguments are looked at here
        beta = [f"server={{name: '{name}:Plain', lr: 0.25, beta: 2}}"]
        assert fredsim.run(own, beta, out="beta").summary["digest"] == digest


def test_what_the_digest_is_of(cell: Cell) -> None:
    def digest(text: str = CELL, rate: float = 1.0) -> str:
        return digest_of_code(cell(text, rate), ["Plain"])

    before = digest()
    module = cell()
    module.Plain.made = 7  # what its code assigns
    vars(module).update(calls=8, unused=9, lr=10, new=lambda: 11)  # and what it does not name
    module.SEEN.append(3)  # and what its code changes
    module.KEPT[3] = 4
    assert digest_of_code(module, ["Plain"]) == before
    changes = [
        ("* grad", "/ grad"),
        ('("a", 1)', '("a", 2)'),
        ('"nobody"', '"somebody"'),
        ("* step_of(grad)", "* step_of(2 * grad)"),
        ("(self, params, clients)", "(self, params, clients=3)"),
        ("[1.0, ", "[2.0, "),
        ("{{1, 2}}", "{{1, 3}}"),
        ("arange(2.0)", "ones(2)"),
        ("float32(1)", "float64(1)"),
    ]
    assert len({before, digest(rate=2.0), *(digest(CELL.replace(*change)) for change in changes)}) == 11
    assert digest() == before
    step, found = module.step_of, set[str]()
    for given in (partial(step, 2), partial(step, 3), partial(step, 4, 3), partial(step, grad=2), partial(str, 2)):
        vars(module).update(made=given)
        found.add(digest_of_code(module, ["made"]))
    assert len(found) == 5


@pytest.mark.parametrize("seed", ["1", "2"])
def test_it_is_the_same_in_another_process(seed: str, cell: Cell) -> None:
    program = (
        "import sys; from types import ModuleType; from fredsim.plugins.code_in_memory import digest_of_code\n"
        "module = ModuleType('cells'); exec(sys.stdin.read(), vars(module)); print(digest_of_code(module, ['Plain']))"
    )
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], input=CELL.format(rate=1.0), env=environment, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.strip() == digest_of_code(cell(), ["Plain"])
