"""Checkpoints of nonsense whose digests are right, and disks that fill up or turn read-only while a run goes on."""

import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load, save

from fredsim.config.resolution import resolve
from fredsim.errors import OutputError
from fredsim.plugins.state.state_arrays import numeric
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.checkpoint.format import json_with_digest
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from tests.conftest import checkpoints_every
from tests.test_checkpoints import at
from tests.test_going_on import DATA, Notes, files_of, stopped
from tests.test_random_experiments import left_behind
from tests.test_whole_files import largest_file

Change = Callable[[dict[str, Any]], Any]


def of_files(meta: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], meta["files"])


def spent(name: str, value: Any, meta: dict[str, Any]) -> None:
    meta["spent"][name] = value


FORGED: dict[str, tuple[Change, str]] = {
    "a file elsewhere": (lambda meta: of_files(meta).update({"../secret": of_files(meta)["metrics.csv"]}), "its files"),
    "a negative size": (lambda meta: of_files(meta)["metrics.csv"].update(size=-1, sha256=None), "its files."),
    "another iteration": (lambda meta: meta.update(iteration=3), "its iteration is 3"),
    "no identity": (lambda meta: meta.update(identity={}), "its experiment is None, not e"),
    "no values": (lambda meta: meta.pop("values"), "its values is"),
    "a list for a value": (lambda meta: meta["values"].update(n=[1]), "its values.n."),
    "an array of objects": (lambda meta: meta["dtypes"].update(big=["O", [3]]), "'O' is no type of numbers"),
    "an array of texts": (lambda meta: meta["dtypes"].update(big=["S8", [3]]), "'S8' is no type of numbers"),
    "a shape beyond its bytes": (lambda meta: meta["dtypes"].update(big=[">i8", [10**12]]), "cannot reshape array"),
    "a negative shape": (lambda meta: meta["dtypes"].update(big=[">i8", [-1]]), "its dtypes.big"),
    "an array that is not there": (
        lambda meta: meta["dtypes"].update(none=[">i8", [3]]), "arrays cannot be read ('none')"
    ),
    **{
        f"{name}: {value}": (partial(spent, name, value), f"its spent.{name}")
        for name in ("seconds", "seconds_evaluation", "seconds_probe", "seconds_kernels")
        for value in (math.inf, -math.inf, -1.0, 1e300, "1", None, *([] if "kernels" in name else [math.nan]))
    },
    "seconds of something else": (lambda meta: meta["spent"].update(seconds_x=1.0), "its spent.seconds_x"),
    "no mapping of seconds": (lambda meta: meta.update(spent=[1.0]), "its spent is"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), FORGED.values(), ids=FORGED)
def test_nonsense_is_told_and_the_one_before_used(change: Change, says: str, tmp_path: Path) -> None:
    """And no file is read but those that grow."""
    (tmp_path / "run").mkdir()
    for name in ("run/metrics.csv", "secret"):
        (tmp_path / name).write_text("abcdef")
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.write(at(1, {"n": 1}))
    checkpoints.write(at(2, {"n": 2, "big": np.arange(3, dtype=">i8")}))
    path = checkpoints.folder / "000000000002.json"
    meta = json.loads(path.read_bytes())
    change(meta)
    path.write_bytes(json_with_digest(meta))
    found, (fault,) = checkpoints.newest({"experiment": "e"})
    assert found is not None
    assert found.state == {"n": 1}
    assert f"{path}: cannot be used (" in fault
    assert says in fault


@pytest.mark.parametrize("value", [math.nan, math.inf, -1e6])
def test_a_run_has_taken_no_such_time(value: float, tmp_path: Path) -> None:
    """It begins again where the time that stands there is none, and its summary can be read."""
    stopped(DATA, tmp_path, 10)
    (path,) = (tmp_path / "checkpoint").glob("*.json")
    meta = json.loads(path.read_bytes())
    meta["spent"]["seconds"] = value
    path.write_bytes(json_with_digest(meta))
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert (status, "cannot be used (its spent.seconds is " in notes[0]) == ("finished", True)
    assert 0 < Result(tmp_path).summary["seconds"] < 1e4
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_unknown_seconds_of_kernels(tmp_path: Path) -> None:
    """Those of NumPy are NaN in a checkpoint, too."""
    data = DATA | {"backend": "numpy"}
    stopped(data, tmp_path, 10)
    (path,) = (tmp_path / "checkpoint").glob("*.json")
    assert math.isnan(json.loads(path.read_bytes())["spent"]["seconds_kernels"])
    status, notes = stopped(data, tmp_path, 10**9)
    assert (status, notes) == ("finished", [f"continues from the checkpoint at iteration {int(path.stem)}"])


