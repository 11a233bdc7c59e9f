"""A clock that is fitted to a live run has the times of its clients and of its server, each on its own."""

import heapq
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fredsim.errors import FredsimWarning, OutputError
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.live.calibrate import _seconds, calibrated, measured, predicted
from fredsim.simulation.paths.live_pushes import ClientTask, TaskResult
from fredsim.simulation.paths.loop import StopRequested
from fredsim.simulation.plugins.guarded_server import GuardedServer
from tests.sealing import seal
from tests.test_live import DATA, FakeWorkers, lived

MS = 1_000_000


class Timed(FakeWorkers):
    """Workers, as many as clients, whose tasks take what `take` says, in nanoseconds, by a clock of the test's own."""

    travels = 0
    """For how long a copy is on its way."""

    def __init__(self, data: dict[str, Any], clock: list[int], take: Callable[[int], int]) -> None:
        super().__init__(data)
        self.workers = data["clients"]["count"]
        self._clock, self._take = clock, take
        self._ends: list[tuple[int, int, int]] = []  # when tasks arrive, which they are, and their clients
        self.stops = -1

    def begin(self, task: ClientTask) -> None:
        self._tasks[task.client] = replace(task, assigned=self._clock[0])
        arrives = self._clock[0] + 2 * self.travels + self._take(task.client)
        heapq.heappush(self._ends, (arrives, task.task_id, task.client))

    def next(self, seconds: float | None) -> TaskResult | None:
        self.stops -= 1
        if self.stops == 0:
            raise StopRequested
        arrives, _, client = heapq.heappop(self._ends)
        task, travels = self._tasks[client], self.travels
        self._rng = SimpleNamespace(choice=lambda _: client)  # type: ignore[assignment]
        done = super().next(seconds)
        assert done is not None
        self._clock[0] = max(self._clock[0], arrives)
        return replace(done, began=task.assigned + travels, done=arrives - travels, received=arrives)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clock of live runs, in nanoseconds."""
    now = [10**9]
    fake = SimpleNamespace(monotonic_ns=lambda: now[0])
    monkeypatch.setattr("fredsim.simulation.paths.live_pushes.time", fake)
    return now


def experiment(clients: int, iterations: int = 200) -> dict[str, Any]:
    data = DATA | {"clients": {"count": clients, "batch_size": 2}, "iterations": iterations}
    return data | {"evaluation": {"every": 10_000}, "model": {"hidden": [2]}}


def noisy(nanoseconds: int) -> Callable[[int], int]:
    """Return what says how long tasks take: within a tenth of this."""
    rng = np.random.default_rng(1)
    return lambda client: int(rng.uniform(0.9, 1.1) * nanoseconds)


@pytest.fixture
def slow_server(clock: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes 30 ms for each push."""
    pushes = GuardedServer.push

    def push(self: GuardedServer, *arguments: Any, **how: Any) -> Any:
        clock[0] += 30 * MS
        return pushes(self, *arguments, **how)

    monkeypatch.setattr(GuardedServer, "push", push)


