"""Checkpoints on disk: what is read is what was written, or an earlier one is."""

import errno
import hashlib
import json
import os
import random
import re
import shutil
import stat
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fredsim.runs.checkpoint.checkpoints import Checkpoint, Checkpoints
from fredsim.runs.checkpoint.format import Spent, check_types
from fredsim.runs.checkpoint.tensors import map_arrays
from fredsim.runs.checkpoint.transfer import CheckpointSender, Chunk, read_resume_files, write_chunk
from fredsim.runs.folder.growing_files import FilePrefix
from fredsim.runs.single.run import Run
from tests.test_going_on import DATA, stopped

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
    assert sorted(path.name for path in folder.iterdir()) == [*(whole if keep else []), *others]


def test_an_array_of_another_form_is_told() -> None:
    params, wide, other = np.zeros(3, np.float32), np.zeros((3, 2)), np.zeros((3, 2), np.float32)
    check_types({"server.x": wide}, {"server.x": wide}, params)
    with pytest.raises(ValueError, match=r"^server\.x is float64\[3, 2\], not float32\[3, 2\]$"):
        check_types({"server.x": wide}, {"server.x": other}, params)
    with pytest.raises(ValueError, match=r"^server\.x is float32\[3\], not int$"):
        check_types({"server.x": params}, {"server.x": 3}, params)


@pytest.mark.parametrize(
    "name",
    [
        "server.x", "compressor.x", "outbox.x", "holdings.version.3", "work.kept.0", "control.mean",
        "control.version.3", "control.own.2", "control.under_way.1",
    ],
)  # fmt: skip
def test_an_array_that_is_new_is_as_long_as_the_parameters(name: str) -> None:
    """Kernels rely on that: behind its end they would be in other memory."""
    params = np.zeros(3, np.float32)
    check_types({name: params, f"{name}.losses": np.zeros(2), f"{name}.of": np.zeros(2)}, {}, params)
    for wrong in (params[:2], np.zeros(3), np.zeros((3, 1), np.float32)):
        with pytest.raises(ValueError, match=rf"^{re.escape(name)} is .*, not float32\[3\]$"):
            check_types({name: wrong}, {}, params)


@pytest.mark.parametrize("name", ["server.x", "recorder.by_client.pushes"])
def test_an_array_that_kernels_write_keeps_its_shape(name: str) -> None:
    short, whole = np.zeros(2, np.int64), np.zeros(3, np.int64)
    with pytest.raises(ValueError, match=rf"^{re.escape(name)} is int64\[2\], not int64\[3\]$"):
        check_types({name: short}, {name: whole}, np.zeros(3, np.float32))


def test_seconds_that_a_run_may_have_spent() -> None:
    """A difference of two clocks may be a little less than 0."""
    for seconds in (-1e-6, 9e11):
        Spent(seconds=seconds)
    for seconds in (-2e-6, 1e12):
        with pytest.raises(ValueError, match="seconds"):
            Spent(seconds=seconds)


def test_checkpoints_to_be_kept_that_there_are_none_of(small_yaml: Path, refused: Callable[..., None]) -> None:
    says = "error: checkpoints are to be kept, and checkpoint is 0: there are none; leave one of the two out"
    refused("run", small_yaml, "--checkpoint", 0, "--keep-checkpoints", "--out", "out", says=(says,))
    assert not Path("out").exists()


def test_a_checkpoint_that_is_damaged_in_any_byte_is_told_and_the_one_before_used(tmp_path: Path) -> None:
    state = {"x": np.arange(5.0), "big": np.arange(3, dtype=">i8"), "text": "é", "n": 3}
    Checkpoints(tmp_path).write(at(1, {"n": 1}))
    Checkpoints(tmp_path).write(at(2, state))
    rng = random.Random(0)
    lost = {".json": "000000000002.safetensors: has lost its JSON file",
            ".safetensors": "000000000002.json: cannot be used (No such file or directory)"}  # fmt: skip
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
        (fault,) = Checkpoints(tmp_path).faults()
        assert fault.endswith(lost[path.suffix])
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


