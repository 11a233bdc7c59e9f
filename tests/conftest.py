"""Fixtures for the whole suite."""

import functools
import gc
import importlib.util
import math
import os
import shutil
import sys
import tempfile
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import typer.main
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure

import fredsim
from docs.generate.browser import chromium
from fredsim import cli
from fredsim.config.document import dump_yaml
from fredsim.data.datasets import Dataset, data_root, load_dataset
from fredsim.errors import DeviceMemoryError
from fredsim.plugins.modules import look_in
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.single import execution
from fredsim.runs.single.run import Run
from tests.dask_cluster import Cluster

# Without a device, or what it needs, the kernels of the backend cuda are compiled for the processor.
if not Path("/dev/nvidiactl").exists() or not all(map(importlib.util.find_spec, ("cuda", "cuda.bindings"))):
    os.environ["FREDSIM_EMULATE"] = "1"

# What tests run is no run of the user's.
os.environ["FREDSIM_STATE"] = tempfile.mkdtemp(prefix="fredsim-tests-")

DONE = count(1)  # how many tests there were
#: The seconds that a test may take with --slow.
SLOW_LIMIT = 7200
EMULATED = os.environ.get("FREDSIM_EMULATE") == "1"
COMPILERS = filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++"))
#: The emulation's fibers are tried on Linux.
HAS_CUDA = not EMULATED or (sys.platform == "linux" and any(map(shutil.which, COMPILERS)))
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="there is neither a CUDA device nor a C++ compiler to emulate one")

# No deadline for examples, since the machine may be busy.
settings.register_profile("fredsim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fredsim")


