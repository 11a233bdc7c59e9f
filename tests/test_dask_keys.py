"""Keys of losses, metrics, clients, pipelines and problems on a Dask cluster: the bits of runs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.dask_cluster import Cluster

pytest.importorskip("distributed", reason="Dask is not installed: pip install .[cluster]")

Command = Callable[..., tuple[int, str, str]]

MODULE = """
import numpy as np

def squared(z, y):
    e = z - np.eye(10, dtype=np.float32)[y]
    return (e * e).sum(axis=1), 2 * e

def share(z, y):
    return np.mean(z.argmax(axis=1) != y)

def darker(x, generator):
    return x * np.float32(generator.random())

class Bowl:
    def initial(self, rng):
        return rng.random(6, np.float32)

    def gradient(self, params, draw):
        return params + draw.random(6, np.float32)

    def evaluate(self, params):
        return {"height": float(np.abs(params).max())}
"""
CASES: list[dict[str, Any]] = [
    {"loss": "mine:squared", "evaluation.metrics": ["mine:share"]},
    {"loss": {"name": "cross_entropy", "label_smoothing": 0.1}, "data.augment": {"crop": 1, "function": "mine:darker"}},
    {"model": {"name": "linear"}, "loss": "cross_entropy"},
    {"model": {"name": "vgg", "widths": [2], "buffers": "averaged", "dropout": 0.5}},
    {"clients.optimizer": {"name": "adamw", "lr": 0.01}, "clients.local_steps": 3, "clients.prox": 0.1},
    {"clients.clip_each_sample": 0.5, "clients.noise": 0.1},
    {"server": {"name": "sync", "lr": 0.1}, "clients.fraction": 0.5, "clients.clip": 1.0},
    {"server": {"name": "sync", "lr": 1.0}, "clients.control_variates": True, "clients.local_steps": 2,
     "clients.sampling": "iid",
     "clients.optimizer": {"name": "sgd", "lr": 0.1}},
    {"clients": {"count": 1, "batch_size": 3}, "stages": {"cuts": ["W2"], "delay": "pipemare", "correction": 0.1}},
    {"clients.current": True},
]  # fmt: skip


def write(name: str, document: dict[str, Any]) -> None:
    with Path(name).open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(document, file)


@pytest.fixture
def files(digits_experiment: dict[str, Any], cluster: Cluster) -> Cluster:
    """Write the experiments and the module into the current folder; start a worker."""
    Path("mine.py").write_text(MODULE, encoding="utf-8")
    base = digits_experiment | {"iterations": 12, "evaluation": {"every": 6}}
    write("keys.yaml", base | {"cases": CASES})
    own = {key: base[key] for key in ("iterations", "server", "evaluation")}
    write("bowl.yaml", own | {"problem": {"name": "mine:Bowl"}, "clients": {"count": 3}, "sweep": {"seed": [0, 1]}})
    cluster.work()
    return cluster


@pytest.mark.parametrize("name", ["keys", "bowl"])
def test_a_cluster_changes_no_bit(name: str, files: Cluster, command: Command) -> None:
    assert command("run", f"{name}.yaml", "--quiet", "--out", "here") == (0, "", "")
    code, output, _ = command("run", f"{name}.yaml", "--dask", files.address, "--out", "dask")
    assert code == 0
    assert output.count("finished") == (len(CASES) if name == "keys" else 2)
    compared = [path for path in Path("here").rglob("*") if path.is_file() and path.name != "summary.json"]
    for path in compared:
        assert path.read_bytes() == Path("dask", path.relative_to("here")).read_bytes(), path
