"""What was compiled is used again, as long as its text stays."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.jit.cache import make_module
from fredsim.show.progress import LineObserver

PROGRAM = """
import sys
import numba
numba.__version__ = sys.argv[2] or numba.__version__
from pathlib import Path

import numpy as np

from fredsim.jit.cache import make_module
from fredsim.jit.team import Team

with Team(2) as team:
    out = np.zeros(2, np.int64)
    number = make_module(Path(sys.argv[1]).read_text(), "a test").number
    team.run(number, number.pack(out=out))
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


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("content", [b"", b"nonsense", "half"], ids=str)
def test_what_is_damaged_is_compiled_again(suffix: str, content: bytes | str, tmp_path: Path) -> None:
    """As a power failure may leave it."""
    text, cache = tmp_path / "number.py", tmp_path / "cache"
    assert compiled_number(NUMBER, text, cache) == "41"
    for path in cache.glob(f"*/*.{suffix}"):
        whole = path.read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    assert compiled_number(NUMBER, text, cache) == "41"


def test_what_was_compiled_is_used_again_until_its_text_changes(tmp_path: Path) -> None:
    text, cache = tmp_path / "number.py", tmp_path / "cache"

    def files() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in cache.glob("*/*.nbc")}

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
