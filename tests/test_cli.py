"""The command line: what each command writes, prints and ends with."""

import csv
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fredsim.config.document import read_document

Command = Callable[..., tuple[int, str, str]]

FILES = {"config.yaml", "metrics.csv", "staleness.csv", "summary.json", "params.safetensors"}
REPEATED = sorted(FILES - {"summary.json"})
COLUMNS = (
    "iteration timestamp time train_loss validation_loss validation_error potential_pushes pushes potential_fetches "
    "fetches bytes_pushed bytes_fetched staleness_mean staleness_p50 staleness_p95 staleness_max digest"
)
KEYS = {"status", "digest", "iterations", "validation_loss", "validation_error", "test_error"}
KEYS |= {"seconds", "seconds_evaluation", "iterations_per_second"}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return loaded


def contents(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in REPEATED]


def runs(folder: Path) -> dict[str, str]:
    """The digest of each run of a sweep."""
    return {row["run"]: row["digest"] for row in read_csv(folder / "runs.csv")}


@pytest.fixture
def sweep_yaml(small_yaml: Path) -> Path:
    text = small_yaml.read_text(encoding="utf-8") + "sweep:\n  seed: [0, 1]\n  server:\n"
    path = small_yaml.with_name("sweep.yaml")
    path.write_text(f"{text}    - {{name: asgd, lr: 0.1}}\n    - {{name: sasgd, lr: 0.2}}\n", encoding="utf-8")
    return path


@pytest.fixture
def done(small_yaml: Path, command: Command) -> Path:
    """A run in the current folder, with rows at 0, 20, 40 and 50."""
    assert command("run", small_yaml, "evaluation.every=20", "--quiet", "--out", "done") == (0, "", "")
    return Path("done")


def test_run_writes_its_files(done: Path) -> None:
    assert {path.name for path in done.iterdir()} == FILES
    rows = read_csv(done / "metrics.csv")
    assert " ".join(rows[0]) == COLUMNS
    assert [row["iteration"] for row in rows] == ["0", "20", "40", "50"]
    assert (done / "metrics.csv").read_bytes().count(b"\r") == 0
    staleness = read_csv(done / "staleness.csv")
    assert list(staleness[0]) == ["staleness", "count"]
    assert sum(int(row["count"]) for row in staleness) == 50 == int(rows[-1]["pushes"])
    found = summary(done)
    assert found.keys() >= KEYS
    assert (found["status"], found["iterations"], found["digest"]) == ("finished", 50, rows[-1]["digest"])
    assert found["iterations_per_second"] == found["iterations"] / found["seconds"]
    shapes = {name: values.shape for name, values in load_file(done / "params.safetensors").items()}
    assert shapes == {"W1": (64, 16), "b1": (16,), "W2": (16, 10), "b2": (10,)}


def test_run_says_what_it_did(small_yaml: Path, command: Command) -> None:
    code, output, messages = command("run", small_yaml)
    assert code == 0
    assert {path.name for path in Path("results/small").iterdir()} == FILES | {
        "error.png",
        "error-table.csv",
        "error-table.md",
    }
    digest = summary(Path("results/small"))["digest"]
    for part in ("ASGD", "finished", "results: results/small", "figure:  results/small/error.png"):
        assert part in output
    assert messages.startswith("small: finished after 50 iterations in ")
    assert messages.endswith(f", digest {digest[:12]}\n")


def test_the_saved_configuration_runs_as_it_is(done: Path, command: Command) -> None:
    assert command("run", done / "config.yaml", "--quiet", "--out", "file") == (0, "", "")
    assert command("run", done, "--quiet", "--out", "folder") == (0, "", "")
    assert contents(Path("file")) == contents(Path("folder")) == contents(done)


