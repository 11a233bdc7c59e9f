"""The doors of fredsim: `show`, `plan` and `run` refuse the same, in sweeps by name; Python's errors are Python's."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import fredsim
from fredsim import errors
from fredsim.config.document import dump_yaml
from fredsim.config.resolution import resolve

Command = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[1]

SWEEP = """iterations: 20
data: {name: digits}
model: {hidden: [8]}
clients: {count: 4, batch_size: 4}
evaluation: {every: 10}
sweep:
  seed: [0, 1]
  server:
    [{name: asgd, lr: 0.1},
     {name: rennala, lr: 0.1},
     {name: sasgd, lr: 0.2}]
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "many.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return path


@pytest.mark.parametrize("action", ["show", "plan", "run"])
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((), ("many.yaml:10: server.", ": is required (in the run seed=0,server=rennala-lr0.1)")),
        (("seed=[0, 1, 1]", "server={name: asgd, lr: 0.1}"), ("override 'seed=[0, 1, 1]': seed: ", "twice")),
        (("sweep={seed: [5, 7, 5]}", "server={name: asgd, lr: 0.1}"), ("sweep", "seed=5", "twice")),
        (
            ("sweep={data.train: [900, 3]}", "server={name: asgd, lr: 0.1}"),
            ("many.yaml:4: clients.batch_size is 4", "3 training rows", "(in the run train=3)"),
        ),
        (("server={name: asgd, lr: 0.1}", "clients.batch_size=9000"), ("9000", "1200 training rows")),
        (
            ("sweep={clients.count: [2, 3]}", "server={name: asgd, lr: 0.1}", "clients.partition={lists: []}"),
            ("clients.partition",),
        ),
    ],
)
def test_commands_refuse_the_same_and_name_the_run(
    action: str, changes: tuple[str, ...], says: tuple[str, ...], sweep: Path, refused: Callable[..., None]
) -> None:
    refused(action, sweep.name, *changes, says=says)
    assert not Path("results").exists()


def test_what_all_runs_have_wrong_names_none(sweep: Path, command: Command) -> None:
    code, _, messages = command("show", sweep.name, "evaluation.evry=3", "server={name: asgd, lr: 0.1}")
    assert (code, "in the run" in messages, messages.count("\n")) == (2, False, 1)


def test_a_repeated_value_is_named_by_its_line(sweep: Path, refused: Callable[..., None]) -> None:
    lines = SWEEP.replace("[0, 1]", "\n    - 3\n    - 4\n    - 3").replace("rennala", "asgd").replace("0.2", "0.3")
    sweep.write_text(lines.replace("{name: asgd, lr: 0.1},\n     {", "{", 1), encoding="utf-8")
    refused("show", sweep.name, says=("many.yaml:10: seed: the sweep holds the run", "seed=3"))


#: By key: texts that stand for a value of the wanted type, and texts that do not.
QUOTED: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "model.hidden": (("[8]", "8", "8, 16", "[8, 16]", " [8] ", 8, 8.0), ("[8", "[[8]]", "a", "- 8", "{a: 1}", "null")),
    "server.lr": (("0.1", "1", "0,1", "1e-3", "10%"), ("abc", "1 2", "{name: step}", "[0.1]")),
    "seed": (("3", 3.0, "1,000"), ("1,00", "none", "3.5", "x", "[3]")),
    "events": (("true", "false", "yes", "off", 1), ("x", "2", 2)),
    "threads": (("none",), ("x",)),
    "clients": (("{count: 4, batch_size: 3}",), ("4", "[4]")),
}
CASES = [(key, value, at == 0) for key, both in QUOTED.items() for at, values in enumerate(both) for value in values]


@pytest.mark.parametrize(("key", "value", "meant"), CASES)
def test_a_suggestion_is_right(key: str, value: Any, meant: bool, digits_experiment: dict[str, Any]) -> None:
    """A suggestion is made for what can only mean one thing; with it, the experiment is valid."""

    def with_value(found: Any) -> dict[str, Any]:
        top, _, rest = key.partition(".")
        return digits_experiment | {top: {**digits_experiment[top], rest: found} if rest else found}

    with pytest.raises(fredsim.ConfigError) as caught:
        resolve(with_value(value))
    _, wrote, suggested = str(caught.value).partition(": write ")
    assert bool(wrote) == meant, caught.value
    if meant:
        resolve(with_value(YAML(typ="safe").load(suggested)))


