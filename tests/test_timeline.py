"""What clients do when: timelines, traces, shares of time, beside events made by hand and by a plain clock."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fredsim.config.document import dump_yaml
from fredsim.config.resolution import resolve
from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from fredsim.show.plots.spans import STATES, spans_of
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

COLUMNS = ("client", "number", "begun", "fetched", "staleness", "began_ns", "done_ns", "received_ns", "time_ns")
SECOND = 10**9


def recorded(
    folder: Path, rows: Sequence[Sequence[int]], clients: int, until: float, changes: Mapping[str, Any] | None = None
) -> Result:
    """Return a run whose folder has these events, a row each of COLUMNS, and no more than figures of them need."""
    folder.mkdir(parents=True)
    config = {
        "name": "made", "clients": {"count": clients, "batch_size": 1}, "server": {"name": "asgd", "lr": 0.1},
        "dispatcher": {"name": "clock", **(changes or {})}, "evaluation": {"every": 1, "unit": "seconds"}, "seed": 0,
        "data": {"name": "digits"}, "model": {"hidden": [8]}, "seconds": until, "events": True,
    }  # fmt: skip
    (folder / "config.yaml").write_text(dump_yaml(resolve(config).plain()), encoding="utf-8")
    summary = {
        "status": "finished", "digest": "0" * 64, "iterations": len(rows), "updates": len(rows), "time": until,
        "backend": "numba", "path": "snapshots", "versions": {}, "processor": "", "device": None,
        "validation_loss": 1.0, "validation_error": 0.5, "test_error": 0.5,
    }  # fmt: skip
    table = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=np.int64)
    table.insert(0, "iteration", range(len(rows)))
    table.to_parquet(folder / "events.parquet")
    seal(folder, summary)
    return Result(folder)


# Client 0 computes, sends, waits, is held until event 1, and fetches; client 1 arrives once; client 2 gives up a task;
# client 3 never arrives. Times in milliseconds.
BY_HAND = [
    # client, number, begun, fetched, staleness, began, done, received, time
    (0, 0, -1, 0, 0, 0, 100, 130, 150),
    (1, 0, -1, 2, 1, 20, 300, 310, 400),
    (2, 1, 1, 1, 0, 450, 600, 600, 620),
    (0, 1, 1, 1, 0, 440, 700, 725, 730),
]
MADE = [(*row[:5], *(10**6 * time for time in row[5:])) for row in BY_HAND]
SPENT = {  # milliseconds of each client, of one second
    0: {"computing": 100 + 260, "sending": 30 + 25, "waiting": 20 + 5, "held": 250, "fetching": 40, "unfinished": 270},
    1: {"computing": 280, "sending": 10, "waiting": 90, "fetching": 20, "unfinished": 600},
    2: {"computing": 150, "waiting": 20, "fetching": 50, "lost": 400, "unfinished": 380},
    3: {"unfinished": 1000},
}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The timeline made by hand, in the folder `made`."""
    monkeypatch.chdir(tmp_path)
    return recorded(Path("made"), MADE, 4, 1.0)


