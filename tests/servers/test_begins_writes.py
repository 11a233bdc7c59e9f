"""A user's `begins` may write into the parameters that it is told: its client, and no other, computes from them."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.numerics.oracle import tree_sum
from fredsim.runs.folder.results import Result

OWN = """
import numpy as np
from fredsim.servers import Sync


class Shifted(Sync):
    def begins(self, client_id, params, timestamp):
        params += np.float32(0.125 * client_id)
"""


@pytest.mark.parametrize("wait", [True, False])
def test_what_begins_writes(
    simulate: Callable[..., Result], plain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """All clients of a round fetch the same parameters; ASGD's clients each hold their own."""
    base = "Sync" if wait else "ASGD"
    (tmp_path / f"shifting_{base}.py").write_text(OWN.replace("Sync", base), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    world = plain.World(clients=4)
    theta, digests = world.start.copy(), list[str]()
    held: list[Any] = [theta.copy() for _ in range(4)]
    fetched = [theta.copy() for _ in range(4)]
    for turn in range(5):
        grads = []
        for client in range(4):
            grads.append(world.gradient(held[client], 4 * turn + client, client, turn))
            if not wait:
                theta = theta - np.float32(0.1) * grads[-1]
                held[client] = fetched[client] + np.float32(0.125 * client)
                fetched[client] = theta
            elif client == 3:
                theta = theta - np.float32(0.1) * (tree_sum(np.stack(grads)) / np.float32(4))
                held = [theta + np.float32(0.125 * other) for other in range(4)]
            digests.append(world.digest(theta))
    result = simulate(
        {
            "iterations": 20,
            "clients": {"count": 4, "batch_size": 3},
            "server": {"name": f"shifting_{base}:Shifted", "lr": 0.1},
            "dispatcher": {"name": "round_robin", "wait": wait},
            "evaluation": {"every": 1},
        }
    )
    assert result.metrics["digest"].tolist()[1:] == digests


@pytest.mark.parametrize("wait", [True, False])
def test_what_begins_wrote_is_kept_if_the_next_fetch_is_dropped(
    simulate: Callable[..., Result], plain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool
) -> None:
    """A client adds to what it holds at each task; every second fetch takes the place of that."""
    (tmp_path / "shifting_kept.py").write_text(OWN.replace("Sync", "ASGD"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    world = plain.World(clients=4)
    theta, digests = world.start.copy(), list[str]()
    held = [theta] * 4  # of the task under way
    holds = [theta] * 4
    for event in range(24):
        turn, client = divmod(event, 4)
        theta = theta - np.float32(0.1) * world.gradient(held[client], event, client, turn)
        fetched = theta if turn % 2 else holds[client]
        held[client] = (fetched if wait else holds[client]) + np.float32(0.125 * client)
        holds[client] = held[client] if wait or not turn % 2 else theta
        digests.append(world.digest(theta))
    result = simulate(
        {
            "iterations": 24,
            "clients": {"count": 4, "batch_size": 3},
            "server": {"name": "shifting_kept:Shifted", "lr": 0.1},
            "dispatcher": {"name": "round_robin", "wait": wait, "fetch": {"every": {"k": 2}}},
            "evaluation": {"every": 1},
        }
    )
    assert result.metrics["digest"].tolist()[1:] == digests