@pytest.mark.usefixtures("slow_server")
def test_the_time_of_a_server_is_its_own(clock: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitted to one client, whom the server never keeps waiting, the clock predicts what eight get of it, and back."""
    records = {}
    for clients in (1, 8):
        pool = Timed(data := experiment(clients), clock, noisy(50 * MS))
        pool.travels = 5 * MS
        records[clients] = lived(data, tmp_path / f"live {clients}", pool)
        records[clients].summary["live"]["workers"] = clients
    monkeypatch.undo()
    # A client alone waits for all of it; of eight, the server is never idle.
    expected = {1: 200 * 0.090 - 0.035, 8: 0.06 + 200 * 0.030}
    for clients, record in records.items():
        assert measured(record)["seconds"] == pytest.approx(expected[clients], rel=0.02)
        found = calibrated(record)
        assert found["compute"]["seconds"] == pytest.approx(0.05, rel=0.02)
        assert (found["server"]["seconds"], found["link"]["latency"]) == pytest.approx((0.03, 0.005), rel=1e-3)
        other = records[9 - clients]
        now = measured(predicted(other, found, tmp_path / f"predicted {clients}"))
        assert now["seconds"] == pytest.approx(measured(other)["seconds"], rel=0.02)
        assert now["mean staleness"] == pytest.approx(measured(other)["mean staleness"], rel=0.02)


def test_a_task_that_was_begun_anew_is_no_travel(clock: list[int], tmp_path: Path) -> None:
    """Tasks of 5 s, of a run that is interrupted and resumed an hour later."""
    data, policy = experiment(4, 60), CheckpointPolicy(60.0)
    pool = Timed(data, clock, noisy(5_000 * MS))
    pool.stops = 30
    assert lived(data, tmp_path / "run", pool, policy).summary["status"] == "interrupted"
    clock[0] += 3_600_000 * MS
    pool = Timed(data, clock, noisy(5_000 * MS))
    pool.travels = MS
    result = lived(data, tmp_path / "run", pool, policy)
    result.summary["live"]["workers"] = 4
    found = calibrated(result)
    assert 0 < found["link"]["latency"] <= 0.001
    assert found["compute"]["seconds"] == pytest.approx(5.0, rel=0.02)
    result.summary["live"]["workers"] = (
        2  # then what is waited for a worker is computing time, but not the interruption
    )
    assert calibrated(result)["compute"]["seconds"] == pytest.approx(5.0, rel=0.02)


def test_a_slow_client_is_found_by_few_tasks(clock: list[int], tmp_path: Path) -> None:
    data = experiment(4, 150)
    take = noisy(50 * MS)
    result = lived(data, tmp_path / "run", Timed(data, clock, lambda client: take(client) * (20 if client == 1 else 1)))
    result.summary["live"]["workers"] = 4
    found = calibrated(result)["compute"]["seconds"]
    assert (result.events["client"] == 1).sum() < 4
    assert found == pytest.approx([0.05, 1.0, 0.05, 0.05], rel=0.1)


@pytest.mark.parametrize("sizes", [(30, 30), (5, 100), (3, 3, 200), (40, 1, 2, 60, 9)])
def test_means_lie_apart_as_an_analysis_of_variance_says(sizes: tuple[int, ...]) -> None:
    """By SciPy's quantiles, at the chance of four standard deviations: just beyond it, and not just below."""
    from scipy import stats

    rng, clients = np.random.default_rng(3), np.repeat(np.arange(len(sizes)), sizes)
    noise = rng.normal(0, 0.1, len(clients))
    noise -= (np.bincount(clients, noise) / sizes)[clients]
    shift = rng.normal(0, 1, len(sizes))[clients]
    shift -= shift.mean()
    free, left = len(sizes) - 1, len(clients) - len(sizes)
    limit = stats.f.isf(stats.norm.sf(4.0), free, left)
    scale = np.sqrt(limit * free / left * (noise**2).sum() / (shift**2).sum())
    for times, apart in ((0.93, False), (1.07, True)):
        takes = 1 + noise + times * scale * shift
        found = _seconds(takes, clients, len(sizes) + 1)
        assert isinstance(found, list) == apart
        wanted = [*(takes[clients == client].mean() for client in range(len(sizes))), takes.mean()]
        assert found == pytest.approx(wanted if apart else takes.mean(), rel=1e-3)


def test_clients_alike_have_one_mean() -> None:
    """Also with heavy tails, and few tasks of each."""
    rng = np.random.default_rng(5)
    for draw in (rng.standard_exponential, lambda size: rng.pareto(2.5, size)):
        for clients, each in ((4, 30), (100, 3), (8, 40)):
            ids = np.tile(np.arange(clients), each)
            assert isinstance(_seconds(np.asarray(1 + draw(clients * each)), ids, clients), float)
    assert _seconds(np.ones(40), np.tile(np.arange(4), 10), 4) == 1.0
    assert _seconds(np.arange(30.0), np.arange(30), 30) == 14.5  # one task of each says nothing of chance


def test_a_record_of_fredsim_1_0_is_read(clock: list[int], tmp_path: Path) -> None:
    data = experiment(2, 40)
    folder = lived(data, tmp_path / "run", Timed(data, clock, noisy(50 * MS))).folder
    path = folder / "live.csv"
    rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    path.write_text("".join(f"{','.join([row[0], *row[3:]])}\n" for row in rows), encoding="utf-8")
    seal(folder)
    with pytest.warns(FredsimWarning, match=r"live\.csv is of fredsim 1\.0: it does not say when the server was done"):
        assert calibrated(Result(folder))["compute"]["seconds"] == pytest.approx(0.05, rel=0.05)
    path.write_text("".join(f"{','.join(row)}\n" for row in rows[:-1]), encoding="utf-8")
    seal(folder)
    with pytest.raises(OutputError, match=r"live\.csv: is damaged \(it has 39 rows, of 40 events\)"):
        calibrated(Result(folder))