@pytest.mark.parametrize(
    ("words", "terminal"), [(["--quiet"], ""), ([], ""), ([], "1")], ids=["quiet", "lines", "a bar"]
)
def test_the_same_run_gives_the_same_bytes(
    words: list[str], terminal: str, done: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(done)
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", terminal)  # what makes a terminal of any stream
    for folder in (done, done, Path("other")):
        code, _, messages = command("run", "small.yaml", "evaluation.every=20", *words, "--out", folder)
        assert (code, "\x1b[" in messages) == (0, terminal == "1")
        assert contents(folder) == before


@pytest.mark.parametrize("server", ["asgd", "sasgd", "fasgd"])
def test_a_run_that_diverges(server: str, small_yaml: Path, command: Command) -> None:
    override = f"server={{name: {server}, lr: 1e30}}"
    assert command("run", small_yaml, override, "--quiet", "--out", "far") == (0, "", "")
    found = summary(Path("far"))
    assert found["status"] == "diverged"
    assert found["iterations"] < 50
    assert all(np.isfinite(values).all() for values in load_file("far/params.safetensors").values())
    assert read_csv(Path("far/metrics.csv"))[-1]["digest"] == found["digest"]
    assert command("verify", "far")[0] == 0


@pytest.mark.parametrize(
    ("server", "fraction", "means"),
    [("{name: sync, lr: 0.1}", 0.25, "aggregate: 5"), ("{name: sync, lr: 0.1}", 1.0, "aggregate: 20"),
     ("{name: delayed_nesterov, lr: 0.1}", 0.25, "every: 20")],
)  # fmt: skip
def test_show_says_what_null_stands_for_with_a_share_of_the_clients(
    server: str, fraction: float, means: str, small_yaml: Path, command: Command
) -> None:
    """A round takes a gradient of every client at work; N of delayed Nesterov is the number of all."""
    share = (f"server={server}", "clients.count=20", f"clients.fraction={fraction}")
    output = command("show", small_yaml, *share)[1]
    assert means in next(line for line in output.splitlines() if line.startswith("server:")).partition("#")[2]


@pytest.mark.parametrize("key", ["server", "dispatcher"])
def test_a_class_that_changes_the_folder_when_it_is_made(key: str, small_yaml: Path, command: Command) -> None:
    """What a command reads and writes afterwards is where it was."""
    body = "    def __init__(self, **hyper):\n        os.chdir('/')\n        super().__init__(**hyper)\n"
    text = "import os\n\nfrom fredsim import dispatchers, servers\n\n\n"
    for name, base in (("Server", "servers.ASGD"), ("Dispatcher", "dispatchers.Uniform")):
        text += f"class {name}({base}):\n{body}\n\n"
    small_yaml.with_name("moves_away.py").write_text(text, encoding="utf-8")
    before, hyper = Path.cwd(), {"server": ", lr: 0.1", "dispatcher": ""}
    for name in ("show", "plan"):
        words = f"{key}={{name: 'moves_away:{key.title()}'{hyper[key]}}}"
        assert command(name, small_yaml, words)[0] == 0
        assert Path.cwd() == before


def test_show(done: Path, sweep_yaml: Path, command: Command) -> None:
    code, output, messages = command("show", "small.yaml", "evaluation.every=20")
    assert (code, messages) == (0, "")
    Path("shown.yaml").write_text(output, encoding="utf-8")
    assert output == (done / "config.yaml").read_text(encoding="utf-8")
    assert read_document(Path("shown.yaml")).data["server"] == {"name": "asgd", "lr": 0.1, "weight_decay": 0.0}
    code, output, messages = command("show", sweep_yaml)
    assert (code, output.count("---\n"), output.count("name: small"), messages) == (0, 3, 4, "")
    assert "# seed=1,server=sasgd-lr0.2" in output
    assert {path.name for path in Path().iterdir()} == {"small.yaml", "sweep.yaml", "shown.yaml", "done"}


def test_verify(done: Path, command: Command) -> None:
    for words in ((), ("--backend", "numpy")):
        code, output, _ = command("verify", done, *words)
        assert (code, output) == (0, f"{done}: same bits\n")


def test_verify_names_the_first_difference(done: Path, command: Command) -> None:
    path = done / "metrics.csv"
    digests = [row["digest"] for row in read_csv(path)]
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(digests[2], "c" * 64).replace(digests[1], "b" * 64), encoding="utf-8")
    code, output, _ = command("verify", done)
    expected = f"metrics.csv, line 3, iteration 20: digest is {'b' * 64} (recorded) and {digests[1]} (now)"
    assert (code, output) == (1, f"{done}: different: {expected}\n")


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        (
            "metrics.csv",
            lambda data: data.replace(b"\n20,20,", b"\n20,21,"),
            "line 3, iteration 20: timestamp is 21 (recorded) and 20 (now)",
        ),
        (
            "metrics.csv",
            lambda data: data[: data.index(b"\n20,")] + data[data.index(b"\n40,") :],
            "metrics.csv, line 3: iteration is 40 (recorded) and 20 (now)\n",
        ),
        ("metrics.csv", lambda data: data.replace(b"\n", b"\r\n"), "metrics.csv: the bytes differ"),
        (
            "staleness.csv",
            lambda data: data + b"99,1\n",
            "staleness.csv, line 19 is 99,1 (recorded) and no more (now)\n",
        ),
        (
            "summary.json",
            lambda data: data.replace(b"finished", b"diverged"),
            "summary.json: status is diverged (recorded) and",
        ),
        ("params.safetensors", lambda data: data[:-1] + bytes([data[-1] ^ 1]), "params.safetensors: "),
    ],
)
def test_verify_sees(file: str, change: Callable[[bytes], bytes], says: str, done: Path, command: Command) -> None:
    before = (done / file).read_bytes()
    (done / file).write_bytes(change(before))
    code, output, _ = command("verify", done)
    assert code == 1
    assert says in output
    assert (done / file).read_bytes() == change(before) != before


