"""`compare` runs two runs that differ again, and names the first event at which they do, and what differs first."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.registry import KNOWN
from fredsim.config.resolution import resolve
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.runs.single.opening import make_server
from fredsim.runs.verify.first_event import first_event, replay
from tests.random_experiments import fitting, hyper_parameters

Command = Callable[..., tuple[int, str, str]]
OwnServer = Callable[..., str]
DATA: dict[str, Any] = {
    "data": {"name": "digits", "train": 100}, "model": {"hidden": [6]}, "clients": {"count": 4, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.05}, "dispatcher": {"name": "round_robin"}, "iterations": 90,
    "evaluation": {"every": 30},
}  # fmt: skip
#: What is changed, and what `compare` says. Client c arrives at iterations c, c + 4, … and begins each task but the
#: first from the version that it found when it arrived before.
FIRST = {
    "another rate": ({"server": {"name": "asgd", "lr": 0.06}}, r"iteration 0: client 0's update differs in \d+ of 460"),
    "another order": ({"dispatcher": {"name": "scripted", "order": [0, 1, 3, 2]}},
                      "iteration 2: the order differs: client 2 from timestamp 0 and client 3 from timestamp 0"),
    "another clock": ({"dispatcher": {"name": "clock"}},
                      "iteration 0: the order differs: client 0 from timestamp 0 and client 0 at 1,000,000,000 ns"),
    "fewer samples": ({"data": {"name": "digits", "train": 90}},
                      "iteration 45: client 1's minibatch differs in 2 of 2 numbers, first at 0: 90 and 0"),
    "local steps": ({"clients": DATA["clients"] | {"local_steps": 2}}, "iteration 0: client 0's minibatch differs$"),
    "another loss": ({"loss": {"name": "cross_entropy", "label_smoothing": 0.1}},
                     r"iteration 0: client 0's gradient differs in \d+ of 460 numbers"),
    "a compressor": ({"compress": {"name": "top_k", "k": 9}}, r"iteration 0: client 0's push differs in \d+ of 460"),
    "a gate": ({"dispatcher": {"name": "round_robin", "push": {"every": 5}, "dropped_push": "skip"}},
               "iteration 0: client 0's push is dropped in one of them"),
    "an average": ({"average": {"name": "window", "min_window": 2, "max_window": 4}}, "run again they do not differ"),
    "other parameters": ({"seed": 5}, "the parameters differ before the first event"),
    "a shorter run": ({"iterations": 81}, "iteration 81: .*other ends, the other one does not"),
    "a divergence": ({"server": {"name": "asgd", "lr": 1e38}}, r"iteration 0: client 0's update differs"),
}  # fmt: skip


def run(data: dict[str, Any], folder: Path, policy: CheckpointPolicy = CheckpointPolicy()) -> Result:  # noqa: B008
    with np.errstate(all="ignore"):
        execute(resolve(data), folder, policy=policy)
    return Result(folder)


@pytest.mark.parametrize(("change", "says"), FIRST.values(), ids=FIRST)
def test_what_differs_first(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    one, other = run(DATA, tmp_path / "one"), run(DATA | change, tmp_path / "other")
    assert re.search(says, first_event(one, other))


def test_which_sample_differs_first(tmp_path: Path) -> None:
    """Client 0 arrives at iterations 0 and 4, with two samples each time."""
    found = []
    for name, sample in (("one", 60), ("other", 80)):
        (tmp_path / f"{name}.json").write_text(f"[[1, 2, 3, {sample}], [4], [5], [6]]", encoding="utf-8")
        partition = {"name": "lists", "file": str(tmp_path / f"{name}.json")}
        found.append(run(DATA | {"clients": DATA["clients"] | {"partition": partition}}, tmp_path / name))
    says = "iteration 4: client 0's minibatch differs in 1 of 2 numbers, first at 1: 60 and 80"
    assert first_event(*found) == says


def test_after_a_task_that_was_given_up(tmp_path: Path) -> None:
    """Nothing is computed of it if clients keep something; the first that is applied differs."""
    clients = {"count": 4, "batch_size": 2, "sampling": "iid", "optimizer": {"name": "momentum", "keep_state": True}}
    clock = {"name": "clock", "compute": {"noise": {"name": "exponential"}, "limit": 0.05}}
    data = DATA | {"clients": clients, "dispatcher": clock, "events": True}
    one = run(data, tmp_path / "one")
    other = run(data | {"server": {"name": "asgd", "lr": 0.06}}, tmp_path / "other")
    given_up = one.events["given_up"].to_numpy()
    at = int(np.flatnonzero(~given_up)[0])
    assert at > 0
    assert f"iteration {at}: client {one.events['client'][at]}'s gradient differs" in first_event(one, other)


def happened(result: Result) -> list[tuple[int, int, bytes]]:
    """Return which client arrived at each event, when, and with which samples."""
    with replay(result) as events:
        return [(event.client, event.order[2], event.minibatch.tobytes()) for event in events]


NOISY = {"name": "clock", "compute": {"seconds": 1.0, "noise": {"name": "exponential"}}}


@pytest.mark.parametrize("dispatcher", [{"name": "uniform"}, NOISY], ids=lambda one: one["name"])
def test_a_server_changes_no_order_and_no_samples(dispatcher: dict[str, Any], tmp_path: Path) -> None:
    """Nor the initial parameters, if no client waits for it, and each computes one gradient a task (promises.md)."""
    found: dict[str, Any] = {}
    for name, kind in KNOWN["server"].items():
        hyper: dict[str, Any] = hyper_parameters(random.Random(name), kind.Hyper)
        data = DATA | {"dispatcher": dispatcher, "iterations": 24, "server": hyper | {"name": name}}
        data["server"] |= {"lr": 0.001} if "lr" in hyper else {}
        if fitting(data) is None:
            continue
        server, protocol = make_server(resolve(data))
        contract = server.contract
        if contract.holds or contract.cancels or protocol.work.steps != 1:
            continue
        result = run(data, tmp_path / name)
        if result.summary["iterations"] == 24:
            found[name] = happened(result), result.metrics["validation_loss"].iloc[0]
    assert len(found) > 15
    assert {name for name, one in found.items() if one != found["asgd"]} == set()
    waiting = run(
        DATA | {"dispatcher": dispatcher, "iterations": 24, "server": {"name": "sync", "lr": 0.05}},
        tmp_path / "waiting",
    )
    assert happened(waiting) != found["asgd"][0]


OWN_LOSS = """
import numpy as np


