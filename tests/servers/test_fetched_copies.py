"""What clients fetch is what the server holds then, though its copy is made when the parameters are tested."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.runs.folder.results import Result

OWN = """
import numpy as np

from fredsim.servers import Reply


class TwoSteps:
    holds = True

    def init(self, params, clients):
        self.params, self.timestamp, self.waiting = params.copy(), 0, []

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(0.1) * grad
        self.waiting.append(client_id)
        if len(self.waiting) == 1:
            self.timestamp += 1  # for both pushes of a pair
            return Reply(())
        released, self.waiting = tuple(self.waiting), []
        return Reply(released)


class SaysSo(TwoSteps):
    def fetch(self, client_id):
        return self.params
"""


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_parameters_that_change_before_anybody_fetches(
    backend: str, simulate: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says itself what a client gets has no copy made ahead."""
    (tmp_path / "own_copies.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    found = [
        simulate({"server": {"name": f"own_copies:{name}"}, "backend": backend}).summary["digest"]
        for name in ("TwoSteps", "SaysSo")
    ]
    assert found[0] == found[1]
