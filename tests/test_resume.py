"""What `--resume` takes for done: whole files of the same experiment, by the same code of one's own."""

import csv
import hashlib
import importlib.util
import os
import py_compile
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.resolution import resolve
from fredsim.errors import DataError
from fredsim.runs.folder.folders import locked, withdraw
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.folder.run_files import summary_text
from fredsim.runs.single.prepared import check_data
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
OwnServer = Callable[..., str]


@pytest.fixture
def installed(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let an installed package give classes short names: `kind="module:Class"` gives `their_kind`."""

    def install(**classes: str) -> None:
        points = {f"fredsim.{kind}s": EntryPoint(f"their_{kind}", classes[kind], kind) for kind in classes}
        monkeypatch.setattr(
            "fredsim.config.registry.entry_points", lambda group: [points[group]] if group in points else []
        )
        monkeypatch.syspath_prepend(small_yaml.parent)

    return install


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs(folder: Path) -> list[Path]:
    """The folders of a sweep's runs, in its order."""
    return [folder / row["run"] for row in rows(folder)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "summary.json"}


def written(folder: Path) -> int:
    return (folder / "summary.json").stat().st_mtime_ns


GONE = ("params.safetensors", "params_raw.safetensors", "metrics.csv", "staleness.csv", "probe.csv", "config.yaml")


def test_a_run_whose_files_are_gone_or_damaged_is_done_again(small_yaml: Path, command: Command) -> None:
    parts = ("probe={every: 10}", "average={name: window, rate: 0.5, min_window: 2}")
    words = ("run", small_yaml, *parts, "sweep={seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]}", "--out", "out")
    assert command(*words, "--quiet") == (0, "", "")
    folders = runs(Path("out"))
    before, times = [contents(folder) for folder in folders], [written(folder) for folder in folders]
    for folder, name in zip(folders, GONE, strict=False):
        (folder / name).unlink()
    (folders[6] / "metrics.csv").write_bytes(before[6]["metrics.csv"][:-5])
    (folders[7] / "params.safetensors").write_bytes(before[7]["params.safetensors"][:-1])
    code, _, messages = command(*words, "--resume")
    assert code == 0
    assert messages.startswith("9 runs, 1 of them finished before\n")
    for number, name in enumerate((*GONE, "metrics.csv", "params.safetensors")):
        assert f"seed={number} is done again: {folders[number] / name}" in messages
    assert [contents(folder) for folder in folders] == before
    assert [a == b for a, b in zip(times, map(written, folders), strict=True)] == [False] * 8 + [True]


EDITED: dict[str, Callable[[bytes], bytes]] = {
    "probe.csv": lambda content: b"",
    "staleness.csv": lambda content: content.partition(b"\n")[0] + b"\n",
    "metrics.csv": lambda content: b"".join(content.splitlines(keepends=True)[:-2] + content.splitlines(True)[-1:]),
    "params.safetensors": lambda content: content[:-4] + bytes([content[-4] ^ 1]) + content[-3:],
    "summary.json": lambda content: b"[" * 100_000,
}


def test_whole_files_that_were_edited(small_yaml: Path, command: Command) -> None:
    words = ("run", small_yaml, "probe={every: 10}", "evaluation.every=10", "sweep={seed: [0, 1, 2, 3, 4, 5]}")
    assert command(*words, "--out", "out", "--quiet") == (0, "", "")
    folders = runs(Path("out"))
    before = [contents(folder) for folder in folders]
    for folder, (name, edit) in zip(folders, EDITED.items(), strict=False):
        (folder / name).write_bytes(edit((folder / name).read_bytes()))
    code, _, messages = command(*words, "--out", "out", "--resume")
    assert code == 0
    assert messages.startswith("6 runs, 1 of them finished before\n")
    for number, name in enumerate(EDITED):
        says = "is damaged" if name == "summary.json" else "is not as the run wrote it"
        assert f"seed={number} is done again: {folders[number] / name}" in messages
        assert says in messages
    assert [contents(folder) for folder in folders] == before


def test_a_diverged_run_is_done_and_another_experiments_is_not(small_yaml: Path, command: Command) -> None:
    words = ("run", small_yaml, "sweep={server.lr: [1.0e+30, 0.1, 0.2]}", "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    folders = runs(Path("out"))
    assert Result(folders[0]).summary["status"] == "diverged"
    for name in set(contents(folders[1])) - {"config.yaml"} | {"summary.json"}:  # whole, but another experiment's
        (folders[2] / name).write_bytes((folders[1] / name).read_bytes())
    times = [written(folder) for folder in folders]
    assert command(*words, "--resume") == (0, "", "")
    assert [a == b for a, b in zip(times, map(written, folders), strict=True)] == [True, True, False]
    assert Result(folders[2]).summary["digest"] != Result(folders[1]).summary["digest"]


def test_what_a_run_could_not_claim_stays(small_yaml: Path, command: Command) -> None:
    """A run is refused where config.yaml was edited or damaged, or another process writes: its record is kept."""
    words = ("run", small_yaml, "sweep={seed: [0, 1, 2, 3]}", "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    folders = runs(Path("out"))
    configs = [(folder / "config.yaml").read_text(encoding="utf-8") for folder in folders]
    before = [(folder / "summary.json").read_bytes() for folder in folders]
    (folders[0] / "config.yaml").write_text(configs[0].replace("lr: 0.1", "lr: 0.2"), encoding="utf-8")
    (folders[1] / "config.yaml").write_text("[", encoding="utf-8")
    (folders[2] / "params.safetensors").unlink()  # so that it is done again
    with locked(folders[2]):
        code, _, messages = command(*words, "--resume")
    assert (code, messages.count("holds another experiment"), messages.count("another process writes")) == (2, 2, 1)
    assert [row["status"] for row in rows(Path("out"))] == ["failed"] * 3 + ["finished"]
    assert [(folder / "summary.json").read_bytes() for folder in folders] == before
    for folder, config in zip(folders, configs, strict=True):
        (folder / "config.yaml").write_text(config, encoding="utf-8")
    assert command(*words, "--resume") == (0, "", "")
    assert [row["status"] for row in rows(Path("out"))] == ["finished"] * 4
    assert [(folder / "summary.json").read_bytes() == old for folder, old in zip(folders, before, strict=True)] == [
        True, True, False, True,
    ]  # fmt: skip


def test_a_record_is_withdrawn_by_a_run_that_fails_before_it_begins(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", small_yaml, "sweep={seed: [0, 1, 2]}", "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    folders = runs(Path("out"))
    (folders[0] / "params.safetensors").unlink()
    (folders[1] / "summary.json").write_text("[", encoding="utf-8")

    def fail(*_: object) -> None:
        raise DataError("gone")

    monkeypatch.setattr("fredsim.runs.single.execution.prepare", fail)
    assert command(*words, "--resume")[0] == 2
    assert [row["status"] for row in rows(Path("out"))] == ["failed", "failed", "finished"]
    assert [(folder / "summary.json").exists() for folder in folders] == [False, False, True]
    assert isinstance(results := fredsim.load("out"), Results)
    assert [name for name, _ in results.failures] == [folder.name for folder in folders[:2]]


PARTS = {
    "own_order": "from fredsim.dispatchers.round_robin import RoundRobin\n\nclass Order(RoundRobin):\n    pass\n",
    "own_gates": "class Gate:\n    def init(self, *parts):\n        pass\n\n"
    "    def passes(self, *asked):\n        return True\n",
    "own_squeeze": "class Whole:\n    def init(self, layout, streams):\n        pass\n\n"
    "    def compress(self, push, client, step):\n        return push, push.nbytes\n",
    "own_halves": "def half(t):\n    return 0.05\n",
}


def sha256(module: str) -> str:
    return hashlib.sha256(Path(f"{module}.py").read_bytes()).hexdigest()


@pytest.mark.parametrize("short", [False, True])
def test_a_summary_says_which_code_of_ones_own_was_run(
    short: bool, small_yaml: Path, command: Command, installed: Callable[..., None]
) -> None:
    for module, text in PARTS.items():
        Path(f"{module}.py").write_text(text, encoding="utf-8")
    classes = {"dispatcher": "own_order:Order", "gate": "own_gates:Gate", "compressor": "own_squeeze:Whole"}
    if short:
        installed(**classes)
        classes = {kind: f"their_{kind}" for kind in classes}
    dispatcher, gate, compressor = classes.values()
    words = (
        f"dispatcher={{name: '{dispatcher}', push: {{'{gate}': {{}}}}}}", f"compress={{name: '{compressor}'}}",
        "server.lr={name: 'own_halves:half'}",
    )  # fmt: skip
    assert command("run", small_yaml, *words, "--quiet", "--out", "own") == (0, "", "")
    assert Result(Path("own")).summary["code"] == {module: sha256(module) for module in sorted(PARTS)}
    assert command("run", small_yaml, "--quiet", "--out", "plain") == (0, "", "")
    assert Result(Path("plain")).summary["code"] == {}


def test_of_a_torch_model_it_is_the_factorys_module(small_yaml: Path, command: Command) -> None:
    pytest.importorskip("torch")
    text = "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    Path("own_net.py").write_text(text, encoding="utf-8")
    assert command(
        "run", small_yaml, "model={name: 'torch:own_net:net', numerics: native}", "--quiet", "--out", "own"
    ) == (0, "", "")
    assert Result(Path("own")).summary["code"] == {"own_net": sha256("own_net")}


@pytest.mark.parametrize("name", ["own_changing:Plain", "their_server"])
def test_a_changed_server_has_its_runs_done_again(
    name: str, small_yaml: Path, own_server: OwnServer, command: Command, installed: Callable[..., None]
) -> None:
    module = Path("own_changing.py")
    module.write_text(own_server(), encoding="utf-8")
    installed(server="own_changing:Plain")
    words = ("run", small_yaml, f"server.name={name}", "sweep={seed: [0, 1]}", "--out", "out")
    assert command(*words, "--quiet") == (0, "", "")
    code, _, messages = command("verify", "out")
    assert (code, "warning" in messages) == (0, False)
    assert command(*words, "--resume")[2] == "2 runs, 2 of them finished before\n"
    before, digests = sha256("own_changing"), [Result(folder).summary["digest"] for folder in runs(Path("out"))]

    module.write_text(own_server("grad = grad * np.float32(0.5)\n"), encoding="utf-8")
    del sys.modules["own_changing"]
    now = sha256("own_changing")
    change = f"the module own_changing has changed (SHA-256 {before[:8]}… then, {now[:8]}… now)"
    code, output, messages = command("verify", "out")
    assert (code, output.count("different: metrics.csv, line 3")) == (1, 2)
    assert messages.count(f": {change}\n") == 2
    code, _, messages = command(*words, "--resume")
    assert code == 0
    assert f"seed=0 is done again: {change}\nseed=1 is done again: {change}\n" in messages
    after = [Result(folder).summary for folder in runs(Path("out"))]
    assert [run["code"] for run in after] == [{"own_changing": now}] * 2
    assert not {run["digest"] for run in after} & set(digests)
    with Path("out/runs.csv").open(newline="", encoding="utf-8") as file:
        assert [row["digest"] for row in csv.DictReader(file)] == [run["digest"] for run in after]

    summary = runs(Path("out"))[0] / "summary.json"
    earlier = {k: v for k, v in after[0].items() if k not in {"code", "sha256"}}
    summary.write_text(summary_text(earlier), encoding="utf-8")
    messages = command(*words, "--resume")[2]
    assert "1 of them finished before\nseed=0 is done again: the record has no digest of own_changing" in messages


def test_a_record_of_an_earlier_version_lacks_the_modules_of_short_names(
    small_yaml: Path, own_server: OwnServer, command: Command, installed: Callable[..., None]
) -> None:
    """Its run can be verified, with a warning; a record that is made now must have them, as of 1.0 those named."""
    Path("own_changing.py").write_text(own_server(), encoding="utf-8")
    installed(server="own_changing:Plain")
    ways = (("their_server", "1.0.0", 0), ("their_server", None, 1), ("own_changing:Plain", "1.0.0", 1))
    for name, version, code in ways:
        assert command("run", small_yaml, f"server.name={name}", "--quiet", "--out", name[:4])[0] == 0
        summary = Result(Path(name[:4])).summary
        versions = summary["versions"] | ({} if version is None else {"fredsim": version})
        seal(Path(name[:4]), summary | {"code": {}, "versions": versions})
        found, output, messages = command("verify", name[:4])
        assert (found, "different: summary.json: code is {} (recorded)" in output) == (code, code == 1)
        assert "the record has no digest of own_changing" in messages


def test_processes_of_another_version_do_no_run(
    small_yaml: Path, own_server: OwnServer, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this process has imported is not what is in the file by now, which the others would import."""
    Path("own_edited.py").write_text(own_server(), encoding="utf-8")
    words = ("server.name=own_edited:Plain", "sweep={seed: [0, 1]}", "--quiet", "--out", "out")
    assert command("run", small_yaml, *words) == (0, "", "")

    def edited(*arguments: Any, **how: Any) -> Any:
        Path("own_edited.py").write_text(own_server("grad = -grad\n"), encoding="utf-8")
        return check_data(*arguments, **how)

    monkeypatch.setattr("fredsim.runs.many.sweep.check_data", edited)
    code, _, messages = command("run", small_yaml, *words, "--jobs", 2)
    assert code == 2
    assert messages.count("has another version of own_edited than the one that started the sweep") == 1
    assert "(and so did seed=1-" in messages


def test_a_single_run_that_has_finished_is_left_out(small_yaml: Path, command: Command) -> None:
    words = ("run", small_yaml, "--out", "out")
    assert command(*words, "--quiet") == (0, "", "")
    before = written(Path("out"))
    code, output, messages = command(*words, "--resume")
    assert (code, messages) == (0, "out finished before, and is not run again\n")
    assert "results: out\n" in output
    assert command("run", "out", "--resume")[2] == messages  # into that folder, not results/small
    assert written(Path("out")) == before
    Path("out/staleness.csv").unlink()
    assert command(*words, "--resume")[2].startswith("out is done again: out/staleness.csv is gone")
    assert written(Path("out")) != before


def test_a_run_has_finished_by_its_own_configuration_too(small_yaml: Path, command: Command) -> None:
    """It has the numbers of rows that the run has found, which the experiment did not give."""
    x, y = np.random.default_rng(0).random((100, 64), np.float32), np.arange(100) % 10
    np.savez("some.npz", x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])
    words = ("run", small_yaml, "data={name: 'npz:some.npz'}", "--out", "out")
    assert command(*words, "--quiet") == (0, "", "")
    rows, before = Result(Path("out")).config["data"], written(Path("out"))
    assert (rows["train"], rows["validation"]) == (75, 15)
    for given in ((), ("data.train=75",), ("data.validation=15",)):
        assert command(*words, *given, "--resume")[2] == "out finished before, and is not run again\n"
    assert command("run", "out", "--resume")[2] == "out finished before, and is not run again\n"
    assert written(Path("out")) == before
    code, _, messages = command(*words, "data.train=74", "--resume")
    assert (code, "holds another experiment (data.train: 75 there, 74 here)" in messages) == (2, True)
    assert command(*words, "data.train=75", "--quiet") == (0, "", "")  # a record of these very rows
    assert command(*words, "data.train=75", "--resume")[2] == "out finished before, and is not run again\n"
    assert "finished before" not in command(*words, "--resume")[2]  # of all rows, which may be others


def test_an_experiment_that_comes_with_fredsim_goes_on_in_results(small_yaml: Path, command: Command) -> None:
    """Not in the folder of the package that its file lies in."""
    words = ("run", "quickstart", "sweep=null", "iterations=40", "--resume")
    assert command(*words, "--quiet") == (0, "", "")
    assert command(*words)[2].splitlines()[0] == "results/quickstart finished before, and is not run again"
    assert {path.parent for path in small_yaml.parent.rglob("summary.json")} == {Path("results/quickstart").resolve()}


def test_a_sweeps_folder_goes_on_with_what_the_command_line_gave(small_yaml: Path, command: Command) -> None:
    """Overrides in their order: the last one has the last word when they are read back, too."""
    given = ("server={name: sasgd, lr: 0.5}", "server.lr=0.2", "server={name: fasgd, lr: 0.01}")
    words = ("run", small_yaml, "sweep={seed: [0, 1]}", "select={over: seed}", *given, "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")
    tables = [Path("out", name).read_bytes() for name in ("sweep.yaml", "runs.csv", "best.csv")]
    first, second = runs(Path("out"))
    before = written(first)
    for again in (("run", "out", "--resume"), ("run", "out/sweep.yaml", "--resume", "--out", "out")):
        (second / "summary.json").unlink()
        code, _, messages = command(*again)
        assert (code, messages.startswith("2 runs, 1 of them finished before\n")) == (0, True)
        assert [Path("out", name).read_bytes() for name in ("sweep.yaml", "runs.csv", "best.csv")] == tables
    assert written(first) == before
    assert not Path("results").exists()


@pytest.mark.parametrize("given", ["['server.lr']", "{'server..lr': 1}"])
def test_recorded_overrides_that_are_no_mapping(given: str, small_yaml: Path, refused: Callable[..., None]) -> None:
    with small_yaml.open("a", encoding="utf-8") as file:
        file.write(f"sweep: {{seed: [0, 1]}}\noverrides: {given}\n")
    refused("run", small_yaml, says=(f"small.yaml:9: overrides: is {given}; it must map dotted keys to values",))


def test_only_the_record_of_this_experiment_is_withdrawn(small_yaml: Path) -> None:
    result = fredsim.run(small_yaml, out="one")
    other, own = (resolve(result.config | {"seed": seed}) for seed in (1, 0))
    withdraw(Path("one"), other)
    assert fredsim.Result("one").summary["status"] == "finished"
    withdraw(Path("one"), own)
    assert not Path("one/summary.json").exists()


def test_a_module_is_run_as_its_file_is_now(small_yaml: Path, own_server: OwnServer, command: Command) -> None:
    """Python keeps bytecode by the second of a file's last change and by its length: two versions may have both."""
    digests: list[str] = []
    for number in "121":
        module = Path("own_same.py")
        module.write_text(own_server(f"grad = grad * np.float32(0.{number})\n"), encoding="utf-8")
        os.utime(module, (1e9, 1e9))
        sys.modules.pop("own_same", None)
        compiled = importlib.util.cache_from_source(str(module))
        if not Path(compiled).exists():  # as a script that imports it leaves it
            py_compile.compile(str(module))
        out = f"out{len(digests)}"
        assert command("run", small_yaml, "server.name=own_same:Plain", "--quiet", "--out", out)[0] == 0
        summary = Result(Path(out)).summary
        assert summary["code"] == {"own_same": sha256("own_same")}
        digests.append(summary["digest"])
    assert digests[0] == digests[2] != digests[1]
