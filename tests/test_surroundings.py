"""Hostile surroundings: streams, limits, folders and environment variables. Every command works, or says why in a line.

With --slow, every command is tried in all of them, else one in each.
"""

import errno
import io
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import dump_yaml
from fredsim.system.environment import wrong_surroundings

Command = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")

COMMANDS = {
    "run": ("run", "small.yaml", "--out", "out"),
    "numba": ("run", "quadratic.yaml", "backend=numba", "--out", "out"),
    "sweep": ("run", "sweep.yaml", "--jobs", "16", "--out", "out"),
    "plan": ("plan", "small.yaml"),
    "show": ("show", "small.yaml"),
    "list": ("list",),
    "help": ("--help",),
    "verify": ("verify", "done"),
    "plot": ("plot", "done", "-o", "out.png"),
    "report": ("report", "done", "-o", "out.html"),
}
WRITES = [name for name in COMMANDS if name != "report"]  # to stdout, more than a path


@dataclass(frozen=True)
class Case:
    """Surroundings: variables, what the shell does before, redirections; and what is said if that is refused."""

    variables: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    says: str = ""
    commands: tuple[str, ...] = ("run", "list")
    #: The most lines of stderr beside those of progress.
    lines: int = 0
    #: Whether all kernels are compiled, which takes a quarter of a minute.
    slow: bool = False