def test_the_errors_are_exported() -> None:
    for name in ("ClusterError", "ConfigError", "DataError", "FredsimError", "OutputError", "SimulationError"):
        assert getattr(fredsim, name) is getattr(errors, name)
        assert name in dir(fredsim)


def test_python_is_told_in_python(tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    out, other = tmp_path / "out", digits_experiment | {"seed": 1}
    fredsim.run(digits_experiment, out=out)
    with pytest.raises(fredsim.OutputError, match=r"choose another folder by out=…, or remove it$"):
        fredsim.run(other, out=out)
    with pytest.raises(fredsim.DataError, match=r"by data_root=… or FREDSIM_DATA$"):
        fredsim.run(digits_experiment | {"data": {"name": "mnist"}}, out=tmp_path / "no", data_root=__file__)
    (tmp_path / "file").write_text("", encoding="utf-8")
    for jobs in (1, 2):
        with pytest.raises(fredsim.OutputError, match=r"choose another folder by out=…$"):
            fredsim.run(digits_experiment | {"sweep": {"seed": [0, 1]}}, out=tmp_path / "file" / "x", jobs=jobs)


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("curves", {"where": {"server.nme": "asgd"}}, r"^where=…: no run has a key 'server\.nme'"),
        ("curves", {"where": {"server.name": "sync"}}, r"^where=…: server\.name is sync in no run"),
        ("curves", {"x": "seconds"}, r"^x=… is 'seconds', and "),
        ("curves", {"y": "nothing"}, r"^y=…: is 'nothing'"),
        ("timeline", {"clients": "9999"}, r"^clients=…: names client 9999"),
        ("timeline", {"from_": 1e6}, r"^from_=…: is 1e\+06; "),
        ("timeline", {"from_": 1.0, "to": 1.0 + 2**-40}, r"^to=…: is 1; it must be later than from_=…, 1, "),
    ],
)
def test_figures_are_told_in_python(
    kind: str, options: dict[str, Any], says: str, tmp_path: Path, digits_experiment: dict[str, Any]
) -> None:
    clock = {"dispatcher": {"name": "clock"}, "events": True} if kind == "timeline" else {}
    result = fredsim.run(digits_experiment | clock, out=tmp_path / "out")
    with pytest.raises(fredsim.FredsimError, match=says) as caught:
        result.plot(kind, **options)
    assert [frame.name for frame in caught.traceback[1:]] == ["called"]  # nothing of what lies within fredsim


def test_the_command_is_told_in_options(small_yaml: Path, refused: Callable[..., None]) -> None:
    refused("run", small_yaml, "--out", small_yaml / "x", says=("choose another folder by --out",))


def test_messages_of_other_processes_are_worded_alike(
    tmp_path: Path, digits_experiment: dict[str, Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run's folder that cannot be written fails in the process of `--jobs`, in the words of the caller."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "two.yaml"
    path.write_text(dump_yaml(digits_experiment | {"sweep": {"seed": [0, 1]}}), encoding="utf-8")
    fredsim.run(path, out="out")
    for run in Path("out").glob("seed=*"):
        shutil.rmtree(run)
        run.write_text("no folder", encoding="utf-8")
    code, _, messages = command("run", path, "--resume", "--jobs", 2, "--quiet", "--out", "out")
    assert (code, messages.count("choose another folder by --out")) == (2, 2), messages
    failed = fredsim.sweep(path, resume=True, jobs=2, out="out")
    assert [text.endswith("choose another folder by out=…") for _, text in failed.failures] == [True, True]


@pytest.mark.parametrize(
    "wrong", ["'server.rate=0.1'", "'server.lr=-1'", "'model.hidden=8'", "'server.name=nobody'", "'server.lr=[1'"]
)
def test_a_traceback_is_short(wrong: str, tmp_path: Path) -> None:
    """It has the caller's line, the door's, and the message."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import fredsim

        fredsim.run("quickstart", ["sweep=null", {wrong}], out="out")
        """),
        encoding="utf-8",
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    lines = found.stderr.splitlines()
    assert (found.returncode, len(lines) <= 8, "pydantic" in found.stderr) == (1, True, False), found.stderr
    assert lines[-1].startswith("fredsim.errors.ConfigError: override ")
