"""A run that kept its checkpoints is proved piece by piece; whatever is changed in it is found where it is."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fredsim.config.document import dump_yaml, read_document
from fredsim.config.experiment import config_digest
from fredsim.config.resolution import resolve
from fredsim.errors import OutputError
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import summary_text
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute
from fredsim.runs.verify.verify import pieces_of, verify
from tests.random_experiments import experiment
from tests.test_random_experiments import beside, left_behind

FEW = 8
DATA: dict[str, Any] = {
    "data": {"name": "digits"}, "model": {"hidden": [8]}, "clients": {"count": 5, "batch_size": 2}, "iterations": 60,
    "server": {"name": "fasgd", "lr": 0.01}, "evaluation": {"every": 7}, "events": True, "threads": 1,
}  # fmt: skip
Command = Callable[..., tuple[int, str, str]]


class Notes(Monitor):
    """Keeps what is worth a line."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9)


def kept(data: dict[str, Any], folder: Path) -> Result:
    """Run, keeping a checkpoint at every pause."""
    with np.errstate(all="ignore"):
        execute(resolve(data), folder, policy=CheckpointPolicy(1e-9, keep=True))
    return Result(folder)


def proved(result: Result) -> dict[int | None, str | None]:
    """Do every piece again; return what is wrong with it, by the iteration at which it begins."""
    found = {}
    with np.errstate(all="ignore"):
        for piece in pieces_of(result, None, None, Monitor().note):
            wrong = piece.do(Observer(), lambda: False, 2)
            found[piece.begin] = None if wrong is None else str(wrong)
    return found


def test_what_is_held_does_not_tell_how_a_gate_was_asked(tmp_path: Path) -> None:
    """After a resume nothing is expected of v̄, so other fetches are decided by the kernel."""
    clients = {"count": 3, "batch_size": 8, "sampling": "shuffled"}
    server = {"name": "fasgd", "lr": 0.005, "gamma": 0.3, "beta": 0.5}
    dispatcher = {"name": "round_robin", "fetch": {"bandwidth_aware": {"c": 0.01}}}
    data = DATA | {"model": {"hidden": [16]}, "clients": clients, "server": server, "dispatcher": dispatcher}
    result = kept(data | {"seed": 3902957363, "iterations": 400, "evaluation": {"every": 200}}, tmp_path / "run")
    assert result.summary["path"] == "fused"
    found = proved(result)
    assert len(found) > 20
    assert set(found.values()) == {None}


@pytest.mark.parametrize("number", range(FEW))
def test_random_experiments(number: int, tmp_path: Path) -> None:
    data, rng = experiment(number) | {"backend": "numba"}, random.Random(number)
    usual = left_behind(data, {})[2]
    if not usual:  # it fails
        return
    path = rng.choice([usual, *beside(data, usual)])
    result = kept(data | {"path": path, "window": rng.choice([None, 1, 3]), "threads": 1}, tmp_path / "run")
    found = proved(result)
    assert set(found.values()) == {None}
    assert len(found) > 1 or path == "hand" or result.summary["iterations"] == 0


