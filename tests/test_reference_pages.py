"""What the pages of results/reference say is what the tables beside them have."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.show.catalogue.names import names_by_kind

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "results/reference"


def page(name: str) -> str:
    """Return the text of a page with single spaces between words."""
    return " ".join((ROOT / name).read_text("utf-8").split())


def test_servers_whose_runs_were_killed() -> None:
    killed = {name.partition(",")[0] for name in pd.read_csv(REFERENCE / "trust/kills.csv")["server"]}
    assert killed == set(names_by_kind()["servers"])
    assert "of all servers that were killed" in page("docs/trust.md")


def test_options_of_commands_exist() -> None:
    """Of the programs in tests/, which no other test of pages runs."""
    found: dict[str, dict[str, Path]] = {}
    for path in REFERENCE.rglob("*.md"):
        for words in re.findall(r"\bpython (-m tests\.\w+|tests/\S+\.py)([^`\n;]*)", path.read_text("utf-8")):
            given = [word for word in shlex.split(words[1]) if word.startswith("--")]
            found.setdefault(words[0], {}).update(dict.fromkeys(given, path))
    assert {"tests/golden/matrix.py", "-m tests.kill_runs", "-m tests.mutations", "-m tests.live_runs"} <= {*found}
    for program, options in found.items():
        run = [sys.executable, *program.split(), "--help"]
        text = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for option, path in options.items():
            assert re.search(rf"{option}\b", text), f"{path}: {program} has no {option}"


def rates_tried(name: str) -> dict[str, list[float]]:
    """Return the learning rates of each server of an experiment of time/, in order."""
    rates: dict[str, set[float]] = {}
    for server in parse_yaml((ROOT / f"experiments/time/{name}.yaml").read_text("utf-8"), name)["sweep"]["server"]:
        rates.setdefault(server["name"], set()).add(server["lr"])
    return {key: sorted(value) for key, value in rates.items()}


def test_best_rates_at_an_edge() -> None:
    rates = rates_tried("strategies")
    best = pd.read_csv(REFERENCE / "time/strategies/best.csv")
    there = best[np.isfinite(best["mean_seconds_to"])]
    edges = [
        (there["server.lr"] == there["server.name"].map(lambda name, end=end: rates[name][end])).sum()
        for end in (-1, 0)
    ]
    said = page("results/reference/time/README.md")
    assert f"A method gets there in {len(there)} of {len(best)} cells" in said
    assert f"In {edges[0]} of these the best rate is the largest tried, in {edges[1]} the smallest" in said
    inner = pd.read_csv(REFERENCE / "time/strategies_fasgd/best.csv")
    panels = [str(name) for name in inner if str(name).startswith("dispatcher.")]
    winners = inner.loc[inner.groupby(panels, dropna=False)["mean_seconds_to"].idxmin()]
    at_edge = (winners["server.inner.lr"] == 0.016).sum()
    assert f"0.016 is the best in {at_edge} of these {len(winners)} lines" in said


def test_errors_of_ternary_lenet() -> None:
    runs = pd.read_csv(REFERENCE / "terngrad/lenet/runs.csv")
    said = page("results/reference/terngrad/lenet/README.md")
    for row, column in (("test error after 5,000 updates", "test_error"), ("validation error", "validation_error")):
        assert f"| {row} | " + " | ".join(f"{100 * value:.2f} %" for value in runs[column]) + " |" in said
    assert "%" not in page("results/reference/terngrad/README.md")  # one page has the numbers of LeNet


def test_the_best_rate_of_each_cell() -> None:
    runs = pd.read_csv(REFERENCE / "fasgd/rates/runs.csv")
    said = page("results/reference/fasgd/README.md")
    for (clients, batch), some in runs.groupby(["clients.count", "clients.batch_size"]):
        cells = [f"{clients}, {batch}"]
        for name, rate in (("fasgd", 0.005), ("sasgd", 0.04)):
            one = some[some["server.name"] == name].set_index("server.lr")["validation_error"]
            where = "" if one.idxmin() == rate else f" (at {one.idxmin()})"
            cells += [f"{one[rate]:.4f}", f"{one.min():.4f}{where}"]
        assert "| " + " | ".join(cells) + " |" in said


def test_shares_of_fetches() -> None:
    rows = pd.read_csv(REFERENCE / "fasgd/fig3_fetch/rows.csv.xz")
    one = rows[rows["run"].str.startswith("fetch=bandwidth_awarec0.0625-")].set_index("iteration")["fetches"]
    first, last = (f"{(one[end] - one[end - 100_000]) / 100_000:.3f}" for end in (100_000, 1_000_000))
    said = f"at c = 1/16, {first} of the first 100,000 fetches pass and {last} of the last"
    assert said in page("results/reference/fasgd/README.md")
