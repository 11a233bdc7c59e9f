"""Sweeps on a Dask cluster of real processes: the same files as `--jobs`, and what a lost worker costs."""

import csv
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fredsim
from fredsim.config.sweep.expansion import expand, open_source
from fredsim.errors import ConfigError
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.folder.results import Result
from fredsim.runs.many.cluster import Assignments
from fredsim.runs.many.tasks import Task
from fredsim.runs.processes.observer import Monitor
from fredsim.runs.single.execution import execute
from fredsim.runs.single.prepared import Wanted
from tests.dask_cluster import Cluster

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install .[cluster]")

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]

FAILING = """\
if self.lr == 0.3:
    raise ValueError("too much")
if self.lr == 0.4:
    os.kill(os.getpid(), 9)
"""


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_cluster_changes_no_bit(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    cluster.work()
    cluster.work()
    words = ("run", small_yaml, "probe={every: 10}", "sweep={server.lr: [0.1, 1.0e+30, 0.05], seed: [0, 1]}")
    assert command(*words, "--quiet", "--jobs", 2, "--out", "jobs") == (0, "", "")
    code, output, messages = command(*words, "--dask", cluster.address, "--out", "dask")
    assert code == 0
    assert output.count("finished") == 4
    assert messages.count(": finished after 50 iterations") == 4
    assert messages.count(": diverged after") == 2
    for path in Path("jobs").rglob("*"):
        if path.is_file() and path.name != "summary.json":
            assert path.read_bytes() == Path("dask", path.relative_to("jobs")).read_bytes()
    assert command("compare", "jobs", "dask")[0] == 0
    assert not list(Path("dask").rglob("*.part"))
    written = Path("dask/runs.csv").read_bytes()
    assert command(*words, "--dask", cluster.address, "--out", "dask", "--resume", "--quiet") == (0, "", "")
    assert Path("dask/runs.csv").read_bytes() == written


def test_a_run_has_the_threads_of_its_worker(small_yaml: Path, cluster: Cluster) -> None:
    cluster.work("--nthreads", "3")
    results = fredsim.sweep(small_yaml, ["sweep={threads: [null, 2]}"], out="out", dask=cluster.address)
    assert [run.summary["threads"] for run in results] == [3, 2]


def test_a_worker_that_is_killed_costs_its_run_alone(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    killed, _ = cluster.work("--no-nanny"), cluster.work("--no-nanny")
    words = ["run", str(small_yaml), "sweep={seed: [0, 1, 2, 3, 4, 5]}", "iterations=60000"]
    on_cluster = [sys.executable, "-m", "fredsim", *words, "--dask", cluster.address, "--out", "dask"]
    with subprocess.Popen(on_cluster, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        messages = ""
        while "[2/6]" not in messages:  # both are at their second runs
            messages += process.stderr.readline()
        time.sleep(0.2)
        killed.kill()
        messages += process.stderr.read()
    assert process.returncode == 0, messages
    assert messages.count("was lost; seed=") == 1
    assert messages.count("] seed=") == 6
    assert command(*words, "--quiet", "--out", "whole") == (0, "", "")
    assert Path("dask/runs.csv").read_bytes() == Path("whole/runs.csv").read_bytes()


def test_what_a_lost_worker_did_is_not_done_again(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    """Its checkpoint has come to the folder of results, and goes to the next worker."""
    cluster.work("--no-nanny")
    words = ["run", str(small_yaml), "sweep={seed: [0]}", "iterations=400000", "events=true"]
    on_cluster = [sys.executable, "-m", "fredsim", *words, "--dask", cluster.address, "--out", "dask"]
    with subprocess.Popen(
        [*on_cluster, "--checkpoint", "0.05"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        while not list(Path("dask").glob("*/checkpoint/*.json")):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        cluster.processes[-1].kill()
        cluster.work("--no-nanny")
        messages = process.stderr.read()
    assert process.returncode == 0, messages
    assert messages.count("was lost; seed=0 is done again") == 1
    (iteration,) = re.findall(r"seed=0: continues from the checkpoint at iteration (\d+)", messages)
    assert 0 < int(iteration) < 400_000
    assert command(*words, "--quiet", "--out", "whole") == (0, "", "")
    for path in Path("whole").rglob("*"):
        if path.is_file() and path.name != "summary.json":
            assert path.read_bytes() == Path("dask", path.relative_to("whole")).read_bytes(), path
    left = [{path.name for path in Path(folder).glob("seed*/*")} for folder in ("dask", "whole")]
    assert left[0] == left[1]


def test_runs_go_on_from_their_own_files(small_yaml: Path, cluster: Cluster) -> None:
    """Those of three runs, the third of which begins where the second has ended, while the first still runs.

    Their files have the same names, and what the scheduler knows by one name would be the first that came.
    """
    cluster.work()
    cluster.work()
    cluster.wait_for_workers(2)
    source = ["sweep={iterations: [300000, 800, 8000]}", "evaluation.every=400", "threads=1"]
    runs, policy = expand(open_source(small_yaml), source).runs, CheckpointPolicy(60.0)
    tasks = [
        Task(n, run.label, run.experiment, Path("out", run.label), None, Wanted(), policy) for n, run in enumerate(runs)
    ]
    for task, iterations in zip(tasks, (400, 400, 4_000), strict=True):
        execute(task.experiment, task.folder, stop_at=iterations, policy=policy)
        assert Checkpoints(task.folder).iterations[-1] == iterations
    ended: dict[int, Exception | None] = {}
    limit = time.monotonic() + 300
    with distributed.Client(cluster.address, set_as_default=False) as client:
        client.amm.stop()  # which every 2 s would hide this, as it removes what two workers have
        assignments = Assignments(client, tasks, Monitor(), lambda task, failure: ended.update({task.number: failure}))
        while assignments.busy:
            assert time.monotonic() < limit
            assignments.update(sorted(client.nthreads()))
            time.sleep(0.01)
        while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.extensions["queues"].queues)):
            assert time.monotonic() < limit
    assert ended == {0: None, 1: None, 2: None}
    for task in tasks[1:]:  # the first is long
        execute(task.experiment, Path("whole", task.label))
        one, other = Result(task.folder).summary, Result(Path("whole", task.label)).summary
        assert (one["digest"], one["files"]) == (other["digest"], other["files"])


def test_an_interrupt_keeps_what_has_finished(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    cluster.work()
    cluster.work()
    words = ["run", str(small_yaml), "sweep={seed: [0, 1, 2, 3, 4, 5]}", "iterations=60000", "--quiet"]
    on_cluster = [*words, "--dask", cluster.address, "--out", "dask"]
    with subprocess.Popen([sys.executable, "-m", "fredsim", *on_cluster], stderr=subprocess.PIPE) as process:
        while not Path("dask/runs.csv").exists() or not rows(Path("dask")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=300)
    assert process.returncode == 130
    assert messages.count(b"\n") == 1
    kept = {row["run"]: Path("dask", row["run"], "summary.json").stat().st_mtime_ns for row in rows(Path("dask"))}
    assert 1 <= len(kept) < 6
    assert command(*on_cluster, "--resume") == (0, "", "")
    assert {name: Path("dask", name, "summary.json").stat().st_mtime_ns for name in kept} == kept
    assert command(*words, "--out", "whole") == (0, "", "")
    assert Path("dask/runs.csv").read_bytes() == Path("whole/runs.csv").read_bytes()


def test_runs_that_fail_stop_no_others(
    small_yaml: Path, own_server: OwnServer, cluster: Cluster, command: Command
) -> None:
    cluster.work()  # its nanny starts another when it is killed
    Path("elsewhere").mkdir()  # where the workers are not; they are told
    small_yaml = small_yaml.rename("elsewhere/small.yaml")
    small_yaml.with_name("own_failing.py").write_text(own_server(FAILING), encoding="utf-8")
    words = ("server.name=own_failing:Plain", "sweep={server.lr: [0.4, 0.1, 0.3, 0.2]}")
    code, _, messages = command("run", small_yaml, *words, "--dask", cluster.address, "--out", "out")
    assert code == 2
    found = [(row["status"], row["error"]) for row in rows(Path("out"))]
    assert [status for status, _ in found] == ["failed", "finished", "failed", "finished"], found
    assert "process of the run ended with exit code -9 (SIGKILL" in rows(Path("out"))[0]["error"]  # the worker lives on
    assert "ValueError: too much (own_failing.py:" in rows(Path("out"))[2]["error"]
    assert "was lost" not in messages


def test_a_worker_imports_the_present_file(
    small_yaml: Path, own_server: OwnServer, cluster: Cluster, command: Command
) -> None:
    """Workers outlive sweeps, and the processes of runs do not."""
    cluster.work()
    Path("own_older.py").write_text(own_server(), encoding="utf-8")
    changes = ("server.name=own_older:Plain", "sweep={seed: [0]}")
    words = ("run", small_yaml, *changes, "--dask", cluster.address, "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    Path("own_older.py").write_text(own_server("grad = -grad\n"), encoding="utf-8")
    del sys.modules["own_older"]
    before = rows(Path("out"))[0]["digest"]
    assert command(*words) == (0, "", "")
    assert rows(Path("out"))[0]["digest"] != before


BOWL = """
import numpy as np
from pathlib import Path


class Bowl:
    def __init__(self, weights, beside=False):
        self.files = [Path(__file__).with_name("beside.txt")] * beside
        self.weights = np.loadtxt(weights, dtype=np.float32)

    def initial(self, rng):
        return self.weights

    def gradient(self, params, draw):
        return params

    def evaluate(self, params):
        return {"height": float(np.abs(params).max())}
"""


def test_a_worker_of_other_files(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    """What model and data are made from is hashed, not sent; only folders may differ, as those of modules do."""
    there = small_yaml.parent / "there"
    there.mkdir()
    for folder, weights in ((small_yaml.parent, "1 2"), (there, "1 3")):
        (folder / "weights.txt").write_text(weights, encoding="utf-8")
        (folder / "beside.txt").write_text("the same", encoding="utf-8")
    bowl = "iterations: 4\nserver: {name: asgd, lr: 0.1}\nclients: {count: 2}\nsweep: {seed: [0, 1]}\n"
    small_yaml.write_text(bowl, encoding="utf-8")
    Path("there/bowls.py").write_text(BOWL, encoding="utf-8")
    Path("bowls.py").write_text(BOWL, encoding="utf-8")
    cluster.work(folder="there")
    problem = "problem={name: 'bowls:Bowl', weights: weights.txt, beside: true}"
    words = ("run", small_yaml, problem, "--dask", cluster.address, "--quiet")
    code, _, messages = command(*words, "--out", "out")
    assert code == 2, messages
    says = "reads other files than the one that started the sweep: weights.txt; put the same ones there"
    assert [says in row["error"] for row in rows(Path("out"))] == [True, True]
    Path("there/weights.txt").write_text("1 2", encoding="utf-8")
    words = ("run", small_yaml, problem, "--dask", cluster.address.removeprefix("tcp://"), "--quiet")
    assert command(*words, "--out", "again") == (0, "", "")
    assert command("run", small_yaml, problem, "--quiet", "--out", "here") == (0, "", "")
    assert [row["digest"] for row in rows(Path("again"))] == [row["digest"] for row in rows(Path("here"))]


def test_a_worker_of_another_version(small_yaml: Path, cluster: Cluster, command: Command, refused: Refused) -> None:
    cluster.of_version("0.0.9")
    cluster.wait_for_workers(1)
    words = ("run", small_yaml, "sweep={seed: [0, 1]}", "--dask", cluster.address, "--out", "out")
    refused(*words, says=("has fredsim 0.0.9, this is", fredsim.__version__, "install the same version in both"))
    assert not Path("out").exists()
    cluster.work()
    cluster.wait_for_workers(2)
    code, _, messages = command(*words)
    assert code == 0
    assert messages.count("has fredsim 0.0.9") == messages.count("; it gets no run") == 1


def test_what_is_refused(small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("run", small_yaml, "--out", "out")
    sweep = "sweep={seed: [0, 1]}"
    refused(*words, sweep, "--dask", "nowhere", says=("dask: no scheduler answers at 'nowhere'", "`dask scheduler`"))
    monkeypatch.setattr("fredsim.runs.many.cluster.CONNECT_SECONDS", 0.5)
    refused(*words, sweep, "--dask", "tcp://127.0.0.1:1", says=("no scheduler answers at 'tcp://127.0.0.1:1' (Timed",))
    refused(*words, "--dask", "tcp://127.0.0.1:1", says=("dask: is given; ", "this is a single run"))
    refused(*words, sweep, "--jobs", 2, "--dask", "tcp://127.0.0.1:1", says=("jobs is 2, and dask is given",))
    monkeypatch.setitem(sys.modules, "distributed", None)
    refused(*words, sweep, "--dask", "tcp://127.0.0.1:1", says=("needs Dask's distributed", '".[cluster]"'))
    assert not Path("out").exists()
    with pytest.raises(ConfigError):
        fredsim.run(small_yaml, [sweep], dask="tcp://127.0.0.1:1")