@pytest.mark.parametrize("ahead", [3, 7])
def test_a_path_that_looks_ahead(ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far it does is part of its state: no client is drawn sooner from a checkpoint on."""
    monkeypatch.setattr("fredsim.simulation.paths.fused.SAMPLES", (ahead - 1) * 2)
    dispatcher = {"name": "uniform", "fetch": {"every": 2}}
    result = kept(
        DATA | {"path": "fused", "dispatcher": dispatcher, "server": {"name": "asgd", "lr": 0.05}}, tmp_path / "run"
    )
    found = proved(result)
    assert len(found) > 5
    assert set(found.values()) == {None}


@pytest.mark.parametrize("path", ["snapshots", "fused"])
@pytest.mark.parametrize(
    "dispatcher", [{"name": "uniform"}, {"name": "clock", "compute": {"noise": {"name": "exponential"}}}]
)
def test_who_comes_is_drawn_ahead_at_the_same_events(
    dispatcher: dict[str, Any], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many arrivals are asked for: a piece asks for none beyond its end."""
    for module in ("schedule.schedule", "paths.fused"):
        monkeypatch.setattr(f"fredsim.simulation.{module}.AHEAD", 7)
    changes = {"dispatcher": dispatcher, "path": path, "model": {"hidden": [3]}, "iterations": 40}
    found = proved(kept(DATA | changes, tmp_path / "run"))
    assert len(found) > 5
    assert set(found.values()) == {None}


def test_what_took_its_time_pauses_at_the_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path `hand` the time that stretches of events take says where the next ends."""
    with monkeypatch.context() as patch:
        patch.setattr("fredsim.simulation.paths.pace.SLICE", 0.0)
        result = kept(DATA | {"path": "hand", "iterations": 130, "evaluation": {"every": 130}}, tmp_path / "run")
    found = proved(result)
    assert list(found)[:5] == [None, 64, 96, 112, 120]
    assert set(found.values()) == {None}


def resigned(plain: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a checkpoint's JSON, and sign it as if it had been so when it was written."""
    metadata = json.loads(plain.read_text(encoding="utf-8"))
    del metadata["sha256"]
    change(metadata)
    digest = hashlib.sha256(json.dumps(metadata).encode()).hexdigest()
    plain.write_text(json.dumps(metadata | {"sha256": digest}, indent=1), encoding="utf-8")


def with_another_parameter(plain: Path) -> None:
    """Flip a bit of a parameter in the arrays of a checkpoint with this JSON file, and sign both."""
    arrays = load_file(plain.with_suffix(".safetensors"))
    arrays["server.own.params"].view(np.uint32)[77] ^= 1
    save_file(arrays, plain.with_suffix(".safetensors"))
    digest = hashlib.sha256(plain.with_suffix(".safetensors").read_bytes()).hexdigest()
    resigned(plain, lambda metadata: metadata.update(tensors=digest))


ENDS: dict[str, dict[str, Any]] = {
    "hand": {"path": "hand"},
    "snapshots": {"path": "snapshots", "window": 3},
    "fused": {"path": "fused", "server": {"name": "asgd", "lr": 0.05}},
    "updates": {"iterations": None, "updates": 7, "server": {"name": "sync", "lr": 0.1}},
    "clock": {"iterations": None, "seconds": 5.0, "dispatcher": {"name": "clock"}},
    "clock, in a pass ahead": {
        "iterations": None, "seconds": 5.0, "dispatcher": {"name": "clock"}, "path": "snapshots", "window": 3,
    },
    "rows on the clock": {
        "iterations": None, "seconds": 5.0, "dispatcher": {"name": "clock"},
        "evaluation": {"every": 1.0, "unit": "seconds"},
    },
    "a goal": {"until": {"validation_error": 0.85}, "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 5}},
    "a divergence": {"path": "snapshots", "window": 1, "server": {"name": "asgd", "lr": 1e30}},
}  # fmt: skip


@pytest.mark.parametrize("changes", ENDS.values(), ids=ENDS)
def test_the_checkpoint_at_the_end(changes: dict[str, Any], tmp_path: Path) -> None:
    """It is what the run has there, however it ends; forged, it is found, in the piece that ends there."""
    result = kept({**DATA, **changes}, tmp_path / "run")
    end = result.summary["iterations"]
    *_, plain = sorted((tmp_path / "run" / "checkpoint").glob("*.json"))
    assert int(plain.stem) == end
    found = proved(result)
    assert set(found.values()) == {None}
    assert list(found)[-1] == end
    with_another_parameter(plain)
    *before, last, _ = proved(Result(result.folder)).values()
    assert set(before) <= {None}
    assert f" and {end}: the state's server.own.params differs" in str(last)


def test_a_forged_checkpoint_from_the_command_line(tmp_path: Path, command: Command) -> None:
    kept(DATA | {"path": "hand"}, tmp_path / "run")
    *_, plain = sorted((tmp_path / "run" / "checkpoint").glob("*.json"))
    with_another_parameter(plain)
    code, output, _ = command("verify", tmp_path / "run", "--jobs", 2)
    assert (code, " and 60: the state's server.own.params differs" in output) == (1, True), output


def test_an_interrupted_run_is_compared_where_it_would_go_on(tmp_path: Path) -> None:
    """Also if the checkpoint at its end was removed, or never written."""
    folder, data = tmp_path / "run", DATA | {"path": "snapshots", "evaluation": {"every": 10}}
    for stop in (20, 40):
        execute(resolve(data), folder, policy=CheckpointPolicy(1e9), stop_at=stop)
    first, second = sorted((folder / "checkpoint").glob("*.json"))
    assert [int(path.stem) for path in (first, second)] == [20, 40]
    resigned(second, lambda metadata: metadata["files"].pop("metrics.csv"))
    assert str(verify(Result(folder))).startswith("the checkpoint: metrics.csv, line 1 is no more (recorded) and ")
    for path in (second, second.with_suffix(".safetensors")):
        path.unlink()
    assert verify(Result(folder)) is None
    with_another_parameter(first)
    assert verify(Result(folder)) == "between iterations 0 and 20: the state's server.own.params differs"


def test_a_config_without_a_dispatcher_of_a_live_run_is_told(tmp_path: Path) -> None:
    result = kept(DATA | {"iterations": 10}, tmp_path)
    config = read_document(tmp_path / "config.yaml").data
    for dispatcher in (None, "clock"):
        changed = (
            {**config, "dispatcher": dispatcher}
            if dispatcher
            else {k: v for k, v in config.items() if k != "dispatcher"}
        )
        (tmp_path / "config.yaml").write_text(dump_yaml(changed), encoding="utf-8")
        live = {
            "path": "live",
            "live": {"workers": 1, "works_redone": 0, "delay": 0.0},
            "config": config_digest(changed),
        }
        (tmp_path / "summary.json").write_text(summary_text(result.summary | live), encoding="utf-8")
        with pytest.raises(
            OutputError, match=r"config\.yaml: is damaged \((it has no dispatcher|dispatcher is 'clock')"
        ):
            verify(Result(tmp_path))


@pytest.mark.parametrize("what", ["a parameter", "a number", "a row"])
def test_a_change_is_found_between_the_checkpoints_around_it(what: str, tmp_path: Path) -> None:
    """Even one that was json_with_digest."""
    result = kept(DATA | {"path": "snapshots", "window": 3}, tmp_path / "run")
    pieces = pieces_of(result, None, None, Monitor().note)
    at = pieces[5].end
    plain = tmp_path / "run" / "checkpoint" / f"{at:012d}.json"
    if what == "a parameter":
        with_another_parameter(plain)
    elif what == "a number":
        resigned(plain, lambda metadata: metadata["values"].update({"rows_on_clock": 1}))
    else:
        grown = {"size": 50, "sha256": hashlib.sha256((tmp_path / "run/metrics.csv").read_bytes()[:50]).hexdigest()}
        resigned(plain, lambda metadata: metadata["files"].update({"metrics.csv": grown}))
    found = proved(result)
    says = {"a parameter": "the state's server.own.params differs", "a number": "the state's rows_on_clock differs",
            "a row": "metrics.csv, line"}[what]  # fmt: skip
    assert says in str(found[pieces[5].begin])
    assert f"between iterations {pieces[5].begin} and {at}: " in str(found[pieces[5].begin])
    assert [found[piece.begin] for piece in pieces[:5]] == [None] * 5
    assert [found[piece.begin] for piece in pieces[7:]] == [None] * len(pieces[7:])


def test_a_run_of_another_path_than_auto_takes_now(tmp_path: Path) -> None:
    """As of a version that chose otherwise: its checkpoints are of the path that it took."""
    result = kept(DATA | {"path": "snapshots", "window": 3}, tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("path: snapshots\n", ""), encoding="utf-8")
    changed = {"config": config_digest(read_document(path).data)}
    changed["versions"] = result.summary["versions"] | {"fredsim": "1.0.0rc1"}
    path.with_name("summary.json").write_text(summary_text(result.summary | changed), encoding="utf-8")
    found = proved(Result(result.folder))
    assert len(found) > 5
    assert set(found.values()) == {None}


def test_a_run_that_now_ends_before_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_server: Callable[..., str]
) -> None:
    """As one of a class that does not always do the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    diverges = "if os.path.exists('diverges'):\n    self.params[:] = np.nan\n"
    Path("own_ending.py").write_text(own_server(diverges), encoding="utf-8")
    server = {"name": "own_ending:Plain", "lr": 0.1}
    result = kept(DATA | {"iterations": 15, "evaluation": {"every": 5}, "server": server, "window": 1}, Path("run"))
    Path("diverges").touch()
    first, *_ = proved(result).values()
    assert first == "the run now does not stop at iteration 5, where there is a checkpoint"


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.chdir(tmp_path)
    result = kept(DATA | {"iterations": 30, "evaluation": {"every": 10}}, Path("run"))
    assert result.summary["status"] == "finished"
    many = len(list(Path("run/checkpoint").glob("*.json")))
    code, output, messages = command("verify", "run", "--jobs", 2)
    assert (code, output) == (0, "run: same bits\n")
    assert messages.count("finished") + messages.count("interrupted") >= many
    assert "in one piece" not in messages
    elsewhere = pieces_of(result, None, "numpy", Monitor().note)  # checkpoints are of the recorded backend
    assert [(piece.begin, piece.end, piece.backend) for piece in elsewhere] == [(None, None, "numpy")]
    damaged = sorted(Path("run/checkpoint").glob("*.json"))[0]
    assert f"run from 0 to {int(damaged.stem)}: interrupted after {int(damaged.stem)} iterations" in messages
    damaged.write_bytes(damaged.read_bytes()[:-2])
    code, output, messages = command("verify", "run", "--jobs", 2)
    assert (code, output.startswith(f"run: different: {damaged}: cannot be used")) == (1, True)
    assert f"{damaged}: cannot be used" in messages
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    summary["bytes_pushed"] += 1
    Path("run/summary.json").write_text(json.dumps(summary), encoding="utf-8")
    code, output, _ = command("verify", "run", "--jobs", 2)
    assert code == 1
    assert "run: different: summary.json: bytes_pushed is" in output
    assert command("verify", "run", "--jobs", 2, "--backend", "numpy")[0] == 1


def test_a_run_that_kept_no_checkpoints_is_one_piece(tmp_path: Path, command: Command) -> None:
    execute(resolve(DATA | {"iterations": 30}), tmp_path)
    assert "note: no checkpoints were kept" in command("verify", tmp_path, "--jobs", 2)[2]
    assert "in one piece" not in command("verify", tmp_path, "--jobs", 1)[2]


def test_what_has_finished_is_done_anew_whatever_was_kept(tmp_path: Path) -> None:
    kept(DATA, tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "checkpoint").iterdir()}
    execute(resolve(DATA), tmp_path / "run", policy=CheckpointPolicy(1e9, keep=True))  # which writes none
    assert before
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_what_a_killed_process_left_of_a_checkpoint_goes(tmp_path: Path) -> None:
    """Else a run that goes on, and keeps its checkpoints, would have half of one, which no run writes."""
    policy, places = CheckpointPolicy(1e9, keep=True), tmp_path / "checkpoint"
    execute(resolve(DATA), tmp_path, policy=policy, stop_at=20)
    (name,) = {path.stem for path in places.iterdir()}
    (places / "000000000030.safetensors").write_bytes(b"half")
    for suffix in ("json", "safetensors"):  # and one that cannot be used
        (places / f"000000000040.{suffix}").write_bytes((places / f"{name}.{suffix}").read_bytes())
    execute(resolve(DATA), tmp_path, policy=policy)
    assert Result(tmp_path).summary["status"] == "finished"
    assert {path.stem for path in places.iterdir()} == {name} == {"000000000020"}
    assert verify(Result(tmp_path)) is None
