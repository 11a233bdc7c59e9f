"""Of a PyTorch module `fredsim verify` says that its bits are not promised elsewhere, and what is elsewhere."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.resolution import resolve
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.checkpoint.format import json_with_digest
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.execution import execute, execute_here
from fredsim.runs.verify import verify as verifying
from fredsim.runs.verify.verify import pieces_of, verify
from fredsim.system.machine import processor_name
from tests.conftest import checkpoints_every
from tests.test_going_on import Looks, Notes

pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

Command = Callable[..., tuple[int, str, str]]


def test_what_verify_says_where_the_bits_differ(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "model={name: 'torch:own_modules:images', numerics: native}", "iterations=10", "--quiet"
    promise = "  the model is a PyTorch module: its bits are promised on the same machine, device, versions, threads"

    def verified(folder: str, file: str) -> list[str]:
        """What it prints of a folder whose first digest was changed."""
        path = Path(folder, file)
        with path.open(newline="", encoding="utf-8") as opened:
            digest = next(csv.DictReader(opened))["digest"]
        path.write_text(path.read_text(encoding="utf-8").replace(digest, digest[::-1], 1), encoding="utf-8")
        code, output, _ = command("verify", folder)
        assert code == 1
        return output.splitlines()

    monkeypatch.syspath_prepend(Path(__file__).parent)  # own_modules.py, as a user's
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("fredsim.runs.single.provenance.processor_name", lambda: "Another processor")
        assert command("run", small_yaml, *words, "--out", "out")[0] == 0
    first, second, third = verified("out", "metrics.csv")
    assert first.startswith("out: different: metrics.csv, line 2, iteration 0: digest is ")
    assert second.startswith(promise)
    assert third == f"  processor was Another processor and is {processor_name()}"
    assert command("run", small_yaml, *words, "--out", "here")[0] == 0
    assert [line.startswith(promise) for line in verified("here", "metrics.csv")] == [False, True]
    assert command("run", small_yaml, *words, "sweep={seed: [0, 1]}", "--out", "sweep")[0] == 0
    for folder in Path("sweep").iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    different, said, same = verified("sweep", "runs.csv")
    assert ": different: runs.csv: digest is " in different
    assert said.startswith(promise)
    assert same.endswith(": same bits")
    assert command("run", small_yaml, "iterations=10", "--quiet", "--out", "mlp")[0] == 0
    assert len(verified("mlp", "metrics.csv")) == 1


DATA: dict[str, Any] = {
    "data": {"name": "digits"}, "model": {"name": "torch:own_modules:images", "numerics": "native"},
    "clients": {"count": 3, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.05}, "iterations": 48,
    "evaluation": {"every": 3}, "window": 1,
}  # fmt: skip
PORTABLE = DATA | {"model": {"hidden": [4]}, "path": "snapshots"}
OWN = {key: value for key, value in DATA.items() if key not in ("data", "model", "clients")} | {
    "problem": {"name": "own_problems:ByTorch"}, "clients": {"count": 3}
}  # fmt: skip


def went_on(data: dict[str, Any], folder: Path, stops: int, threads: int) -> list[str]:
    """Run until it is asked so often whether to stop, on these threads if the experiment gives none; what it said."""
    notes = Notes()
    how: dict[str, Any] = {"policy": CheckpointPolicy(1e9), "stop": Looks(stops), "default_threads": threads}
    execute_here(resolve(data), folder, observer=notes, **how)  # in this process, which a test changes
    return notes.notes


#: What is another when a run continues.
CHANGES: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "threads": lambda _: None,
    "torch": lambda patch: patch.setattr("torch.__version__", "9.9.9"),
    "processor": lambda patch: patch.setattr("fredsim.runs.checkpoint.checkpoints.processor_name", lambda: "another"),
    "numpy": lambda patch: patch.setattr("fredsim.system.version._installed", lambda _: "9.9.9"),
}
#: Likewise, which counts for all runs.
OF_ALL: dict[str, Callable[[pytest.MonkeyPatch], object]] = {
    "fredsim": lambda patch: patch.setattr("fredsim.runs.checkpoint.checkpoints.fredsim_version", lambda: "1.0.0"),
    "contract": lambda patch: patch.setattr("fredsim.runs.checkpoint.checkpoints.CONTRACT", 1),
}


@pytest.mark.parametrize("change", CHANGES | OF_ALL)
@pytest.mark.parametrize(
    ("data", "counts"),
    [(DATA, [*CHANGES, *OF_ALL]), (PORTABLE, [*OF_ALL]), (OWN, ["processor", "numpy", *OF_ALL])],
)
def test_a_run_goes_on_only_where_its_bits_are_the_same(
    data: dict[str, Any], counts: list[str], change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    went_on(data, tmp_path, 6, 1)
    assert went_on(data, tmp_path, 6, 1)[0].startswith("continues from the checkpoint at iteration ")
    with monkeypatch.context() as patch:
        (CHANGES | OF_ALL)[change](patch)
        said = went_on(data, tmp_path, 10**9, 2 if change == "threads" else 1)
    assert Result(tmp_path).summary["status"] == "finished"
    if change in counts:
        assert len(said) == 2
        assert all(f"cannot be used (its {change} is " in note for note in said)
    else:
        assert said[0].startswith("continues from the checkpoint at iteration ")
    whole = tmp_path / "whole"
    went_on(data, whole, 10**9, 2 if change in counts and change == "threads" else 1)
    assert Result(tmp_path).summary["digest"] == Result(whole).summary["digest"]


def test_a_checkpoint_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say on how many threads it was computed."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    went_on(DATA, tmp_path, 6, 1)
    (path,) = (tmp_path / "checkpoint").glob("*.json")
    said = json.loads(path.read_text(encoding="utf-8"))
    said["identity"] = {key: value for key, value in said["identity"].items() if key not in CHANGES}
    path.write_bytes(json_with_digest(said))
    (note,) = went_on(DATA, tmp_path, 10**9, 1)
    assert note.endswith("cannot be used (its threads is None, not 1)")


@pytest.mark.parametrize("recorded", [1, 2])
def test_verify_takes_the_recorded_threads(recorded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one piece, and in pieces, whatever this machine or its share of the processors has."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setattr("fredsim.native.engine.default_threads", lambda: 3 - recorded)
    checkpoints_every(1e-9, monkeypatch)
    policy, took = CheckpointPolicy(1e-9, keep=True), []
    execute(resolve(DATA), tmp_path, policy=policy, default_threads=recorded)
    result = Result(tmp_path)
    assert result.summary["threads"] == recorded

    def again(experiment: object, folder: Path, **how: Any) -> None:
        execute(experiment, folder, **how)  # type: ignore[arg-type]
        took.append(Result(folder).summary["threads"])

    monkeypatch.setattr(verifying, "execute", again)
    assert verify(result) is None
    pieces = pieces_of(result, None, None, Monitor().note)
    assert len(pieces) > 2
    assert [piece.do(Observer(), lambda: False, 3 - recorded) for piece in pieces] == [None] * len(pieces)
    assert took == [recorded] * (1 + len(pieces))