def test_each_file_is_on_the_disk_and_then_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a machine that loses power has no JSON without the arrays that it is of."""
    flushed: list[tuple[bool, int]] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        found = os.fstat(handle)
        flushed.append((stat.S_ISDIR(found.st_mode), found.st_size))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(at(1, {"x": np.zeros(9)}))
    assert [of_folder for of_folder, _ in flushed] == [False, True, False, True]
    assert [size for _, size in flushed[::2]] == [path.stat().st_size for path in checkpoints.paths(1)]


def test_what_the_other_side_has_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loss while it is sent would leave less there than the checkpoints say."""
    monkeypatch.setattr("fredsim.runs.checkpoint.transfer.CHUNK_BYTES", 4)
    home, worker = tmp_path / "home", tmp_path / "worker"
    for folder, content in ((home, b"0123456789"), (worker, b"0123456789abcdefghi")):  # the end is a later row
        folder.mkdir()
        (folder / "metrics.csv").write_bytes(content)
        (folder / "config.yaml").write_bytes(b"a: 1")
    digest = hashlib.sha256(b"0123456789abcdef").hexdigest()
    Checkpoints(worker).write(replace(at(7, {"a": 1}), files={"metrics.csv": FilePrefix(16, digest)}))
    sent: list[Chunk] = []
    CheckpointSender(worker, sent.append, {"metrics.csv": b"0123456789"})(7)
    assert sent[:3] == [("config.yaml", 0, b"a: 1"), ("metrics.csv", 10, b"abcd"), ("metrics.csv", 14, b"ef")]
    for chunk in sent[1:]:
        write_chunk(home, chunk, keep=False)
    assert (home / "metrics.csv").read_bytes() == b"0123456789abcdef"
    sent.clear()
    CheckpointSender(worker, sent.append, {"metrics.csv": b"01X"})(7)  # the run began anew
    assert sent[1] == ("metrics.csv", 0, b"0123")


def test_a_run_that_began_anew_is_sent_whole(tmp_path: Path) -> None:
    """Also its events, which begin as those before: the other side removes all files when the rows come anew."""
    home, worker = tmp_path / "home", tmp_path / "worker"
    contents = {"metrics.csv": (b"old", b"newer"), "events.parquet": (b"the", b"the same")}
    for folder, number in ((home, 0), (worker, 1)):
        folder.mkdir()
        (folder / "config.yaml").write_bytes(b"a: 1")
        for name, content in contents.items():
            (folder / name).write_bytes(content[number])
    prefixes = {name: FilePrefix(len(c), hashlib.sha256(c).hexdigest()) for name, (_, c) in contents.items()}
    Checkpoints(worker).write(replace(at(7, {"a": 1}), files=prefixes))
    sent: list[Chunk] = []
    CheckpointSender(worker, sent.append, {name: content for name, (content, _) in contents.items()})(7)
    for name in contents:
        (home / name).unlink()  # as for a first row
    for chunk in sent[1:]:
        write_chunk(home, chunk, keep=False)
    assert read_resume_files(home).keys() >= {*contents}


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
    assert [name for name, _, _ in sent].count("config.yaml") == 1
    for chunk in sent[1:]:
        write_chunk(home, chunk, keep=False)
    assert set(read_resume_files(home)) == {
        "probe.csv", "config.yaml", *(f"checkpoint/000000000007.{suffix}" for suffix in ("json", "safetensors")),
    }  # fmt: skip


