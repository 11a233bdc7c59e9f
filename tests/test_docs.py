"""What the documents say of the numbers that come out, and of the files, is so."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import fredsim
from fredsim.config.partition import PARTITIONS
from fredsim.config.sweep.expansion import expand, open_source
from fredsim.runs.checkpoint.checkpoints import EVERY_MINUTE
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.single.execution import execute

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_a_server_in_twenty_lines() -> None:
    plain = blocks("docs/own_server.md", "python")[0]
    assert len([line for line in plain.splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("what", ["dispatcher", "clock", "gate", "compressor", "schedule"])
def test_one_of_ones_own(what: str, small_yaml: Path) -> None:
    (code,), (experiment,) = (blocks(f"docs/own_{what}.md", language) for language in ("python", "yaml"))
    Path(f"my_{what}s.py").write_text(code, encoding="utf-8")
    small_yaml.write_text(experiment, encoding="utf-8")
    ends = ["iterations=200", "seconds=null"]
    numpy = [*ends, "backend=numpy"]
    (run,) = expand(open_source(small_yaml), numpy).runs
    execute(run.experiment, Path("numpy"), stop_at=90, policy=EVERY_MINUTE)
    assert list(Path("numpy/checkpoint").glob("*.json"))  # and the run goes on from it
    one, other = (fredsim.run(small_yaml, [*ends, f"backend={backend}"], out=backend) for backend in ("numba", "numpy"))
    assert isinstance(one, Result)
    assert isinstance(other, Result)
    assert one.summary["digest"] == other.summary["digest"]
    usual = {
        "dispatcher": "dispatcher={name: uniform}",
        "clock": "dispatcher={name: clock}",
        "gate": "dispatcher.fetch=always",
        "compressor": "compress=null",
        "schedule": "server.lr=0.05",
    }
    plain = fredsim.run(small_yaml, [*ends, usual[what]], out="plain")
    assert isinstance(plain, Result)
    assert plain.summary["digest"] != one.summary["digest"]
    if what == "dispatcher":  # nobody comes again within eight arrivals
        assert one.metrics["staleness_mean"].iloc[-1] > 8
        sync = ["iterations=64", "server={name: sync, lr: 0.1}"]
        (run,) = expand(open_source(small_yaml), sync).runs
        execute(run.experiment, Path("held"), stop_at=40, policy=EVERY_MINUTE)
        assert list(Path("held/checkpoint").glob("*.json"))
        held = fredsim.run(small_yaml, sync, out="held")
        assert isinstance(held, Result)
        assert held.summary["updates"] == 4
    if what == "gate":
        assert 0 < one.summary["bytes_fetched"] < plain.summary["bytes_fetched"]
    if what == "compressor":
        sizes = [64 * 32, 32, 32 * 10, 10]
        assert one.summary["bytes_pushed"] == 200 * sum(4 + math.ceil(size * math.log2(7) / 8) for size in sizes)


def test_every_file_and_column_of_a_run_is_explained(small_yaml: Path) -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    changes = [
        "probe={every: 5, per_tensor: true}",
        "average={name: window}",
        "server={name: fasgd, lr: 0.01}",
        "evaluation={test: true, per_client: true, metrics: [top5]}",
    ]
    limited = ["events=true", "dispatcher={name: clock, compute: {limit: 2}}"]
    timed = ["events=true", "dispatcher={name: clock, link: {latency: 0.1}, push: {every: 2}}"]
    grid = ["sweep={server.lr: [0.01, 0.02], seed: [0, 1]}", "select={over: server.lr}", "figures=[]"]
    results = fredsim.run(small_yaml, [*changes, *grid], out="out")
    assert isinstance(results, Results)
    one = next(iter(results))
    clocked = [
        "dispatcher={name: clock}",
        "evaluation={every: 10}",
        "select={best: seconds_to, error: 0.8, over: seed}",
    ]
    timely = fredsim.run(small_yaml, [*clocked, "sweep={seed: [0, 1]}", "figures=[]"], out="timely")
    assert isinstance(timely, Results)
    skipped = {"server.lr", "seed", *one.summary["metrics"]}
    found = {
        "metrics.csv": [name for name in one.metrics if name not in one.summary["metrics"]],  # docs/losses.md
        "staleness.csv": [*one.staleness],
        "probe.csv": [
            name for name in one.probe if " of " not in name or name.endswith(" of W1")
        ],  # one tensor for all
        "clients.csv": [*one.clients],
        "events.parquet": [
            *fredsim.run(small_yaml, timed, out="timed").events,
            *fredsim.run(small_yaml, limited, out="limited").events,
        ],
        "summary.json": [*one.summary],
        "runs.csv": [name for name in [*results.runs, *timely.runs] if name not in skipped],
        "best.csv": [name for name in [*results.best, *timely.best] if name not in {"server.lr", "seed"}],
    }
    missing = [(file, name) for file, names in found.items() for name in names if f"`{name}`" not in sections[file]]
    files = {
        path.name
        for folder in (one.folder, results.folder, Path("timed"))
        for path in folder.iterdir()
        if path.is_file()
    }
    assert (missing, [name for name in files if f"| `{name}` |" not in text]) == ([], [])
    for file, names in found.items():  # and nothing else is
        rows = re.findall(r"^\| (`.*?) \| ", sections[file], re.MULTILINE)
        explained = [name for row in rows for name in re.findall(r"`(.*?)`", row)]
        others = {  # of other experiments
            "mean_validation_loss", "mean_gap", "mean_gradient_norm", "gap", "gradient_norm", "vmap", "model_files",
            "time", "live", "delay", "measured_by", "larger_is_better",
        }  # fmt: skip
        assert set(explained) - set(names) <= others, file


def test_shards(small_yaml: Path) -> None:
    (yaml,) = blocks("docs/shards.md", "yaml")
    changes = YAML(typ="safe").load(yaml)
    result = fredsim.run(small_yaml, [f"{key}={value}" for key, value in changes.items()], out="out")
    assert isinstance(result, Result)
    assert (len(result.clients), result.clients["samples"].sum()) == (20, 1200)
    text = (ROOT / "docs/shards.md").read_text(encoding="utf-8")
    for name, partition in PARTITIONS.items():
        assert name in text
        assert [key for key in partition.model_fields if key != "name" and f"`{key}`" not in text] in ([], ["shards"])


def test_a_sweep_has_as_many_runs(small_yaml: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(blocks("docs/sweeps.md", "yaml")[0])
    assert command("show", small_yaml)[1].count("# count=") == 48