FULL = "the output cannot be written (No space left on device); send it elsewhere"
CASES = {
    "stdout is full": Case(after="> /dev/full", says=FULL, commands=("run", "show", *WRITES)),
    "a figure": Case(after="> /dev/full", says=FULL, commands=("plot",)),
    "stderr is full": Case(after="2> /dev/full", commands=("run", "sweep")),
    "stdout is closed": Case(after=">&-"),
    "stderr is closed": Case(after="2>&-"),
    "no reader": Case(after="| head -1", commands=("run", "list", "verify")),
    "a reader that ends at once": Case(after="| true", commands=("help", "list")),
    "no such backend": Case({"MPLBACKEND": "nonsense"}, commands=("run", "plot")),
    "no folder of matplotlib's": Case({"MPLCONFIGDIR": "/proc/nowhere"}, commands=("plot", "run")),
    "a damaged matplotlibrc": Case(before="echo 'backend: nonsense\nnonsense' > matplotlibrc", commands=("plot",)),
    "settings of numba": Case(before="echo '[nonsense' > .numba_config.yaml", commands=("numba",)),
    "the folder is gone": Case(
        before="mkdir gone && cd gone && rmdir ../gone", says="the current folder was removed", commands=("run", "list")
    ),
    "few files": Case(before="ulimit -n 32", commands=("sweep",), lines=1),
    "very few files": Case(before="ulimit -n 20", commands=("sweep", "run"), lines=1),
    "little address space": Case(
        before="ulimit -v 500000", says="MB of address space (ulimit -v); give it 1,000 MB at least"
    ),
    "just enough address space": Case(  # OpenBLAS takes some for each thread
        {"OPENBLAS_NUM_THREADS": "1"}, before="ulimit -v 1500000", commands=("run", "plan")
    ),
    "no home": Case(before="unset HOME", commands=("run",)),
    "a home that cannot be written": Case(
        {"HOME": "/proc/1", "FREDSIM_CACHE": ""}, commands=("numba",), lines=1, slow=True
    ),
    "no folder for temporary files": Case({"TMPDIR": "/proc/nowhere"}, commands=("plan",)),
    "a file as cache": Case({"FREDSIM_CACHE": "small.yaml"}, commands=("numba",), lines=1, slow=True),
    "no cache": Case({"FREDSIM_CACHE": "/proc/nowhere"}, commands=("numba",), lines=1),
    "the locale C": Case({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, commands=("list", "run")),
    "ASCII": Case({"PYTHONIOENCODING": "ascii"}, commands=("list", "run", "plot")),
    "one column": Case({"COLUMNS": "1"}, commands=("run",)),
    "no column": Case({"COLUMNS": "0", "TERM": "dumb", "NO_COLOR": "1"}, commands=("plan",)),
    "no compiler": Case({"NUMBA_DISABLE_JIT": "1"}, commands=("numba",)),
    "threads of numba": Case(
        {"NUMBA_NUM_THREADS": "nonsense"}, says="NUMBA_NUM_THREADS is 'nonsense'; it must be a whole number"
    ),
    "no thread of numba": Case({"NUMBA_NUM_THREADS": "0"}, says="NUMBA_NUM_THREADS is '0'", commands=("run",)),
    "threads of others": Case({"OMP_NUM_THREADS": "nonsense", "OPENBLAS_NUM_THREADS": "-1"}, commands=("run",)),
    "no docstrings": Case({"PYTHONOPTIMIZE": "2"}, commands=("run", "list", "verify"), lines=1),
    "hashes": Case({"PYTHONHASHSEED": "123"}, commands=("verify",)),
    "no large files": Case(
        before="ulimit -f 1", says="cannot be written (File too large); make room", commands=("run",)
    ),
    "a place that cannot be written": Case(
        before="ln -s /proc/1 out", says="choose another folder by --out", commands=("run",)
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three experiments, and the results of two; the kernels of the last take a fifth of the time to compile."""
    made = tmp_path_factory.mktemp("surroundings")
    experiment = {
        "name": "small",
        "iterations": 50,
        "data": {"name": "digits"},
        "model": {"hidden": [16]},
        "clients": {"count": 8, "batch_size": 3},
        "server": {"name": "asgd", "lr": 0.3},
        "threads": 1,
        "backend": "numpy",
        "figures": [],
    }
    (made / "small.yaml").write_text(dump_yaml(experiment), encoding="utf-8")
    sweep = experiment | {"name": "sweep", "sweep": {"seed": [0, 1, 2, 3]}}
    (made / "sweep.yaml").write_text(dump_yaml(sweep), encoding="utf-8")
    quadratic = experiment | {"name": "quadratic", "data": {"name": "quadratic", "size": 50, "noise": 0.01}}
    quadratic |= {"model": {"name": "linear", "init": "first"}, "clients": {"count": 8, "batch_size": 1}}
    (made / "quadratic.yaml").write_text(dump_yaml(quadratic), encoding="utf-8")
    for name, out in (("small", "done"), ("quadratic", "done quadratic")):
        assert call(made, Case(), ("run", f"{name}.yaml", "--out", out)).returncode == 0
    return made


def call(folder: Path, case: Case, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Call the command in a shell with these surroundings."""
    words = shlex.join([sys.executable, "-m", "fredsim", *arguments])
    script = f"set -o pipefail\n{case.before}\n{words} {case.after}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | case.variables
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def named() -> Iterator[object]:
    for name, case in CASES.items():
        for command in COMMANDS:
            chosen = command in case.commands[:1]
            if chosen or command in case.commands or (not case.says and not case.lines):
                marks = () if chosen and not case.slow else (pytest.mark.slow,)
                yield pytest.param(name, command, marks=marks, id=f"{name}-{command}".replace(" ", "_"))


@pytest.mark.parametrize(("name", "command"), [*named()])
def test_it_works_or_says_why(name: str, command: str, folder: Path, tmp_path: Path) -> None:
    case = CASES[name]
    at = tmp_path / "here"
    shutil.copytree(folder, at)
    found = call(at, case, COMMANDS[command])
    lines = [line for line in found.stderr.splitlines() if not line.startswith("note: ")]
    assert "Traceback" not in found.stderr, found.stderr
    errors = [line for line in lines if line.startswith("error: ")]
    progress = [line for line in lines if "finished after" in line or line.endswith(" runs") or "compiling" in line]
    assert len(lines) - len(errors) - len(progress) <= case.lines, found.stderr
    if case.says:
        assert (found.returncode, len(errors)) == (2, 1), found.stderr
        assert case.says in errors[0]
    else:
        assert (found.returncode in ({0, 141} if "|" in case.after else {0}), errors) == (True, []), found.stderr
    if command in ("run", "numba") and (not case.says or case.says == FULL):
        done = "done quadratic" if command == "numba" else "done"
        digests = [json.loads((at / of / "summary.json").read_text("utf-8"))["digest"] for of in (done, "out")]
        assert digests[0] == digests[1]
    if command == "plot" and case.says == FULL:  # the table that belongs to the new figure
        assert {path.name for path in at.glob("out*")} == {"out.png", "out-table.csv", "out-table.md"}
    if command == "run" and case.says == FULL:
        assert errors[0].endswith("; out holds the results of the runs")


OWN = """
import numpy as np


class Greek:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params = params.copy()
        print("λ")

    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr) * grad
"""


@pytest.mark.parametrize(
    ("encoding", "count", "rate"),
    [
        ("ascii", "λ", "α"), ("latin-1", r"\u03bb", r"\u03b1"), ("cp437", r"\u03bb", "α"),
        pytest.param("utf-8", "λ", "α", marks=pytest.mark.slow),
        pytest.param("cp1252", r"\u03bb", r"\u03b1", marks=pytest.mark.slow),
        pytest.param("iso8859-7", "λ", "α", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_an_output_without_some_letters(encoding: str, count: str, rate: str, folder: Path, tmp_path: Path) -> None:
    """Those of a list, of a table that Rich draws, and of a user's server in another process."""
    at = tmp_path / "here"
    shutil.copytree(folder, at)
    (at / "own_greek.py").write_text(OWN, encoding="utf-8")
    case = Case({"PYTHONIOENCODING": encoding}, after="> said")
    code = "utf-8" if encoding == "ascii" else encoding
    keys = ("server.name=own_greek:Greek", "sweep={server.lr: [0.1, 0.2], clients.count: [2, 4]}", "figures=null")
    runs = ("run", "small.yaml", *keys, "--jobs", "2", "--out", "out")
    for words, letters in ((("list", "asgd"), (f"learning rate {rate}:",)), (runs, (f"{rate} = 0.1", f"{count} = 2"))):
        found = call(at, case, words)
        said = (at / "said").read_text(encoding=code)
        assert (found.returncode, "Traceback" in found.stderr) == (0, False), found.stderr
        assert [one for one in letters if one not in said] == [], said
    assert sum(found.stderr.count(letter) for letter in ("λ", "\ufffd", r"\u03bb")) >= 4, found.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_workers_print_whole_lines(unbuffered: str) -> None:
    """Others print, too: what is between a line and its end would be in the middle of one of theirs."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    prints = "from fredsim.runs.processes.worker import be_silent; be_silent(); print('a', 'line')"
    with here, there:
        here.settimeout(60)
        environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", prints], stderr=there.fileno(), env=environment, check=True)
        assert here.recv(100) == b"a line\n"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "full"), "the output cannot be written (full); send it elsewhere"),
        (BrokenPipeError(errno.EPIPE, "gone"), "the output cannot be written (gone); send it elsewhere"),
        (BlockingIOError(errno.EAGAIN, "busy", 3), "the output cannot be written (busy); send it elsewhere"),
        (OSError(errno.EAGAIN, "busy"), "no further process can be started; end other programs, or raise the limit"),
        (OSError(errno.ENOMEM, "none"), "out of memory; end other programs, or raise the limit (ulimit -v)"),
        (OSError(errno.EMFILE, "many"), "many; raise the limit (ulimit -n)"),
        (OSError(errno.ENODEV, "no such device"), "no such device"),
        (OSError(errno.EACCES, "no", "a/b"), "a/b: no"),
    ],
)  # fmt: skip
def test_what_an_error_of_the_system_is_of(error: OSError, says: str) -> None:
    found = wrong_surroundings(error)
    assert found is not None
    assert found.startswith(says)
    assert ("output" in found) == ("output" in says)


NO_MORE = """
import subprocess, sys
from fredsim import cli

def refuse(*_, **__):
    raise BlockingIOError(11, "Resource temporarily unavailable")

subprocess.Popen._execute_child = refuse  # as at the limit of processes (ulimit -u), which the superuser has not
sys.argv = ["fredsim", "run", "sweep.yaml", "--jobs", "2", "--out", "out"]
cli.main()
"""


def test_at_the_limit_of_processes(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "here")
    ended = subprocess.run(
        [sys.executable, "-c", NO_MORE], cwd=tmp_path / "here", env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    what = "no further process can be started; end other programs, or raise the limit (ulimit -u, ulimit -v)"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (2, f"error: {what}")


REMEDY = "; let TMPDIR name another folder"


@pytest.mark.parametrize("words", [("verify", "done"), ("verify", "done", "--jobs", "2"), ("plan", "small.yaml")])
def test_a_folder_for_temporary_files_that_turns_read_only(
    words: tuple[str, ...], folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These commands have no `--out`."""
    monkeypatch.chdir(folder)
    opened = io.open

    def refuse(name: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if set(mode) & set("wx+") and "fredsim-scratch-" in str(name):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(name))
        return opened(name, mode, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", refuse)
        patch.setattr("fredsim.runs.processes.forking.FORKS", False)
        if "--jobs" not in words:  # whose processes have the folder that they can write into
            code, _, messages = command(*words)
            errors = [line for line in messages.splitlines() if line.startswith("error: ")]
            assert (code, len(errors), "--out" in messages) == (2, 1, False), messages
            assert errors[0].endswith(f"cannot be written (Read-only file system){REMEDY}")

    def refuse_all(*_: object, **__: object) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/tmp/x")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse_all)
    code, _, messages = command(*words[:2])
    says = f"error: /tmp/x: no temporary folder can be made (Read-only file system){REMEDY}"
    assert (code, messages.splitlines()[-1]) == (2, says)


def test_figures_are_not_those_of_a_matplotlibrc(folder: Path, tmp_path: Path) -> None:
    """One lies in the current folder, which may be somebody else's; by its settings, matplotlib would run LaTeX."""
    plain, other = tmp_path / "plain", tmp_path / "other"
    for path in (plain, other):
        shutil.copytree(folder / "done", path / "done")
    settings = ("text.usetex: True", "axes.facecolor: red", "figure.dpi: 20", "font.size: 30", "path.sketch: 3, 9, 2")
    (other / "matplotlibrc").write_text("\n".join(settings), encoding="utf-8")
    for path in (plain, other):
        assert call(path, Case(), ("plot", "done", "-o", "x.png")).returncode == 0
    assert (plain / "x.png").read_bytes() == (other / "x.png").read_bytes()
