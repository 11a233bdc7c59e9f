"""Random experiments leave the same bytes on every backend, path, number of threads and window, and when they go on.

A few dozen here; `--slow` tries a thousand, or as many as FREDSIM_EXPERIMENTS says (BEGIN:END for some of them).
"""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.partition import PARTITIONS
from fredsim.config.registry import KNOWN
from fredsim.config.resolution import resolve
from fredsim.errors import FredsimError
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.single.execution import execute
from tests.conftest import HAS_CUDA
from tests.random_experiments import WITHOUT_ONE, experiment

FEW, FEW_WAYS = 24, 2
#: Those of the few that diverge.
DIVERGE = {4, 16}
NETWORKS = ("mlp", "resnet", "vgg", "gpt")
FILES = (
    "metrics.csv", "staleness.csv", "params.safetensors", "params_raw.safetensors", "probe.csv", "clients.csv",
    "events.parquet",
)  # fmt: skip
#: What a path lets take its place: all of them give the same bytes.
PATHS = {"hand": ("fused", "snapshots"), "fused": ("snapshots",), "snapshots": ("snapshots",)}


def left_behind(data: dict[str, Any], way: dict[str, Any]) -> tuple[dict[str, bytes], str, str]:
    """Run an experiment; return the files that it leaves, how it ended, and its path."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = fredsim.run(data | way, out=Path(folder) / "run")
        except FredsimError as error:
            return {}, f"{type(error).__name__}: {error}", ""
        assert isinstance(result, Result)
        return contents(result)


def contents(result: Result) -> tuple[dict[str, bytes], str, str]:
    """Return the files of a run's folder, how it ended, and its path."""
    files = {name: path.read_bytes() for name in FILES if (path := result.folder / name).is_file()}
    summary = result.summary
    return files, f"{summary['status']} {summary['iterations']} {summary['test_error']}", summary["path"]


def gone_on(data: dict[str, Any], way: dict[str, Any], stops: Sequence[int]) -> tuple[dict[str, bytes], str, str]:
    """Run an experiment, stop it several times, after the stop was asked for as often as `stops` says; let it go on."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        try:
            resolved = resolve(data | way)
            for least in (*stops, 10**9):
                execute(resolved, place, stop=partial(asked_often, count(), least), policy=CheckpointPolicy(1e9))
                if Result(place).summary["status"] != "interrupted":
                    break
        except FredsimError as error:
            return {}, f"{type(error).__name__}: {error}", ""
        return contents(Result(place))


def asked_often(asked: Iterator[int], least: int) -> bool:
    """Say whether this was asked at least as often."""
    return next(asked) >= least


def beside(data: dict[str, Any], usual: str) -> tuple[str, ...]:
    """Return the paths that may take the place of the one that `auto` chose; fused needs a rule, hand does not."""
    refused = "ConfigError: experiment: path is fused"
    return tuple(
        path
        for path in PATHS.get(usual, ())
        if (usual, path) != ("hand", "fused")
        or not left_behind(data, {"backend": "numba", "path": path})[1].startswith(refused)
    )


def ways(rng: random.Random, data: dict[str, Any], usual: str, count: int) -> list[dict[str, Any]]:
    """Return ways to compute a run that auto gives this path."""
    paths = beside(data, usual) or ("auto",)
    drawn = [
        {
            "path": rng.choice(paths),
            "threads": rng.choice([1, 2, 3]),
            "window": rng.choice([None, 1, 2, 5]),
            "memory": rng.choice([None, 1, 3 * 4096]),  # so that little, or nothing, has room
        }
        for _ in range(count)
    ]
    return [{key: value for key, value in way.items() if value is not None} for way in drawn]


def compare(
    number: int, ways_of_each: int, *, device: bool = False, of: Callable[[int], dict[str, Any]] = experiment
) -> str:
    """Compare an experiment's runs with the oracle's; return how it ended."""
    data, rng = of(number), random.Random(number)
    network = "name" in data["model"]
    with np.errstate(all="ignore"):
        reference = left_behind(data, {"backend": "numpy"})
        fastest = left_behind(data, {"backend": "numba", "threads": rng.choice([1, 2])})
        others = ways(rng, data, fastest[2], ways_of_each)
        if device:
            others.append({"backend": "cuda"})
        for way, found in [({}, fastest), *((way, left_behind(data, {"backend": "numba"} | way)) for way in others)]:
            assert found[1] == reference[1], (number, way)
            for name, content in reference[0].items():
                assert found[0][name] == content, (number, way, name)
        if reference[0] and (ways_of_each > FEW_WAYS or network):
            stops, way = [rng.choice([1, 1, 2, 5]) for _ in range(3)], {"backend": "numba", "window": 1}
            assert gone_on(data, way, stops)[:2] == reference[:2], (number, stops)
    return reference[1].partition(" ")[0]


@pytest.mark.parametrize("number", range(FEW))
def test_a_few(number: int) -> None:
    """Most do not fail, which they would everywhere in the same way; and some diverge."""
    assert compare(number, FEW_WAYS) == ("diverged" if number in DIVERGE else "finished")


def names_of(data: dict[str, Any]) -> set[tuple[str, str]]:
    """The names in an experiment, each with what it is a name of."""
    clients, dispatcher = data["clients"], data["dispatcher"]
    found = {("server", data["server"]["name"]), ("dispatcher", dispatcher["name"])}
    found |= {("gate", name) for key in ("push", "fetch") for name in dispatcher.get(key, {})}
    found |= {(key, clients[key]["name"]) for key in ("optimizer", "partition") if key in clients}
    found |= {("compressor", data["compress"]["name"])} if "compress" in data else set()
    return found | {("network", data["model"].get("name", "mlp"))}


def test_what_experiments_are_of() -> None:
    """Hundreds of draws hold every name that there is."""
    known: set[tuple[str, str]] = {(kind, name) for kind, names in KNOWN.items() if kind != "average" for name in names}
    known |= {("partition", name) for name in PARTITIONS} | {("network", name) for name in NETWORKS}
    known = {one for one in known if one[1] not in WITHOUT_ONE}
    seen: set[tuple[str, str]] = set()
    for number in range(600):
        seen |= names_of(experiment(number))
        if seen == known:
            break
    assert seen == known


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_thousand(capsys: pytest.CaptureFixture[str]) -> None:
    """On every backend that there is: the device's kernels are emulated where there is no device."""
    begin, _, end = os.environ.get("FREDSIM_EXPERIMENTS", "0:1000").rpartition(":")
    ended: Counter[str] = Counter()
    for number in range(int(begin or 0), int(end)):
        ended[compare(number, 6, device=HAS_CUDA)] += 1
    with capsys.disabled():
        print(f"\n{sum(ended.values())} random experiments: {dict(ended)}")  # noqa: T201
    assert ended["finished"] > ended["diverged"] > 0 or sum(ended.values()) < 50
