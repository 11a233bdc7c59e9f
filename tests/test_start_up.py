"""Commands that compute nothing import nothing that computes or draws; classes are imported when they are used."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest

from fredsim.plugins.discovery import Classes
from fredsim.servers.base import Server
from fredsim.show.catalogue.descriptions import description
from fredsim.show.catalogue.listing import LISTINGS
from fredsim.show.catalogue.names import list_text, names_by_kind, pages_of
from fredsim.system import memory

Command = Callable[..., tuple[int, str, str]]
HEAVY = {"dask", "llvmlite", "matplotlib", "numba", "pandas", "plotly", "pyarrow", "scipy", "torch"}
#: What would take as long as the rest of a command that only prints what is written in names.json.
LIGHT = {"numpy", "rich", "ruamel", "fredsim.config.choices", "fredsim.config.experiment", "fredsim.servers.asgd"}
#: What computes, or is part of what few experiments name; none of it is needed to check one and to write it down.
UNNAMED = {
    "rich", "ruamel", "numpy.random", "concurrent.futures", "fredsim.compute.engines", "fredsim.compute.metrics",
    "fredsim.compressors.top_k", "fredsim.dispatchers.clock", "fredsim.dispatchers.trace",
    "fredsim.dispatchers.weighted", "fredsim.native.model", "fredsim.networks.graph", "fredsim.networks.own_problem",
    "fredsim.numerics.ops.pointwise", "fredsim.runs.processes.forking", "fredsim.servers.adam",
    "fredsim.simulation.paths.choice", "fredsim.simulation.plugins.local_work",
}  # fmt: skip
REFERENCE = Path(__file__).parents[1] / "results" / "reference"
ALL = "import sys; from fredsim.cli import main\ntry: main()\nfinally: print('imported', *sys.modules, file=sys.stderr)"


def imported_by(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", ALL, *arguments], check=True, capture_output=True, text=True)
    return set(done.stderr.splitlines()[-1].split()[1:])


@pytest.mark.parametrize(
    ("arguments", "neither"),
    [
        (["--help"], LIGHT - {"rich"} | {"pydantic", "concurrent.futures"}),
        (["list"], LIGHT),
        (["list", "servers"], LIGHT),
        (["list", "fasgd"], LIGHT),
        (["list", "torch:fredsim.zoo:lenet"], LIGHT),
        (["schema"], LIGHT),
        (["ls", str(REFERENCE)], LIGHT - {"rich"} | {"fredsim.hyper", "fredsim.runs.folder.result"}),
        (["show", "quickstart"], UNNAMED),
        (["show", "fasgd/fig1"], UNNAMED),
        (["show", str(REFERENCE.parents[1] / "experiments" / "fasgd" / "fig1.yaml")], UNNAMED),
    ],
)
def test_what_is_imported(arguments: list[str], neither: set[str]) -> None:
    found = imported_by(*arguments)
    assert {name.partition(".")[0] for name in found} & HEAVY == set()
    assert found & neither == set()
    assert "fredsim.cli" in found


def test_what_show_imports_is_never_searched_for_garbage() -> None:
    """It is most of what there is: Python would search through all of it several times, at last when it ends."""
    at_end = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects())))"
    script = f"{at_end}; from fredsim.__main__ import command; command()"
    words = [sys.executable, "-c", script, "show", "fasgd/fig1"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    frozen, searched = map(int, done.stdout.splitlines()[-1].split())
    assert frozen > 10 * searched


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted otherwise there")
@pytest.mark.parametrize("words", [["show", "fasgd/fig1"], ["ls", str(REFERENCE)]], ids=["show", "ls"])
def test_what_computes_nothing_has_one_thread(words: list[str]) -> None:
    """NumPy's library for linear algebra would start others, each of which spins for a tenth of a second."""
    at_end = "import atexit, os; atexit.register(lambda: print(len(os.listdir('/proc/self/task')), *os.environ))"
    script = f"{at_end}; from fredsim.__main__ import command; command()"
    free = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", script, *words], check=True, capture_output=True, text=True, env=free)
    threads, *variables = done.stdout.splitlines()[-1].split()
    assert (threads, "OPENBLAS_NUM_THREADS" in variables) == ("1", False)


def test_what_computes_has_threads(small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Mock(side_effect=nullcontext)
    monkeypatch.setattr("fredsim.show.command_options.without_threads", without)
    assert command("run", small_yaml, "iterations=1", "--quiet")[0] == 0
    assert without.call_count == 0
    assert command("show", small_yaml)[0] == 0
    assert without.call_count == 1


def test_only_a_process_of_one_command_keeps_what_it_imports_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """In another one it might be garbage, such as earlier runs."""
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    with memory.importing():
        pass
    assert frozen == []
    monkeypatch.setattr(memory, "ends_after_command", True)
    with memory.importing():
        pass
    assert frozen == [True]


def test_what_does_runs_imports_no_backend_before_one_is_chosen() -> None:
    script = "import sys, fredsim.runs.many.runner; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert {name.partition(".")[0] for name in done.stdout.split()} & HEAVY == set()


def test_a_run_whose_kernels_are_kept_imports_nothing_that_compiles(small_yaml: Path, command: Command) -> None:
    """Nor what numba then imports of SciPy, nor pandas, which finds the different values of large data alone."""
    words = ("run", str(small_yaml), "backend=numba", "threads=1", "figures=[]", "--quiet", "--out")
    assert command(*words, "compiled")[0] == 0
    found = imported_by(*words, "again")
    assert found & {"numba.np.arraymath", "pandas", "pyarrow", "scipy.linalg", "matplotlib", "torch"} == set()
    assert "fredsim.kernels.mlp.engine" in found


def test_classes_are_imported_when_they_are_asked_for() -> None:
    classes = Classes("fredsim.servers", Server)
    for module in ("base", "schedules", "checks", "no_such_file"):  # files without a server
        assert module not in classes
        with pytest.raises(KeyError):
            classes[module]
    assert classes["asgd"] is import_module("fredsim.servers.asgd").ASGD
    assert len(classes) == len([*classes]) == len(dict(classes))
    assert [*classes] == sorted(classes)


def test_the_listed_names_are_those_that_there_are(command: Command) -> None:
    """`python -m docs.generate` has written names.json from what is listed here."""
    kinds = {kind: {name: entry.idea for name, entry in listing().items()} for kind, listing in LISTINGS.items()}
    assert names_by_kind() == kinds
    pages: dict[str, list[str]] = {}
    for kind, listing in LISTINGS.items():
        for name, entry in listing().items():
            pages.setdefault(name, []).append(description(kind.removesuffix("s"), name, entry))
    assert all(pages_of(name) == found for name, found in pages.items())
    for kind, listing in LISTINGS.items():
        lines = [line for entry in listing().values() for line in entry.lines]
        assert all(shown.endswith(f" {line}") for shown, line in zip(list_text(kind).splitlines(), lines, strict=True))
        assert command("list", kind) == (0, f"{list_text(kind)}\n", "")
