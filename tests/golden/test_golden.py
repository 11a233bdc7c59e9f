"""The recorded digests, on every backend; a change of theirs must stand in the change log."""

import hashlib
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fredsim.compressors import COMPRESSORS
from fredsim.config.partition import PARTITIONS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.servers import SERVERS
from tests.conftest import EMULATED, needs_cuda

ROOT = Path(__file__).parents[2]


def load_make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", Path(__file__).with_name("make.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load_make()
RECORDED: dict[str, str] = json.loads(make.FILE.read_text(encoding="utf-8"))
EXPERIMENTS: dict[str, dict[str, Any]] = make.experiments()
#: Kernels run on one to three threads in turn; golden/matrix.py has each experiment with each number.
THREADS = {name: 1 + number % 3 for number, name in enumerate(RECORDED)}


def test_every_combination_is_recorded() -> None:
    assert RECORDED.keys() == EXPERIMENTS.keys()


def test_whatever_there_is_has_a_digest() -> None:
    found = EXPERIMENTS.values()
    assert {experiment["server"]["name"] for experiment in found} == set(SERVERS)
    assert {experiment["dispatcher"]["name"] for experiment in found if "name" in experiment.get("dispatcher", {})} == {
        *DISPATCHERS
    }
    copies = [gate for one in found for key in ("push", "fetch") for gate in one.get("dispatcher", {}).get(key, {})]
    assert {*copies, "always"} == set(GATES)
    partitions = {one["clients"]["partition"]["name"] for one in found if "partition" in one["clients"]}
    assert {*partitions, "lists"} == set(PARTITIONS)
    assert {experiment["compress"]["name"] for experiment in found if "compress" in experiment} == set(COMPRESSORS)


def cases() -> Iterator[object]:
    """Yield each experiment with each backend that has kernels for it.

    Of the pairs of a server and a dispatcher, NumPy and an emulated device have every fourth, by the sum of their
    numbers: so each server and each dispatcher is tried on both. The others take --slow.
    """
    servers, dispatchers = [*make.SERVERS], [*make.DISPATCHERS]
    for name, experiment in EXPERIMENTS.items():
        server, _, dispatcher = name.partition(" × ")
        place = (servers.index(server) + dispatchers.index(dispatcher)) % 4 if dispatcher else None
        for backend, turn in {"numba": place, "numpy": 0, "cuda": 2 if EMULATED else place}.items():
            if not make.has_kernels(experiment, backend):
                continue
            marks = [pytest.mark.slow] * (place not in (None, turn)) + [needs_cuda] * (backend == "cuda")
            yield pytest.param(name, backend, marks=marks, id=f"{name}-{backend}")


@pytest.mark.parametrize(("name", "backend"), [*cases()])
def test_digest(name: str, backend: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[name] | {"threads": THREADS[name]}
    assert make.digest(experiment, backend, tmp_path / "run") == RECORDED[name]


def test_the_change_log_names_the_recorded_digests() -> None:
    digest = hashlib.sha256(make.FILE.read_bytes()).hexdigest()[:16]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    numerics = re.findall(r"^### Numerics\n(.*?)(?=^##|\Z)", changes, flags=re.MULTILINE | re.DOTALL)
    assert numerics, "CHANGELOG.md has no section Numerics"
    assert digest in numerics[0], f"the newest section Numerics must say why the golden digests are now {digest}"