def test_compare(done: Path, sweep_yaml: Path, command: Command) -> None:
    assert command("run", "small.yaml", "evaluation.every=20", "seed=1", "--quiet", "--out", "other")[0] == 0
    assert command("run", sweep_yaml, "--quiet", "--out", "swept")[0] == 0
    assert command("compare", done, done) == (0, f"{done} and {done}: same bits\n", "")
    code, output, messages = command("compare", done, "other", "--no-replay")
    assert (code, messages) == (1, "")
    first, second = output.splitlines()
    assert first.startswith("done and other: different: metrics.csv, line 2, iteration 0: digest is ")
    assert second == "  config.yaml: seed is 0 and 1"
    assert command("compare", "swept", "swept")[0] == 0
    assert command("compare", done, "swept") == (1, "different: done holds 1 runs, swept holds 4\n", "")


def test_compare_names_modules_that_differ(
    small_yaml: Path, own_server: Callable[..., str], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, lines in (("one", ""), ("other", "grad = -grad\n")):
        Path("rec.py").write_text(own_server(lines), encoding="utf-8")
        monkeypatch.delitem(sys.modules, "rec", raising=False)
        assert command("run", small_yaml, "server.name=rec:Plain", "--quiet", "--out", folder)[0] == 0
    code, output, _ = command("compare", "one", "other", "--no-replay")
    assert (code, output.splitlines()[1:]) == (1, ["  the module rec differs"])


def test_plot(done: Path, sweep_yaml: Path, command: Command) -> None:
    assert command("run", sweep_yaml, "--quiet", "--out", "swept") == (0, "", "")
    for folders in ([done], ["swept"], [done, "swept", "swept"]):
        code, output, messages = command("plot", *folders, "-o", "new/error.svg")
        assert (code, messages.count("note: swept/"), messages.count("\n")) == (0, *([len(folders) > 2] * 2))
        assert output.endswith("\nnew/error.svg\nnew/error-table.csv\nnew/error-table.md\n")


def test_sweep(sweep_yaml: Path, command: Command) -> None:
    assert command("run", sweep_yaml, "--quiet", "--out", "swept") == (0, "", "")
    rows = read_csv(Path("swept/runs.csv"))
    assert [(row["seed"], row["server.name"], row["server.lr"]) for row in rows] == [
        ("0", "asgd", "0.1"), ("0", "sasgd", "0.2"), ("1", "asgd", "0.1"), ("1", "sasgd", "0.2"),
    ]  # fmt: skip
    assert {path.name for path in Path("swept").iterdir()} == {"runs.csv", "sweep.yaml", *(row["run"] for row in rows)}
    for row in rows:
        folder = Path("swept", row["run"])
        assert {path.name for path in folder.iterdir()} == FILES
        assert (row["digest"], row["status"]) == (summary(folder)["digest"], "finished")
    assert len(set(runs(Path("swept")).values())) == 4
    code, output, _ = command("verify", "swept")
    assert (code, output.count("same bits")) == (0, 4)


def test_a_sweep_is_made_of_the_runs_it_lists(sweep_yaml: Path, command: Command) -> None:
    assert command("run", sweep_yaml, "--quiet", "--out", "swept")[0] == 0
    alone = ("small.yaml", "seed=1", "server={name: sasgd, lr: 0.2}", "--quiet", "--out", "alone")
    assert command("run", *alone) == (0, "", "")
    last = list(runs(Path("swept")))[-1]
    assert contents(Path("alone")) == contents(Path("swept", last))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["seed=7"], [("7", "asgd", "0.1"), ("7", "sasgd", "0.2")]),
        (["seed=[7, 8]"], [(s, *server) for s in "78" for server in (("asgd", "0.1"), ("sasgd", "0.2"))]),
        (["server={name: asgd, lr: 3.0}"], [("0", "asgd", "3.0"), ("1", "asgd", "3.0")]),
        (["seed=7", "server.lr=0.5"], [("7", "asgd", "0.5"), ("7", "sasgd", "0.5")]),
        (["seed=7", "server.name=fasgd"], [("7", "fasgd", "0.1"), ("7", "fasgd", "0.2")]),
        (["server={name: asgd, lr: 3.0}", "sweep={seed: [5, 6]}"], [("5", "asgd", "3.0"), ("6", "asgd", "3.0")]),
        (["cases=[{server: {name: asgd, lr: 3.0}}]", "sweep={server.lr: [1, 2]}", "server.lr=0.5", "sweep=null"],
         [("0", "asgd", "0.5")]),
    ],
)  # fmt: skip
def test_overrides_of_a_sweep(
    overrides: list[str], expected: list[tuple[str, ...]], sweep_yaml: Path, command: Command
) -> None:
    assert command("run", sweep_yaml, *overrides, "--quiet", "--out", "swept") == (0, "", "")
    found = [read_document(Path("swept", name, "config.yaml")).data for name in runs(Path("swept"))]
    assert [(str(d["seed"]), d["server"]["name"], str(d["server"]["lr"])) for d in found] == expected


