"""Makes folders of many runs out of one, in a second: other seeds and learning rates, other numbers, sealed again.

`python -m tests.many_runs RUN OUT [COUNT]` does so by hand, for a report that is large.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from fredsim.config.document import dump_yaml, read_document
from tests.sealing import seal

__all__ = ["many_runs"]

SERVERS = {"asgd": 0.5, "sasgd": 0.3, "fasgd": 0.2}  # how good each is
SEEDS = 5
DRAWN = ("validation_error", "validation_loss", "train_loss")


def many_runs(run: Path, out: Path, count: int) -> Iterator[Path]:
    """Yield the folders of `count` runs like that in `run`, whose numbers are other ones in every row."""
    config, summary = read_document(run / "config.yaml").data, json.loads((run / "summary.json").read_bytes())
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rng = random.Random(0)
    for number in range(count):
        name, level = list(SERVERS.items())[number // SEEDS % len(SERVERS)]
        seed, rate = number % SEEDS, float(f"{1e-3 * 1.25 ** (number // (SEEDS * len(SERVERS))):.3g}")
        folder = out / f"{number:03}"
        folder.mkdir(parents=True)
        server = {"name": name, "lr": rate, "weight_decay": 0.0}
        (folder / "config.yaml").write_text(dump_yaml(config | {"seed": seed, "server": server}), encoding="utf-8")
        (folder / "staleness.csv").write_bytes((run / "staleness.csv").read_bytes())
        (folder / "params.safetensors").write_bytes((run / "params.safetensors").read_bytes())
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        found = []
        for at, row in enumerate(rows):
            share = level ** (at / len(rows)) * rng.uniform(0.8, 1.2) * (1 + abs(rate - 0.02) ** 0.5)
            changed = {name: repr(share * (1 if name.endswith("loss") else 0.6)) for name in DRAWN if row[name]}
            found.append(row | changed | {"digest": digest})
        with (folder / "metrics.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        ended = {name: float(found[-1][name]) for name in ("validation_error", "validation_loss")}
        seal(folder, summary | ended | {"digest": digest, "test_error": round(ended["validation_error"] * 1.1, 4)})
        yield folder


if __name__ == "__main__":
    made = list(many_runs(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 300))
    print(f"{len(made)} runs in {sys.argv[2]}")  # noqa: T201