@pytest.mark.parametrize("name", ["O", "M8[s]", "S3", "U3", "V8", "f8,O", "(2,)O"])
def test_bytes_become_no_objects(name: str) -> None:
    """An array of objects over bytes has the addresses that stand there."""
    with pytest.raises(ValueError, match="is no type of numbers"):
        numeric(name)


def forge(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> None:
    """Change the arrays and the values of a folder's last checkpoint, and make its digests right again."""
    *_, path = sorted((folder / "checkpoint").glob("*.json"))
    tensors, meta = path.with_suffix(".safetensors"), json.loads(path.read_bytes())
    arrays = {name: array.copy() for name, array in load(tensors.read_bytes()).items()}
    change(arrays, meta["values"])
    tensors.write_bytes(save(arrays))
    path.write_bytes(json_with_digest(meta | {"tensors": hashlib.sha256(tensors.read_bytes()).hexdigest()}))


def shorten(prefix: str) -> Callable[..., None]:
    """Return a change that leaves one element of arrays (P,); kernels would access the memory behind it."""

    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        names = [name for name in arrays if name.startswith(prefix)]
        assert names
        arrays.update({name: arrays[name][:1] for name in names})

    return change


IA2SGD = {"server": {"name": "ia2sgd", "lr": 0.01}}
HAND = {"path": "hand", "backend": "numba", "events": False}
DROPPED = {"dispatcher": {"name": "uniform", "push": {"every": {"k": 2}}, "dropped_push": "accumulate"}}
OTHERS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any], dict[str, Any]], Any]]] = {
    "an array that is gone": ({}, lambda arrays, _: arrays.pop("server.own.arrays.n")),
    "one number for all": ({}, lambda arrays, _: arrays.update({"server.own.arrays.n": np.zeros(1, np.float32)})),
    "another type": (
        {}, lambda arrays, _: arrays.update({"server.own.params": arrays["server.own.params"].astype(np.float64)})
    ),
    "one too many": ({}, lambda arrays, _: arrays.update({"server.own.more": np.zeros(3)})),
    "times of another type": (
        {}, lambda arrays, _: arrays.update({"holdings.timestamps": arrays["holdings.timestamps"].astype(np.float64)})
    ),
    "a version that is not there": ({}, lambda arrays, _: arrays["holdings.under_way"].fill(99)),
    "samples beyond the data": (HAND, lambda arrays, _: arrays["work.samples"].fill(10**6)),
    "samples before the data": (HAND, lambda arrays, _: arrays["work.samples"].fill(-1)),
    "a short unsent push": (DROPPED, shorten("outbox._unsent.")),
    "a short residual": ({"compress": {"name": "top_k", "k": 3}}, shorten("compressor.own._residuals.")),
    "other samples": (HAND | IA2SGD, lambda arrays, _: arrays["work.samples"].fill(0)),
}  # fmt: skip


@pytest.mark.parametrize(("more", "change"), OTHERS.values(), ids=OTHERS)
def test_a_state_of_another_form_is_not_gone_on_from(
    more: dict[str, Any], change: Callable[..., Any], tmp_path: Path
) -> None:
    """It gives the bytes of a run that was never stopped, from the beginning where there is no other."""
    data = DATA | more
    stopped(data, tmp_path, 5)
    forge(tmp_path, change)
    status, notes = stopped(data, tmp_path, 10**9)
    assert status == "finished"
    assert "cannot be used (its state does not fit: " in notes[0]
    assert files_of(tmp_path) == left_behind(data, {})[0]


