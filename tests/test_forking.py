"""The process that forks others for runs: what it loads for all of them, and what ends when."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fredsim
from fredsim.config.choices import Backend
from fredsim.runs.processes import forking
from fredsim.runs.processes.process import Process, Started
from fredsim.runs.processes.worker import Placed, Relay
from fredsim.runs.single import preloading
from fredsim.runs.single.opening import open_expansion

if not forking.FORKS:
    pytest.skip("processes cannot be forked here", allow_module_level=True)

OwnServer = Callable[[str], str]
ROOT = Path(__file__).parents[1]
#: Writes down the process that forked this one, how many threads that has, and who loaded the data; later, some fail.
NOTING = """
from fredsim.data.datasets import _load
if timestamp == 0:
    names = [path.read_text() for path in pathlib.Path("/proc", str(os.getppid()), "task").glob("*/comm")]
    threads = len([name for name in names if not name.startswith("jemalloc")])  # which goes on after a fork
    with open("notes", "a") as file:
        print(self.lr, os.getppid(), threads, _load.cache_info().misses, _load.cache_info().hits > 0, file=file)
    if self.lr == 0.3:
        os.kill(os.getpid(), 9)
    if self.lr == 0.4:
        with open("child", "w") as file:
            print(subprocess.Popen(["sleep", "600"]).pid, file=file)
"""


def own_sweep(folder: Path, source: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "own_noting.py").write_text(f"import os\nimport pathlib\nimport subprocess\n{text}", encoding="utf-8")
    command = [sys.executable, "-m", "fredsim", "run", str(source), "server.name=own_noting:Plain", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_one_process_loads_the_data_for_all(jobs: str, small_yaml: Path, own_server: OwnServer, tmp_path: Path) -> None:
    words = ("sweep={server.lr: [0.1, 0.3, 0.4]}", "iterations=20", "--quiet", "--jobs", jobs, "--out", "out")
    done = own_sweep(tmp_path, small_yaml, own_server(NOTING), *words)
    notes = {tuple(line.split()) for line in (tmp_path / "notes").read_text(encoding="utf-8").splitlines()}
    (forker,) = {forker for _, forker, *_ in notes}
    assert notes == {(lr, forker, "1", "1", "True") for lr in ("0.1", "0.3", "0.4")}  # loaded once, found by others
    assert done.stderr.count("failed: the process of the run ended with exit code -9 (SIGKILL: ") == 1
    assert len(list(tmp_path.glob("out/*/summary.json"))) == 2
    gone((tmp_path / "child").read_text(encoding="utf-8").strip())


def gone(process: str) -> None:
    """Wait until a process has been killed, and the system has cleared it away."""
    deadline = time.monotonic() + 300
    while Path("/proc", process).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_no_other_process_is_prepared_for_runs_of_this_one(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would load the data a second time."""
    prepared: list[object] = []
    monkeypatch.setattr("fredsim.runs.single.execution.start_early", prepared.append)
    fredsim.sweep(small_yaml, ["sweep={seed: [0, 1]}", "iterations=1", "backend=numpy"], out="out")
    assert prepared == []


def test_nothing_of_the_users_is_imported(small_yaml: Path) -> None:
    experiment = open_expansion(str(small_yaml), ["backend=numpy"]).runs[0].experiment
    server = experiment.server.model_copy(update={"name": "this_module_does_not_exist:Server"})
    preloading.warm_up(experiment.model_copy(update={"server": server}), None)
    assert experiment.data.load(Path(), 0) is experiment.data.load(Path(), 1)  # it stays loaded


COLD = """
import sys
from fredsim.runs.single import preloading
from fredsim.runs.single.opening import open_expansion

try:
    preloading.warm_up(open_expansion(sys.argv[1], ["backend=numba"]).runs[0].experiment, None)
except preloading._CompilingError:
    print("gives up")
"""


