"""events.parquet: each row against a plain loop, on every path; after a kill, after a divergence, and damaged."""

import heapq
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fredsim
from fredsim.errors import OutputError
from fredsim.numerics.streams import Stream
from fredsim.runs.folder.results import Result
from fredsim.system.parquet_files import open_parquet
from tests.conftest import checkpoints_every
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
Simulate = Callable[..., Result]

EVENTS = {"events": True}


def same_rows(found: pd.DataFrame, wanted: list[dict[str, Any]]) -> None:
    table = pd.DataFrame(wanted)
    assert set(found.columns) == set(table.columns)
    pd.testing.assert_frame_equal(found, table[found.columns], check_dtype=False, check_exact=True)


@pytest.mark.parametrize("number", range(8))
def test_the_record_is_that_of_a_plain_loop(number: int, simulate: Simulate, plain: ModuleType) -> None:
    """Servers that hold and that do not, gates, every answer to a dropped push, on each path that can take it."""
    rng, world = random.Random(number), plain.World()
    name = ["sasgd", "soft_sync", "fasgd", "sync"][number % 4]
    server, made = {
        "sasgd": ({"name": "sasgd", "lr": 0.3}, plain.PlainSASGD(world.start, 0.3)),
        "soft_sync": ({"name": "soft_sync", "lr": 0.3, "n": 4}, plain.PlainBatches(world.start, 0.3, 2)),
        "sync": ({"name": "sync", "lr": 0.3}, plain.PlainBatches(world.start, 0.3, 8)),
        "fasgd": ({"name": "fasgd", "lr": 0.01}, plain.PlainFASGD(world.start, 0.01)),
    }[name]
    dispatcher: dict[str, Any] = {}
    gates: dict[str, Any] = {}
    if name == "fasgd":
        per = rng.choice(["model", "tensor"])
        dispatcher = {key: {"bandwidth_aware": {"c": 0.5, "per": per}} for key in ("push", "fetch")}
        streams = {"push": Stream.PUSH_GATE, "fetch": Stream.FETCH_GATE}
        gates = {key: world.bandwidth_aware(of, 0.5, per_tensor=per == "tensor") for key, of in streams.items()}
        dispatcher["dropped_push"] = gates["dropped"] = rng.choice(["reapply", "skip", "accumulate", "average"])
    world.run(80, made, **gates)
    for path in ("auto", "snapshots"):
        found = simulate({"iterations": 80, "server": server, "dispatcher": dispatcher, "path": path, **EVENTS})
        same_rows(found.events, world.events)
        schema = pq.read_schema(found.folder / "events.parquet")
        assert [str(schema.field(key).type) for key in ("time", "client", "pushed", "fetched", "sent")] == [
            "double", "int32", "bool", "int32", "int64"
        ]  # fmt: skip


def clocked(events: int, seconds: list[int], latency: int, served: int) -> list[dict[str, int]]:
    """Let asynchronous clients arrive; times in nanoseconds, one push at a time at the server."""
    done = [(takes, client) for client, takes in enumerate(seconds)]
    heapq.heapify(done)
    arriving: list[tuple[int, int]] = []
    begun, began, numbers = [-1] * len(seconds), [0] * len(seconds), [0] * len(seconds)
    rows: list[dict[str, int]] = []
    free, sent, of = 0, 0, dict[int, tuple[int, int]]()
    while len(rows) < events:
        if done and (not arriving or done[0] <= arriving[0]):  # a gradient is done
            at, client = heapq.heappop(done)
            of[client] = at, sent
            sent += 1
            heapq.heappush(arriving, (at + latency, client))
            continue
        received, client = heapq.heappop(arriving)
        free = max(free, received) + served
        times = dict(zip(("began_ns", "done_ns"), (began[client], of[client][0]), strict=True))
        times |= {"received_ns": received, "time_ns": free}
        row = {"client": client, "number": numbers[client], "begun": begun[client], "sent": of[client][1]}
        rows.append(row | times)
        begun[client], began[client], numbers[client] = len(rows) - 1, free + latency, numbers[client] + 1
        heapq.heappush(done, (began[client] + seconds[client], client))
    return rows


@pytest.mark.parametrize(("latency", "served"), [(0.0, 0.0), (0.25, 0.0), (0.125, 0.75)])
def test_times(latency: float, served: float, simulate: Simulate) -> None:
    """Of clients whose times have no ties, by a plain loop; the seconds are exact in binary."""
    seconds = [1.0, 1.625, 2.0 + 2**-7, 3.0 + 2**-6, 0.5 + 2**-5, 0.75 + 2**-4, 5.0, 1.25 + 2**-8]
    dispatcher = {"name": "clock", "compute": {"seconds": seconds}}
    network = {"link": {"latency": latency}, "server": {"seconds": served}}
    whole = [int(of * 1e9) for of in seconds]
    rows = pd.DataFrame(clocked(60, whole, int(latency * 1e9), int(served * 1e9)))
    for path in ("auto", "snapshots"):
        changes = {"iterations": 60, "path": path, "server": {"name": "asgd", "lr": 0.1}}
        found = simulate({**changes, "dispatcher": dispatcher | network, **EVENTS}).events
        pd.testing.assert_frame_equal(found[rows.columns], rows, check_dtype=False)
        assert (found["time"] == found["time_ns"] / 1e9).all()


