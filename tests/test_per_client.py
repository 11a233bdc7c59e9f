"""clients.csv: counts beside those of the rows of a run whose order is known, loss and error beside the oracle's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.partition import PARTITIONS, make_shards
from fredsim.data.datasets import data_root, load_dataset
from fredsim.errors import OutputError
from fredsim.numerics.oracle import softmax_cross_entropy
from fredsim.runs.folder.results import Result
from tests.dense_networks import forward

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]

ORDER = [0, 3, 3, 1, 0, 5, 6, 3, 2, 1]  # of 8 clients: 4 and 7 never arrive
PARTITION = {"name": "dirichlet", "alpha": 0.4}
COLUMNS = ["client", "samples", "pushes", "staleness_mean", "bytes_pushed", "bytes_fetched", "loss", "error"]


def tree(values: list[float]) -> float:
    """Pairs, then pairs of pairs; an odd one passes up."""
    while len(values) > 1:
        values = [sum(values[i : i + 2]) for i in range(0, len(values), 2)]
    return values[0]


CASES: dict[str, dict[str, Any]] = {
    "hand": {},
    "fused": {
        "server": {"name": "fasgd", "lr": 0.01},
        "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.3}}},
    },
    "snapshots": {"path": "snapshots"},
    "dropped": {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"push": {"every": 3}, "dropped_push": "skip"}},
    "kept": {
        "server": {"name": "fasgd", "lr": 0.01},
        "dispatcher": {
            "push": {"bandwidth_aware": {"c": 0.3, "per": "tensor"}},
            "fetch": {"bandwidth_aware": {"c": 0.3, "per": "tensor"}},
            "dropped_push": "accumulate",
        },
    },
    "again": {"dispatcher": {"push": {"every": 2}, "fetch": {"every": 3}}},
    "compressed": {"compress": {"name": "ternary"}, "dispatcher": {"wait": False}},
}


@pytest.mark.parametrize("name", CASES)
def test_counts(simulate: Simulate, name: str) -> None:
    """Each arrival has a row, and the order says whose it is: what a row adds is that client's."""
    case = CASES[name]
    data = case | {
        "clients": {"count": 8, "batch_size": 3, "partition": PARTITION},
        "dispatcher": {"name": "scripted", "order": ORDER} | case.get("dispatcher", {}),
        "evaluation": {"every": 1, "per_client": True},
    }
    result = simulate(data)
    if name in {"hand", "fused", "snapshots"}:
        assert result.summary["path"] == name
    rows, found = result.metrics, result.clients
    assert list(found) == COLUMNS
    assert found["client"].tolist() == list(range(8))
    who = np.resize(ORDER, 50)
    for column in ("pushes", "bytes_pushed", "bytes_fetched"):
        added = np.diff(rows[column])
        assert found[column].tolist() == [int(added[who == client].sum()) for client in range(8)], column
    for client in range(8):
        staleness = rows["staleness_mean"].iloc[1:][who == client].dropna()
        mean = found["staleness_mean"].iloc[client]
        assert np.isnan(mean) if staleness.empty else mean == staleness.sum() / len(staleness)
    assert found["pushes"].iloc[4] == 0


@pytest.mark.parametrize("partition", [None, PARTITION, PARTITION | {"equal_sizes": True, "size": 5}], ids=str)
@pytest.mark.parametrize("average", [False, True])
def test_loss_and_error_of_a_shard(simulate: Simulate, partition: Any, average: bool) -> None:
    """Those of the parameters that are evaluated, bit for bit, by a tree of the sum in float64."""
    clients = {"count": 8, "batch_size": 3} | ({"partition": partition} if partition else {})
    data = {"clients": clients, "evaluation": {"per_client": True}, "server": {"name": "asgd", "lr": 0.5}}
    data["model"] = {"hidden": [16], "init": {"name": "normal", "std": 1.0}}  # losses that no sum keeps all bits of
    result = simulate(data | ({"average": {"name": "window", "min_window": 5, "max_window": 20}} if average else {}))
    train = load_dataset("digits", None, None, data_root()).train
    weights = [(result.params[f"W{i}"], result.params[f"b{i}"]) for i in (1, 2)]
    losses, _, best = softmax_cross_entropy(forward(weights, train.x).logits, train.y)
    shards = None
    if partition:
        choice: Any = PARTITIONS["dirichlet"].model_validate(partition)
        shards = make_shards(choice, train.y, 8, 0)
    for client, row in result.clients.iterrows():
        rows = np.arange(1200)
        if shards is not None:
            rows = shards.rows(np.array(client), np.arange(int(shards.sizes(np.array(client)))))
        assert row["samples"] == len(rows)
        assert row["loss"] == tree([float(loss) for loss in losses[rows]]) / len(rows)
        assert row["error"] == np.count_nonzero(best[rows] != train.y[rows]) / len(rows)


def test_a_run_that_diverges(simulate: Simulate) -> None:
    """A diverged run's counts end before the event, and an average that overflowed has no loss."""
    base = {"iterations": 300, "clients": {"count": 8, "batch_size": 3}, "evaluation": {"every": 1, "per_client": True}}
    diverged = simulate(base | {"server": {"name": "asgd", "lr": 1e13}})
    assert diverged.summary["status"] == "diverged"
    assert diverged.clients["pushes"].sum() == diverged.summary["pushes"] < 300
    assert diverged.clients["bytes_fetched"].sum() == diverged.summary["bytes_fetched"]


def test_its_file(small_yaml: Path, command: Command) -> None:
    """It is there where it is asked for, compared, and missed where it is gone or was changed."""
    for name, change in (
        ("one", "evaluation.per_client=true"),
        ("two", "evaluation.per_client=true"),
        ("no", "seed=0"),
    ):
        assert command("run", small_yaml, change, "--out", name, "--quiet")[0] == 0
    without = fredsim.load("no")
    assert isinstance(without, Result)
    assert not Path("no/clients.csv").exists()
    with pytest.raises(
        OutputError, match=r"has no clients\.csv; give the experiment `evaluation: \{per_client: true\}`"
    ):
        _ = without.clients
    assert command("verify", "one")[0] == command("compare", "one", "two")[0] == 0
    path = Path("two/clients.csv")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("\n3,1200,", "\n3,1201,"), encoding="utf-8")
    code, said, _ = command("compare", "one", "two")
    assert (code, "different: clients.csv, line 5 is 3,1200," in said) == (1, True)
    path.unlink()
    words = ("run", small_yaml, "evaluation.per_client=true", "--out", "two", "--resume", "--quiet")
    assert command(*words)[0] == 0
    assert path.read_text(encoding="utf-8") == text
    path.write_text(text.replace("\n3,1200,", "\n3,many,"), encoding="utf-8")
    damaged = fredsim.load("two")
    assert isinstance(damaged, Result)
    with pytest.raises(OutputError, match="line 5: samples is 'many'"):
        _ = damaged.clients
