"""`fredsim schema`: the JSON Schema that is committed, what it takes and what it refuses; completion in shells."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import Draft7Validator

from fredsim.config.document import MODELINE, read_document
from fredsim.config.schema.experiments import as_text
from fredsim.config.shipped import shipped

ROOT = Path(__file__).parents[1]
SCHEMA = ROOT / "experiments/schema.json"
PLAIN = {
    "iterations": 10,
    "data": {"name": "digits"},
    "clients": {"count": 4, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
}


def problems(data: Any, schema: Any = None) -> list[str]:
    """Return what is wrong, and what is wrong by each branch of a union."""
    waiting = [*Draft7Validator(schema or json.loads(SCHEMA.read_text(encoding="utf-8"))).iter_errors(data)]
    found = []
    while waiting:
        error = waiting.pop()
        found.append(f"{error.json_path}: {error.message}")
        waiting += error.context
    return found


def test_the_committed_schema_is_what_the_command_prints(command: Callable[..., tuple[int, str, str]]) -> None:
    assert as_text() == SCHEMA.read_text(encoding="utf-8")
    assert command("schema") == (0, SCHEMA.read_text(encoding="utf-8"), "")
    Draft7Validator.check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_experiment_names_the_schema_and_fits_it(name: str) -> None:
    path = shipped()[name]
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    assert first.startswith(MODELINE)
    assert (path.parent / first.removeprefix(MODELINE)).resolve() == SCHEMA
    document = read_document(path)
    assert problems(document.data) == []
    assert MODELINE not in document.heading  # it would lead nowhere from a folder of results


TAKEN: list[dict[str, Any]] = [
    {},
    {"server": {"name": "mine:Own", "anything": 1}},
    {"server": {"name": "asgd", "lr": {"name": "cosine", "base": 0.1, "steps": 100}}},
    {"server": {"name": "asgd", "lr": {"name": "mine:rate", "q": 2}}},
    {"dispatcher": {"push": {"every": 3}, "fetch": {"budget": {"bytes": 10.0}}, "dropped_push": "skip"}},
    {"dispatcher": {"name": "mine:Order", "wait": False, "anything": 1}},
    {"dispatcher": {"name": "clock", "compute": {"seconds": [1.0, 2.0], "noise": {"name": "gamma", "cv": 1}}}},
    {"model": {"hidden": []}, "clients": {"count": 4, "batch_size": 2, "partition": "iid"}, "memory": "2GB"},
    {"model": {"name": "torch:mine:net", "depth": 3}, "compress": None, "sweep": None},
    {"loss": "mse", "evaluation": {"metrics": ["top5", "mine:f1", {"name": "mine:f1", "column": "f2", "beta": 2}]}},
    {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}, "until": {"top5": 0.1}},
    {"loss": {"name": "mine:huber", "delta": 2.0}, "evaluation": {"metrics": ["top10", "per_class"]}},
    {"evaluation": {"every": 0.5, "unit": "seconds"}, "figures": [{"name": "a", "by": "server.name", "clients": 3}]},
    {"server": {"name": "asgd"}, "sweep": {"server.lr": [0.1, 0.2], "seed": [0, 1]}, "select": {"over": "server.lr"}},
    {"server": ..., "cases": [{"server": {"name": "asgd", "lr": 0.1}}, {"server.name": "sync", "server.lr": 0.1}]},
]  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"servr": {"name": "asgd"}}, "$: Additional properties"),
    ({"server": {"name": "asdg", "lr": 0.1}}, "$.server: "),
    ({"server": {"name": "asgd"}}, "$.server: 'lr' is a required"),
    ({"server": {"name": "asgd", "lr": -1}}, "$.server: "),
    ({"server": {"name": "asgd", "lr": 0.1, "gamma": 0.5}}, "$.server: "),
    ({"server": {"name": "asgd", "lr": {"name": "step", "base": 0.1}}}, "$.server.lr: 'every' is a required"),
    ({"server": {"lr": 0.1}}, "$.server: 'name' is a required"),
    ({"iterations": ...}, "$: "),
    ({"updates": 5}, "$: "),
    ({"clients": {"count": 0, "batch_size": 2}}, "$.clients.count: 0 is less"),
    ({"dispatcher": {"name": "uniform", "compute": {}}}, "$.dispatcher: "),
    ({"dispatcher": {"push": {"evry": 2}}}, "$.dispatcher: "),
    ({"sweep": {"seed": 3}}, "$.sweep.seed: 3 is not"),
    ({"sweep": {"sed": [3]}}, "$.sweep: "),
    ({"sweep": {"server": [{"name": "asgd", "lr": "fast"}]}}, "$.sweep.server[0]: "),
    ({"cases": [{"clients.count": "many"}]}, "$.cases[0]['clients.count']: 'many' is not"),
    ({"select": {"best": 7, "over": "seed"}, "sweep": {"seed": [0]}}, "$.select.best: 7 is not"),
    ({"loss": "msee"}, "$.loss: 'msee' is not"),
    ({"evaluation": {"metrics": ["topp"]}}, "$.evaluation.metrics[0]: 'topp' is not"),
    ({"loss": {"name": "mse", "label_smoothing": 0.1}}, "$.loss: {'name': 'mse', 'label_smoothing': 0.1} is not"),
]


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in (PLAIN | changes).items() if value is not ...}


@pytest.mark.parametrize("changes", TAKEN)
def test_what_it_takes(changes: dict[str, Any]) -> None:
    assert problems(changed(changes)) == []


@pytest.mark.parametrize(("changes", "says"), REFUSED)
def test_what_it_refuses(changes: dict[str, Any], says: str) -> None:
    assert [text for text in problems(changed(changes)) if text.startswith(says)] != []


def test_a_server_that_a_package_registers(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fredsim.servers import SERVERS

    point = SimpleNamespace(name="theirs", module="their_package", load=lambda: SERVERS["fasgd"])
    gone = SimpleNamespace(name="broken", module="their_package", load=lambda: 1 / 0)
    points = {"fredsim.servers": [point, gone]}
    monkeypatch.setattr("fredsim.config.registry.entry_points", lambda group: points.get(group, []))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda: SimpleNamespace(groups={"other", *points}))
    schema = json.loads(command("schema")[1])
    assert problems(changed({"server": {"name": "theirs", "lr": 0.1, "beta": 0.5}}), schema) == []
    assert problems(changed({"server": {"name": "theirs", "lr": 0.1, "delta": 0.5}}), schema) != []
    assert problems(changed({"server": {"name": "broken", "anything": 1}}), schema) == []


def test_shells_complete_commands() -> None:
    environment = {"_FREDSIM_COMPLETE": "complete_bash", "COMP_WORDS": "fredsim sc", "COMP_CWORD": "1"}
    words = [sys.executable, "-c", "from fredsim.cli import app; app(prog_name='fredsim')"]
    ran = subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["schema"]