def squared(z, y):
    e = z - np.eye(z.shape[1], dtype=np.float32)[y]
    return (e * e).sum(axis=1) / np.float32(2), e
"""
#: What `backend: auto` leaves to numba.
LEFT: dict[str, dict[str, Any]] = {
    "two parameter vectors": {"stages": {"cuts": ["W2"], "delay": "pipemare"},
                              "clients": {"count": 1, "batch_size": 2}},
    "an own loss": {"loss": "own_loss:squared"},
    "running statistics": {"model": {"name": "vgg", "widths": [2], "buffers": "averaged"}},
}  # fmt: skip


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", LEFT)
def test_on_a_machine_with_a_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are run again by what can compute them, as they were."""
    (tmp_path / "own_loss.py").write_text(OWN_LOSS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"backend": "auto"} | LEFT[name]
    one, other = run(data, tmp_path / "one"), run(data | {"server": {"name": "asgd", "lr": 0.06}}, tmp_path / "other")
    assert {result.summary["backend"] for result in (one, other)} == {"numba"}
    assert re.search(r"iteration 0: client 0's update differs in ", first_event(one, other))


OWN_GRADIENT = """\
if timestamp == 41:
    grad[7] += np.float32(1)
"""


@pytest.mark.parametrize(("keep", "path"), [(False, "snapshots"), (True, "snapshots"), (True, "hand")])
def test_from_the_last_checkpoints_before_it(
    keep: bool, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_server: OwnServer
) -> None:
    """Those of another path than `snapshots` are of no use."""
    monkeypatch.setattr("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_one.py").write_text(own_server(), encoding="utf-8")
    (tmp_path / "own_other.py").write_text(own_server(OWN_GRADIENT), encoding="utf-8")
    from_, copy = list[int](), Checkpoints.copy

    def noted(self: Checkpoints, iteration: int, folder: Path) -> None:
        from_.append(iteration)
        copy(self, iteration, folder)

    monkeypatch.setattr(Checkpoints, "copy", noted)
    policy = CheckpointPolicy(1e-9, keep=True) if keep else CheckpointPolicy()
    found = [
        run(
            DATA | {"server": {"name": f"{name}:Plain", "lr": 0.05}, "path": path, "window": window},
            tmp_path / name,
            policy,
        )
        for name, window in (("own_one", 4), ("own_other", 3))
    ]
    assert re.search(r"iteration 44: client 0's update differs in 1 of 460 numbers, first at 7: ", first_event(*found))
    assert from_ == ([28, 30] if keep and path == "snapshots" else [])


def test_two_that_diverge_at_the_same_event(tmp_path: Path) -> None:
    """With one client no gradient is stale, so that the two rules are one."""
    alone = DATA | {"clients": {"count": 1, "batch_size": 4}}
    found = [run(alone | {"server": {"name": name, "lr": 1e30}}, tmp_path / name) for name in ("asgd", "sasgd")]
    assert [result.summary["status"] for result in found] == ["diverged"] * 2
    assert first_event(*found) == "run again they do not differ"


def test_one_run_twice(tmp_path: Path) -> None:
    one, other = run(DATA, tmp_path / "one"), run(DATA, tmp_path / "other")
    assert "`fredsim verify` says which" in first_event(one, other)


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.chdir(tmp_path)
    run(DATA, Path("one"))
    run(DATA | {"server": {"name": "asgd", "lr": 0.06}}, Path("other"))
    code, output, _ = command("compare", "one", "other")
    lines = output.splitlines()
    assert (code, len(lines)) == (1, 3)
    assert lines[1] == "  config.yaml: server.lr is 0.05 and 0.06"
    assert lines[2].startswith("  iteration 0: client 0's update differs in ")
    assert command("compare", "one", "other", "--no-replay")[1].splitlines() == lines[:2]
