"""A few runs are killed a few times: what they leave is what a run leaves that nobody stops. See kill_runs.py."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KILLS = 8


def test_killed_at_random(tmp_path: Path) -> None:
    words = ("--kills", str(KILLS), "--backends", "numba", "--servers", "fasgd,soft_sync", "--kinds", "plain,network")
    command = [sys.executable, "-m", "tests.kill_runs", *words, "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "kills.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["result"] for row in rows] == ["same"] * 6
    assert {row["dispatcher"] for row in rows} >= {"clock", "trace"}
    assert all(int(row["kills"]) == KILLS for row in rows)
    assert sum(int(row["in a checkpoint"]) for row in rows) > 0
    assert sum(int(row["from a checkpoint"]) for row in rows) > KILLS