@pytest.mark.parametrize("fetch", ["always", {"every": 2}])
def test_without_waiting_a_task_begins_when_its_client_arrives(simulate: Simulate, fetch: Any) -> None:
    """Whatever it computes on: that it fetched after the arrival before, or earlier."""
    dispatcher = {"name": "clock", "compute": {"noise": {"name": "exponential"}}, "wait": False, "fetch": fetch}
    events = simulate({"dispatcher": dispatcher, **EVENTS}).events
    before = events.groupby("client")["time_ns"].shift(fill_value=0)
    assert (events["began_ns"] == before).all()
    assert (events["begun"] < events.groupby("client")["iteration"].shift(fill_value=1)).all()


def test_no_key_no_file(simulate: Simulate) -> None:
    """And the experiment's digest, and that of its bits, are as ever."""
    without, recorded = simulate({}), simulate(EVENTS)
    assert "events" not in without.config
    with pytest.raises(OutputError, match=r"has no events\.parquet; give the experiment `events: true`"):
        _ = without.events
    for key in ("experiment", "digest"):
        assert without.summary[key] == recorded.summary[key]
    assert len(recorded.events) == 50


LARGE = {"iterations": 12_345, "model": {"hidden": []}, "clients": {"count": 3, "batch_size": 1}}


def test_groups_grow_and_equal_runs_leave_equal_bytes(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.runs.folder.event_file.FIRST_GROUP_ROWS", 256)
    monkeypatch.setattr("fredsim.runs.folder.event_file.GROUPS_PER_SIZE", 2)
    one, other = (simulate({**LARGE, "path": path, "evaluation": {"every": every}, **EVENTS}) for path, every in
                  (("hand", 10**6), ("fused", 777)))  # fmt: skip
    content = (one.folder / "events.parquet").read_bytes()
    assert content == (other.folder / "events.parquet").read_bytes()
    footer = pq.read_metadata(one.folder / "events.parquet")
    rows = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    assert rows == [256, 256, 512, 512, 1024, 1024, 2048, 2048, 4096, 569]
    assert one.events["iteration"].tolist() == [*range(12_345)]


SCRIPT = """
import sys
import fredsim

fredsim.run({data!r}, out=sys.argv[1])
"""


def test_a_run_that_is_killed_leaves_its_groups(tmp_path: Path, digits_experiment: dict[str, Any]) -> None:
    data = digits_experiment | {**LARGE, "iterations": 3_000_000, **EVENTS, "evaluation": {"every": 1000}}
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT.format(data=data), str(folder)]
    process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    try:
        path, limit, rows = folder / "events.parquet", time.monotonic() + 60, 0
        while rows < 3 * 4096 and time.monotonic() < limit:
            time.sleep(0.01)
            if path.exists() and path.stat().st_size:
                rows = open_parquet(path)[0].metadata.num_rows  # while it grows, and a group is half written, too
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert not (folder / "summary.json").exists()
    events = open_parquet(path)[0].read().to_pandas()
    assert len(events) >= rows >= 3 * 4096
    assert len(events) % 4096 == 0
    whole = fredsim.run(data | {"iterations": len(events)}, out=tmp_path / "whole")
    assert isinstance(whole, Result)
    pd.testing.assert_frame_equal(events, whole.events)
    assert isinstance(fredsim.run(data | {"iterations": 10}, out=folder), Result)  # the folder gives way


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_run_that_diverges_has_each_event_once(
    path: str, keeps: bool, simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those before the one that gave a parameter that is not finite, whether it is run again whole or in part."""
    monkeypatch.setattr("fredsim.runs.folder.event_file.FIRST_GROUP_ROWS", 8)
    if keeps:
        checkpoints_every(1e-9, monkeypatch)
    schedule = {"name": "step", "base": 0.01, "factor": 1e30, "every": 61}
    changes = {"server": {"name": "asgd", "lr": schedule}, "iterations": 100, "evaluation": {"every": 10}}
    found = simulate({**changes, "path": path, **EVENTS})
    assert found.summary["status"] == "diverged"
    assert found.events["iteration"].tolist() == [*range(found.summary["iterations"])]
    whole = simulate({**changes, "iterations": found.summary["iterations"], **EVENTS})
    assert (whole.folder / "events.parquet").read_bytes() == (found.folder / "events.parquet").read_bytes()


def test_a_damaged_end_is_cut_back(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.runs.folder.event_file.FIRST_GROUP_ROWS", 8)
    result = simulate(EVENTS)
    path, whole = result.folder / "events.parquet", result.events
    content = path.read_bytes()
    ends = {len(content): 50, len(content) - 1: 48, len(content) - 300: 48}  # groups of 8 four times, then 16, and 2
    for end, rows in ends.items():
        for junk in (b"", b"PAR1", bytes(1000)):
            path.write_bytes(content[:end] + junk)
            if end == len(content) and not junk:
                continue
            with pytest.warns(UserWarning, match=rf"its end is damaged; its first {rows:,} rows"):
                found = Result(result.folder).events
            pd.testing.assert_frame_equal(found, whole.iloc[:rows])
    for broken, says in ((b"", "is empty"), (b"a,b\n", "is no Parquet file"), (content[:50], "is damaged")):
        path.write_bytes(broken)
        with pytest.raises(OutputError, match=f"events.parquet: {says}.*; run the experiment again"):
            _ = Result(result.folder).events


def test_compare_verify_and_resume_know_the_file(small_yaml: Path, command: Command, refused: Refused) -> None:
    run = ("run", small_yaml, "events=true", "--quiet", "--out")
    assert command(*run, "done")[0] == 0
    assert command("verify", "done")[:2] == (0, "done: same bits\n")
    shutil.copytree("done", "other")
    assert command("compare", "done", "other")[0] == 0
    table = pq.read_table("other/events.parquet")
    values = table["staleness"].to_pylist()
    values[17] += 1
    place = table.schema.get_field_index("staleness")
    pq.write_table(table.set_column(place, table.schema.field(place), [values]), "other/events.parquet")
    code, output, _ = command("compare", "done", "other")
    says = f"different: events.parquet, row 17: staleness is {values[17] - 1} and {values[17]}\n"
    assert (code, says in output) == (1, True)
    Path("other/events.parquet").unlink()
    refused("compare", "done", "other", says=("other/events.parquet: cannot be read",))
    files = json.loads(Path("done/summary.json").read_text(encoding="utf-8"))["files"]
    Path("done/events.parquet").unlink()
    assert command(*run, "done", "--resume")[0] == 0
    assert json.loads(Path("done/summary.json").read_text(encoding="utf-8"))["files"] == files
    assert Path("done/events.parquet").exists()


def test_an_installation_without_pyarrow(small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before the run begins."""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    says = ("events is true: events.parquet needs pyarrow, which cannot be imported (", "events]")
    refused("run", small_yaml, "events=true", "--out", "out", says=says)
    assert not Path("out").exists()


@pytest.mark.parametrize("rows", [3, 1000])
def test_the_same_events_in_other_bytes(rows: int, small_yaml: Path, command: Command) -> None:
    """How pyarrow or pandas writes them is no content: groups, compression, lists' names, what may be missing."""
    changes = ("server={name: fedbuff, lr: 0.05, buffer: 3}", "dispatcher={name: clock}", "events=true")
    assert command("run", small_yaml, *changes, "--quiet", "--out", "done")[0] == 0
    shutil.copytree("done", "other")
    table, path = pq.read_table("done/events.parquet"), Path("other/events.parquet")
    loose = pa.schema([pa.field(field.name, _loose(field.type)) for field in table.schema])

    def written(table: pa.Table, **how: Any) -> tuple[int, str]:
        pq.write_table(table, path, row_group_size=rows, **how)
        seal(Path("other"))
        return command("compare", "done", "other", "--no-replay")[:2]

    same = (0, "done and other: same bits\n")
    assert written(table) == written(table.cast(loose), compression="zstd") == written(table, version="1.0") == same
    assert command("verify", "other")[:2] == (0, "other: same bits\n")
    assert path.read_bytes() != Path("done/events.parquet").read_bytes()
    for at in (0, 8, 49):
        less = pa.concat_tables([table.slice(0, at), table.slice(at + 1)])
        more = pa.concat_tables([table.slice(0, at), table.slice(at)[:1], table.slice(at)])
        for forged in (less, more):
            code, output = written(forged)
            assert (code, "different: events.parquet, row " in output) == (1, True), output
        values = table["time"].to_pylist()
        values[at] = float(np.nextafter(values[at], np.inf))
        place = table.schema.get_field_index("time")
        code, output = written(table.set_column(place, table.schema.field(place), [values]))
        assert (code, f"different: events.parquet, row {at}: time is " in output) == (1, True), output
    for forged in (
        table.drop(["sent"]),
        table.append_column("more", table["sent"]),
        table.select(table.column_names[::-1]),
    ):
        code, output = written(forged)
        assert (code, "different: events.parquet: the columns are " in output) == (1, True), output


def test_a_row_behind_many_has_its_number(small_yaml: Path, command: Command) -> None:
    """Files are read in parts."""
    fredsim.run(small_yaml, ["dispatcher={name: clock}", "events=true"], out="done")
    shutil.copytree("done", "other")
    table = pa.concat_tables([pq.read_table("done/events.parquet")] * 1500)  # 75,000 rows
    clients = table["client"].to_numpy().copy()
    clients[74_000] = 8
    place = table.schema.get_field_index("client")
    for folder, rows in (("done", table), ("other", table.set_column(place, table.schema.field(place), [clients]))):
        pq.write_table(rows, f"{folder}/events.parquet")
        seal(Path(folder))
    code, output, _ = command("compare", "done", "other", "--no-replay")
    assert (code, "different: events.parquet, row 74000: client is " in output) == (1, True), output


def _loose(of: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", of.value_type)) if pa.types.is_list(of) else of
