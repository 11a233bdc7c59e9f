"""What holds of every run, however it is computed, stopped or replayed: over random experiments of every kind.

A few dozen here, which hypothesis chooses by their numbers, always the same; `--slow` lets it make up hundreds, or as
many as FREDSIM_EXPERIMENTS says, of which it shrinks one that fails.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import fredsim
from fredsim.errors import ConfigError, DataError, SimulationError
from fredsim.runs.folder.results import Result
from tests.properties import Sizes, check_files, sent_and_lost
from tests.random_experiments import clock, experiment, fitting, made_up
from tests.server_log import ServerLog, check_server, logged_server
from tests.test_going_on import files_of, stopped
from tests.test_random_experiments import beside, contents
from tests.test_trace import EXCHANGES, NETWORKS
from tests.test_trace import replayed as trace_of
from tests.test_versions import versions

POLICIES = ("reapply", "skip", "accumulate", "average")
Check = Callable[[dict[str, Any], Path], None]
#: Servers that do not let every client go on at once.
HOLDING: list[dict[str, Any]] = [
    {"name": "sync"}, {"name": "sync", "aggregate": 3}, {"name": "sync", "aggregate": 3, "restart": True},
    {"name": "soft_sync", "n": 2}, {"name": "rennala", "batch": 3}, {"name": "sign_majority"}, {"name": "ternary_sync"},
    {"name": "ringmaster", "threshold": 3, "stop": True}, {"name": "slowmo"}, {"name": "mindflayer", "trials": 2},
]  # fmt: skip


#: Whether each example of a test could be checked.
CHECKED: list[bool] = []


class RefusedError(Exception):
    """An experiment is refused by its data, or its trace, which is made up, has a client that is held."""


@pytest.fixture(autouse=True)
def most_are_checked() -> Iterator[None]:
    """Let a test fail of whose examples many are refused."""
    CHECKED.clear()
    yield
    assert sum(CHECKED) >= 0.6 * len(CHECKED), CHECKED


def run(data: dict[str, Any], folder: Path) -> Result:
    result = fredsim.run(data, out=folder)
    assert isinstance(result, Result)
    return result


def first_run(data: dict[str, Any], folder: Path) -> Result:
    """Run an experiment that may be refused: then a check of it ends with RefusedError."""
    try:
        return run(data, folder)
    except (ConfigError, DataError) as error:
        raise RefusedError from error
    except SimulationError as error:
        if "arrives in the trace" not in str(error):
            raise
        raise RefusedError from error


def as_plain_clients(data: dict[str, Any]) -> dict[str, Any]:
    """Without what these checks do not know: rounds of some clients, and what clients send or keep besides."""
    unknown = {"fraction", "control_variates", "optimizer", "pushes"}
    return data | {"clients": {key: value for key, value in data["clients"].items() if key not in unknown}}


def record_and_server(data: dict[str, Any], folder: Path) -> None:
    """The record adds up, and the server was told what it says: see check_files and check_server."""
    data = as_plain_clients(data) | {"events": True, "evaluation": data["evaluation"] | {"per_client": True}}
    result = first_run(data, folder / "run")
    check_files(result)
    log = ServerLog(Sizes(result.config))
    with logged_server(data["server"]["name"], log):
        # A server of parameters that has a method fetch, as the logged one, refuses to reapply what was dropped.
        again = first_run(data | {"path": "snapshots"}, folder / "logged_server")
    assert (again.folder / "events.parquet").read_bytes() == (result.folder / "events.parquet").read_bytes()
    check_server(again, log.entries)


def split(data: dict[str, Any], folder: Path) -> None:
    """It is stopped and goes on, again and again, on each path that it may take."""
    data, rng = data | {"events": True}, random.Random(data["seed"])
    whole, ended, usual = contents(first_run(data | {"backend": "numba"}, folder / "whole"))
    for path in sorted({usual, *beside(data, usual)}):
        status, run, stops = "interrupted", folder / path, 0
        most = 40 if path == "snapshots" else 3  # of a few events at once each, or of many
        while status == "interrupted":
            status, _ = stopped(data | {"path": path, "window": rng.choice([1, 2, 3])}, run, rng.randint(1, most))
            stops += 1
            assert stops < 500, "it begins anew again and again, or comes no further"
        assert ended.startswith(status)
        assert files_of(run) == whole


def replayed(data: dict[str, Any], folder: Path) -> None:
    """A trace of the run leaves what it left."""
    data = data | {"events": True}
    recorded = first_run(data, folder / "recorded")
    if recorded.summary["iterations"]:
        again = run(data | trace_of(recorded, data["dispatcher"]), folder / "again")
        assert files_of(again.folder) == files_of(recorded.folder)
        assert again.summary["digest"] == recorded.summary["digest"]


def versions_of_accepted(data: dict[str, Any], folder: Path) -> None:
    """The arrays that there are: see test_versions."""
    first_run(data, folder / "first")
    versions(data, folder)


def hold(check: Check, data: dict[str, Any]) -> None:
    """Check an experiment, unless it is refused; note whether it was checked."""
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        try:
            check(data, Path(folder))
        except RefusedError:
            CHECKED.append(False)
        else:
            CHECKED.append(True)


def as_drawn(data: dict[str, Any], _: random.Random) -> dict[str, Any]:
    return data


def plainer(data: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Without what keeps an experiment from the faster paths, half of them on a clock."""
    if rng.random() < 0.5:
        compute = clock(rng, data["clients"]["count"])["compute"]
        data = data | {"dispatcher": {"name": "clock", "compute": compute}}
    dispatcher = {key: value for key, value in data["dispatcher"].items() if key not in EXCHANGES or key == "wait"}
    kept = {key: value for key, value in data.items() if key not in {"compress", "average", "probe"}}
    return kept | {"dispatcher": dispatcher, "clients": data["clients"] | {"local_steps": 1}}


