"""Runs with a user's own code are as if each were alone, in whatever odd place its class keeps something.

A few dozen cases here; `--slow` tries a thousand of each kind.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.alone import Alone
from tests.odd_places import OF_OBJECTS, PLACES, case

SMALL = {
    "iterations": 30,
    "data": {"name": "digits", "train": 60, "validation": 20},
    "model": {"hidden": [6]},
    "clients": {"count": 4, "batch_size": 2},
    "backend": "numpy",
}
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")


@pytest.fixture(scope="module")
def alone() -> Iterator[Alone]:
    process = Alone()
    yield process
    process.close()


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def together(number: int, alone: Alone) -> str:
    """Do three runs of a case in one process, and a sweep; each must be what it is alone. Return the place."""
    rng = random.Random(-number)
    files, changes, place = case(number, PLACES | OF_OBJECTS)
    seeds = [0, rng.choice([0, 1])]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, files)

        def run(seed: Any, out: str) -> dict[str, Any]:
            varied = {"sweep": {"seed": seed}} if isinstance(seed, list) else {"seed": seed}
            return {"experiment": {**SMALL, **changes, "name": "odd", **varied}, "out": str(folder / out)}

        expected = [alone(folder, [run(seed, f"alone{i}")])[0] for i, seed in enumerate(seeds)]
        assert all(len(digest) == 64 for digest in expected), expected
        found = alone(folder, [run(seed, f"one{i}") for i, seed in enumerate([*seeds, seeds[0]])])
        assert found == [*expected, expected[0]], (number, place, changes)
        if number % 4 == 0 and seeds[0] != seeds[1]:
            assert alone(folder, [run(seeds, "sweep")]) == [expected], (number, place, changes)
    return place


def continued(number: int, alone: Alone) -> str:
    """Stop a run of a case and continue it in another process; it must end as if it had never stopped."""
    rng = random.Random(-number)
    files, changes, place = case(number, PLACES | OF_OBJECTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, files)
        experiment = {**SMALL, **changes, "name": "odd", "path": rng.choice(["auto", "snapshots"])}
        (expected,) = alone(folder, [{"experiment": experiment, "out": str(folder / "whole")}])
        assert len(expected) == 64, expected
        for stop_at in sorted(rng.sample(range(1, 30), 2)):
            alone(folder, [{"experiment": experiment, "out": str(folder / "parts"), "stop_at": stop_at}])
        kept = any((folder / "parts" / "checkpoint").glob("*")) if (folder / "parts" / "checkpoint").is_dir() else False
        assert alone(folder, [{"experiment": experiment, "out": str(folder / "parts")}]) == [expected], (number, place)
    return "continues" if kept else "begins anew"


@pytest.mark.parametrize("number", range(16))
def test_a_few_together(number: int, alone: Alone) -> None:
    together(number, alone)


@pytest.mark.parametrize("number", range(100, 124))
def test_a_few_continued(number: int, alone: Alone) -> None:
    continued(number, alone)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("check", [together, continued])
def test_a_thousand(check: Any, alone: Alone, capsys: pytest.CaptureFixture[str]) -> None:
    begin, _, end = os.environ.get("FREDSIM_CASES", "0:1000").rpartition(":")
    ended = Counter(check(number, alone) for number in range(int(begin or 0), int(end)))
    with capsys.disabled():
        print(f"\n{ended.total()} cases {check.__name__}: {dict(ended)}")  # noqa: T201
