"""`compare` runs two runs that differ again, and names the first event at which they do, and what differs first."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.resolution import resolve
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from fredsim.runs.verify.first_event import first_event

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


OWN_GRADIENT = """\
if timestamp == 41:
    grad[7] += np.float32(1)
"""


@pytest.mark.parametrize("keep", [False, True])
def test_from_the_last_checkpoints_before_it(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_server: OwnServer
) -> None:
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
            DATA | {"server": {"name": f"{name}:Plain", "lr": 0.05}, "path": "snapshots", "window": window},
            tmp_path / name,
            policy,
        )
        for name, window in (("own_one", 4), ("own_other", 3))
    ]
    assert re.search(r"iteration 44: client 0's update differs in 1 of 460 numbers, first at 7: ", first_event(*found))
    assert from_ == ([28, 30] if keep else [])


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
