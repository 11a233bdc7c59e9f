"""The runs for comparisons of paths, and the comparison itself."""

from collections.abc import Callable
from typing import Any

from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
FILES = ("metrics.csv", "staleness.csv", "params.safetensors")
KEYS = (
    "name", "status", "digest", "iterations", "updates", "validation_loss", "validation_error", "test_error", "pushes",
    "fetches", "bytes_pushed", "bytes_fetched",
)  # fmt: skip

#: Compared with `snapshots`, which any run can take.
QUICK = ("hand", "fused")
#: The paths on which a fetch may be refused.
REFUSING = ("fused",)

DISPATCHERS: list[dict[str, Any]] = [
    {"name": "uniform"},
    {"name": "weighted", "weights": [1.0, 4.0], "on_chosen": {"factor": 0.5, "recover_after": 3}},
    {"name": "round_robin"},
    {"name": "scripted", "order": [0, 3, 1, 1, 4, 2, 0]},
]
SAMPLINGS = ["sequential", "iid", "shuffled"]
HIDDEN: list[list[int]] = [[], [16], [20, 12]]
BATCHES = [1, 2, 3, 4, 5, 8, 13, 32]


def setting(batch: int, dispatcher: int) -> dict[str, Any]:
    """Return one of 32 runs, among which every pair of values of different keys occurs."""
    sampling, hidden = SAMPLINGS[(batch + dispatcher) % 3], HIDDEN[(dispatcher + batch // 3) % 3]
    return {
        "iterations": 60 + 11 * (batch + dispatcher),
        "model": {"hidden": hidden},
        "clients": {"count": 5 + batch, "batch_size": BATCHES[batch], "sampling": sampling},
        "dispatcher": DISPATCHERS[dispatcher] | {"wait": (batch // 2 + dispatcher // 2) % 2 == 0},
        "evaluation": {"every": 7 + 20 * (batch % 2)},
        "seed": batch,
    }


SETTINGS = [setting(batch, dispatcher) for batch in range(8) for dispatcher in range(4)]


def check_same(one: Result, other: Result) -> None:
    """Check that two runs have the same files, byte for byte, and the same results in summary.json."""
    for name in FILES:
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes(), name
    assert {key: one.summary[key] for key in KEYS} == {key: other.summary[key] for key in KEYS}


Check = Callable[..., Result]

#: The beginning of a user's module, with a server that only has a rule.
BASE = """
import numpy as np

from fredsim.numerics.rules import Rule, absolute, where
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated


def averaging(theta, mean, g, alpha):
    mean = 0.9 * mean + 0.1 * g
    return theta - alpha * mean, mean


class Base(ElementwiseServer):
    Hyper = Rated
    rule = Rule(averaging, state=("mean",))

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t)),)
"""
