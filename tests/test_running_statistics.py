"""The key buffers: what the BatchNorm of a PyTorch module is evaluated with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.compute.statistics import Statistics
from fredsim.data.datasets import data_root, load_dataset
from fredsim.runs.folder.results import Result
from tests import own_modules
from tests.conftest import checkpoints_every

Simulate = Callable[..., Result]
Refused = Callable[..., None]


pytestmark = pytest.mark.usefixtures("modules")


def model(**more: Any) -> dict[str, Any]:
    return {"name": "torch:own_modules:normalized", "numerics": "native", **more}


BASE = {"iterations": 9, "threads": 1, "dispatcher": {"name": "round_robin"}, "evaluation": {"every": 3}}
CLIENTS = 4


def by_hand(served: str, mu: int = 3, make: Callable[[], Any] = own_modules.normalized) -> list[float]:
    """Return the validation losses of a plain loop: each client has a module of its own, the server's parameters."""
    digits = load_dataset("digits", None, None, data_root())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        server = make()
    clients = [make() for _ in range(CLIENTS)]
    for client in clients:
        client.load_state_dict(server.state_dict())
    pushed, losses = list[int](), list[float]()
    for step in range(10):
        if step % 3 == 0:
            those = sorted(set(pushed)) if served == "averaged" else pushed[-1:]
            known = [dict(clients[i].named_buffers()) for i in those]
            for name, value in server.named_buffers():
                if known and value.is_floating_point():
                    value.copy_(torch.stack([one[name].double() for one in known]).mean(0))
            server.eval()
            x, y = torch.from_numpy(digits.validation.x), torch.from_numpy(digits.validation.y).long()
            with torch.no_grad():
                losses.append(float(torch.nn.functional.cross_entropy(server(x.view(-1, *digits.shape)), y)))
        if step == 9:
            return losses
        client, rows = clients[step % CLIENTS], slice(mu * step, mu * step + mu)
        x, y = torch.from_numpy(digits.train.x[rows]), torch.from_numpy(digits.train.y[rows]).long()
        client.zero_grad()
        torch.nn.functional.cross_entropy(client(x.view(-1, *digits.shape)), y).backward()
        with torch.no_grad():
            for own, its in zip(server.parameters(), client.parameters(), strict=True):
                own -= 0.1 * its.grad
                its.copy_(own)
        pushed.append(step % CLIENTS)
    raise AssertionError


@pytest.mark.parametrize("numerics", ["native", "portable"])
@pytest.mark.parametrize("served", ["averaged", "last"])
def test_against_a_plain_loop(served: str, numerics: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = {"count": CLIENTS, "batch_size": 3}
    experiment = BASE | {"clients": clients, "model": model(buffers=served, numerics=numerics)}
    found = simulate(experiment)
    losses = list(found.metrics["validation_loss"])
    np.testing.assert_allclose(losses, by_hand(served), rtol=1e-5)
    for other in ({"window": 1}, {"probe": {"every": 2}}, {"evaluation": {"every": 3, "gradient_norm": True}}):
        assert list(simulate(experiment | other).metrics["validation_loss"]) == losses
    local = simulate(experiment | {"model": model(buffers="local", numerics=numerics)})
    assert list(local.metrics["validation_loss"]) != losses
    assert [*load_file(local.folder / "params.safetensors")] == [*load_file(found.folder / "params.safetensors")]
    checkpoints_every(0.0, monkeypatch)
    assert list(simulate(experiment).metrics["validation_loss"]) == losses


@pytest.mark.parametrize("again", [False, True])
def test_a_norm_whose_outputs_go_by_running_statistics(again: bool, simulate: Simulate) -> None:
    """Also if it is computed again on the way back: then, too, by those with which the client began."""
    named = {"name": "torch:own_modules:Renormed", "again": again, "buffers": "averaged"}
    found = simulate(BASE | {"clients": {"count": CLIENTS, "batch_size": 3}, "model": named})
    assert found.summary["numerics"] == "native"
    expected = by_hand("averaged", make=own_modules.Renormed)
    np.testing.assert_allclose(list(found.metrics["validation_loss"]), expected, rtol=1e-4)


@pytest.mark.parametrize("served", ["averaged", "last"])
def test_a_norm_whose_running_statistics_autograd_keeps(served: str, simulate: Simulate) -> None:
    named = {"name": "torch:own_modules:two_norms", "numerics": "native", "buffers": served}
    found = simulate(BASE | {"clients": {"count": CLIENTS, "batch_size": 3}, "model": named})
    expected = by_hand(served, make=own_modules.two_norms)
    np.testing.assert_allclose(list(found.metrics["validation_loss"]), expected, rtol=1e-4)


def test_a_norm_that_stays_in_evaluation_does_so_in_the_gradient_norm(simulate: Simulate) -> None:
    """With dropout, which the norm is without, it is that of the same module where nothing is dropped."""
    changes = {"iterations": 4, "threads": 1, "evaluation": {"every": 2, "gradient_norm": True}}
    dropping, other = (
        simulate(changes | {"model": {"name": "torch:own_modules:pretrained", "numerics": "native", "p": p}})
        for p in (0.5, 0.0)
    )
    first = dropping.metrics["gradient_norm"].iloc[0]
    assert first > 0
    assert first == other.metrics["gradient_norm"].iloc[0]
    assert dropping.summary["status"] == "finished"


def test_what_is_kept_by_client() -> None:
    first = [np.zeros(2, np.float32), np.array(0)]
    kept = Statistics(first, "averaged")
    assert kept.served() is kept.of(3) is first
    kept.computed(3, [np.ones(2, np.float32), np.array(1)])
    assert kept.served() is first  # its push has not arrived
    kept.arrived(3, reached=True)
    kept.computed(1, [np.full(2, 4, np.float32), np.array(3)])
    kept.arrived(1, reached=False)  # dropped: only the client itself goes on from them
    assert kept.of(1)[0].tolist() == [4, 4]
    assert kept.served()[0].tolist() == [1, 1]
    kept.computed(1, [np.full(2, 3, np.float32), np.array(5)])
    other = Statistics(first, "averaged")
    other.put_state(kept.take_state())
    for one in (kept, other):
        one.arrived(1, reached=True)
        assert [part.tolist() for part in one.served()] == [[2, 2], 3]
        one.computed(1, first)
        one.cancelled(1)
        assert one.of(1)[0].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            "name: 'torch:own_modules:dense', numerics: native, buffers: last",
            "keeps no running statistics, and",
        ),
        (
            "name: 'torch:own_modules:dense', numerics: portable, buffers: last",
            "keeps no running statistics, and",
        ),
        ("name: 'torch:own_modules:normalized', numerics: native", "for BatchNorm give model.buffers: local, averaged"),
        ("name: 'torch:own_modules:normalized', buffers: all", "model.buffers"),
        ("name: 'torch:own_modules:normalized', numerics: portable, buffers: last, momentum: 2.0", "momentum 2, and"),
        (
            "name: 'torch:own_modules:normalized', numerics: portable, buffers: last, track_running_stats: false",
            "keeps no running statistics, and",
        ),
        ("name: 'torch:own_modules:each', numerics: portable, buffers: last", "keeps no running statistics, and"),
    ],
)
def test_what_is_refused(keys: str, says: str, small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, f"model={{{keys}}}", "--out", "out", says=[says])


def test_a_live_run_is_refused(small_yaml: Path, refused: Refused) -> None:
    keys = "model={name: 'torch:own_modules:normalized', numerics: native, buffers: last}"
    refused("live", small_yaml, keys, "--out", "out", says=["model.buffers is last; a live run's workers"])
