"""What must not move a bit: threads, windows, backends, the processor, how often is evaluated, who watches."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.errors import FredsimError
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of a kernel be split over all threads, however small it is, and whatever takes less time."""
    monkeypatch.setattr("fredsim.jit.team.MIN_WORK", 0)
    monkeypatch.setattr("fredsim.jit.team.Pace.next", lambda _: True)


SERVERS: list[dict[str, Any]] = [
    {"name": "asgd", "lr": 0.1},
    {"name": "fasgd", "lr": 0.005},
    {"name": "sync", "lr": 0.1},
    {"name": "soft_sync", "lr": 0.1, "n": 3},
]
KNOBS: list[dict[str, Any]] = [
    {},
    {"threads": 1},
    {"threads": 2},
    {"threads": 3},
    {"window": 1},
    {"window": 2},
    {"window": 7},
    {"window": 1000},
    {"backend": "numpy"},
    {"evaluation": {"every": 1}},
    {"evaluation": {"every": 10}},
    {"evaluation": {"every": 1000}},
    {"evaluation": {"every": 3, "unit": "updates"}},
    {"path": "snapshots"},
    {"path": "snapshots", "threads": 3},
    {"path": "snapshots", "window": 7},
    {"memory": 1},
]


@pytest.mark.usefixtures("split")
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server["name"])
def test_the_digest_moves_with_no_knob(simulate: Simulate, server: dict[str, Any]) -> None:
    digests = {simulate({"iterations": 60, "server": server, **knob}).summary["digest"] for knob in (*KNOBS, {})}
    assert len(digests) == 1


@pytest.mark.parametrize("knob", KNOBS, ids=str)
def test_nor_does_a_diverging_run(simulate: Simulate, knob: dict[str, Any]) -> None:
    """The last finite parameters are the same, whatever found out that the next ones are not."""
    base = {"iterations": 200, "server": {"name": "asgd", "lr": 1e13}}
    reference, result = simulate({**base, "evaluation": {"every": 50}}), simulate({**base, **knob})
    for run in (reference, result):
        assert run.summary["status"] == "diverged"
        assert run.metrics["iteration"].iloc[-1] == run.summary["iterations"]
    assert result.summary["digest"] == reference.summary["digest"]
    assert result.summary["iterations"] == reference.summary["iterations"] < 200


COSINE = {"name": "cosine", "base": 0.2, "steps": 40}


@pytest.mark.parametrize(
    "changes",
    [
        {"server": {"name": "fedasync", "lr": COSINE}, "clients": {"count": 8, "batch_size": 3, "local_steps": 3}},
        {"server": {"name": "fedbuff", "lr": COSINE}, "clients": {"count": 8, "batch_size": 3, "local_steps": 2}},
        {"server": {"name": "asgd", "lr": COSINE}, "clients": {"count": 8, "batch_size": 3, "local_steps": 3}},
        {"server": {"name": "easgd", "lr": COSINE, "period": 3}},
        {"server": {"name": "downpour", "lr": COSINE, "n_push": 2, "n_fetch": 3}},
    ],
    ids=lambda changes: changes["server"]["name"],
)
def test_clients_that_step_by_a_schedule_do_not_see_the_window(simulate: Simulate, changes: dict[str, Any]) -> None:
    knobs: list[dict[str, Any]] = [{}, {"window": 1}, {"window": 7}, {"window": 1000}, {"backend": "numpy"}]
    assert len({simulate({**changes, **knob}).summary["digest"] for knob in knobs}) == 1


def test_rows_at_the_same_iteration_agree(simulate: Simulate) -> None:
    every = simulate({"iterations": 60, "evaluation": {"every": 1}}).metrics.set_index("iteration")
    tenth = simulate({"iterations": 60, "evaluation": {"every": 10}}).metrics.set_index("iteration")
    columns = ["timestamp", "validation_loss", "validation_error", "pushes", "bytes_fetched", "digest"]
    assert every.loc[tenth.index, columns].equals(tenth[columns])


def test_both_backends_write_the_same_metrics(simulate: Simulate) -> None:
    base = {"iterations": 40, "evaluation": {"every": 7}}
    one, other = simulate({**base, "backend": "numba"}), simulate({**base, "backend": "numpy"})
    for name in ("metrics.csv", "staleness.csv", "params.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()


def in_another_process(folder: Path, **environment: str) -> str:
    program = (
        "import sys, fredsim\n"
        "experiment = {'iterations': 60, 'data': {'name': 'digits'}, 'model': {'hidden': [16]},\n"
        "    'clients': {'count': 8, 'batch_size': 3}, 'server': {'name': 'fasgd', 'lr': 0.005}}\n"
        "print(fredsim.run(experiment, out=sys.argv[1]).summary['digest'])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return ran.stdout.strip()


def test_processes_hash_seeds_and_processors_agree(simulate: Simulate, tmp_path: Path) -> None:
    """`generic` is the plainest processor of the architecture: no wide vectors, no fused operations."""
    here = simulate({"iterations": 60, "server": {"name": "fasgd", "lr": 0.005}}).summary["digest"]
    assert in_another_process(tmp_path / "a", PYTHONHASHSEED="1") == here
    assert in_another_process(tmp_path / "b", PYTHONHASHSEED="2") == here
    assert in_another_process(tmp_path / "c", NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="") == here


def test_a_user_server_gives_the_bits_of_the_built_in_one(
    simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_servers.py").write_text(
        "import numpy as np\n"
        "from fredsim.servers import Reply\n"
        "class Plain:\n"
        "    def __init__(self, lr):\n"
        "        self.lr = np.float32(lr)\n"
        "    def init(self, params, clients):\n"
        "        self.params = params\n"
        "    def apply_update(self, grad, client_id, timestamp):\n"
        "        self.params = self.params - self.lr * grad\n"
        "class Rounds(Plain):\n"
        "    holds = True\n"
        "    timestamp = 0\n"
        "    def init(self, params, clients):\n"
        "        self.params, self.clients, self.batch = params, clients, []\n"
        "    def apply_update(self, grad, client_id, timestamp):\n"
        "        self.batch.append((client_id, grad.copy()))\n"
        "        if len(self.batch) < self.clients:\n"
        "            return Reply()\n"
        "        grads = [g for _, g in self.batch]\n"
        "        while len(grads) > 1:\n"
        "            grads = [a + b for a, b in zip(grads[::2], grads[1::2])]\n"
        "        self.params = self.params - self.lr * (grads[0] / np.float32(self.clients))\n"
        "        self.timestamp += 1\n"
        "        released, self.batch = [c for c, _ in self.batch], []\n"
        "        return Reply(released)\n"
        "class Forgetful(Plain):\n"
        "    def apply_update(self, grad, client_id, timestamp):\n"
        "        return Reply()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def digest(server: dict[str, Any]) -> str:
        return str(simulate({"iterations": 60, "server": server}).summary["digest"])

    assert digest({"name": "own_servers:Plain", "lr": 0.1}) == digest({"name": "asgd", "lr": 0.1})
    assert digest({"name": "own_servers:Rounds", "lr": 0.1}) == digest({"name": "sync", "lr": 0.1})
    with pytest.raises(FredsimError, match=r"Forgetful, client \d, iteration 0.*holds = True"):
        digest({"name": "own_servers:Forgetful", "lr": 0.1})
