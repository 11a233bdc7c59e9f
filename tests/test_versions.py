"""Arrays: those of the versions that clients hold, and of what the server keeps for each client, and no others."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.compute.storage import Pool
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.prepared import prepare
from fredsim.runs.single.run import Run
from fredsim.simulation.paths.backends import make_engine
from fredsim.simulation.paths.loop import Diverged, Simulation
from fredsim.simulation.schedule.length import Length


def versions(data: dict[str, Any], folder: Path) -> None:
    """There are the versions that clients hold, and what the server keeps for each; shared ones are the server's."""
    simple = data["server"]["name"] not in {"dana", "easgd", "downpour"} and "inner" not in data["server"]
    dispatcher, data = data["dispatcher"], {key: value for key, value in data.items() if key != "probe"}
    per_tensor = any(word in str(dispatcher.get("fetch")) for word in ("budget", "tensor"))
    simple &= not (dispatcher.get("replica") or dispatcher.get("fred_timestamps") or per_tensor)
    for path, window in (("fused", 1), ("fused", 8), ("snapshots", 1)):
        with ExitStack() as opened:
            alive = opened.enter_context(counted_arrays())
            way = {"path": path, "window": window}
            try:
                simulation = opened.enter_context(stepped(data | way, folder / f"{path}{window}"))
            except ConfigError:
                if path == "snapshots":
                    raise
                continue  # it cannot take this path
            ends = range(window, data["iterations"] + 1, window)
            check_versions(simulation, ends, alive, simple)


def check_versions(simulation: Simulation, ends: range, alive: set[int], simple: bool) -> None:
    """Check the versions after each of these iterations; `simple`: clients that fetch at one timestamp share."""
    params = {0: np.array(simulation.server.params)}
    for end in ends:
        try:
            simulation.process_until(Length(end))
        except Diverged:
            return
        params[simulation.server.timestamp] = np.array(simulation.server.params)
        state = simulation.take_state()
        stamps, shared = state["holdings.timestamps"].tolist(), state["holdings.shared"].tolist()
        spare = len(getattr(simulation, "_spare", ()))  # that no client fetched into
        tables = [
            name for name in state if re.search(r"\.own\.[a-z]\w*\.\d+$", name)
        ]  # what the server keeps of clients
        assert len(alive) - spare == len(stamps) + len(tables)
        assert spare <= ends.step
        assert not simple or len(set(stamps)) == len(stamps)
        ours = [number for number, one in enumerate(shared) if one]
        assert len({stamps[number] for number in ours}) == len(ours)
        for number in ours if ends.step == 1 else ():
            assert state[f"holdings.version.{number}"].tobytes() == params[stamps[number]].tobytes()


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


def test_versions_where_a_fetch_passes_unexpectedly(tmp_path: Path) -> None:
    """Then events of the window are left to a later one, with the arrays that they were given."""
    data = {
        "iterations": 800, "data": {"name": "digits", "train": 50}, "model": {"hidden": [12]}, "seed": 0,
        "clients": {"count": 6, "batch_size": 1},
        "server": {"name": "fasgd", "lr": 0.02, "gamma": 0.3, "beta": 0.3},  # so that the gate's mean of v jumps
        "dispatcher": {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 0.05}}}, "evaluation": {"every": 800},
    }  # fmt: skip
    versions(resolve(data).plain(), tmp_path)
