"""What was compiled is used again, as long as its text stays."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fredsim.jit import subroutine
from fredsim.jit.cache import _digest_of_sources, _Files, is_private, make_module
from fredsim.jit.kernel import specialise
from fredsim.show.progress import LineObserver
from fredsim.system.notices import on_notices

PROGRAM = """
import sys
import numba
numba.__version__ = sys.argv[2] or numba.__version__
from ctypes import addressof
from pathlib import Path

import numpy as np

from fredsim.jit.cache import make_module

out = np.zeros(2, np.int64)
number = make_module(Path(sys.argv[1]).read_text(), "a test").number
number.call(1, 1, 0, addressof(number.pack(out=out)))  # a team's own kernels take longer to compile
print(out[1])
"""
NUMBER = """
from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import int64s, put


@kernel(out=int64s)
def number(rank, size, barrier, a):
    put(a.out, rank, 41)
"""


def compiled_number(source: str, text: Path, cache: Path, numba: str = "") -> str:
    """Call the kernel of a text in another process, with this cache folder, under a numba that calls itself so."""
    text.write_text(source, encoding="utf-8")
    words, environment = [sys.executable, "-c", PROGRAM, str(text), numba], os.environ | {"FREDSIM_CACHE": str(cache)}
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()


def only(cache: Path) -> Path:
    """Return the file of the kernel of NUMBER."""
    (path,) = cache.glob("*/number*.kernel")
    return path


def test_what_is_damaged_is_compiled_again(tmp_path: Path) -> None:
    """As a power failure, or a disk, may leave it; and the file of another kernel under its name."""
    text, cache = tmp_path / "number.py", tmp_path / "cache"
    assert compiled_number(NUMBER.replace("41", "43"), text, cache) == "43"
    other = only(cache).read_bytes()
    only(cache).unlink()
    assert compiled_number(NUMBER, text, cache) == "41"
    whole = only(cache).read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], other):
        only(cache).write_bytes(damaged)
        assert compiled_number(NUMBER, text, cache) == "41"
        now, name = only(cache).read_bytes(), only(cache).name
        assert now[:32] == hashlib.sha256(name.encode() + b"\n" + now[32:]).digest()


def test_a_flipped_bit_anywhere_is_noticed_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, cache, rng = tmp_path / "number.py", tmp_path / "cache", random.Random(1)
    assert compiled_number(NUMBER, text, cache) == "41"
    path, loaded = only(cache), list[bytes]()
    whole = path.read_bytes()
    files: Any = _Files(path.parent, path.name.partition(".py")[0])  # type: ignore[no-untyped-call]
    monkeypatch.setattr(files, "_path", lambda key: path)
    monkeypatch.setattr("fredsim.jit.cache.pickle.loads", loaded.append)
    files.load("whole")
    assert loaded == [whole[32:]]
    for _ in range(1000):
        at, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        assert files.load("flipped") is None
    assert loaded == [whole[32:]]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="this system has no such rights")
@pytest.mark.parametrize("folder", [False, True])
def test_what_others_can_write_is_not_read(folder: bool, tmp_path: Path) -> None:
    text, cache = tmp_path / "number.py", tmp_path / "cache"
    assert compiled_number(NUMBER, text, cache) == "41"
    assert (only(cache).stat().st_mode & 0o777, only(cache).parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path = only(cache).parent if folder else only(cache)
    path.chmod(0o770 if folder else 0o660)
    before, notes = only(cache).stat().st_mtime_ns, list[str]()
    with on_notices(lambda: None, notes.append):
        assert not is_private(path)
        assert not is_private(path)
    assert notes == [
        f"compiled kernels are neither read nor kept: {path} can be written by others; delete it, or name a folder of "
        "your own by FREDSIM_CACHE"
    ]
    assert compiled_number(NUMBER, text, cache) == "41"
    assert (only(cache).stat().st_mtime_ns == before) == folder  # a single file is replaced by one of our own


def test_what_was_compiled_is_used_again_until_its_text_changes(tmp_path: Path) -> None:
    text, cache = tmp_path / "number.py", tmp_path / "cache"

    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in cache.glob("*/*.kernel")}

    assert compiled_number(NUMBER, text, cache) == "41"
    before = files()
    assert any("number" in name for name in before)
    assert compiled_number(NUMBER, text, cache) == "41"
    assert files() == before
    assert compiled_number(NUMBER.replace("41", "42"), text, cache) == "42"
    assert before.items() < files().items()
    before = files()
    assert compiled_number(NUMBER, text, cache, numba="0.0") == "41"
    assert before.items() < files().items()  # what another numba compiles stands beside it


def test_without_a_cache_folder_every_process_compiles(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert compiled_number(NUMBER, tmp_path / "number.py", tmp_path / "file") == "41"


def test_who_watches_a_run_hears_of_what_it_compiles(
    small_yaml: Path,
    own_server: Callable[..., str],
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And of nothing that is compiled after it."""
    heard: list[LineObserver] = []
    Path("own_still.py").write_text(own_server(), encoding="utf-8")
    assert (
        command("run", small_yaml, "server.name=own_still:Plain", "--out", "before")[0] == 0
    )  # all other kernels are there now
    monkeypatch.setattr(LineObserver, "compiling", lambda self: heard.append(self))
    monkeypatch.setenv("FREDSIM_CACHE", str(small_yaml.parent / "cache"))
    lines = (
        "from pathlib import Path\n"
        "from fredsim.jit.cache import make_module\n"
        "make_module(Path('number.py').read_text(), 'a test').number.address\n"
    )
    Path("own_compiling.py").write_text(own_server(lines), encoding="utf-8")
    Path("number.py").write_text(NUMBER.replace("41", "51"), encoding="utf-8")
    assert command("run", small_yaml, "server.name=own_compiling:Plain", "--out", "after")[0] == 0
    assert len(heard) == 1
    assert make_module(NUMBER.replace("41", "52"), "a test").number.address
    assert len(heard) == 1