def test_an_override_can_take_the_sweep_away(sweep_yaml: Path, command: Command) -> None:
    assert command("run", sweep_yaml, "sweep=null", "--quiet", "--out", "one") == (0, "", "")
    assert {path.name for path in Path("one").iterdir()} == FILES
    words = ["server={name: fasgd, lr: 0.5}", "sweep=null"]  # of what the sweep varies, in either order
    shown = [command("show", sweep_yaml, *ordered)[1] for ordered in (words, words[::-1])]
    assert shown[0] == shown[1]
    assert "server: {name: fasgd, lr: 0.5" in shown[0]
    assert "server: {name: fasgd, lr: 0.7" in command("show", sweep_yaml, *words, "server.lr=0.7")[1]


def test_resume_skips_what_has_finished(sweep_yaml: Path, command: Command) -> None:
    words = ("run", sweep_yaml, "--quiet", "--out", "swept")
    assert command(*words)[0] == 0
    table = Path("swept/runs.csv").read_bytes()
    paths = [Path("swept", name, "summary.json") for name in runs(Path("swept"))]
    paths[1].unlink()
    paths[2].write_text("[", encoding="utf-8")
    times = [[path.stat().st_mtime_ns if path.exists() else 0 for path in paths]]
    for more in (["--resume"], []):
        assert command(*words, *more)[0] == 0
        assert Path("swept/runs.csv").read_bytes() == table
        times.append([path.stat().st_mtime_ns for path in paths])
    changes = [[a != b for a, b in zip(*pair, strict=True)] for pair in pairwise(times)]
    assert changes == [[False, True, True, False], [True, True, True, True]]
