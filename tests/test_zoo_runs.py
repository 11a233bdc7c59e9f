"""Whole runs of networks that come with fredsim: whatever works with a multilayer perceptron works with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.resolution import resolve
from fredsim.data.datasets import load_dataset
from fredsim.data.problems import modular
from fredsim.networks.graph import Graph
from fredsim.networks.initial import initial_parameters
from fredsim.networks.zoo.gpt import gpt
from fredsim.networks.zoo.resnet import resnet
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.oracle import mean64
from fredsim.numerics.streams import Streams
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute

#: A network and its data.
RUNS: dict[str, dict[str, Any]] = {
    "resnet": {"data": {"name": "digits", "train": 24, "validation": 6}, "model": {"name": "resnet", "width": 8}},
    "vgg": {"data": {"name": "digits", "train": 24, "validation": 6}, "model": {"name": "vgg", "widths": [4]}},
    "gpt": {
        "data": {"name": "modular", "p": 5, "train": 14, "validation": 8},
        "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2},
    },
}  # fmt: skip
BASE: dict[str, Any] = {
    "seed": 3,
    "iterations": 6,
    "clients": {"count": 3, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1},
    "evaluation": {"every": 3},
    "backend": "numpy",
}

#: The digests of these runs, on every machine.
DIGESTS = {
    "resnet": "0cdb9def1dccd3c5c37859d912f8c2a4b590a393fa620d04720d62af42bc3ee3",
    "vgg": "b28167ec418fab1d1a7d6fba718b8405458e5a8a28a89117f75255808901e77f",
    "gpt": "1e8e11cda0a83525779dbd97123c54c1e0f6eb849f46611788e3f89eb7bb62cf",
}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """Do a small run of a network, with changed top-level keys, in a new folder."""

    def one(name: str, **changes: Any) -> Result:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        result = fredsim.run({**BASE, **RUNS[name], **changes}, out=folder)
        assert isinstance(result, Result)
        assert result.summary["status"] == "finished"
        return result

    return one


def network(name: str) -> tuple[Graph, Any]:
    """Return the graph of a run, made without its configuration, and its data."""
    if name == "gpt":
        data = modular(5, 2, 0, 14, 8)
        return gpt(6, (3,), width=8, layers=1, heads=2, loss=CrossEntropy(ignored=-1)), data
    data = load_dataset("digits", 24, 6, Path())
    return (resnet(10, (1, 8, 8), width=8) if name == "resnet" else vgg(10, (1, 8, 8), widths=[4])), data


@pytest.mark.parametrize("name", RUNS)
def test_one_client_takes_the_steps_of_its_graph(name: str, run: Callable[..., Result]) -> None:
    graph, data = network(name)
    init = ("normal", 0.02) if name == "gpt" else ("he", 1.0)
    params = initial_parameters(graph, Streams(3), *init)
    for number in range(3):
        rows = slice(2 * number, 2 * number + 2)
        x = data.train.x[rows].reshape(2, *graph.sample)
        params -= np.float32(0.1) * graph.gradient(params, x, data.train.y[rows])[0]
    clients = {"count": 1, "batch_size": 2, "sampling": "sequential"}
    result = run(name, iterations=3, clients=clients)
    assert result.summary["digest"] == graph.layout.digest(params)
    x, y = data.validation.x.reshape(-1, *graph.sample), data.validation.y
    output = graph.forward(params, x).output
    assert result.metrics["validation_loss"].iloc[-1] == mean64(graph.loss.losses(output, y).each)
    wrong = (output[:, -1].argmax(axis=1) != y[:, -1]) if name == "gpt" else output.argmax(axis=1) != y
    assert result.metrics["validation_error"].iloc[-1] == wrong.mean()


@pytest.mark.parametrize("name", RUNS)
def test_a_digest_moves_with_no_knob(name: str, run: Callable[..., Result]) -> None:
    for knob in ({}, {"window": 1}, {"window": 2}, {"memory": 1}, {"evaluation": {"every": 1, "per_client": True}}):
        assert run(name, **knob).summary["digest"] == DIGESTS[name], knob


def stops(asked: Iterator[int]) -> bool:
    """Say to stop after a few times that it is asked."""
    return next(asked) > 2


@pytest.mark.parametrize("name", ["gpt", "vgg"])
def test_a_stopped_run_goes_on(name: str, run: Callable[..., Result], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"events": True, "window": 1, "iterations": 12}
    whole, experiment = run(name, **changes), resolve({**BASE, **RUNS[name], **changes})
    statuses: list[str] = []
    for asked in (count(), count(), count(-100)):
        execute(experiment, tmp_path / "stopped", stop=partial(stops, asked), policy=CheckpointPolicy(1e9))
        statuses.append(Result(tmp_path / "stopped").summary["status"])
    assert statuses == ["interrupted", "interrupted", "finished"]
    for file in ("params.safetensors", "metrics.csv", "events.parquet"):
        assert (tmp_path / "stopped" / file).read_bytes() == (whole.folder / file).read_bytes()


OPTIONS: dict[str, dict[str, Any]] = {
    "average": {"average": {"name": "window"}},
    "top_k": {"compress": {"name": "top_k", "k": 0.05}},
    "ef21": {"compress": {"name": "ef21", "inner": {"name": "top_k", "k": 0.05}}},
    "ternary": {"server": {"name": "ternary_sync", "lr": 0.1}},
    "gate per tensor": {
        "server": {"name": "fasgd", "lr": 0.01},
        "dispatcher": {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 0.5, "per": "tensor"}}},
    },
    "shards": {"clients": {"count": 3, "batch_size": 2, "partition": {"name": "iid", "shards": True}}},
    "local steps": {"clients": {"count": 3, "batch_size": 2, "local_steps": 2}},
    "observed": {
        "probe": {"every": 2},
        "events": True,
        "evaluation": {"every": 4, "per_client": True, "gradient_norm": True, "test": True},
    },
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_a_run_is_the_same_again(option: str, run: Callable[..., Result]) -> None:
    """Whatever an option does, verify finds the same rows, files and parameters."""
    result = run("gpt", **OPTIONS[option])
    assert fredsim.Result(result.folder).verify() == []
    if option == "observed":
        norms, table = result.metrics["gradient_norm"], result.clients
        graph, data = network("gpt")
        params = initial_parameters(graph, Streams(3), "normal", 0.02)
        grad = graph.gradient(params, data.train.x, data.train.y)[0]
        np.testing.assert_allclose(norms.iloc[0], np.linalg.norm(grad.astype(np.float64)), rtol=1e-5)
        assert len(table) == 3
        assert table["error"].between(0, 1).all()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "tokens for a dense network": ("gpt", {"model": {"name": "mlp"}}, "model.name is mlp; the data are sequences"),
    "tokens for images": ("gpt", {"model": {"name": "vgg"}}, "model.name is vgg, which takes images; the data"),
    "images for tokens": ("vgg", {"model": {"name": "gpt"}}, "model.name is gpt, which takes sequences"),
    "rows for images": (
        "vgg",
        {"data": {"name": "least_squares", "columns": 16}, "loss": "mse"},
        "model.name: vgg takes images (channels, rows, columns); a sample has the shape (16,)",
    ),
    "images that are too small": ("vgg", {"model": {"name": "lenet"}}, "model.name: lenet needs images of"),
    "another depth": ("vgg", {"model": {"name": "resnet", "depth": 9}}, "model.depth: is 9; it must be 6n + 2"),
    "another width": ("vgg", {"model": {"name": "resnet", "width": 12}}, "model.width: is 12; it should be a"),
    "no widths": ("vgg", {"model": {"name": "vgg", "widths": []}}, "model.widths: is []; it should have"),
    "heads that do not fit": (
        "gpt",
        {"model": {"name": "gpt", "width": 10}},
        "model: width is 10 and heads 4; the width must be a multiple",
    ),
    "another's key": (
        "vgg",
        {"model": {"name": "resnet", "widht": 8}},
        "model.widht: unknown key; did you mean 'width'?",
    ),
    "no such model": ("vgg", {"model": {"name": "resent"}}, "is 'resent'; it must be mlp, linear"),
    "too many sums": ("gpt", {"data": {"name": "modular", "terms": 9}}, "data.p is 97 and data.terms 9; 760,231"),
    "classes of tokens": (
        "gpt",
        {"clients": {"count": 3, "batch_size": 2, "partition": {"name": "dirichlet", "alpha": 1.0}}},
        "clients.partition is dirichlet; the data set's labels are one for each token of a sequence, not classes",
    ),
    "tokens that are scaled": (
        "gpt",
        {"data": {"name": "text:x", "normalize": {"mean": 0.0, "std": 1.0}}},
        "data.normalize: unknown key (known: name, sha256, train, validation, block)",
    ),
    "no such text": (
        "gpt",
        {"data": {"name": "text:no.txt"}},
        "no.txt: cannot be read (No such file or directory); it",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    name, changes, says = REFUSED[what]
    with pytest.raises(fredsim.FredsimError) as caught:
        fredsim.run({**BASE, **RUNS[name], **changes}, out=tmp_path / "run")
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()
