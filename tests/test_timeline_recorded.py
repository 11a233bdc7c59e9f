"""Timelines of recorded runs against a plain clock, and what cannot be drawn."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.runs.folder.results import Result
from fredsim.show.plots import Options, plot
from fredsim.show.plots.spans import STATES, spans_of
from tests.sealing import seal
from tests.test_timeline import made as made
from tests.test_timeline import read, recorded

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

COLUMNS = ("client", "number", "begun", "fetched", "staleness", "began_ns", "done_ns", "received_ns", "time_ns")
NAMED = ("client", "begun", "began_ns", "time_ns")
SECOND = 10**9


def plain_clock(
    server: str, clients: int, until: int, rng: np.random.Generator
) -> tuple[list[tuple[int, ...]], list[Counter[str]]]:
    """Simulate clients with random times; return the events, and the time that each client spent in each state."""
    spent = [Counter[str]() for _ in range(clients)]
    since = [Counter[str]() for _ in range(clients)]  # since a client's last push
    number, begun, task = [0] * clients, [-1] * clients, [(0, 0, 0, 0)] * clients
    queue: list[tuple[int, int, int]] = []
    rows: list[tuple[int, ...]] = []
    held: list[tuple[int, int]] = []

    def begin(client: int, now: int, event: int) -> None:
        """Let a client fetch, and begin a task."""
        fetch = int(rng.integers(0, 20)) if event >= 0 else 0
        times = np.cumsum([now + fetch, rng.integers(50, 300), rng.integers(0, 30), rng.integers(0, 30)]).tolist()
        since[client]["fetching"] += fetch
        task[client], begun[client] = tuple(times), event
        heapq.heappush(queue, (times[3], client, number[client]))

    for client in range(clients):
        begin(client, 0, -1)
    while queue and queue[0][0] <= until:
        now, client, of_task = heapq.heappop(queue)
        if of_task != number[client]:
            continue  # given up
        event = len(rows)
        began, done, received, _ = task[client]
        since[client].update(computing=done - began, sending=received - done, waiting=now - received)
        spent[client].update(since[client])
        since[client].clear()
        rows.append((client, number[client], begun[client], 0, 0, began, done, received, now))
        number[client] += 1
        goers = [client]
        if server == "rounds":
            held.append((client, now))
            goers = [one for one, _ in held] if len(held) == clients else []
            for one, when in held if goers else []:
                since[one]["held"] += now - when
            held = [] if goers else held
        other = int(rng.integers(clients))
        if server == "stops" and other != client and event % 3 == 0:
            number[other] += 1
            last = max((row[8] for row in rows if row[0] == other), default=0)
            since[other] = Counter(lost=now - last)
            goers.append(other)
        rows[-1] = (*rows[-1][:3], len(goers), *rows[-1][4:])
        for one in goers:
            begin(one, now, event)
    for client in range(clients):
        spent[client]["unfinished"] = until - max((row[8] for row in rows if row[0] == client), default=0)
    return rows, spent


LINKED = """
name: real
seconds: 40
data: {name: digits}
model: {hidden: [4]}
clients: {count: 3, batch_size: 2}
dispatcher:
  name: clock
  compute: {seconds: [1.0, 2.5, 3.0]}
  link: {latency: 0.25, up: [2000.0, 4000.0, 8000.0], down: 16000.0}
  server: {seconds: 0.125}
server: {name: asgd, lr: 0.1}
evaluation: {every: 10, unit: seconds}
events: true
figures:
  - {name: when, kind: timeline, clients: 1-2, from: 5, to: 20}
  - {name: who, kind: waits, clients: 0}
  - {name: error, x: seconds}
