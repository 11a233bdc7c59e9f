"""Real clients, in whatever order they are done: the simulator replays what happened, bit for bit."""

import os
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from fredsim.compressors import COMPRESSORS
from fredsim.config.resolution import resolve
from fredsim.errors import ClusterError, ConfigError, OutputError, SimulationError, options_are
from fredsim.plugins.modules import import_named, look_in
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy, Checkpoints
from fredsim.runs.folder.folders import claim
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live import execute_live, worker_of
from fredsim.runs.live.live_csv import fingerprint
from fredsim.runs.live.wire import pack, unpack
from fredsim.runs.live.worker import Basis, LiveWorker
from fredsim.runs.live.workers import checked_answer
from fredsim.runs.single.execution import execute
from fredsim.simulation.paths.live_pushes import ClientTask, TaskResult
from fredsim.simulation.paths.loop import StopRequested
from fredsim.system.files import scratch_folder
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
DATA: dict[str, Any] = {
    "data": {"name": "digits", "train": 300}, "model": {"hidden": [6]}, "clients": {"count": 6, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.05}, "iterations": 120, "evaluation": {"every": 25}, "threads": 1,
}  # fmt: skip
#: What is to be replayed: servers that hold, cancel, answer each client otherwise; gates, compressors, local steps.
WAYS: dict[str, dict[str, Any]] = {
    "asgd": {},
    "fasgd": {"server": {"name": "fasgd", "lr": 0.01}},
    "fasgd behind gates": {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {
        "name": "uniform", "push": {"bandwidth_aware": {"c": 0.01}}, "fetch": {"bandwidth_aware": {"c": 0.01}}}},
    "dropped pushes": {"dispatcher": {"name": "uniform", "push": {"every": 3}, "dropped_push": "accumulate"}},
    "dcasgd": {"server": {"name": "dcasgd", "lr": 0.05}},
    "sync": {"server": {"name": "sync", "lr": 0.05}},
    "backup workers": {"server": {"name": "sync", "lr": 0.05, "aggregate": 4}},
    "restarts": {"server": {"name": "sync", "lr": 0.05, "aggregate": 4, "restart": True}},
    "rennala": {"server": {"name": "rennala", "lr": 0.05, "batch": 4}},
    "ringmaster": {"server": {"name": "ringmaster", "lr": 0.05, "threshold": 3, "stop": True}},
    "fedbuff": {"server": {"name": "fedbuff", "lr": 0.05}, "clients": DATA["clients"] | {"local_steps": 3}},
    "easgd": {"server": {"name": "easgd", "lr": 0.05}},
    "ternary rounds": {"server": {"name": "ternary_sync", "lr": 0.05}},
    "top k": {"compress": {"name": "top_k", "k": 9}},
    "ternary pushes": {"compress": {"name": "ternary"}},
    "levels": {"compress": {"name": "qsgd"}, "server": {"name": "sync", "lr": 0.05, "aggregate": 4, "restart": True}},
    "signs of local steps": {"compress": {"name": "sign"}, "server": {"name": "fedbuff", "lr": 0.05},
                             "clients": DATA["clients"] | {"local_steps": 2}},
    "ternary pushes behind a gate": {"compress": {"name": "ternary"}, "dispatcher": {
        "name": "uniform", "push": {"every": 2}}},
    "no waiting": {"dispatcher": {"name": "uniform", "wait": False}},
    "shards": {"clients": DATA["clients"] | {"partition": {"name": "shards", "per_client": 2}, "sampling": "shuffled"}},
    "an average": {"average": {"name": "window", "min_window": 3, "max_window": 9}},
    "numpy": {"backend": "numpy"},
    "dropout": {"model": {"name": "vgg", "widths": [4], "dropout": 0.5}},
    "optimizers of their own": {"clients": DATA["clients"] | {
        "local_steps": 2, "optimizer": {"name": "adamw", "lr": 0.01}, "prox": 0.1, "clip_each_sample": 0.5,
        "noise": 0.01}},
    "augmented": {"data": DATA["data"] | {"augment": {"flip": True, "crop": 2}}},
}  # fmt: skip


