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