def networked(data: dict[str, Any], rng: random.Random, policy: str = "") -> dict[str, Any]:
    """On a clock where copies take time, and what a push weighs is decided when its gradient is done."""
    exchanges = {key: value for key, value in data["dispatcher"].items() if key in EXCHANGES}
    gate = {"push": {"every": 2}, "dropped_push": policy or rng.choice(POLICIES)}
    timed = {"name": "clock", **clock(rng, data["clients"]["count"]), **rng.choice(NETWORKS)}
    return data | {"dispatcher": exchanges | gate | timed}


def few(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let hypothesis choose so many experiments by their numbers."""
    quick = settings(max_examples=count, derandomize=True, database=None, phases=[Phase.generate])
    return lambda test: quick(given(number=st.integers(0, 10**6))(test))


def made(number: int, change: Callable[[dict[str, Any], random.Random], dict[str, Any] | None]) -> dict[str, Any]:
    """The first experiment of these draws, of a multilayer perceptron, that can be changed so."""
    rng = random.Random(number)
    for _ in range(100):
        data = change(experiment(rng.randrange(10**6)), rng)
        if data is not None and "hidden" in data["model"] and fitting(data) is not None:
            return data
    raise AssertionError(f"{number}: none in 100 draws")


@pytest.mark.parametrize("change", [as_drawn, plainer, networked])
@few(10)
def test_record_and_server(change: Any, number: int) -> None:
    hold(record_and_server, made(number, change))


def test_a_push_on_its_way_is_lost_where_its_client_begins_anew(tmp_path: Path) -> None:
    """With what it had accumulated: the next has nothing of it."""
    copies = {"push": {"every": 2}, "dropped_push": "accumulate", "link": {"latency": 0.5}, "server": {"up": 1000.0}}
    compute = {"seconds": 1.0, "noise": {"name": "exponential"}}
    data = {
        "iterations": 60,
        "data": {"name": "digits", "train": 50},
        "model": {"hidden": [12]},
        "clients": {"count": 9, "batch_size": 17, "sampling": "shuffled"},
        "dispatcher": {"name": "clock", "compute": compute} | copies,
        "server": {"name": "malenia", "lr": 0.0001},
        "evaluation": {"every": 20},
    }
    record_and_server(data, tmp_path)
    result = fredsim.load(tmp_path / "run")
    assert isinstance(result, Result)
    events, found = result.events, 0
    for client, number in sent_and_lost(events):
        since = events[(events["client"] == client) & (events["number"] >= number)]
        begun_from = since["timestamp"] - since["staleness"]  # of a push that has accumulated: the oldest
        found += bool(since["pushed"].any())
        assert (begun_from >= begun_from.iloc[0]).all()
    assert found


@pytest.mark.parametrize("server", HOLDING, ids=str)
@few(3)
def test_servers_that_hold_or_restart(server: dict[str, Any], number: int) -> None:
    """Where there are several clients."""

    def change(data: dict[str, Any], _: random.Random) -> dict[str, Any] | None:
        return data | {"server": server | {"lr": 0.01}} if data["clients"]["count"] > 3 else None

    hold(record_and_server, made(number, change))


@pytest.mark.parametrize("change", [as_drawn, plainer, *(partial(networked, policy=policy) for policy in POLICIES)])
@few(5)
def test_split(change: Any, number: int) -> None:
    hold(split, made(number, change))


@pytest.mark.parametrize("change", [plainer, networked])
@few(6)
def test_replayed(change: Any, number: int) -> None:
    hold(replayed, made(number, change))


@few(20)
def test_versions(number: int) -> None:
    hold(versions_of_accepted, as_plain_clients(experiment(number)))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("check", [record_and_server, split, replayed, versions_of_accepted])
def test_hundreds(check: Check) -> None:
    many = settings(
        max_examples=int(os.environ.get("FREDSIM_EXPERIMENTS", "300")),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )  # fmt: skip

    @many
    @given(st.randoms(note_method_calls=False))
    def found(rng: random.Random) -> None:
        data = fitting(made_up(rng))
        assume(data is not None)
        assert data is not None
        hold(check, data)

    found()
