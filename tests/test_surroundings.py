"""Hostile surroundings: streams, limits, folders and environment variables. Every command works, or says why in a line.

With --slow, every command is tried in all of them, else one in each.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fredsim.config.document import dump_yaml

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")

COMMANDS = {
    "run": ("run", "small.yaml", "--out", "out"),
    "numba": ("run", "small.yaml", "backend=numba", "--out", "out"),
    "sweep": ("run", "sweep.yaml", "--jobs", "16", "--out", "out"),
    "plan": ("plan", "small.yaml"),
    "show": ("show", "small.yaml"),
    "list": ("list",),
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
    "stderr is full": Case(after="2> /dev/full", commands=("run", "sweep")),
    "stdout is closed": Case(after=">&-"),
    "stderr is closed": Case(after="2>&-"),
    "no reader": Case(after="| head -1", commands=("run", "list", "verify")),
    "no such backend": Case({"MPLBACKEND": "nonsense"}, commands=("run", "plot")),
    "no folder of matplotlib's": Case({"MPLCONFIGDIR": "/proc/nowhere"}, commands=("plot", "run")),
    "a damaged matplotlibrc": Case(before="echo 'backend: nonsense\nnonsense' > matplotlibrc", commands=("plot",)),
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
    """Two experiments, and the results of one."""
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
    assert call(made, Case(), ("run", "small.yaml", "--out", "done")).returncode == 0
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
        assert (found.returncode in ({0, 1} if "head" in case.after else {0}), errors) == (True, []), found.stderr
    if command in ("run", "numba") and (not case.says or case.says == FULL):
        digests = [json.loads((at / of / "summary.json").read_text("utf-8"))["digest"] for of in ("done", "out")]
        assert digests[0] == digests[1]
    if command == "run" and case.says == FULL:
        assert errors[0].endswith("; out holds the results of the runs")


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