def test_a_kernel_is_compiled_again_if_its_file_has_another_name_or_content(tmp_path: Path) -> None:
    """What is stored names modules: with the old name it could not be read."""
    file = tmp_path / "kernels" / "old.py"
    file.parent.mkdir()
    digests = []
    for name, text in [("old.py", "x = 1"), ("new.py", "x = 1"), ("new.py", "x = 2")]:
        file = file.rename(file.with_name(name)) if file.exists() else file
        file.write_text(text, encoding="utf-8")
        digests.append(_digest_of_sources(tmp_path))
    assert len({*digests}) == 3


def llvm_code(label: str) -> str:
    """Return the LLVM code of the kernel that evaluates, compiled as a copy; names of functions are left out."""
    parts = ("sparse_rows", "dense", "trees", "upper", "window", "gradient", "evaluation")
    copy = specialise([f"fredsim.kernels.mlp.{part}" for part in parts], LABEL=label)
    return re.sub(r"_ZN?[\w$.]*|(?<=ModuleID = ).*|\d{9,}", "…", copy.evaluate._callback._library.get_llvm_str())


def test_the_code_is_that_of_all_of_numbas_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is left out of compiling a kernel, or found once, changes nothing of it."""
    monkeypatch.setenv("FREDSIM_CACHE", str(tmp_path))
    found = llvm_code("as it is")
    assert len(found) > 10_000
    monkeypatch.setattr(subroutine, "LEFT_OUT", set())
    monkeypatch.setattr("fredsim.jit.cache.operators_found_once", nullcontext)
    assert llvm_code("as by numba") == found


LATE = """
import json
import sys

import fredsim
from fredsim.jit import cache
from fredsim.simulation.paths.fused import Fused
from fredsim.simulation.paths.scheduled import Scheduled
from fredsim.simulation.paths.snapshots import Snapshots


def noted(function):
    loaded.append(function.__self__._pyfunc.__name__)
    return usual(function)


def watched(advance):
    def called(self, *given):
        before = len(loaded)
        advance(self, *given)
        late.extend(loaded[before:])
    return called


loaded, late, usual, cache.in_one_piece = [], [], cache.in_one_piece, noted
for kind in (Fused, Scheduled, Snapshots):
    kind._advance = watched(kind._advance)
fredsim.run(json.loads(sys.argv[1]), out=sys.argv[2])
assert "evaluate" in loaded
print(late)
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "snapshots"}, {"clients": {"count": 4, "batch_size": 2, "clip_each_sample": 1.0}}, {},
        {"server": {"name": "ternary_sync", "lr": 0.01}}, {"compress": {"name": "ternary"}},
        {"server": {"name": "bfasgd", "lr": 0.01}},
    ],
    ids=["snapshots", "each sample", "hand", "ternary_sync", "compressed", "bfasgd"],
)  # fmt: skip
def test_nothing_is_compiled_while_events_are_processed(changes: dict[str, Any], tmp_path: Path) -> None:
    """Nor loaded from the cache: a first run would take longer than others, by its own account."""
    experiment = {
        "iterations": 6, "data": {"name": "digits"}, "server": {"name": "asgd", "lr": 0.01}, "backend": "numba",
        "clients": {"count": 4, "batch_size": 2}, "evaluation": {"every": 3}, "threads": 1,
    }  # fmt: skip
    words = [sys.executable, "-c", LATE, json.dumps(experiment | changes), str(tmp_path / "run")]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip().endswith("[]")