def test_arrays_are_read_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more of them than there is memory, which a run with `memory` may have."""
    state: dict[str, Any] = {
        "a": np.arange(2**22, dtype=np.float64),
        "b": np.ones(3, np.uint8),
        "c": np.arange(5, dtype=">f8"),
    }
    Checkpoints(tmp_path).write(at(5, state))
    monkeypatch.setattr("fredsim.system.memory.machine_memory", lambda: 2**20)
    tracemalloc.start()
    try:
        checkpoint, faults = found(tmp_path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (faults, most < 2**21) == ([], True)  # of 32 MiB
    path = Checkpoints(tmp_path).paths(5)[0]
    before, arrays = path.read_bytes(), checkpoint.state
    for name, value in state.items():
        assert arrays[name].flags.aligned
        arrays[name][:] = 7
        assert value.tolist() != arrays[name].tolist()
    assert path.read_bytes() == before
    shutil.rmtree(tmp_path)  # as when later checkpoints are written
    assert arrays["a"].sum() == 7 * 2**22


def test_a_run_keeps_no_second_copy_of_what_it_continued_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Checkpoint | None] = []
    run = Run._run

    def noting(self: Run, checkpoint: Checkpoint | None) -> Any:
        given.append(checkpoint)
        return run(self, checkpoint)

    monkeypatch.setattr(Run, "_run", noting)
    stopped(DATA, tmp_path, 10)
    stopped(DATA, tmp_path, 10**9)
    assert given[0] is None
    assert given[1] is not None
    assert (given[1].iteration > 0, given[1].state) == (True, {})


WHOLE: dict[str, Any] = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
FORGED: dict[str, Any] = {
    "no mapping": [], "a text": "x", "no entry": {"a": 5}, "nothing": {},
    "no places": {"a": {"dtype": "F32", "shape": [2]}},
    "another type": {"a": WHOLE["a"] | {"dtype": "BF16"}}, "a list as type": {"a": WHOLE["a"] | {"dtype": ["F32"]}},
    "too many": {"a": WHOLE["a"] | {"shape": [3]}}, "negative": {"a": WHOLE["a"] | {"shape": [-2]}},
    "negative twice": {"a": WHOLE["a"] | {"shape": [-2, -1]}}, "no number": {"a": WHOLE["a"] | {"shape": ["2"]}},
    "true": {"a": WHOLE["a"] | {"shape": [True, 2]}}, "a float": {"a": WHOLE["a"] | {"shape": [2.0]}},
    "a number": {"a": WHOLE["a"] | {"shape": 2}}, "many axes": {"a": WHOLE["a"] | {"shape": [1] * 99 + [2]}},
    "huge": {"a": WHOLE["a"] | {"shape": [0, 2**70], "data_offsets": [0, 0]}},
    "behind the end": {"a": WHOLE["a"] | {"data_offsets": [4, 12]}},
    "a gap": {"a": WHOLE["a"] | {"data_offsets": [8, 16]}},
    "one place": {"a": WHOLE["a"] | {"data_offsets": [0]}}, "texts": {"a": WHOLE["a"] | {"data_offsets": ["0", "8"]}},
    "the same twice": {"a": WHOLE["a"], "b": WHOLE["a"]},
    "half": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
}  # fmt: skip


@pytest.mark.parametrize("what", [*FORGED, "nested", "longer than the file", "short", "empty", "not UTF-8"])
def test_forged_headers(what: str, tmp_path: Path) -> None:
    """Their digests are right."""
    text = json.dumps(FORGED.get(what, WHOLE)).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(8)
    if what == "nested":
        text = b"[" * 100_000
        content = len(text).to_bytes(8, "little") + text
    elif what == "longer than the file":
        content = (2**63).to_bytes(8, "little") + text
    elif what == "not UTF-8":
        content = (2).to_bytes(8, "little") + b"\xff\xfe" + bytes(8)
    content = {"short": content[:5], "empty": b""}.get(what, content)
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        map_arrays(path, hashlib.sha256(content).hexdigest(), {})
    good = json.dumps({"__metadata__": {"x": "y"}} | WHOLE).encode()
    path.write_bytes(len(good).to_bytes(8, "little") + good + bytes(8))
    found = map_arrays(path, hashlib.sha256(path.read_bytes()).hexdigest(), {})
    assert [*found] == ["a"]
    assert found["a"].tolist() == [0.0, 0.0]