def test_nothing_is_compiled_beforehand(small_yaml: Path, tmp_path: Path) -> None:
    """Compiling takes a minute, and the user is to see it, and to be able to interrupt it."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FREDSIM_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COLD, str(small_yaml)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "gives up\n"
    assert not list(tmp_path.glob("cache/**/*.kernel"))


def test_a_device_is_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(backend: str) -> str:
        asked.append(backend)
        return "cuda"

    monkeypatch.setitem(sys.modules, "fredsim.cuda", sys)
    monkeypatch.setattr(preloading, "resolve_backend", resolve)
    find: Callable[[Backend], str] = preloading._resolve_backend.__wrapped__
    assert find("auto") == "cuda"
    assert asked == []
    assert find("numpy") == "numpy"


@pytest.mark.parametrize(("answer", "found"), [("1 == 1", True), ("1 == 2", False), ("1 / 0", False)])
def test_a_question_is_asked_in_a_fork(answer: str, found: bool) -> None:
    assert forking.in_fork(lambda: eval(answer)) is found


class Nothing:
    """A task that does nothing, or waits."""

    alone = True

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.own = set[str]()

    def warm_up(self) -> None:
        raise ValueError("it is the task that says what is wrong")

    def do(self, *_: object) -> Exception | None:
        time.sleep(self.seconds)
        return KeyError(os.getppid())


class Dies(Nothing):
    """A task whose process is killed, as by the system for want of memory, after it has started another."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def do(self, *_: object) -> Exception | None:
        self.path.write_text(str(subprocess.Popen(["sleep", "600"]).pid), encoding="ascii")
        os.kill(os.getpid(), signal.SIGKILL)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[forking.Server]:
    monkeypatch.setattr(forking, "_servers", [])
    server = forking._server()
    yield server
    forking._leave_servers(forking.Server.kill)
    server.kill()


def forked(task: Nothing) -> Process:
    process = forking.new_process()
    process.send(Placed(task))
    return process


def test_a_process_ends_when_it_is_killed_or_let_go_of(server: forking.Server, tmp_path: Path) -> None:
    one, other, third = forked(Nothing(600.0)), forked(Nothing()), forked(Nothing(600.0))
    word, error = other.receive()
    assert (word, *error.args) == ("done", server._process.pid)
    for process in (one, other):
        process.kill()
        with pytest.raises((EOFError, OSError)):
            process.receive()
        code = process.close()
        assert code in {1, -signal.SIGKILL}  # it ends itself when it can read no more, if that is sooner
        assert process.close() == code
    died, number = forked(Dies(tmp_path / "child")), server._process.pid
    with pytest.raises((EOFError, OSError)):
        died.receive()
    while len(Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()) > 1:
        time.sleep(0.001)  # it is waited for
    gone((tmp_path / "child").read_text(encoding="ascii"))
    for _ in range(2):  # in its place
        later = forked(Nothing())
        word, error = later.receive()
        assert (word, *error.args) == ("done", number)
        later.close()
    assert died.close() == -signal.SIGKILL
    server.kill()
    assert third.close() == -signal.SIGKILL
    assert forking._server() is not server


