"""Checkpoints on disk: what is read is what was written, or an earlier one is."""

import errno
import hashlib
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fredsim.runs.checkpoint.checkpoints import Checkpoint, Checkpoints
from fredsim.runs.checkpoint.format import check_types
from fredsim.runs.checkpoint.transfer import CheckpointSender, Chunk, read_resume_files, write_chunk
from fredsim.runs.folder.growing_files import FilePrefix

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ">i4", ">f8", "c8"]
FILES = {"metrics.csv": FilePrefix(3, hashlib.sha256(b"abc").hexdigest())}


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for number in range(draw(st.integers(0, 5))):
        shape = draw(st.sampled_from([(), (0,), (1,), (7,), (3, 2), (2, 0, 3)]))
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        values = rng.bytes(dtype.itemsize * int(np.prod(shape, dtype=int)))
        array = np.frombuffer(bytearray(b & 1 for b in values) if dtype.kind == "b" else values, dtype).reshape(shape)
        state[f"a.{number}.é"] = array.T if draw(st.booleans()) else array
    names = st.text(max_size=5).map("n.{}".format)
    plain = st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.booleans()
    return state | draw(st.dictionaries(names, plain, max_size=5))


def at(iteration: int, state: dict[str, Any], experiment: str = "e") -> Checkpoint:
    return Checkpoint(iteration, {"experiment": experiment}, FILES, state, {"seconds": 1.5})


def found(folder: Path, experiment: str = "e") -> tuple[Checkpoint, list[str]]:
    (folder / "metrics.csv").write_text("abcdef")
    checkpoint, faults = Checkpoints(folder).newest({"experiment": experiment})
    assert checkpoint is not None
    return checkpoint, faults