def read(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_timeline_made_by_hand(made: Result, drawn: list[Figure]) -> None:
    drawing = plot([made], Path("x.svg"), "waits")
    assert drawing.answer == "Computing: ASGD (19.8 %)"
    (legend,) = drawn[0].legends
    assert legend.get_title().get_text() == "the clients are"
    assert [text.get_text() for text in legend.get_texts()] == [*STATES]
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == len(STATES)
    (row,) = drawing.tables[0].rows
    sums = Counter[str]()
    for spent in SPENT.values():
        sums.update(spent)
    assert row == {"line": "ASGD", "runs": 1, "client-seconds": 4.0} | {state: sums[state] / 4000 for state in STATES}
    rows = plot([made], Path("x.svg"), "waits", Options(clients="0-3")).tables[0].rows
    for client, one in enumerate(rows):
        assert one["client"] == client
        assert {state: one[state] for state in STATES} == {
            state: SPENT[client].get(state, 0) / 1000 for state in STATES
        }
    bars = [
        (patch.get_y() + 0.35, patch.get_x(), patch.get_width())
        for patch in drawn[1].axes[0].patches
        if isinstance(patch, Rectangle) and patch.get_width()
    ]
    at = {client: sorted((x, width) for y, x, width in bars if round(y) == client) for client in SPENT}
    for client, spent in SPENT.items():  # one after the other, to the whole
        shown = [width for _, width in at[client] if width > 1e-12]
        assert sorted(shown) == pytest.approx(sorted(value / 1000 for value in spent.values()))
        assert at[client][-1][0] + at[client][-1][1] == pytest.approx(1)


def test_a_figure_of_it(made: Result, drawn: list[Figure]) -> None:
    """A lane a client, with each stretch where it was; a part of it, and of the clients, where that is asked for."""
    plot([made], Path("x.svg"), "timeline")
    (axes,) = drawn[0].axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2", "3"]
    assert axes.get_ylim() == (3.5, -0.5)  # the first lane above, and none cut
    assert (axes.get_xlim(), axes.get_xlabel()) == ((0, 1), "simulated time (s)")
    lanes: dict[int, list[tuple[float, float]]] = {}
    for collection in axes.collections:
        assert isinstance(collection, PolyCollection)
        for path in collection.get_paths():
            box = path.get_extents()
            lanes.setdefault(round((box.y0 + box.y1) / 2), []).append((box.x0, box.x1))
    ends = {0: [0, 100, 130, 150, 400, 440, 700, 725, 730, 1000], 2: [0, 400, 450, 600, 620, 1000], 3: [0, 1000]}
    for client, expected in ends.items():
        found = sorted(lanes[client])
        assert [begin for begin, _ in found] == pytest.approx([place / 1000 for place in expected[:-1]])
        assert [end for _, end in found] == pytest.approx([place / 1000 for place in expected[1:]])
    drawing = plot([made], Path("x.svg"), "timeline", Options(clients="0,2", begin=0.14, end=0.42))
    assert [row["client"] for row in drawing.tables[0].rows] == [0, 2]
    first = drawing.tables[0].rows[0]
    shares = {"waiting": 10, "held": 250, "fetching": 20}
    assert first["client-seconds"] == 0.28
    assert {state: first[state] for state in STATES} == {state: shares.get(state, 0) / 280 for state in STATES}
    assert "clients 0,2 do, from second 0.14, to second 0.42" in drawing.caption
    alone = plot([made], Path("x.svg"), "timeline", Options(clients="2-2", begin=0.14, end=0.42))
    assert "What client 2 does, from second 0.14" in alone.caption


@pytest.mark.usefixtures("made")
def test_a_trace_of_it(command: Command) -> None:
    """Complete events in microseconds, exact to the nanosecond, and names; without gaps, none over another."""
    assert command("plot", "made", "--kind", "timeline", "-o", "trace.json")[0] == 0
    text = Path("trace.json").read_text(encoding="utf-8")
    trace = json.loads(text, parse_float=Decimal)
    assert trace["displayTimeUnit"] == "ms"
    events = trace["traceEvents"]
    names = [event for event in events if event["ph"] == "M"]
    assert {(event["name"], *event["args"].values()) for event in names if event["tid"] == 3} == {
        ("thread_name", "client 2"), ("thread_sort_index", 2),
    }  # fmt: skip
    assert [event["args"] for event in names if event["name"] == "process_name"] == [{"name": "ASGD"}]
    stretches = [event for event in events if event["ph"] == "X"]
    assert len(names) + len(stretches) == len(events)
    for client, spent in SPENT.items():
        own = [event for event in stretches if event["tid"] == client + 1]
        assert all(event["pid"] == 1 and event["cat"] == "client" for event in own)
        sums = Counter[str]()
        for event in own:
            sums[event["name"]] += event["dur"] * 1000
        assert dict(sums) == {state: Decimal(10**6 * value) for state, value in spent.items()}
        assert own[0]["ts"] == 0
        assert all(one["ts"] + one["dur"] == other["ts"] for one, other in pairwise(own))
    (computed,) = [event for event in stretches if event["tid"] == 3 and event["name"] == "computing"]
    assert computed["args"] == {"task": 1, "iteration": 2, "begun": 1, "staleness": 0}
    code, out, _ = command("plot", "made", "--kind", "timeline", "-o", "t.json", "--clients", 2, "--from", 0.5)
    assert (code, out.splitlines()[-3:]) == (0, ["t.json", "t-table.csv", "t-table.md"])
    part = json.loads(Path("t.json").read_text(encoding="utf-8"))["traceEvents"]
    assert [(event["ts"], event["dur"]) for event in part if event["ph"] == "X"] == [
        (500000, 100000), (600000, 20000), (620000, 380000),
    ]  # fmt: skip
    assert float(read("t-table.csv")[0]["computing"]) == 0.2


def test_a_trace_has_every_nanosecond(tmp_path: Path) -> None:
    run = recorded(tmp_path / "x", [(0, 0, -1, 1, 0, 0, 1_000_007, 1_000_020, 3_002_000)], 1, 0.003002)
    plot([run], tmp_path / "x.json", "timeline")
    events = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"), parse_float=str)["traceEvents"]
    assert [(event["name"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"] == [
        ("computing", "0.000", "1000.007"), ("sending", "1000.007", "0.013"), ("waiting", "1000.020", "2001.980"),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "suffix"), [("timeline", "svg"), ("timeline", "json"), ("waits", "png")])
@pytest.mark.usefixtures("made")
def test_files_repeat(kind: str, suffix: str, command: Command) -> None:
    for name in ("one", "two"):
        assert command("plot", "made", "--kind", kind, "-o", f"new/{name}.{suffix}")[0] == 0
    for end in (f".{suffix}", "-table.csv"):
        assert Path(f"new/one{end}").read_bytes() == Path(f"new/two{end}").read_bytes()


def test_several_runs(made: Result, command: Command) -> None:
    recorded(Path("other"), MADE[:1], 4, 1.0)
    config = Path("other/config.yaml")
    config.write_text(config.read_text("utf-8").replace("seed: 0", "seed: 1"), encoding="utf-8")
    seal(Path("other"))
    assert command("plot", "made", "other", "--kind", "timeline", "-o", "two.json")[0] == 0
    events = json.loads(Path("two.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "ASGD, seed 0", 2: "ASGD, seed 1"}
    threads = {(event["pid"], event["tid"]) for event in events}
    assert threads == {(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7), (2, 8)}
    assert {event["pid"] for event in events if event["name"] == "computing"} == {1, 2}
    (row,) = plot([made, Result(Path("other"))], Path("x.svg"), "waits").tables[0].rows
    assert (row["runs"], row["client-seconds"]) == (2, 8)
    assert row["computing"] == (360 + 280 + 150 + 100) / 8000
    assert plot([made, Result(Path("other"))], Path("x.svg"), "waits", Options(panel=["seed"])).answer == ""


@pytest.mark.parametrize("style", [None, "column"])
def test_names_of_bars_have_room(style: str | None, made: Result, drawn: list[Figure]) -> None:
    """Also where they take several lines."""
    names = [f"ASGD with a name, of the number {number}, that has many letters" for number in range(5)]
    plot([made] * len(names), Path("x.svg"), "waits", Options(style=style), names)
    drawn[0].draw_without_rendering()
    texts = drawn[0].axes[0].get_yticklabels()
    assert all(text.get_text().count("\n") >= 2 for text in texts)
    boxes = [text.get_window_extent() for text in texts]
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))


@pytest.mark.parametrize(
    ("fetched", "changes", "expected"),
    [  # a client whose task 1 is missing: pushed at 10, the next begun after event 1, at 30, fetched until 40
        ((0, 1), {}, {"held": 20, "fetching": 10}),  # held until somebody fetched
        ((1, 1), {}, {"lost": 20, "fetching": 10}),  # it went on at once, and was stopped at event 1
        ((1, 1), {"outages": {"up": 1, "down": 1}, "link": {"latency": 1}}, {"lost": 30}),
    ],
)
def test_what_is_lost(
    fetched: tuple[int, int], changes: dict[str, Any], expected: dict[str, int], tmp_path: Path
) -> None:
    rows = [
        (0, 0, -1, fetched[0], 0, 0, 10, 10, 10),
        (1, 0, -1, fetched[1], 0, 0, 30, 30, 30),
        (0, 2, 1, 1, 0, 40, 50, 50, 50),
    ]
    spans = spans_of(recorded(tmp_path / "x", rows, 2, 50 / SECOND, changes))
    totals = dict(zip(STATES, spans.totals(2)[0].tolist(), strict=True))
    assert {state: value for state, value in totals.items() if value} == {"computing": 20, **expected}


def test_time_down_is_lost(tmp_path: Path) -> None:
    """Where fetches take no time, what is between a fetch and the next task; a dropped fetch takes none either."""
    rows = [(0, 0, -1, 1, 0, 0, 10, 10, 10), (0, 1, 0, 0, 0, 25, 30, 30, 30), (0, 2, 0, 1, 0, 37, 40, 40, 40)]
    for changes, states in (
        ({"outages": {"up": 1, "down": 1}}, {"lost": 22}),
        ({"outages": {"up": 1, "down": 1}, "link": {"down": 1e6}}, {"fetching": 15, "lost": 7}),
        ({"link": {"down": 1e6}}, {"fetching": 15, "held": 7}),
    ):
        run = recorded(tmp_path / str(states), rows, 1, 40 / SECOND, changes)
        totals = dict(zip(STATES, spans_of(run).totals(1)[0].tolist(), strict=True))
        assert {state: value for state, value in totals.items() if value} == {"computing": 18, **states}
