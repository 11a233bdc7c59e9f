"""What holds of every run, however it is computed, stopped or replayed: over random experiments of every kind.

A few dozen here, which hypothesis chooses by their numbers, always the same; `--slow` lets it make up hundreds, or as
many as FREDSIM_EXPERIMENTS says, of which it shrinks one that fails.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import fredsim
from fredsim.compute.storage import Pool
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError, FredsimError
from fredsim.runs.observer import Observer
from fredsim.runs.prepared import prepare
from fredsim.runs.results import Result
from fredsim.runs.run import Run
from fredsim.simulation.engines import make_engine
from fredsim.simulation.length import Length
from fredsim.simulation.loop import Diverged, Simulation
from tests.properties import Log, Sizes, check_files, check_server, spied
from tests.random_experiments import drawn, experiment
from tests.test_going_on import files_of, stopped
from tests.test_random_experiments import PATHS, left_behind
from tests.test_trace import same_again

Check = Callable[[dict[str, Any], Path], None]


def record_and_server(data: dict[str, Any], folder: Path) -> None:
    """The record adds up, and the server was told what it says: see check_files and check_server."""
    data = data | {"events": True, "evaluation": data["evaluation"] | {"per_client": True}}
    try:
        result = fredsim.run(data, out=folder / "run")
    except FredsimError:
        return
    assert isinstance(result, Result)
    check_files(result)
    log = Log(Sizes(result.config))
    with spied(data["server"]["name"], log):
        again = fredsim.run(data | {"path": "snapshots"}, out=folder / "spied")
    assert isinstance(again, Result)
    assert (again.folder / "events.parquet").read_bytes() == (result.folder / "events.parquet").read_bytes()
    check_server(again, log.entries)


def split(data: dict[str, Any], folder: Path) -> None:
    """It is stopped and goes on, again and again, on each path that it may take."""
    rng = random.Random(data["seed"])
    whole, ended, usual = left_behind(data, {"backend": "numba"})
    for path in sorted({usual, *PATHS[usual]} if usual else ()):
        status, run = "interrupted", folder / path
        while status == "interrupted":
            status, _ = stopped(data | {"path": path, "window": rng.choice([1, 2, 3])}, run, rng.randint(1, 30))
        assert ended.startswith(status)
        assert files_of(run) == whole


def replayed(data: dict[str, Any], folder: Path) -> None:
    """A trace of the run leaves what it left."""
    if data["evaluation"].get("unit") == "seconds" and data["dispatcher"]["name"] == "trace":
        return
    same_again(data | {"events": True}, folder)


def versions(data: dict[str, Any], folder: Path) -> None:
    """After every event there are the parameters that clients hold, and no others; shared ones are the server's."""
    simple = data["server"]["name"] not in {"dana", "easgd", "downpour"} and "inner" not in data["server"]
    dispatcher, data = data["dispatcher"], {key: value for key, value in data.items() if key != "probe"}
    per_tensor = any(word in str(dispatcher.get("fetch")) for word in ("budget", "tensor"))
    simple &= not (dispatcher.get("replica") or dispatcher.get("fred_timestamps") or per_tensor)
    for path in ("fused", "snapshots"):
        with ExitStack() as opened:
            alive = opened.enter_context(counted_arrays())
            try:
                simulation = opened.enter_context(stepped(data | {"path": path, "window": 1}, folder / path))
                for _ in held_after_each_event(simulation, data["iterations"], alive, simple):
                    pass
            except ConfigError:  # it cannot take this path
                assert path == "fused"


def held_after_each_event(simulation: Simulation, iterations: int, alive: set[int], simple: bool) -> Iterator[None]:
    params = {0: np.array(simulation._server.params)}
    for event in range(iterations):
        try:
            simulation.go_on(Length(event + 1))
        except Diverged:
            return
        params[simulation._server.timestamp] = np.array(simulation._server.params)
        state = simulation.take_state()
        stamps, shared = state["holdings.timestamps"].tolist(), state["holdings.shared"].tolist()
        spare = len(getattr(simulation, "_spare", ()))  # that no client fetched into
        assert len(alive) - spare == len(stamps)
        assert spare <= 1
        assert not simple or len(set(stamps)) == len(stamps)
        ours = [number for number, one in enumerate(shared) if one]
        assert len({stamps[number] for number in ours}) == len(ours)
        for number in ours:
            assert state[f"holdings.version.{number}"].tobytes() == params[stamps[number]].tobytes()
        yield


@contextmanager
def counted_arrays() -> Iterator[set[int]]:
    """The addresses of the arrays that were taken from pools and not given back."""
    alive, take, give_back = set[int](), Pool.take, Pool.give_back

    def taking(pool: Pool) -> Any:
        array = take(pool)
        assert array.ctypes.data not in alive
        alive.add(array.ctypes.data)
        return array

    def giving(pool: Pool, array: Any) -> None:
        alive.remove(array.ctypes.data)
        give_back(pool, array)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "take", taking)
        patch.setattr(Pool, "give_back", giving)
        yield alive


@contextmanager
def stepped(data: dict[str, Any], folder: Path) -> Iterator[Simulation]:
    """The simulation of an experiment, with its files open."""
    folder.mkdir()
    prepared = prepare(resolve(data), None)
    wanted = prepared.experiment
    with ExitStack() as opened:
        engine = make_engine("numba", prepared.model, prepared.dataset, wanted.clients.batch_size, 1)
        opened.callback(engine.close)
        run = Run(prepared, "numba", engine, folder, Observer(), lambda: False, prepared.length)
        for file in run._files:
            opened.enter_context(file)
        yield run.simulation


def hold(check: Check, data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        check(data, Path(folder))


def few(count: int) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Let hypothesis choose so many experiments by their numbers."""
    quick = settings(max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    return lambda test: quick(given(st.integers(0, 10**6))(test))


@few(60)
def test_record_and_server(number: int) -> None:
    hold(record_and_server, experiment(number))


@few(8)
def test_split(number: int) -> None:
    hold(split, experiment(number))


@few(12)
def test_replayed(number: int) -> None:
    hold(replayed, experiment(number))


@few(20)
def test_versions(number: int) -> None:
    hold(versions, experiment(number))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("check", [record_and_server, split, replayed, versions])
def test_hundreds(check: Check) -> None:
    many = settings(
        max_examples=int(os.environ.get("FREDSIM_EXPERIMENTS", "300")), deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip

    @many
    @given(st.randoms(note_method_calls=False))
    def found(rng: random.Random) -> None:
        data = drawn(rng)
        assume(data is not None)
        assert data is not None
        hold(check, data)

    found()
