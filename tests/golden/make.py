"""Write tests/golden/digests.json: the digest of a short run of every server × dispatcher that go together.

    python tests/golden/make.py

A changed digest means that results published with an earlier version can no longer be repeated: the change log must say
so, with the reason, under "Numerics", and give the new digest of this file, which the tests look for there.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import fredsim

FILE = Path(__file__).with_name("digests.json")

BASE: dict[str, Any] = {
    "iterations": 48,
    "data": {"name": "digits", "train": 100},
    "model": {"hidden": [12, 7]},
    "clients": {"count": 5, "batch_size": 3},
    "evaluation": {"every": 1000},
}
SERVERS: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync", "lr": 0.3},
    "sync, 2 backup workers": {"name": "sync", "lr": 0.3, "aggregate": 3},
    "soft_sync": {"name": "soft_sync", "lr": 0.3, "n": 2},
    "soft_sync, aware": {"name": "soft_sync", "lr": 0.3, "n": 2, "aware": True},
    "asgd": {"name": "asgd", "lr": 0.1},
    "sasgd": {"name": "sasgd", "lr": 0.3},
    "sasgd, plus1": {"name": "sasgd", "lr": 0.3, "divisor": "plus1"},
    "exponential": {"name": "exponential", "lr": 0.3, "kappa": 0.2},
    "fasgd, std": {"name": "fasgd", "lr": 0.01},
    "fasgd, printed": {"name": "fasgd", "lr": 0.3, "variant": "printed"},
    "fasgd, released": {"name": "fasgd", "lr": 0.01, "variant": "released"},
}
DISPATCHERS: dict[str, dict[str, Any]] = {
    "uniform": {"name": "uniform"},
    "uniform, wait false": {"name": "uniform", "wait": False},
    "weighted": {"name": "weighted", "weights": [1.0, 4.0], "on_chosen": {"factor": 0.5, "recover_after": 3}},
    "round_robin": {"name": "round_robin"},
    "scripted": {"name": "scripted", "order": [0, 3, 1, 1, 4, 2, 0]},
}
#: What the data, the model and the sampling contribute, once each.
OTHERS: dict[str, dict[str, Any]] = {
    "softmax regression": {"model": {"hidden": []}},
    "glorot": {"model": {"hidden": [12], "init": "glorot"}},
    "normal": {"model": {"hidden": [12], "init": {"name": "normal", "std": 0.5}}},
    "zeros": {"model": {"hidden": [], "init": "zeros"}},
    "iid": {"clients": {"count": 5, "batch_size": 3, "sampling": "iid"}},
    "shuffled": {"clients": {"count": 5, "batch_size": 3, "sampling": "shuffled"}, "iterations": 80},
    "seed": {"seed": 2**32 - 1},
}
HOLDING = {"sync", "sync, 2 backup workers", "soft_sync", "soft_sync, aware"}  # these make their clients wait


def experiments() -> dict[str, dict[str, Any]]:
    """Return every golden experiment, by name."""
    found = {
        f"{server} × {dispatcher}": BASE | {"server": SERVERS[server], "dispatcher": DISPATCHERS[dispatcher]}
        for server in SERVERS
        for dispatcher in DISPATCHERS
        if not (server in HOLDING and dispatcher == "uniform, wait false")
    }
    return found | {name: BASE | {"server": SERVERS["asgd"]} | changes for name, changes in OTHERS.items()}


def digest(experiment: dict[str, Any], backend: str, folder: Path) -> str:
    """Run an experiment on a backend and return its digest."""
    result = fredsim.run(experiment | {"backend": backend}, out=folder)
    assert isinstance(result, fredsim.Result)
    return str(result.summary["digest"])


def main() -> None:
    """Write the file and print what the change log must name."""
    with tempfile.TemporaryDirectory() as folder:
        digests = {
            name: digest(experiment, "numpy", Path(folder) / str(number))
            for number, (name, experiment) in enumerate(experiments().items())
        }
    FILE.write_text(json.dumps(digests, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"golden digests {hashlib.sha256(FILE.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