"""


@pytest.mark.parametrize(("server", "fraction"), [({"name": "sync", "aggregate": 3}, 1.0), ({"name": "asgd"}, 0.5)])
def test_a_client_that_was_held_and_then_down(
    server: dict[str, Any], fraction: float, simulate: Callable[..., Result]
) -> None:
    """It is held until it fetches, though others fetched before; only the tasks that it begins then are lost."""
    outages = {"up": {"name": "exponential", "mean": 8}, "down": 1.0}
    run = simulate({
        "iterations": 400, "data": {"name": "digits"}, "model": {"hidden": [4]}, "events": True,
        "clients": {"count": 6, "batch_size": 2, "fraction": fraction}, "server": server | {"lr": 0.1},
        "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}, "outages": outages},
    })  # fmt: skip
    held, lost, arrived = [0] * 6, [0] * 6, [0] * 6
    for client, begun, began, time in zip(*(run.events[name] for name in NAMED), strict=True):
        fetched = run.events["time_ns"][begun] if begun >= 0 else 0
        held[client] += fetched - arrived[client]
        lost[client] += began - fetched
        arrived[client] = time
    assert run.events["number"].sum() > sum(range(400 // 6)) * 6 + 100  # tasks were lost
    totals = spans_of(run).totals(6)
    assert totals[:, STATES.index("held")].tolist() == held
    assert totals[:, STATES.index("lost")].tolist() == lost


@pytest.mark.parametrize("server", ["asgd, lr: 0.1", "sync, lr: 0.1"])
def test_a_recorded_run(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """Each task, push and fetch takes what its experiment says; the figures that it asks for are drawn, and again."""
    monkeypatch.chdir(tmp_path)
    Path("real.yaml").write_text(LINKED, encoding="utf-8")
    assert command("run", "real.yaml", f"server={{name: {server}}}", "--out", "out")[0] == 0
    run = Result(Path("out"))
    spans = spans_of(run)
    size = 4 * ((64 + 1) * 4 + (4 + 1) * 10)
    assert run.summary["bytes_pushed"] == size * run.summary["iterations"]
    takes = {
        "computing": [1.0, 2.5, 3.0],
        "sending": [0.25 + size / up for up in (2000, 4000, 8000)],
        "fetching": [0.25 + size / 16000] * 3,
    }
    for client in range(3):
        for state, seconds in takes.items():
            some = (spans.client == client) & (spans.state == STATES.index(state))
            found = set((spans.end - spans.begin)[some].tolist())
            assert found == {round(seconds[client] * SECOND)}
            assert some.sum() >= (run.events["client"] == client).sum() - 1
    waiting = (spans.end - spans.begin)[spans.state == STATES.index("waiting")]
    assert waiting.min() == round(0.125 * SECOND)
    assert (spans.state == STATES.index("held")).any() == ("sync" in server)
    assert not (spans.state == STATES.index("lost")).any()
    assert spans.totals(3).sum() == 3 * 40 * SECOND
    (row,) = read("out/who-table.csv")
    assert float(row["computing"]) == int(spans.totals(3)[0, 0]) / (40 * SECOND)
    rows = read("out/when-table.csv")
    assert [(row["client"], row["client-seconds"]) for row in rows] == [("1", "15.0"), ("2", "15.0")]
    pictures = {name: Path(f"out/{name}.png").read_bytes() for name in ("when", "who", "error")}
    for name in pictures:
        Path(f"out/{name}.png").unlink()
    assert command("plot", "out")[0] == 0
    assert {name: Path(f"out/{name}.png").read_bytes() for name in pictures} == pictures
    assert "from: 5" in Path("out/config.yaml").read_text(encoding="utf-8")


def test_figures_of_events_need_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.chdir(tmp_path)
    Path("real.yaml").write_text(LINKED, encoding="utf-8")
    says = "figures.0.kind: is 'timeline', of events that are not recorded; give the experiment `events: true`"
    refused("run", "real.yaml", "events=false", "figures=[{name: a, kind: timeline}]", says=(says,))
    for figure, says in (
        ("{name: a, kind: waits, from: -1}", "figures.0.from: is -1"),
        ("{name: a, kind: waits, from: 3, to: 2}", "figures.0.to: is 2; it must be above `from`, which is 3"),
        ("{name: a, kind: waits, clients: 2-0}", "figures.0.clients: is '2-0'; it must be ids and ranges"),
        ("{name: a, kind: waits, clients: '1_0'}", "figures.0.clients: is '1_0'; it must be ids and ranges"),
        ("{name: a, kind: waits, clients: '0-10000000'}", "clients: is '0-10000000'; it must be ids and ranges"),
        ("{name: a, frm: 1}", "figures.0.frm: unknown key; did you mean 'from'?"),
    ):
        refused("run", "real.yaml", f"figures=[{figure}]", says=(says,))
    words = ("seconds=null", "iterations=9", "evaluation.unit=iterations", "events=false", "dispatcher={name: uniform}")
    says = "figures.0.kind: is 'waits', and the dispatcher uniform has no clock; give dispatcher: {name: clock}"
    refused("run", "real.yaml", *words, "figures=[{name: a, kind: waits}]", says=(says,))


def test_a_run_without_an_arrival(tmp_path: Path) -> None:
    run = recorded(tmp_path / "x", [], 2, 3.0)
    for kind, options in (("waits", Options()), ("timeline", Options()), ("timeline", Options(clients="1"))):
        rows = plot([run], tmp_path / "x.svg", kind, options).tables[0].rows
        assert {row["unfinished"] for row in rows} == {1.0}


def test_more_clients_than_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    """The first are drawn, for their first tasks; a sum over many clients for a long time does not overflow."""
    monkeypatch.chdir(tmp_path)
    second = SECOND * 10**8
    rows = [
        (
            client,
            number,
            number * 100 + client - 100 if number else -1,
            1,
            0,
            *[(number + part) * second for part in (0, 1, 1, 1)],
        )
        for number in range(40)
        for client in range(100)
    ]
    run = recorded(Path("many"), rows, 100, 40e8)
    drawing = plot([run], Path("x.svg"), "timeline")
    assert [row["client"] for row in drawing.tables[0].rows] == list(range(8))
    assert drawing.tables[0].rows[0]["client-seconds"] == 12e8
    (row,) = plot([run], Path("x.svg"), "waits").tables[0].rows
    assert (row["client-seconds"], row["computing"]) == (100 * 40e8, 1)
    says = "--clients: names 65 clients, and a figure has lanes for 64; a file trace.json has room for all"
    refused("plot", "many", "--kind", "timeline", "--clients", "0-64", says=(says,))
    for seed in range(9):
        config = recorded(Path(f"seed{seed}"), rows[:1], 100, 40e8).folder / "config.yaml"
        config.write_text(config.read_text("utf-8").replace("seed: 0", f"seed: {seed}"), encoding="utf-8")
        seal(config.parent, Result(config.parent).summary | {"digest": f"{seed}" * 64})
    refused(
        "plot",
        *(f"seed{seed}" for seed in range(9)),
        "--kind",
        "timeline",
        says=("a panel for each run, and these are 9; name the folders",),
    )


@pytest.mark.parametrize("kind", ["timeline", "waits"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--clients", "0-x"), "--clients: is '0-x'; it must be ids and ranges, such as 0-7 or 0,4,10-12"),
        (("--clients", "3-1"), "--clients: is '3-1'; it must be ids"),
        (("--clients", "-1"), "--clients: is '-1'; it must be ids"),
        (("--clients", ""), "--clients: is ''; it must be ids"),
        (("--clients", "0-4"), "--clients: names client 4; made has clients 0 to 3"),
        (("--from", "1"), "--from: is 1; made ends at 1 simulated seconds"),
        (("--from", "-1"), "--from: is -1; it must be a number of simulated seconds, 0 or more"),
        (("--to", "nan"), "--to: is nan; it must be a number of simulated seconds, 0 or more"),
        (("--from", "0.5", "--to", "0.5"), "--to: is 0.5; it must be above `from`, which is 0.5"),
        (("--x", "seconds"), "--x: is given; it goes with figures of the kind curves or ends"),
        (("--log",), "--log: is given; it goes with figures of the other kinds"),
    ],
)
@pytest.mark.usefixtures("made")
def test_what_cannot_be_shown(kind: str, words: tuple[str, ...], says: str, refused: Refused) -> None:
    refused("plot", "made", "--kind", kind, *words, says=(says,))
    assert not list(Path().glob("*.pdf"))


@pytest.mark.usefixtures("made")
def test_what_goes_with_other_kinds(refused: Refused) -> None:
    for words, kinds in {
        ("--clients", "0"): "timeline or waits",
        ("--from", "0.1"): "timeline or waits",
        ("--to", "0.1", "--kind", "ends"): "curves or timeline or waits",
    }.items():
        refused("plot", "made", *words, says=(f"{words[0]}: is given; it goes with figures of the kind {kinds}",))
    for end in ("0", "-1", "nan"):
        refused("plot", "made", "--to", end, says=(f"--to: is {end}; it must be a number above 0, where the x axis",))
    refused("plot", "made", "--kind", "timeline", "--by", "seed", says=("--by: is given; a timeline has a panel for",))
    refused(
        "plot", "made", "--kind", "waits", "-o", "x.json", says=("unknown suffix '.json'; choose .pdf, .svg, .png",)
    )
    refused("plot", "made", "--kind", "timeline", "-o", "x.gif", says=("choose .pdf, .svg, .png, .json",))
    Path("made/events.parquet").unlink()
    seal(Path("made"))
    refused(
        "plot", "made", "--kind", "waits", says=("made: has no events.parquet; give the experiment `events: true`",)
    )
    summary = json.loads(Path("made/summary.json").read_text("utf-8"))
    del summary["time"]
    seal(Path("made"), summary)
    says = "made: has no clock, and so no times; give its experiment `dispatcher: {name: clock}`"
    refused("plot", "made", "--kind", "waits", says=(says,))


@pytest.mark.parametrize(
    ("row", "column", "value", "says"),
    [
        (3, "began_ns", 390 * 10**6, "row 3: its times do not follow one another, or the client's push before"),
        (1, "received_ns", 500 * 10**6, "row 1: its times do not follow"),
        (2, "client", 4, "row 2: its client is none of 4"),
        (2, "begun", 2, "row 2: it was begun after an event that comes later"),
    ],
)
def test_damaged_events(row: int, column: str, value: int, says: str, made: Result, refused: Refused) -> None:
    table = made.events
    table.loc[row, column] = value
    table.to_parquet("made/events.parquet")
    seal(Path("made"))
    refused(
        "plot", "made", "--kind", "waits", says=("made/events.parquet: is damaged", says, "run the experiment again")
    )
    table.drop(columns="done_ns").to_parquet("made/events.parquet")
    seal(Path("made"))
    refused("plot", "made", "--kind", "timeline", says=("is damaged (it has no column done_ns)",))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("server", ["asynchronous", "rounds", "stops"])
def test_random_clocks(server: str, seed: int, tmp_path: Path) -> None:
    """What is read from the events is what a plain clock counted as it went, to the nanosecond."""
    clients, until = 5, 4000
    rows, spent = plain_clock(server, clients, until, np.random.default_rng(seed))
    run = recorded(tmp_path / "x", rows, clients, until / SECOND)
    totals = spans_of(run).totals(clients)
    for client in range(clients):
        found = {state: int(value) for state, value in zip(STATES, totals[client], strict=True) if value}
        assert found == {state: value for state, value in spent[client].items() if value}
    (row,) = plot([run], Path(tmp_path / "x.svg"), "waits").tables[0].rows
    whole = Counter[str]()
    for one in spent:
        whole.update(one)
    for state in STATES:
        assert row[state] == float(Fraction(whole[state], clients * until))
    assert sum(whole.values()) == clients * until
    if server == "stops":
        assert whole["lost"] > 0
    for begin, end in ((0, 1000), (1000, 1001), (1001, until)):  # parts of it add up to it
        part = spans_of(run).within(begin, end)
        assert part.totals(clients).sum() == clients * (end - begin)
        totals = totals - part.totals(clients)
    assert not totals.any()