OWN_LOSS = """
import numpy as np


def squared(z, y):
    e = z - np.eye(z.shape[1], dtype=np.float32)[y]
    return (e * e).sum(axis=1) / np.float32(2), e
"""


class FakeWorkers:
    """Does the tasks in this process, in a random order."""

    ends: Exception = ClusterError("the scheduler was lost")
    """What is raised after so many tasks."""

    def __init__(
        self, data: dict[str, Any], seed: int = 0, fails: int = 10**9, flips: int = -1, seen: bool = True
    ) -> None:
        """`fails`: after so many tasks the scheduler is lost; `flips`: of that task one bit of a push is flipped.

        `seen`: of the largest value, else of a zero, which changes no parameter.
        """
        experiment = resolve(data)
        self._worker = LiveWorker(*worker_of(experiment), 1, 0.0)
        basis = self._worker.ready()
        assert isinstance(basis, Basis)
        self._compresses = worker_of(experiment)[2]
        self.workers, self.redone = 2, 0
        self._size, self._samples = basis.size, experiment.clients.batch_size * worker_of(experiment)[1].steps
        self._tasks: dict[int, ClientTask] = {}
        self._rng, self._left, self._flips, self._seen = random.Random(seed), fails, flips, seen

    def begin(self, task: ClientTask) -> None:
        self._tasks[task.client] = replace(task, assigned=time.monotonic_ns())

    def next(self, seconds: float | None) -> TaskResult | None:
        if seconds == 0.0:
            return None
        self._left -= 1
        if self._left < 0:
            self.redone += 1
            raise self.ends
        task = self._tasks.pop(self._rng.choice(sorted(self._tasks)))
        answer = self._worker.compute(task.client, task.number, task.task_id, task.params, task.rate)
        assert not isinstance(answer, SimulationError)
        push, losses, finite, size, before, began, done = checked_answer(
            answer, self._size, self._samples, compresses=self._compresses
        )
        self._flips -= 1
        if self._flips == -1:
            push.view(np.uint32)[np.argmax(np.abs(push)) if self._seen else np.argmin(np.abs(push))] ^= 2**22
        times = began, done, self._worker.clock()
        return TaskResult(task, push, losses, finite, size, before, *times, f"worker {task.client % 2}")


def worker_facts() -> dict[str, Any]:
    return {"workers": 2, "works_redone": 0, "delay": 0.0}


def lived(data: dict[str, Any], folder: Path, pool: FakeWorkers, policy: CheckpointPolicy | None = None) -> Result:
    with np.errstate(all="ignore"):
        execute_live(resolve(data), folder, pool, policy=policy or CheckpointPolicy(), facts=worker_facts)
    return Result(folder)