def test_the_checkpoint_before_it_is_gone_on_from(tmp_path: Path) -> None:
    """Even that of the event before."""
    for stop in (20, 21):
        execute(resolve(DATA), tmp_path, policy=CheckpointPolicy(1e9), stop_at=stop)
    forge(tmp_path, shorten("server.own.arrays."))
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert "iteration 21: cannot be used (its state does not fit: " in notes[0]
    assert (status, notes[1:]) == ("finished", ["continues from the checkpoint at iteration 20"])
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_counts_that_are_none_stop_the_run_with_one_message(tmp_path: Path) -> None:
    """They are first used when the run's results are written."""
    stopped(DATA, tmp_path, 10)
    forge(tmp_path, lambda _, values: values.update({"recorder.histogram": '{"set": [1]}'}))
    remedy = re.escape(f"; remove {tmp_path / 'checkpoint'}, and run it again")
    with pytest.raises(OutputError, match=f"cannot continue from its checkpoint .*{remedy}"):
        stopped(DATA, tmp_path, 10**9)
    assert not (tmp_path / "summary.json").exists()
    shutil.rmtree(tmp_path / "checkpoint")
    assert stopped(DATA, tmp_path, 10**9) == ("finished", [])
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_staleness_of_clients_none_of_whose_pushes_was_applied(tmp_path: Path) -> None:
    """So says a checkpoint that gives them staleness all the same; NumPy does not warn."""
    whole = left_behind(DATA, {})[0]["clients.csv"].decode().splitlines()[1:]
    pushes = np.array([int(line.split(",")[2]) for line in whole])
    stopped(DATA, tmp_path, 10)

    def change(arrays: dict[str, Any], _: dict[str, Any]) -> None:
        arrays["recorder.by_client.applied"] -= pushes

    forge(tmp_path, change)
    execute(resolve(DATA), tmp_path, policy=CheckpointPolicy(1e9))
    staleness = [line.split(",")[3] for line in (tmp_path / "clients.csv").read_text().splitlines()[1:]]
    assert staleness == ["inf"] * DATA["clients"]["count"]


def test_a_checkpoint_without_a_file_that_grows(tmp_path: Path) -> None:
    stopped(DATA, tmp_path, 10)
    (path,) = (tmp_path / "checkpoint").glob("*.json")
    meta = json.loads(path.read_bytes())
    del meta["files"]["metrics.csv"]
    path.write_bytes(json_with_digest(meta))
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert status == "finished"
    assert "it is of events.parquet, not of events.parquet, metrics.csv)" in notes[0]
    assert files_of(tmp_path) == left_behind(DATA, {})[0]


def test_a_full_disk_costs_what_came_since_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DATA | {"iterations": 400, "evaluation": {"every": 1}, "events": False}
    with monkeypatch.context() as patch:
        checkpoints_every(1e-9, patch)
        with (
            largest_file(60_000),
            pytest.raises(OutputError, match=r"metrics.csv: cannot be written \(File too large\)"),
        ):
            execute(resolve(data), tmp_path)
    reached = Checkpoints(tmp_path).iterations
    assert len(reached) == 2
    status, notes = stopped(data, tmp_path, 10**9)
    assert (status, notes) == ("finished", [f"continues from the checkpoint at iteration {reached[-1]}"])
    assert files_of(tmp_path) == left_behind(data, {})[0]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whatever would change what is in a folder fails, as where a disk was mounted anew after an error."""

    def refuse(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(path: Any, *more: Any, **named: Any) -> Any:
            writes = name != "open" or set(more[0] if more else "r") & set("wax+")
            if writes and str(path).startswith(str(folder)):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return call(path, *more, **named)

        return refusing

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((io, "open"), *((os, name) for name in ("mkdir", "unlink", "replace", "rename", "rmdir"))):
            patch.setattr(module, name, refuse(name, getattr(module, name)))
        yield


def test_a_folder_that_turns_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without checkpoints, and says at its end what it cannot write; nothing is lost."""

    class Turning(Notes):
        turned = 0

        def advance(self, iteration: int, *_: object) -> None:
            if iteration >= 30 and not self.turned:
                self.turned = iteration
                opened.__enter__()

    observer, opened = Turning(), read_only(tmp_path)
    with monkeypatch.context() as patch:
        checkpoints_every(1e-9, patch)
        with pytest.raises(OutputError, match=r"cannot be written \(Read-only file system\); choose another folder"):
            execute(resolve(DATA), tmp_path, observer=observer)
    opened.__exit__(None, None, None)
    assert observer.notes[0] == f"no checkpoint at iteration {observer.turned}: Read-only file system"
    before = Checkpoints(tmp_path).iterations
    with read_only(tmp_path), pytest.raises(OutputError, match="Read-only file system"):
        execute(resolve(DATA), tmp_path, policy=CheckpointPolicy(60.0))
    assert Checkpoints(tmp_path).iterations == before
    status, notes = stopped(DATA, tmp_path, 10**9)
    assert (status, notes) == ("finished", [f"continues from the checkpoint at iteration {before[-1]}"])
    assert files_of(tmp_path) == left_behind(DATA, {})[0]
