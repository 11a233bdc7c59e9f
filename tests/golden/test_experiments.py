"""The digests of experiments, by which results are known to be of them: what they are of does not change unnoticed."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import assign
from fredsim.config.experiment import Experiment
from fredsim.config.resolution import resolve
from fredsim.config.sweep.expansion import expand, open_source

RECORDED: dict[str, str] = json.loads(Path(__file__).with_name("experiments.json").read_text(encoding="utf-8"))
FOLDER = Path(__file__).parents[2] / "experiments"
BASE = {
    "iterations": 10,
    "data": {"name": "digits"},
    "clients": {"count": 2, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
}
SAME: dict[str, Any] = {
    "name": "other",
    "backend": "numpy",
    "threads": 2,
    "window": 3,
    "path": "snapshots",
    "memory": "1GB",
    "probe": {"every": 5},
    "events": True,
    "published": {"source": "here", "series": [{"where": {"seed": 0}, "points": [[10, 0.5]]}]},
    "figures": [{"name": "error"}],
}
OTHER: dict[str, Any] = {
    "seed": 1,
    "iterations": 11,
    "data.train": 1000,
    "model.hidden": [3],
    "clients.count": 3,
    "dispatcher.wait": False,
    "server.lr": 0.2,
    "until": {"validation_error": 0.1},
    "loss": {"name": "cross_entropy", "label_smoothing": 0.1},
    "stages": {"cuts": ["W2"], "delay": "pipedream"},
    "compress": {"name": "ternary"},
    "average": {"name": "window"},
    "evaluation.every": 5,
}


def changed(key: str, value: Any) -> Experiment:
    data = json.loads(json.dumps(BASE))
    assign(data, key, value)
    return resolve(data)


@pytest.mark.parametrize("name", RECORDED)
def test_the_experiments_that_come_with_fredsim(name: str) -> None:
    if "torch:" in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    digests = "".join(run.experiment.digest for run in expand(open_source(FOLDER / f"{name}.yaml")).runs)
    assert hashlib.sha256(digests.encode()).hexdigest() == RECORDED[name]


def test_all_of_them_are_recorded() -> None:
    assert {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.yaml")} == {*RECORDED}


def test_the_keys_that_make_another_experiment() -> None:
    digest = resolve(BASE).digest
    assert {key for key, value in (SAME | OTHER).items() if changed(key, value).digest != digest} == {*OTHER}
    others = {"iterations", "updates", "epochs", "seconds"} | {
        "problem"
    }  # of the first one is given; no data beside this
    assert {key.partition(".")[0] for key in SAME | OTHER} | others == {*Experiment.model_fields}