def pytest_configure(config: pytest.Config) -> None:
    """Give each pytest worker its own processors, since teams of threads that share one wait for each other.

    What is skipped is written by their parent.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None and (path := config.getoption("--skipped-to")):
        config.pluginmanager.register(Skipped(path))
    if worker is not None and hasattr(os, "sched_getaffinity"):
        number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[number::count] or os.sched_getaffinity(0))


@pytest.fixture(autouse=True, scope="module")
def commit_asked_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ask git once for this checkout's commit, not for each of thousands of runs: that takes as long as a small one."""
    with pytest.MonkeyPatch.context() as patched:
        if request.module.__name__.rpartition(".")[2] != "test_provenance":
            patched.setattr("fredsim.runs.many.runner.git_commit", SimpleNamespace(cache_clear=lambda: None))
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    """If coverage is measuring, let it record which test function executes which lines."""
    if (coverage := sys.modules.get("coverage")) and (measuring := coverage.Coverage.current()):
        measuring.switch_context(item.nodeid.partition("[")[0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests that take more than a minute")
    parser.addoption("--skipped-to", metavar="FILE", help="write to FILE which tests are skipped")
    parser.addoption("--only-in", metavar="FILE", help="run those tests only that such a FILE names")


class Skipped:
    """Writes which tests, and which files of tests, are skipped, one a line; not those that take --slow."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.write_text("", encoding="utf-8")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._write(report)

    def _write(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and "slow" not in getattr(report, "keywords", ()):
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if path := config.getoption("--only-in"):
        named = set(Path(path).read_text(encoding="utf-8").splitlines())
        items[:] = [item for item in items if not named.isdisjoint((item.nodeid, item.nodeid.partition("::")[0]))]
    if config.getoption("--slow"):
        for item in items:  # those that have no limit of their own try thousands of cases
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))
    else:
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


def pytest_collectstart() -> None:
    """Let no garbage be looked for among the tests while they are made, since they are many, and stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let collections of garbage no longer look through the tests and modules that were made."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the modules beside the tests, such as own_modules.py, be found as a user's."""
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Return digits, all of its rows."""
    return load_dataset("digits", None, None, data_root())


@pytest.fixture(autouse=True)
def _few_to_look_through() -> Iterator[None]:
    """Let collections of garbage look through little that earlier tests have left."""
    yield
    if next(DONE) % 25 == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Do runs with a user's own code in this process, where tests have changed things; tests of this undo it.

    Modules are looked up as in a new process, and those of a test are forgotten: another may have one of the same name.
    """
    monkeypatch.setattr(execution, "must_be_apart", lambda _: False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    look_in()
    before, made = {*sys.modules}, str(tmp_path_factory.getbasetemp())
    yield
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(made):
            del sys.modules[name]


OWN = """
import os
import numpy as np


class {name}:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
{lines}        self.params -= np.float32(self.lr) * grad
"""


@pytest.fixture
def own_server() -> Callable[..., str]:
    """Return the text of a module with a user's own server, which runs the given lines before each step."""

    def text(lines: str = "", name: str = "Plain") -> str:
        return OWN.format(name=name, lines=textwrap.indent(lines, " " * 8))

    return text


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def savefig(self: Figure, *arguments: Any, **options: Any) -> None:
        figures.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


@pytest.fixture
def cluster(small_yaml: Path) -> Iterator[Cluster]:
    """A cluster without workers, in the folder of `small_yaml`."""
    del small_yaml  # the fixture has changed the current folder
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def digits_experiment() -> dict[str, Any]:
    """A small experiment on the embedded data: 8 clients, 1,210 parameters."""
    return {
        "name": "small",
        "iterations": 50,
        "data": {"name": "digits"},
        "model": {"hidden": [16]},
        "clients": {"count": 8, "batch_size": 3},
        "server": {"name": "asgd", "lr": 0.1},
    }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Results]:
    """Return the results of a sweep that the tests of a module have in common, each in its current folder.

    `recorded(name, sweep)` returns those of a copy, which is called `name`; the first call lets `sweep` do them in the
    folder that it is given.
    """
    common = tmp_path_factory.mktemp("recorded")

    def copied(name: str, sweep: Callable[[Path], object]) -> Results:
        if not (common / name).exists():
            sweep(common / name)
        shutil.copytree(common / name, name)
        results = fredsim.load(name)
        assert isinstance(results, Results)
        return results

    return copied


@pytest.fixture
def simulate(tmp_path: Path, digits_experiment: dict[str, Any]) -> Callable[..., Result]:
    """Run the small experiment with changed top-level keys, each time in a new folder."""
    numbers = count()

    def run(changes: Mapping[str, Any], root: str | None = None) -> Result:
        experiment = {**digits_experiment, **changes}
        if {"updates", "epochs", "seconds"} & changes.keys():
            del experiment["iterations"]
        result = fredsim.run(experiment, out=tmp_path / f"run{next(numbers)}", data_root=root)
        assert isinstance(result, Result)
        return result

    return run


@pytest.fixture(scope="session")
def mnist_root() -> str:
    """The data root that FREDSIM_DATA names; the test is skipped if it does not hold MNIST."""
    root = os.environ.get("FREDSIM_DATA")
    if not root or not any((Path(root) / folder).is_dir() for folder in ("mnist", "MNIST/raw")):
        pytest.skip("FREDSIM_DATA names no folder with MNIST")
    return root


@pytest.fixture
def small_yaml(tmp_path: Path, digits_experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small experiment as a file in a new current folder, in which a user's modules are also looked up."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(dump_yaml(digits_experiment), encoding="utf-8")
    return path


#: Typer makes the command from the signatures of its functions for every call, which takes longer than most of them.
made_once = functools.cache(typer.main.get_command)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call `fredsim` with these arguments; return its exit code, its output and its messages."""

    monkeypatch.setattr(typer.main, "get_command", made_once)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fredsim", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out, shown.err

    return call


@pytest.fixture
def refused(command: Callable[..., tuple[int, str, str]]) -> Callable[..., None]:
    """Call `fredsim` and check that it refuses: exit code 2, nothing but messages, and these parts in them."""

    def call(*arguments: object, says: Sequence[str]) -> None:
        code, output, messages = command(*arguments)
        assert (code, output) == (2, "")
        others = ("compiling kernels, once on this machine …", "note: ")
        lines = [line for line in messages.splitlines() if not line.startswith(others)]
        assert all(line.startswith("error: ") for line in lines)
        assert [part for part in says if part not in messages] == [], messages

    return call


@pytest.fixture(scope="session")
def plain() -> ModuleType:
    """The module `plain_loop`: the protocol written out as one plain loop."""
    spec = importlib.util.spec_from_file_location("plain_loop", Path(__file__).with_name("plain_loop.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `backend: auto` find a device, which may be the emulated one."""
    if not HAS_CUDA:
        pytest.skip("there is neither a CUDA device nor a C++ compiler to emulate one")
    from fredsim.cuda import machines

    machines.machine()
    monkeypatch.setattr(machines, "EMULATED", False)


class DeviceBytes:
    """The bytes that an emulated device has given away: those that are live, and the most at once."""

    live = most = refused = 0
    limit: float = math.inf
    """How many may be live; what would be more is refused, and counted."""

    def allocate(self, usual: Callable[[int], Any], size: int) -> Any:
        if self.live + size > self.limit:
            self.refused += 1
            raise DeviceMemoryError(f"the device has no room for {size:,} bytes more")
        memory = usual(size)
        self.live += size
        self.most = max(self.most, self.live)
        weakref.finalize(memory, self._freed, size)
        return memory

    def _freed(self, size: int) -> None:
        self.live -= size


@pytest.fixture
def device_bytes(monkeypatch: pytest.MonkeyPatch) -> DeviceBytes:
    """What the emulated device gives away from now on."""
    if not (HAS_CUDA and EMULATED):
        pytest.skip("a device does not count what it gives away")
    from fredsim.cuda import emulation, samples

    found, allocate = DeviceBytes(), emulation.Emulation.allocate
    monkeypatch.setattr(samples, "_SHARED", weakref.WeakValueDictionary())  # what is there is not counted
    monkeypatch.setattr(emulation.Emulation, "taken", lambda _: 1.0)  # so that no run begins with another's garbage
    monkeypatch.setattr(
        emulation.Emulation, "allocate", lambda self, size: found.allocate(partial(allocate, self), size)
    )
    return found


def checkpoints_every(seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Let runs write a checkpoint every `seconds` seconds, even if checkpoints then take most of the time."""
    patch.setattr(
        execution, "Run", lambda *given, **named: Run(*given, **named | {"policy": CheckpointPolicy(seconds)})
    )
    patch.setattr("fredsim.runs.single.run.MOST_CHECKPOINT_SHARE", 1e9)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; see docs.generate.browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(chromium())
        except playwright.Error as error:
            pytest.skip(f"no browser: {str(error).partition(chr(10))[0]}; FREDSIM_BROWSER may name a Chromium")
        yield opened
