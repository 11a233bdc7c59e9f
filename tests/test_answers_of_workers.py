"""What a worker of a cluster sends is data: names of files are those of a run, callbacks are text."""

import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fredsim.config.resolution import resolve
from fredsim.runs.checkpoint.transfer import check_chunk, write_chunk
from fredsim.runs.many.cluster import Assignments, checked_files
from fredsim.runs.processes.callbacks import as_text, call, from_text
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from fredsim.show.console import PlainConsole
from fredsim.show.progress import ConsoleMonitor, LineMonitor, TableMonitor
from fredsim.simulation.record.recorder import Row

RUN = {"config.yaml": b"name: x", "summary.json": b"{}", "metrics.csv": b""}
TINY = {
    "data": {"name": "digits"}, "model": {"hidden": [2]}, "clients": {"count": 2, "batch_size": 2}, "iterations": 1,
    "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 1},
}  # fmt: skip
BAD_NAMES = ["../../x", "/x", "x", "..", "", "metrics.csv/x", "checkpoint", "checkpoint/../x", "METRICS.CSV", 3, None]


@pytest.mark.parametrize("name", [*BAD_NAMES, "checkpoint/000000000001.json"])
def test_a_file_that_no_run_has_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="which no run has"):
        checked_files({**RUN, name: b""}, resolve(TINY))


def test_the_files_of_a_run_are_taken_as_they_are(tmp_path: Path) -> None:
    execute(resolve(TINY), tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert checked_files(files, resolve(TINY)) == files


def test_files_of_other_data_or_of_another_version_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(resolve(TINY), tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    data = json.loads(files["summary.json"])["data"]
    assert checked_files(files, resolve(TINY), data) == files
    with pytest.raises(ValueError, match="on other data than this machine has"):
        checked_files(files, resolve(TINY), "0" * 64)
    monkeypatch.setattr("fredsim.runs.many.cluster.fredsim_version", lambda: "0.0.9")
    with pytest.raises(ValueError, match=r"the files of fredsim .*, this is 0\.0\.9"):
        checked_files(files, resolve(TINY), data)


@pytest.mark.parametrize("answer", [None, [], b"", {}, {"config.yaml": b""}, {**RUN, "metrics.csv": "text"}])
def test_an_answer_that_is_no_run_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="it returned"):
        checked_files(answer, resolve(TINY))


@pytest.mark.parametrize(
    "chunk",
    [
        None, 3, (), ("metrics.csv", 0), ("metrics.csv", 0, b"x", 1), {"metrics.csv": 0}, "abc",
        *((name, 0, b"x") for name in [*BAD_NAMES, "params.safetensors", "summary.json", "checkpoint/1.json"]),
        ("metrics.csv", -1, b"x"), ("metrics.csv", 0.5, b"x"), ("metrics.csv", True, b"x"), ("metrics.csv", 0, "x"),
    ],
)  # fmt: skip
def test_a_chunk_of_something_else_is_refused(chunk: Any) -> None:
    with pytest.raises(ValueError, match="it is "):
        check_chunk(chunk)
    for fits in (("metrics.csv", 0, b"x"), ("checkpoint/000000000012.safetensors", 3, b""), ("config.yaml", 0, b"x")):
        assert check_chunk([*fits]) == fits


@pytest.mark.parametrize("content", [b"", b"x", b"[]", b"{}", b'{"iteration": 12}', b"\xff", b"[" * 10**5])
def test_a_checkpoint_that_is_none_is_not_written(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        write_chunk(tmp_path, ("checkpoint/000000000012.json", 0, content), keep=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class Noting(Observer):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in ("compiling", "begin", "advance", "row", "note", "end"):
            setattr(self, name, lambda *arguments, name=name: self.calls.append((name, *arguments)))


ROW = Row(1, 2, 3.5, None, 0.1, math.nan, 4, 5, 6, 7, 8, 9, None, 3, None, 4, "d" * 64, {"test": math.inf, "gap": None})


@pytest.mark.parametrize(
    "sent",
    [
        ("compiling",), ("begin", "label", 100, None, None), ("begin", "λ", None, 5, 1.5), ("advance", 3, 4, 0.25),
        ("row", ROW), ("note", "text"),
    ],
)  # fmt: skip
def test_a_callback_comes_as_it_was_sent(sent: tuple[Any, ...]) -> None:
    number, name, arguments = from_text(as_text(7, sent[0], sent[1:]))
    observer = Noting()
    call(observer, name, arguments)
    assert (number, repr(observer.calls)) == (7, repr([sent]))  # NaN is not equal to itself


class Harmful:
    def __reduce__(self) -> Any:
        return pytest.fail, ("code of a worker was run",)


@pytest.mark.parametrize(
    "message",
    [
        pickle.dumps(Harmful()), pickle.dumps((0, "note", ("x",))), None, 3, "", "nonsense", "[]", "[0]", "[" * 10**5,
        "{}", "null",
        *(json.dumps(one) for one in [
            [0, "end", ["x", {}]], [0, "__init__", []], [0, "calls", []], [0, "note", [3]], [0, "note", []],
            [0, "advance", ["1", 2, 3]], [0, "row", [{}]], [0, "row", [3]], ["0", "note", ["x"]], [0, 1, []],
            [0, "begin", [None, 1, 2, 3]], [0, "begin", ["x", None, None, None]],
            [0, "row", [{**dataclasses.asdict(ROW), "iteration": "x"}]],
        ]),
    ],
)  # fmt: skip
def test_what_is_no_callback_is_refused(message: Any) -> None:
    observer = Noting()
    with pytest.raises(ValueError):
        call(observer, *from_text(message)[1:])
    assert observer.calls == []


MESSAGES = [
    as_text(7, "row", (ROW,)), as_text(7, "advance", (1, 2, 3.0)), as_text(7, "begin", ("x", 10, None, None)),
    as_text(7, "advance", (None, None, None)), as_text(7, "begin", ("x", None, None, math.nan)),
    as_text(7, "row", (ROW,)), as_text(7, "begin", ("x", None, None, None)), "[" * 10**5, None,
    as_text(7, "compiling", ()), as_text(7, "compiling", ()),
]  # fmt: skip


@pytest.mark.parametrize("kind", [LineMonitor, TableMonitor])
def test_a_message_breaks_nothing_here(kind: type[ConsoleMonitor], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever it says, in whatever order: Dask's thread, which shows what comes, goes on."""
    handlers: list[Callable[[tuple[float, Any]], None]] = []
    client = SimpleNamespace(subscribe_topic=lambda _, handler: handlers.append(handler))
    with kind(PlainConsole(stderr=True)) as monitor:
        assignments = Assignments(client, [], monitor, lambda *_: None)
        assignments._observers[7] = monitor.observer()
        for message in MESSAGES:
            handlers[0]((0.0, message))
    shown = capsys.readouterr().err
    assert "a message that no worker of fredsim sends is ignored" in shown
    assert shown.count("compiling kernels") == 1  # whoever compiles how many