class Notes(Nothing):
    """A task whose processes share that a file was written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def warm_up(self) -> None:
        self.path.with_suffix(".part").write_text(str(os.getpid()), encoding="ascii")
        self.path.with_suffix(".part").rename(self.path)


def test_what_runs_share_is_loaded_before_the_first_begins(server: forking.Server, tmp_path: Path) -> None:
    forking.start_early(Notes(tmp_path / "loaded"))
    deadline = time.monotonic() + 300
    while not (tmp_path / "loaded").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (tmp_path / "loaded").read_text(encoding="ascii") == str(server._process.pid)


def test_other_surroundings_need_another_server(server: forking.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    (reads, writes), running = os.pipe(), forked(Nothing(0.2))
    if (child := forking._fork()) == 0:  # a fork of this process does not keep the server, either
        os.close(writes)
        os._exit(len(os.read(reads, 1)))
    assert forking._server() is server
    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    another = forking._server()
    assert another is not server
    assert running.receive()[0] == "done"  # the first goes on until its processes have ended
    running.close()
    assert server._process.wait(300) == 0
    os.close(writes)
    os.waitpid(child, 0)
    os.close(reads)


@pytest.mark.parametrize("name", forking.LIMITS)
def test_other_limits_are_other_surroundings(name: str) -> None:
    """A process takes over the limits of the one that starts it, at that moment."""
    limit = getattr(resource, name)
    soft, hard = resource.getrlimit(limit)
    before = forking._surroundings()
    resource.setrlimit(limit, (2**40 if soft == resource.RLIM_INFINITY else soft - 1, hard))
    try:
        assert forking._surroundings() != before
    finally:
        resource.setrlimit(limit, (soft, hard))


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 3), (5.0, 1)])
def test_progress_is_told_now_and_then(seconds: float, told: int) -> None:
    """Not after every stretch of events: a message costs more than some of them."""
    messages: list[tuple[object, ...]] = []
    relay = Relay(lambda *message: messages.append(message), seconds, lambda _: None)
    for iteration in (1, 2, 3):
        relay.advance(iteration, iteration, 0.5)
    assert messages == [("advance", iteration, iteration, 0.5) for iteration in range(1, told + 1)]


SPOILING = """
import sys
from pathlib import Path
from fredsim.runs.single.execution import Execution


class Spoiling(Execution):
    def warm_up(self):
        import own_spoilt


if __name__ == "__main__":
    from spoiling import Spoiling
    from fredsim.runs.processes.apart import do_apart
    from fredsim.runs.processes.observer import Observer
    from fredsim.runs.single.opening import open_expansion

    run = open_expansion(sys.argv[1], ["server.name=own_spoilt:Plain", "iterations=5"]).runs[0]
    print(do_apart(Spoiling(run.experiment, Path("out"), None, {}), Observer(), lambda: False))
"""


def test_no_process_is_begun_for_a_run_again_and_again(small_yaml: Path, own_server: OwnServer, tmp_path: Path) -> None:
    """If the process that is forked knew a user's module, all those forked from it would want one as new in turn."""
    for name, text in (("spoiling", SPOILING), ("own_spoilt", own_server(""))):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(tmp_path / "spoiling.py"), str(small_yaml)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    what = "own_spoilt is imported in the process that is forked for runs, which must not know it"
    assert done.stdout == f"{what}; this is a fault in fredsim: please report it\n", done.stderr


FORKING = """
import os
import fredsim

def run(out):
    return fredsim.run("small.yaml", [OVERRIDES], out=out).summary["digest"]

first, second = run("first"), run("second")
if (child := os.fork()) == 0:
    os._exit(run("child") != first)
assert os.waitpid(child, 0)[1] == 0
assert first == second == run("third")
"""


@pytest.mark.parametrize("torch", [False, True])
def test_a_script_that_forks(torch: bool, small_yaml: Path, own_server: OwnServer, tmp_path: Path) -> None:
    """PyTorch's other threads, for which a fork would wait forever, are not begun by a run with one thread."""
    (tmp_path / "own_plain.py").write_text(own_server(""), encoding="utf-8")
    overrides = ["server.name=own_plain:Plain"]
    if torch:
        pytest.importorskip("torch", reason="needs PyTorch")
        overrides = ["model={name: torch:own_modules:dense, numerics: native}", "threads=1", "server.name=asgd"]
    script = FORKING.replace("OVERRIDES", ", ".join(map(repr, overrides)))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    subprocess.run([sys.executable, "-c", script], cwd=small_yaml.parent, env=environment, check=True, timeout=120)


def test_where_processes_cannot_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forking, "FORKS", False)
    forking.start_early(Nothing())  # does nothing
    process = forked(Nothing())
    assert isinstance(process, Started)
    word, error = process.receive()
    assert (word, *error.args) == ("done", os.getpid())
    process.close()
