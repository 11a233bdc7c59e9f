"""Kill runs of every server repeatedly, and check that they leave the same files as uninterrupted runs.

    python -m tests.kill_runs --kills 50 --out results/reference/trust

See tests/killing.py for how they are killed, tests/kill_cells.py for what is run.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.kill_cells import BACKENDS, cells
from tests.killing import Killed, kill

NEEDS = {"torch": ("torch",), "cuda": ()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill the runs that the options select; write the tables, and return 1 if a result differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill_runs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="of each run (default 50)")
    parser.add_argument("--backends", default=",".join(BACKENDS), help="a list with commas")
    parser.add_argument("--servers", help="only these, a list with commas")
    parser.add_argument("--kinds", help="only these kinds of runs, a list with commas")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--out", type=Path, help="the folder of the tables")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).parent))  # where own_modules is
    os.environ["FREDSIM_EMULATE"] = "1"
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a folder in memory: flushing a disk would only be slow
    gc.freeze()  # so that a forked child does not copy memory in its garbage collections
    found: list[Killed] = []
    began, processor = time.monotonic(), os.times()
    for backend in options.backends.split(","):
        if not all(map(find_spec, NEEDS.get(backend, ()))):
            print(f"{backend}: left out, {' and '.join(NEEDS[backend])} are not installed")  # noqa: T201
            continue
        for several in cells(
            backend, options.kills, *(value and value.split(",") for value in (options.servers, options.kinds))
        ):
            with tempfile.TemporaryDirectory(dir=folder) as work:
                for number, cell in enumerate(several):
                    seed = f"{options.seed} {backend} {cell.kind} {cell.server} {number}"
                    found.append(kill(cell, options.kills, Path(work), seed))
                    print(*row(found[-1]).values(), f"{found[-1].seconds:.1f} s", sep=" | ", flush=True)  # noqa: T201
    took = (
        f"{(time.monotonic() - began) / 60:.0f} minutes, {sum(os.times()[:4]) - sum(processor[:4]):.0f} s of one core"
    )
    same = sum(killed.result == "same" for killed in found)
    print(f"{same} of {len(found)} runs the same, {sum(len(killed.at) for killed in found)} kills, {took}")  # noqa: T201
    if options.out:
        write(options.out, [row(killed) for killed in found], took, sys.argv[1:] if arguments is None else arguments)
    return int(same < len(found))


def row(killed: Killed) -> dict[str, object]:
    """Return a row of the table."""
    cell = killed.cell
    return {
        "server": cell.server, "dispatcher": cell.dispatcher, "extras": ", ".join(cell.extras),
        "backend": cell.backend, "path": killed.path, "iterations": cell.data["iterations"], "runs": killed.runs,
        "kills": len(killed.at),
        "in a checkpoint": killed.in_checkpoint, "in another file": killed.in_files,
        "from a checkpoint": killed.resumed, "starts": killed.starts, "result": killed.result,
        "at iterations": " ".join(map(str, killed.at)),
    }  # fmt: skip


def write(folder: Path, rows: Sequence[Mapping[str, Any]], took: str, arguments: Sequence[str]) -> None:
    """Write kills.csv, and kills.md, which omits the iterations of the kills."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "kills.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    columns = list(rows[0])[:-1]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(str(one[name]) for name in columns)} |" for one in rows]
    names = ("kills", "in a checkpoint", "in another file", "starts", "from a checkpoint")
    text = TEXT.format(
        same=sum(one["result"] == "same" for one in rows),
        runs=len(rows),
        starting=f"{sum(one['at iterations'].split().count('-1') for one in rows):,}",
        **{name.replace(" ", "_"): f"{sum(int(one[name]) for one in rows):,}" for name in names},
        command=" ".join(["python -m tests.kill_runs", *arguments]),
        table="\n".join(lines),
        machine=f"Python {platform.python_version()}, numpy {version('numpy')}, numba {version('numba')}; {took}",
    )
    (folder / "kills.md").write_text(text, encoding="utf-8")


TEXT = """# Runs that were killed

{same} of {runs} experiments left the bytes of a run that nobody stopped, after {kills} kills by SIGKILL:
{in_a_checkpoint} of them while a file of a checkpoint was being written, renamed or removed, {in_another_file} while
another file was; {starting} before a start had computed anything. Of {starts} processes {from_a_checkpoint} continued
from a checkpoint, and none found one that was damaged.

Compared are all files of a run's folder, byte by byte: `config.yaml`, `metrics.csv`, `staleness.csv`, `clients.csv`,
`probe.csv`, `events.parquet`, `params.safetensors`, and `summary.json` without the entries about times; the digest is
compared, too. There must be no other files.

A kill counts when it hit a process before its run had ended. Each process is a fork of one that has imported fredsim
and computed three iterations of the same experiment. Four kills of ten come from outside, at a random moment after a
random iteration; the others at a random one of the system calls by which a run changes its folder, before it, after it,
or when a third of the bytes are written. Fifteen of a hundred fall into the start of a process, ten into the end of a
run. If a run ends before it was killed often enough, another run of the same experiment takes the remaining kills.
Checkpoints are written after each step of the loop, or every 2 or 20 ms, ten times that on `cuda`. The folder is in
memory: what reaches a disk when the power fails is not tested here. Groups of `events.parquet` begin with 64 rows, and
what `memory: 1` spills is in files of 1 MB.

`cuda` is an emulated device, `torch` a PyTorch module as the model. A run by `trace` replays the one above it.
[kills.csv](kills.csv) has the iteration of each kill, too (-1: while the process started).

{machine}:

```console
$ {command}
```

{table}
"""

if __name__ == "__main__":
    sys.exit(main())