@settings(max_examples=60)
@given(state=states())
def test_what_is_read_is_what_was_written(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    Checkpoints(folder).write(at(5, state))
    checkpoint, faults = found(folder)
    assert (checkpoint.iteration, checkpoint.files, faults) == (5, FILES, [])
    assert checkpoint.state.keys() == state.keys()
    for name, value in state.items():
        other = checkpoint.state[name]
        assert type(other) is type(value)
        if isinstance(value, np.ndarray):
            assert (other.dtype, other.shape, other.tobytes()) == (value.dtype, value.shape, value.tobytes())
            assert other.flags.writeable
        else:
            assert repr(other) == repr(value)


def test_the_package_reads_the_file(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(at(3, {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": 1}))
    tensors = load_file(tmp_path / "checkpoint" / "000000000003.safetensors")
    assert tensors["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_last_two_are_kept_in_the_order_of_iterations(tmp_path: Path) -> None:
    for iteration in (9, 80, 700):
        Checkpoints(tmp_path).write(at(iteration, {"n": iteration}))
    names = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert names == [f"{i:012d}.{kind}" for i in (80, 700) for kind in ("json", "safetensors")]
    assert found(tmp_path)[0].state == {"n": 700}
    Checkpoints(tmp_path).clear()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


@pytest.mark.parametrize(("keep", "left"), [(False, [2, 5]), (True, [1, 2, 5])])
def test_what_a_killed_process_began_to_write_is_removed(keep: bool, left: list[int], tmp_path: Path) -> None:
    checkpoints, folder = Checkpoints(tmp_path, keep=keep), tmp_path / "checkpoint"
    for iteration in (1, 2):
        checkpoints.write(at(iteration, {}))
    begun = ("000000000003.safetensors", "000000000004.safetensors.part", "000000000007.json.part",
             f"000000000005.json.{'0123456789abcdef'}.part")  # fmt: skip
    others = ["3.json", "notes.txt"]  # a checkpoint's number has twelve digits
    for name in (*begun, *others):
        (folder / name).touch()
    checkpoints.write(at(5, {}))
    whole = [f"{iteration:012d}.{kind}" for iteration in left for kind in ("json", "safetensors")]
    assert sorted(path.name for path in folder.iterdir()) == [*whole, *others]
    (folder / begun[1]).touch()
    checkpoints.clear()
    assert sorted(path.name for path in folder.iterdir()) == others


def test_an_array_of_another_form_is_told() -> None:
    params, wide, other = np.zeros(3, np.float32), np.zeros((3, 2)), np.zeros((3, 2), np.float32)
    check_types({"server.x": wide}, {"server.x": wide}, params)
    with pytest.raises(ValueError, match=r"^server\.x is float64\[3, 2\], not float32\[3, 2\]$"):
        check_types({"server.x": wide}, {"server.x": other}, params)
    with pytest.raises(ValueError, match=r"^server\.x is float32\[3\], not int$"):
        check_types({"server.x": params}, {"server.x": 3}, params)


def test_a_checkpoint_that_is_damaged_in_any_byte_is_told_and_the_one_before_used(tmp_path: Path) -> None:
    state = {"x": np.arange(5.0), "big": np.arange(3, dtype=">i8"), "text": "é", "n": 3}
    Checkpoints(tmp_path).write(at(1, {"n": 1}))
    Checkpoints(tmp_path).write(at(2, state))
    rng = random.Random(0)
    for path in sorted((tmp_path / "checkpoint").glob("*2.*")):
        whole = path.read_bytes()
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            checkpoint, faults = found(tmp_path)
            assert checkpoint.state == {"n": 1}, place
            assert "000000000002.json: cannot be used" in "; ".join(faults)
        for length in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:length])
            assert found(tmp_path)[0].iteration == 1
        path.unlink()
        assert found(tmp_path)[0].iteration == 1
        path.write_bytes(whole)
    assert found(tmp_path)[0].iteration == 2


def test_another_experiments_is_none(tmp_path: Path) -> None:
    Checkpoints(tmp_path).write(at(2, {}))
    checkpoint, (fault,) = Checkpoints(tmp_path).newest({"experiment": "another"})
    assert checkpoint is None
    assert "its experiment is e, not another" in fault


def test_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(at(1, {"x": np.zeros(9)}))
    before = {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()}

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.write(at(2, {"x": np.ones(9)}))
    assert {path: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == before


def test_what_the_other_side_has_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loss while it is sent would leave less there than the checkpoints say."""
    monkeypatch.setattr("fredsim.runs.checkpoint.transfer.CHUNK_BYTES", 4)
    home, worker = tmp_path / "home", tmp_path / "worker"
    for folder, content in ((home, b"0123456789"), (worker, b"0123456789abcdef")):
        folder.mkdir()
        (folder / "metrics.csv").write_bytes(content)
    Checkpoints(worker).write(replace(at(7, {"a": 1}), files={"metrics.csv": FilePrefix(16, "")}))
    sent: list[Chunk] = []
    CheckpointSender(worker, sent.append, {"metrics.csv": b"0123456789"})(7)
    assert sent[:2] == [("metrics.csv", 10, b"abcd"), ("metrics.csv", 14, b"ef")]
    for chunk in sent:
        write_chunk(home, chunk, keep=False)
    assert (home / "metrics.csv").read_bytes() == b"0123456789abcdef"
    sent.clear()
    CheckpointSender(worker, sent.append, {"metrics.csv": b"01X"})(7)  # the run began anew
    assert sent[0] == ("metrics.csv", 0, b"0123")


def test_a_file_without_a_row_is_sent_too(tmp_path: Path) -> None:
    """Else a checkpoint of a run that has no row of probe.csv yet could not be used on the other side."""
    home, worker = tmp_path / "home", tmp_path / "worker"
    for folder in (home, worker):
        folder.mkdir()
        (folder / "config.yaml").write_bytes(b"")
    (worker / "probe.csv").write_bytes(b"")
    empty = hashlib.sha256(b"").hexdigest()
    Checkpoints(worker).write(replace(at(7, {"a": 1}), files={"probe.csv": FilePrefix(0, empty)}))
    sent: list[Chunk] = []
    send = CheckpointSender(worker, sent.append, {})
    for _ in range(2):
        send(7)
    for chunk in sent:
        write_chunk(home, chunk, keep=False)
    assert set(read_resume_files(home)) == {
        "probe.csv", "config.yaml", *(f"checkpoint/000000000007.{suffix}" for suffix in ("json", "safetensors")),
    }  # fmt: skip