@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_the_simulator_replays_it(change: dict[str, Any], tmp_path: Path, command: Command) -> None:
    result = lived(DATA | change, tmp_path / "run", FakeWorkers(DATA | change))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")
    assert result.summary["path"] == "live"
    assert result.summary["iterations"] == 120


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("flips", [-1, 41])
def test_on_a_machine_with_a_device(
    flips: int, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that only numba computes is left to it: by the run, by the workers, and by what looks at each event."""
    (tmp_path / "own_loss_here.py").write_text(OWN_LOSS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"backend": "auto", "loss": "own_loss_here:squared"}
    result = lived(data, tmp_path / "run", FakeWorkers(data, flips=flips))
    assert result.summary["backend"] == "numba"
    code, output, _ = command("verify", result.folder)
    assert code == (flips >= 0)
    assert ("same bits" if flips < 0 else "iteration 41, client") in output


@pytest.mark.usefixtures("device")
def test_workers_compute_small_networks_on_the_processor() -> None:
    """Since each gradient is waited for."""
    worker = LiveWorker(*worker_of(resolve(DATA | {"backend": "auto"})), 1, 0.0)
    assert isinstance(worker.ready(), Basis)
    assert worker._engine.device_name is None


def test_a_whole_run_was_not_interrupted(tmp_path: Path, command: Command) -> None:
    result = lived(DATA, tmp_path / "run", FakeWorkers(DATA))
    seal(result.folder, result.summary | {"status": "interrupted"})
    code, output, _ = command("verify", result.folder)
    assert (code, "status is interrupted (recorded), and the run has its full length" in output) == (1, True)


def test_each_order_has_its_own_digest(tmp_path: Path, command: Command) -> None:
    found = [lived(DATA, tmp_path / str(seed), FakeWorkers(DATA, seed)) for seed in range(3)]
    orders = {tuple(result.events["client"]) for result in found}
    assert len(orders) == len({result.summary["digest"] for result in found}) == 3
    assert all(command("verify", result.folder)[0] == 0 for result in found)


def test_the_order_of_a_simulated_run_gives_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Round robin, done in turn by the workers: minibatches and all are those of the simulator."""
    data = DATA | {"dispatcher": {"name": "round_robin"}}
    pool = FakeWorkers(data)
    turn = iter(range(10**6))
    monkeypatch.setattr(pool._rng, "choice", lambda clients: next(turn) % 6)
    result = lived(data, tmp_path / "live", pool)
    execute(resolve(data), tmp_path / "simulated")
    assert result.summary["digest"] == Result(tmp_path / "simulated").summary["digest"]


@pytest.mark.parametrize("seen", [True, False])
def test_a_flipped_bit_is_found(seen: bool, tmp_path: Path, command: Command) -> None:
    result = lived(DATA, tmp_path / "run", FakeWorkers(DATA, flips=41, seen=seen))
    client = result.events["client"][41]
    code, output, _ = command("verify", result.folder)
    assert code == 1
    assert ("metrics.csv" in output) == seen
    says = rf"iteration 41, client {client}, at the worker worker {client % 2}: the gradient is not what the simulator"
    assert re.search(says, output)


def test_each_cell_of_its_record(tmp_path: Path, command: Command) -> None:
    """Rows that are lost, added or swapped, cells and columns that are others, an end that is cut off: with digests."""
    folder = lived(DATA, tmp_path / "run", FakeWorkers(DATA)).folder
    path, text = folder / "live.csv", (folder / "live.csv").read_text(encoding="utf-8")
    head, *rows = text.splitlines(keepends=True)
    assert (len(rows), text.count("worker 0")) == (120, sum(",worker 0," in row for row in rows))
    forged = {
        "no row": head, "no byte": "", "no last row": text[: -len(rows[-1])], "no first row": head + "".join(rows[1:]),
        "a row more": text + rows[-1], "half a row more": text + rows[-1][:9],
        "the next iteration": text + rows[-1].replace("119,", "120,", 1),
        "a row twice": head + rows[0] + "".join(rows), "swapped": head + rows[1] + rows[0] + "".join(rows[2:]),
        "no end": text[:-1] + "0", "no line feed": text[:-1], "half a row": text[:-20], "a cell": text[:-40],
        "another iteration": text.replace("\n7,", "\n8,"), "iterations from 1": text.replace("\n7,", "\n07,"),
        "another column": text.replace("update", "updates", 1), "a column less": text.replace(",update\n", "\n"),
        "columns swapped": text.replace("gradient,update", "update,gradient"), "no header": "".join(rows),
        "no time": text.replace(rows[5], rows[5].replace(rows[5].split(",")[2], "", 1)),
        "a word": text.replace(rows[5], f"{rows[5][:-17]}x\n"), "one more": text.replace("\n", ",1\n"),
        "a line feed more": text + "\n", "capitals": text.replace(rows[5], rows[5].replace("worker", "w").upper()),
        "other line ends": text.replace("\n", "\r\n"),
    }  # fmt: skip
    for what, content in forged.items():
        path.write_bytes(content.encode())
        seal(folder)
        for jobs in (("--jobs", "2"), ()) if what == "no row" else ((),):
            code, output, errors = command("verify", folder, *jobs)
            found = f"{folder}: different: live.csv is not as the run" in output, "Traceback" in errors
            assert (code, *found) == (1, True, False), what
    path.write_bytes(forged["half a row"].encode()[:-3])  # without new digests
    code, output, _ = command("verify", folder)
    assert (code, "live.csv is not as the run wrote it" in output) == (1, True)
    path.write_text(text.replace(",worker 0,", ",worker 7,"), encoding="utf-8")
    seal(folder)
    assert command("verify", folder)[0] == 0  # as the page says
    path.write_text("".join(",".join(line.split(",")[:1] + line.split(",")[3:]) for line in [head, *rows]))
    seal(folder)
    assert command("verify", folder)[0] == 0  # one of fredsim 1.0, which had no times


@pytest.mark.parametrize("way", ["asgd", "backup workers", "restarts", "no waiting", "dropped pushes"])
def test_a_lost_scheduler_leaves_a_checkpoint_to_go_on_from(way: str, tmp_path: Path, command: Command) -> None:
    data, policy = DATA | WAYS[way], CheckpointPolicy(60.0)
    for seed in range(2):
        pool = FakeWorkers(data, seed, fails=45)
        pool.workers = 3 - seed
        with pytest.raises(ClusterError, match="scheduler was lost"):
            lived(data, tmp_path / "run", pool, policy)
    pool = FakeWorkers(data, 2)
    result = lived(data, tmp_path / "run", pool, policy)
    assert (pool.workers, pool.redone) == (3, 2)  # of all three processes
    assert result.summary["iterations"] == 120
    assert list(result.events["iteration"]) == list(range(120))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


@pytest.mark.parametrize("way", ["asgd", "sync", "rennala", "no waiting"])
def test_an_interrupt_while_nobody_arrives(way: str, tmp_path: Path, command: Command) -> None:
    data = DATA | WAYS[way]
    pool = FakeWorkers(data, fails=20)
    pool.ends = StopRequested()

    def stop() -> bool:
        """Say so only once the run waits: before, the loop itself would have seen it."""
        return pool._left < 0

    execute_live(resolve(data), tmp_path / "run", pool, stop=stop, policy=CheckpointPolicy(60.0), facts=worker_facts)
    found = Result(tmp_path / "run").summary
    assert (found["status"], found["iterations"]) == ("interrupted", 20)
    assert command("verify", tmp_path / "run")[:2] == (0, f"{tmp_path / 'run'}: same bits\n")  # as far as it got
    result = lived(data, tmp_path / "run", FakeWorkers(data, 1), CheckpointPolicy(60.0))
    assert (result.summary["status"], list(result.events["iteration"])) == ("finished", list(range(120)))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


@pytest.mark.parametrize("length", [{"updates": 90}, {"epochs": 2}, {
    "seconds": 1000.0, "dispatcher": {"name": "clock"}, "evaluation": {"every": 0.01, "unit": "seconds"},
}])  # fmt: skip
def test_an_interrupted_run_of_any_length(length: dict[str, Any], tmp_path: Path, command: Command) -> None:
    """Is verified as far as it got, whatever checkpoints it has; the trace of its events has no more."""
    data = {key: value for key, value in DATA.items() if key != "iterations"} | WAYS["backup workers"] | length
    for seed in range(2):
        pool = FakeWorkers(data, seed, fails=30)
        pool.ends = StopRequested()
        result = lived(data, tmp_path / "run", pool, CheckpointPolicy(60.0))
    assert (result.summary["status"], result.summary["iterations"]) == ("interrupted", 60)
    assert Checkpoints(result.folder).iterations == [30, 60]
    for jobs in ((), ("--jobs", "2")):
        code, output, messages = command("verify", result.folder, *jobs)
        assert (code, output, "cannot be used" in messages) == (0, f"{result.folder}: same bits\n", False)


def test_a_run_without_events_is_not_verified(tmp_path: Path, refused: Callable[..., None]) -> None:
    pool = FakeWorkers(DATA, fails=0)
    pool.ends = StopRequested()
    folder = lived(DATA, tmp_path / "run", pool, CheckpointPolicy(60.0)).folder
    refused("verify", folder, says=(f"{folder}: no client arrived in this live run", "give one with events"))


def test_an_edited_order_is_a_difference(tmp_path: Path, command: Command) -> None:
    """Though it cannot be repeated, as it is no order of this run."""
    folder = lived(DATA, tmp_path / "run", FakeWorkers(DATA)).folder
    path, table = folder / "events.parquet", pq.read_table(folder / "events.parquet")
    clients = table["client"].to_pylist()
    clients[50] = (clients[50] + 1) % 6
    pq.write_table(table.set_column(table.schema.get_field_index("client"), "client", [clients]), path)
    for jobs in ((), ("--jobs", "2")):
        says = f"{folder}: different: {path} is not as the run wrote it\n"
        assert command("verify", folder, *jobs)[:2] == (1, says)


def test_clients_of_one_version_share_its_copy() -> None:
    """There may be many more clients than workers; what is sent stays as it is when the version goes on."""
    data = DATA | {"server": {"name": "sync", "lr": 0.05}, "iterations": 13}
    sent: list[ClientTask] = []

    class Noting(FakeWorkers):
        def begin(self, task: ClientTask) -> None:
            sent.append(task)
            super().begin(task)

    with scratch_folder() as folder:
        lived(data, folder, Noting(data))
    rounds = [{id(task.params) for task in sent[first : first + 6]} for first in (0, 6, 12)]
    assert [len(copies) for copies in rounds] == [1, 1, 1]
    assert not np.array_equal(sent[0].params, sent[6].params)


def test_copies_that_wait_for_a_worker_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those that clients hold, as in a simulated run."""
    real, small = os.sysconf, {"SC_PHYS_PAGES": 25_000, "SC_PAGE_SIZE": 4096}  # 102 MB
    monkeypatch.setattr(os, "sysconf", lambda name: small.get(str(name)) or real(name))
    clients, size = 800, 4 * (64 * 300 + 300 + 300 * 10 + 10)
    data = DATA | {"clients": {"count": clients, "batch_size": 2}, "iterations": clients, "model": {"hidden": [300]}}
    says = f"the {2 * (clients + 1):,} copies of the parameters that they may hold take {2 * size * 801 / 1e6:.0f} MB"
    with pytest.raises(ConfigError, match=re.escape(says)):
        execute_live(resolve(data), tmp_path / "run", Mock(), facts=worker_facts)
    assert not (tmp_path / "run").exists()


def test_a_run_that_ends_by_the_clock(tmp_path: Path, command: Command) -> None:
    """Of real seconds, with rows on the clock; nobody arrives after its end."""
    data = {key: value for key, value in DATA.items() if key != "iterations"} | {
        "seconds": 0.3, "evaluation": {"every": 0.05, "unit": "seconds"}, "dispatcher": {"name": "clock"},
    }  # fmt: skip
    result = lived(data, tmp_path / "run", FakeWorkers(data))
    assert result.summary["time"] == 0.3
    assert result.events["time"].max() <= 0.3
    assert list(result.metrics["time"]) == pytest.approx([0.05 * row for row in range(7)])
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


def test_a_work_that_fails_is_no_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = FakeWorkers(DATA)._worker
    monkeypatch.setattr(worker, "_work", lambda *_: 1 / 0)
    answer = worker.compute(3, 2, 14, np.zeros(460, np.float32), 0.0)
    assert str(answer) == "client 3, its task 2: ZeroDivisionError: division by zero"


def test_a_run_that_diverges_is_told(tmp_path: Path) -> None:
    data = DATA | {"server": {"name": "asgd", "lr": 1e30}}
    with pytest.raises(SimulationError, match=r"iteration \d: a parameter is not finite any more; choose a smaller"):
        lived(data, tmp_path / "run", FakeWorkers(data))


def test_what_travels_is_what_was_packed() -> None:
    """Any array comes back as it was, bit for bit; what compressors make of a push takes the bytes that they count."""
    rng = np.random.default_rng(0)
    for trial in range(300):
        sizes = rng.integers(0, 50, 3)
        ends = np.cumsum(sizes)
        tensors = [slice(end - size, end) for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]
        table = rng.standard_normal(rng.integers(1, 400)).astype(np.float32)
        table[0] = rng.choice([0.0, -0.0, np.nan])
        values = table[rng.integers(0, len(table), sizes.sum())]
        values[rng.random(len(values)) < 0.45 * (trial % 3)] = 0
        assert unpack(pack(values, tensors)).tobytes() == values.tobytes()
    nine = np.arange(900, dtype=np.float32) % 9
    assert len(pack(nine, [slice(0, 900)])) == 12 + 9 * 4 + 450  # a head, the values, and four bits for each element
    for name in ("ternary", "qsgd", "sign"):
        data = DATA | {"compress": {"name": name}}
        pool = FakeWorkers(data)
        params = rng.standard_normal(pool._worker._layout.size).astype(np.float32)
        answer = pool._worker.compute(2, 5, 31, params, 0.0)
        assert not isinstance(answer, SimulationError)
        push, size = answer[0], answer[3]
        assert push.dtype == np.uint8
        assert len(push) <= size + len(pool._worker._layout.slices) * (12 + 4 * 9)  # a head, and a few values


@pytest.mark.parametrize("name", COMPRESSORS)
def test_clients_that_remember_are_known(name: str) -> None:
    """A live run lets clients compress by those that keep nothing."""
    assert COMPRESSORS[name].keeps_residual == any("state_names" in vars(cls) for cls in COMPRESSORS[name].__mro__[:-4])


def test_who_compresses() -> None:
    """A client, where nothing but its push decides what is sent: a memory would be lost with a worker."""
    ternary, own_steps = {"compress": {"name": "ternary"}}, {"fetch": {"every": 2}, "replica": True}
    for change, wanted in (
        ({}, False), (ternary, True), ({"compress": {"name": "top_k", "k": 3}}, False),
        (ternary | {"dispatcher": {"name": "uniform", "push": {"every": 2}}}, False),
        (ternary | {"dispatcher": {"name": "uniform", **own_steps}}, False),
        (ternary | {"dispatcher": {"name": "uniform", "fetch": {"every": 2}}}, True),
    ):  # fmt: skip
        assert worker_of(resolve(DATA | change))[-1] is wanted


def test_local_steps_take_the_rate_of_their_fetch(
    tmp_path: Path, command: Command, own_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's rate is that of its fetch, so a schedule is replayed exactly, and so is any other `rate`."""
    data = DATA | {"clients": DATA["clients"] | {"local_steps": 2}}
    falling = {"name": "fedbuff", "lr": {"name": "step", "base": 0.05, "every": 9, "factor": 0.5}, "buffer": 2}
    rate = "\n\n    def rate(self):\n        return 0.1 / (1 + getattr(self, 'pushes_seen', 0))\n"
    counts = "self.pushes_seen = getattr(self, 'pushes_seen', 0) + 1\n"
    (tmp_path / "live_rate.py").write_text(own_server(counts) + rate, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name, server in (("falling", falling), ("own", {"name": "live_rate:Plain", "lr": 0.05})):
        look_in()  # as a new process does; what was verified before was in another folder
        result = lived(data | {"server": server}, tmp_path / name, FakeWorkers(data | {"server": server}))
        assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


def test_fingerprints_are_others_where_any_bit_is() -> None:
    values = np.random.default_rng(0).standard_normal(501).astype(np.float32)
    weights = [(2 * (i // 2) + 1) * 0x9E3779B97F4A7C15 << 32 * (i % 2) for i in range(501)]
    bits = values.view(np.uint32)
    assert fingerprint(values) == sum(int(b) * w for b, w in zip(bits, weights, strict=True)) % 2**64
    for place in (0, 77, 499, 500):
        for bit in range(32):
            changed = values.copy()
            changed.view(np.uint32)[place] ^= np.uint32(1 << bit)
            assert fingerprint(changed) != fingerprint(values)


def test_a_live_run_that_was_killed_gives_way(tmp_path: Path) -> None:
    """To another experiment, as a simulated one does."""
    for name in ("config.yaml", "metrics.csv", "live.csv"):
        (tmp_path / name).write_text("name: other\n", encoding="utf-8")
    claim(tmp_path, "config.yaml", "name: mine\n")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


LIVE = "holds the record of a live run, which cannot be made again; choose another folder by --out, or remove it"


@pytest.mark.parametrize("status", ["lost", "interrupted", "finished"])
def test_no_command_deletes_a_record(
    status: str, tmp_path: Path, command: Command, refused: Callable[..., None]
) -> None:
    """Neither one that simulates the experiment into its folder, alone or in a sweep, nor a second live run."""
    folder, policy = tmp_path / "seeds" / f"seed=0-{resolve(DATA).digest[:8]}", CheckpointPolicy(60.0)
    pool = FakeWorkers(DATA, fails=10**9 if status == "finished" else 45)
    pool.ends = pool.ends if status == "lost" else StopRequested()
    with suppress(ClusterError):
        execute_live(resolve(DATA), folder, pool, stop=lambda: pool._left < 0, policy=policy, facts=worker_facts)
    before = contents(folder)
    if status != "finished":  # which --resume leaves as it is
        refused("run", folder, "--resume", says=(LIVE,))
        (folder.parent / "sweep.yaml").touch()
        code, _, messages = command("run", folder, "--resume", "sweep={seed: [0, 1]}", "--out", folder.parent)
        assert (code, LIVE in messages) == (2, True)
    refused("run", folder, "--out", folder, says=(LIVE,))
    with options_are(on_command_line=True), pytest.raises(OutputError, match=re.escape(LIVE)):
        lived(DATA | ({} if status == "finished" else {"backend": "numpy"}), folder, FakeWorkers(DATA), policy)
    assert contents(folder) == before
    if status != "finished":
        again = f"to continue one: fredsim live {folder} --out {folder}\n"
        assert command("ls", folder)[1].endswith(again)
        assert lived(DATA, folder, FakeWorkers(DATA, 1), policy).summary["status"] == "finished"


def test_a_server_may_write_into_a_gradient(
    tmp_path: Path, command: Command, own_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint is of what the client made."""
    (tmp_path / "own_writes.py").write_text(own_server("grad *= np.float32(0.5)\n"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    data = DATA | {"server": {"name": "own_writes:Plain", "lr": 0.05}}
    result = lived(data, tmp_path / "run", FakeWorkers(data))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


@pytest.mark.parametrize("form", [(4,), (5,), (7,), (2, 3), (0,), (), (6, 1)])
def test_an_answer_of_another_shape_is_refused(form: tuple[int, ...]) -> None:
    """Kernels read as many elements as there are parameters, whatever is there."""
    push, losses, numbers = np.ones(6, np.float32), np.zeros(2, np.float32), (True, 0, 0, 1, 2)
    for sent in (push, pack(push, [slice(0, 2), slice(2, 6)])):
        found = checked_answer((sent, losses, *numbers), 6, 2, compresses=False)
        assert (found[0].tobytes(), found[1:]) == (push.tobytes(), (losses, *numbers))
    other = np.ones(form, np.float32)
    for wrong in (other, np.ones(form), pack(other, [slice(None)]) if other.ndim == 1 and other.size else other):
        with pytest.raises(ValueError, match=r"sent a push (of float|that cannot be decoded)"):
            checked_answer((wrong, losses, *numbers), 6, 2, compresses=False)
        with pytest.raises(ValueError, match="sent losses of"):
            checked_answer((push, wrong, *numbers), 6, 2, compresses=False)


@pytest.mark.parametrize(
    "answer",
    [
        None, 3, "text", (), (1, 2), [np.ones(6, np.float32)] * 7,
        *((sent, np.zeros(2, np.float32), True, 0, 0, 1, 2)
          for sent in (None, b"", [1.0] * 6, np.zeros(0, np.uint8), np.ones(30, np.uint8), np.zeros((2, 3), np.uint8),
                       np.full(60, 255, np.uint8), np.ones(6, np.int32), np.ones(6, object))),
        *((np.ones(6, np.float32), np.zeros(2, np.float32), *numbers)
          for numbers in ((1, 0, 0, 1, 2), (True, -1, 0, 1, 2), (True, 0, "x", 1, 2), (True, 0, 0, None, 2),
                          (True, 0, 0, 1.5, 2), (None, 0, 0, 1, 2))),
    ],
)  # fmt: skip
def test_an_answer_of_something_else_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="sent "):
        checked_answer(answer, 6, 2, compresses=False)


@pytest.mark.parametrize("compresses", [False, True])
def test_numbers_that_no_worker_of_fredsim_sends_are_refused(compresses: bool) -> None:
    """Bytes count only where something is compressed, and what is recorded has 64 bits."""
    push, losses, (fewest, most) = np.ones(6, np.float32), np.zeros(2, np.float32), ((0, 0), (1, 2**40))[compresses]
    for numbers in ((fewest, 0, 1, 2), (most, 2**64 - 1, -(2**61), 2**61)):
        assert checked_answer((push, losses, True, *numbers), 6, 2, compresses=compresses)[3:] == numbers
    for numbers in (
        (fewest - 1, 0, 1, 2), (most + 1, 0, 1, 2), (2**70, 0, 1, 2), (fewest, -1, 1, 2), (fewest, 2**64, 1, 2),
        (fewest, 0, -(10**30), 2), (fewest, 0, 1, 10**30), (fewest, 0, 2**62, 2), (fewest, 0, 1, -(2**62)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"sent .* (bytes|bits)"):
            checked_answer((push, losses, True, *numbers), 6, 2, compresses=compresses)


def test_an_error_of_any_type_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised, it would look like a worker that is lost."""
    for error in (ImportError("no such thing"), OSError(24, "Too many open files"), MemoryError("no room")):
        monkeypatch.setattr("fredsim.runs.live.worker.make_engine", Mock(side_effect=error))
        found = LiveWorker(*worker_of(resolve(DATA)), 1, 0.0).ready()
        assert str(found) == f"{type(error).__name__}: {error}"


def test_what_is_computed_from_is_told_apart() -> None:
    ours = Basis("d" * 64, {"my_loss": "a"}, {"w.pt": "b"}, 460)
    assert ours.difference(Basis("d" * 64, {"my_loss": "a"}, {"w.pt": "b"}, 460)) == ""
    assert ours.difference(Basis("d" * 64, {"my_loss": "a"}, {"weights/w.pt": "b"}, 460)) == ""  # of another folder
    for theirs, says in (
        (Basis("e" * 64, ours.code, ours.files, 460), "it has other data than this machine"),
        (Basis(None, ours.code, ours.files, 460), "it has other data than this machine"),
        (Basis(ours.data, {"my_loss": "b"}, ours.files, 460), "it has another version of my_loss"),
        (Basis(ours.data, {}, ours.files, 460), "it has another version of my_loss"),
        (Basis(ours.data, {**ours.code, "more": "c"}, ours.files, 460), "it has another version of more"),
        (Basis(ours.data, ours.code, {"w.pt": "c"}, 460), "it has another file w.pt"),
        (Basis(ours.data, ours.code, {}, 460), "it has another file w.pt"),
        (Basis(ours.data, ours.code, ours.files, 459), "its model has 459 parameters, here it has 460"),
    ):
        assert ours.difference(theirs).startswith(says)


def test_data_is_looked_up_in_the_folder_that_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And modules where this machine looks them up: the folder of the experiment's file."""
    (tmp_path / "apart").mkdir()
    (tmp_path / "apart" / "live_apart.py").write_text("def share(z, y):\n    return z, z\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    prepares = Mock(side_effect=lambda *_: import_named("live_apart:share", "module:function"))
    monkeypatch.setattr("fredsim.runs.live.worker.prepare", prepares)
    arguments = (*worker_of(resolve(DATA)), 1, 0.0)
    assert "cannot import 'live_apart'" in str(LiveWorker(*arguments).ready())
    assert "cannot import" not in str(LiveWorker(*arguments, [tmp_path / "apart"], tmp_path).ready())
    assert [call.args[1] for call in prepares.call_args_list] == [None, tmp_path]
