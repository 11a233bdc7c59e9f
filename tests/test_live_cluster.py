"""Live runs on real processes: workers that are killed, that come later, that cannot compute."""

import asyncio
import csv
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest

from docs.generate.links import ROOT
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live import local_cluster
from tests.dask_cluster import Cluster

distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install .[cluster]")
Security = distributed.security.Security

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def test_a_worker_is_killed_and_another_comes(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    killed, _ = cluster.work("--no-nanny"), cluster.work("--no-nanny")
    words = ["live", str(small_yaml), "iterations=1500", "clients.count=5", "--delay", "0.005", "--out", "live"]
    with subprocess.Popen(
        [sys.executable, "-m", "fredsim", *words, "--dask", cluster.address], stderr=subprocess.PIPE, text=True
    ) as process:
        while not Path("live/live.csv").exists() or Path("live/live.csv").stat().st_size < 5000:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        killed.kill()
        cluster.work("--no-nanny")
        _, messages = process.communicate()
    assert process.returncode == 0, messages
    assert re.search(r"the worker tcp://\S+ was lost \(.*\); \d tasks? (is|are) done again elsewhere", messages)
    assert command("verify", "live")[:2] == (0, "live: same bits\n")
    result = Result(Path("live"))
    with Path("live/live.csv").open(newline="", encoding="utf-8") as file:
        workers = [row["worker"] for row in csv.DictReader(file)]
    assert len(workers) == 1500
    assert len(set(workers)) == 3
    assert result.summary["live"]["workers"] in {2, 3}  # at once; one may be missed only after another has come
    events = result.events
    stages = events[["began_ns", "done_ns", "received_ns", "time_ns"]].to_numpy()
    assert (np.diff(stages, axis=1) >= 0).all()
    assert (np.diff(events["time_ns"]) >= 0).all()
    assert (events["staleness"] >= 0).all()


MOVED = """
class Moved(Plain):
    def __init__(self, lr):
        super().__init__(lr)
        os.chdir({folder!r})
"""


def test_a_server_that_workers_do_not_have(
    small_yaml: Path, cluster: Cluster, own_server: Callable[..., str], tmp_path: Path, command: Command
) -> None:
    """Its module is needed where the server is; a worker of another fredsim gets nothing to do.

    It may change into another folder: the results are where they were asked for.
    """
    cluster.work()
    cluster.of_version("0.0.9")
    cluster.wait_for_workers(2)
    Path("apart").mkdir()
    Path("apart/own_apart.py").write_text(own_server() + MOVED.format(folder=str(tmp_path / "apart")), encoding="utf-8")
    path = Path("apart", small_yaml.name)
    small_yaml.rename(path)
    words = ("live", path, "server={name: 'own_apart:Moved', lr: 0.1}", "iterations=60", "--dask", cluster.address)
    code, _, messages = command(*words, "--out", "live")
    assert code == 0, messages
    assert re.search(r"the worker \S+ has fredsim 0\.0\.9, this is .*; it gets no task", messages)
    live = tmp_path / "live"
    assert command("verify", live)[:2] == (0, f"{live}: same bits\n")


LOSS = """
import numpy as np

def squared(z, y):
    e = z - np.eye(10, dtype=np.float32)[y]
    return (e * e).sum(axis=1), {factor} * e
"""


def test_a_worker_that_has_imported_an_earlier_file(small_yaml: Path, cluster: Cluster, command: Command) -> None:
    """It imports the file anew."""
    Path("apart").mkdir()
    path, module = small_yaml.rename("apart/small.yaml"), Path("apart/live_loss.py")
    module.write_text(LOSS.format(factor=2), encoding="utf-8")
    cluster.work("--no-nanny")
    words = ("live", path, "loss='live_loss:squared'", "iterations=20", "--dask", cluster.address, "--out")
    code, _, messages = command(*words, "first")
    assert code == 0, messages
    assert command("verify", "first")[:2] == (0, "first: same bits\n")
    module.write_text(LOSS.format(factor=4), encoding="utf-8")
    del sys.modules["live_loss"]
    code, _, messages = command(*words, "second")
    assert code == 0, messages
    assert command("verify", "second")[:2] == (0, "second: same bits\n")


def test_processes_of_its_own(small_yaml: Path, command: Command) -> None:
    """They import nothing from the current folder, where somebody else may have put modules with Python's names."""
    for name in ("__init__", "spawn", "resource_tracker"):
        Path("multiprocessing").mkdir(exist_ok=True)
        Path("multiprocessing", f"{name}.py").write_text("open('code was run', 'w').close()", encoding="utf-8")
    steps = "clients.local_steps=2"  # of which each task has as many losses
    code, output, messages = command("live", small_yaml, steps, "iterations=40", "--workers", 1, "--out", "live")
    assert (code, Path("code was run").exists()) == (0, False), messages
    assert "finished" in output
    assert "PYTHONSAFEPATH" not in os.environ
    assert command("verify", "live")[:2] == (0, "live: same bits\n")


def test_what_is_refused(
    small_yaml: Path,
    cluster: Cluster,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("live", small_yaml, "--out", "live")
    refused(
        *words,
        "sweep={seed: [0, 1]}",
        says=("this is a sweep of 2 runs; a live run is one: give sweep=null", "such as seed=0"),
    )
    refused(*words, "--workers", 2, "--dask", cluster.address, says=("workers is 2, and dask is given",))
    refused(*words, "--delay", -1, says=("delay is -1.0; it must be seconds",))
    monkeypatch.setattr("fredsim.runs.live.workers.WAIT_SECONDS", 0.5)
    refused(*words, "--dask", cluster.address, says=("no worker for", "start some, and give the command again"))
    monkeypatch.setattr("fredsim.runs.live.workers.WAIT_SECONDS", 60.0)
    Path("elsewhere").mkdir()
    np.savez("elsewhere/own.npz", x_train=np.ones((60, 3)), y_train=np.arange(60) % 2, x_test=np.ones((4, 3)),
             y_test=np.arange(4) % 2)  # fmt: skip
    cluster.work()
    monkeypatch.chdir("elsewhere")  # where the workers are not
    refused(*words, "data={name: 'npz:own.npz', train: 40, validation: 10}", "--dask", cluster.address,
            says=("the worker tcp://", "own.npz"))  # fmt: skip


def test_numbers_that_cannot_be(small_yaml: Path, refused: Refused) -> None:
    """They are refused as `run` refuses them, and before a process is started."""
    for value in (-5, "nan", "inf", "-inf", -1e-9):
        says = (f"error: checkpoint is {float(value)}; it must be seconds between two checkpoints, or 0 for none",)
        for command in ("live", "run"):
            refused(command, small_yaml, "--checkpoint", value, "--out", "out", says=says)
    for value in (0, -1, 100_000, 10**30):
        for command, option in (("live", "workers"), ("run", "jobs")):
            parts = (f"error: {option} is {value}; it must be 1 at least, and ", " at most: 32 for each processor")
            refused(command, small_yaml, f"--{option}", value, "--out", "out", says=parts)
    for value in (-1, "nan", "inf", 3600):
        says = (f"error: delay is {float(value)}; it must be seconds, 0 for none, and less than an hour",)
        refused("live", small_yaml, "--delay", value, "--out", "out", says=says)
    assert not Path("out").exists()


def test_processes_that_do_not_start(small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(**how: object) -> None:
        raise RuntimeError(f"Nanny {how['n_workers']} failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", dies)
    says = ("3 workers on this machine do not start: Nanny 3 failed to start; see", "give fewer --workers")
    refused("live", small_yaml, "--workers", 3, "--out", "live", says=says)
    assert not Path("live").exists()


def connects(address: str, **how: object) -> bool:
    """Return whether Dask's first messages pass; without a `Client`, whose thread may not start on a busy machine."""

    async def connect() -> None:
        await (await distributed.comm.connect(address, timeout=10, **how)).close()

    try:
        asyncio.run(connect())
    except OSError:
        return False
    return True


def test_nobody_else_can_connect() -> None:
    """Neither without a certificate nor with one of its own can another process connect to what fredsim starts."""
    nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger = Security.temporary().get_connection_args("client")["ssl_context"]
    for context in (nobody, stranger):  # neither asks who the other side is
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with local_cluster(1) as cluster:
        (worker,) = cluster.workers()
        information = cluster._client.scheduler_info()
        scheduler = information["address"]
        for address in (scheduler, worker):
            assert address.startswith("tls://127.0.0.1:")
            assert connects(address, **cluster._client.security.get_connection_args("client"))
            assert not connects(address.replace("tls", "tcp"))
            assert not connects(address, ssl_context=nobody)
            assert not connects(address, ssl_context=stranger)
        services = [information["services"], *(one["services"] for one in information["workers"].values())]
        for port in {port for of in services for port in of.values()}:
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{port}/json/counts.json", timeout=60)
        assert cluster._client.run(int, "7") == {worker: 7}


def test_a_scratch_space_that_another_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask imports from its scratch space, and the folder that it would take by itself may be anybody's."""
    planted = tmp_path / "dask-scratch-space"
    planted.mkdir()
    (planted / "planted_module.py").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with local_cluster(1) as cluster:
        (own,) = tmp_path.glob("fredsim-*")
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        assert find_spec("planted_module") is None
        assert [*cluster._client.run(find_spec, "planted_module").values()] == [None]
        (used,) = cluster._client.run(scratch_of).values()
        assert Path(used).is_relative_to(own)
        if sys.platform != "win32":  # Ctrl-C in a terminal reaches workers, too; it is for this process alone
            assert [*cluster._client.run(interrupts_blocked).values()] == [True]
            assert not interrupts_blocked()
    assert not own.exists()


def interrupts_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def scratch_of(dask_worker: Any) -> str:
    """Return the folder in which a worker writes."""
    return str(dask_worker.local_directory)


def test_a_cluster_with_certificates(small_yaml: Path, own_certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/cluster.md sets it up: Dask's configuration names the certificates, for a live run and for a sweep."""
    monkeypatch.setenv("DASK_CONFIG", str(own_certificates))
    cluster = Cluster()
    try:
        cluster.work()
        assert cluster.address.startswith("tls://")
        for words in (["live", "iterations=40"], ["run", "sweep={seed: [0, 1]}", "iterations=20"]):
            how = [sys.executable, "-m", "fredsim", words[0], str(small_yaml), *words[1:], "--dask", cluster.address]
            done = subprocess.run([*how, "--out", words[0]], stderr=subprocess.PIPE, text=True, check=False)
            assert done.returncode == 0, done.stderr
        monkeypatch.delenv("DASK_CONFIG")
        done = subprocess.run([*how, "--out", "other"], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert f"dask: no scheduler answers at '{cluster.address}'" in done.stderr
    finally:
        cluster.close()


@pytest.fixture
def own_certificates(tmp_path: Path) -> Path:
    """A file of Dask's configuration, and the certificate and key that it names."""
    security = Security.temporary()
    (tmp_path / "key.pem").write_text(str(security.tls_client_key), encoding="utf-8")
    (tmp_path / "cert.pem").write_text(str(security.tls_ca_file), encoding="utf-8")
    page = (ROOT / "docs/cluster.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(temporary-directory: .*?)```", page, re.DOTALL)
    path = tmp_path / "tls.yaml"
    path.write_text(block.replace("/home/me/dask", str(tmp_path)), encoding="utf-8")
    return path
