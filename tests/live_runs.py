"""Run ten methods with real workers, kill a worker in the middle of each, and check the simulator's replay.

    python -m tests.live_runs --iterations 10000 --workers 4 --out results/reference/trust

Needs Dask's distributed, and Linux, where /proc tells which processes are workers.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from fredsim.show.tables import Table

EXPERIMENT: dict[str, Any] = {
    "name": "live",
    "data": {"name": "digits"},
    "model": {"hidden": [32]},
    "clients": {"count": 8, "batch_size": 4},
    "evaluation": {"every": 100},
}
GATE = {"bandwidth_aware": {"c": 0.02}}
METHODS: dict[str, dict[str, Any]] = {
    "ASGD": {"server": {"name": "asgd", "lr": 0.05}},
    "FASGD": {"server": {"name": "fasgd", "lr": 0.01}},
    "B-FASGD": {
        "server": {"name": "fasgd", "lr": 0.01},
        "dispatcher": {"name": "uniform", "push": GATE, "fetch": GATE},
    },
    "DC-ASGD": {"server": {"name": "dcasgd", "lr": 0.05}},
    "Sync, aggregate 4": {"server": {"name": "sync", "lr": 0.05, "aggregate": 4}},
    "Rennala": {"server": {"name": "rennala", "lr": 0.05, "batch": 5}},
    "Ringmaster, stop": {"server": {"name": "ringmaster", "lr": 0.05, "threshold": 4, "stop": True}},
    "FedBuff, 3 local steps": {
        "server": {"name": "fedbuff", "lr": 0.05},
        "clients": {"count": 8, "batch_size": 4, "local_steps": 3},
    },
    "ternary Sync": {"server": {"name": "ternary_sync", "lr": 0.05}},
    "ASGD, top-k": {"server": {"name": "asgd", "lr": 0.05}, "compress": {"name": "top_k", "k": 50}},
}
COMMAND = (sys.executable, "-m", "fredsim")


def workers_of(process: int) -> list[int]:
    """Return the ids of a process's worker processes, which Dask's nannies have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:  # it has ended
                continue
            if b"multiprocessing.spawn" in arguments and int(parent) == process:
                found.append(int(entry.name))
    return sorted(found)


def run(experiment: Mapping[str, Any], folder: Path, workers: int, delay: float) -> Mapping[str, Any]:
    """Run an experiment with real workers, kill one of them after a third of the run, and return the summary."""
    file = folder.with_suffix(".yaml")
    with file.open("w", encoding="utf-8") as opened:
        YAML().dump(dict(experiment), opened)
    arguments = ["live", file, "--workers", workers, "--delay", delay, "--out", folder, "--quiet"]
    with subprocess.Popen([*COMMAND, *map(str, arguments)]) as live:
        record = folder / "live.csv"
        goal = experiment["iterations"] // 3
        while live.poll() is None and (not record.exists() or record.read_bytes().count(b"\n") < goal):
            time.sleep(0.05)
        os.kill(workers_of(live.pid)[-1], signal.SIGKILL)
    if live.returncode:
        raise SystemExit(f"{folder.name}: exit code {live.returncode}")
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def main() -> int:
    """Run all methods, and print or write the table; return 1 if a replay differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.live_runs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--iterations", type=int, default=10_000, help="arrivals of each run (default 10,000)")
    parser.add_argument("--workers", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--delay", type=float, default=0.002, help="mean seconds slept before each computation (0.002)")
    parser.add_argument("--out", type=Path, help="the folder of the table")
    options = parser.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, changes) in enumerate(METHODS.items()):
            folder = Path(scratch, str(number))
            summary = run(
                EXPERIMENT | {"iterations": options.iterations} | changes, folder, options.workers, options.delay
            )
            verified = subprocess.run([*COMMAND, "verify", str(folder)], stdout=subprocess.PIPE, text=True, check=False)
            wrong += verified.returncode != 0 or not summary["live"]["works_redone"]  # one was killed
            outcome = verified.stdout.strip().rpartition(": ")[2] or f"exit code {verified.returncode}"
            speed = round(summary["iterations"] / summary["time"])
            redone = summary["live"]["works_redone"]
            rows.append({
                "method": name, "arrivals": summary["iterations"], "updates": summary["updates"], "a second": speed,
                "tasks done again": redone, "digest": summary["digest"][:12], "the simulator's replay": outcome,
            })  # fmt: skip
            print(*rows[-1].values(), sep="  ", flush=True)  # noqa: T201
    if options.out:
        text = TEXT.format(
            workers=options.workers, delay=options.delay, today=datetime.datetime.now(datetime.UTC).date(),
            cores=os.cpu_count(), table=Table(rows).markdown(),
        )  # fmt: skip
        (options.out / "live.md").write_text(text, encoding="utf-8")
    return bool(wrong)


TEXT = """# Real runs, replayed

Does the simulator reproduce training with real workers, bit for bit? The last column of the table says so for each
method: the simulator replayed the record of the run.

    python -m tests.live_runs --out results/reference/trust

Each method trained with `fredsim live`: 8 clients on {workers} worker processes and {cores} processors. In each task, a
client sleeps {delay} s in the mean before it computes. After a third of the run, one worker was killed by SIGKILL;
others did its unfinished tasks again. Then the simulator replayed the record and compared the digest, the rows and
the fingerprints of every event (`fredsim verify`). {today}.

{table}"""


if __name__ == "__main__":
    sys.exit(main())
