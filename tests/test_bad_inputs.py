"""What a user can get wrong in YAML, overrides, data files and options: random cases, and those that once did harm."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]


def limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (3 * 10**9, 3 * 10**9))


@pytest.mark.parametrize(
    ("count", "seed"), [(500, 0), pytest.param(10_000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_random_ones(count: int, seed: int, tmp_path: Path) -> None:
    words = ["-m", "tests.try_bad_inputs", str(tmp_path), "--count", str(count), "--seed", str(seed)]
    ended = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=Path(__file__).parents[1],
        preexec_fn=limit_memory,
        capture_output=True,
        text=True,
        check=False,
    )
    *failed, last = ended.stdout.splitlines() or [""]
    assert failed == []
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert sum(json.loads(last)["tried"].values()) == count
