"""Traces that are none, or cannot be followed: one message that names the file, the row, the value and the remedy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.test_trace import ORDER, write

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"client": [0, 1, 8]}, "row 2: client is 8; ids lie in 0 … 7 (clients.count)"),
        ({"client": [0, -1, 2]}, "row 1: client is -1; ids lie in 0 … 7 (clients.count)"),
        ({"client": [0, 1.5, 2]}, "row 1: client is 1.5; ids lie in 0 … 7"),
        ({"client": [0, None, 2]}, "row 1: client is "),
        ({"client": ["a", "b", "c"]}, "row 0: client is a; ids lie in 0 … 7"),
        ({"time": [0.0, 1.0, 2.0]}, " has no column 'client' (columns: time); give it one"),
        ({"client": [0, 1, 2], "time": [0.0, 2.0, 1.0]}, "row 2: time is 1.0, less than in the row before; time never"),
        ({"client": [0, 1, 2], "time": [0.0, np.nan, 1.0]}, "row 1: time is "),
        ({"client": [0, 1, 2], "time": [0.0, np.inf, 1.0]}, "row 1: time is "),
        ({"client": [0, 1, 2], "time": [-1.0, 0.0, 1.0]}, "row 0: time is -1.0; it must be a number of seconds, 0 or"),
        ({"client": [0, 1, 2], "time": [0.0, 1.0, 1e10]}, "row 2: time is 10000000000.0; the clock ends after 46"),
        ({"client": [0, 1, 2], "time_ns": [0, 5, 4]}, "row 2: time_ns is 4, less than in the row before"),
        ({"client": [0, 1, 2], "begun": [-1, 1, 0]}, "row 1: begun is 1; it must be an earlier event, or -1"),
        ({"client": [0, 1], "begun": np.array([2**64 - 1, 0], np.uint64)}, f"row 0: begun is {2**64 - 1}; it must be"),
        ({"client": [0, 1], "number": np.array([0, 2**63], np.uint64)}, f"row 1: number is {2**63}; it must be below"),
        ({"client": np.array([0, 2**64 - 1], np.uint64)}, f"row 1: client is {2**64 - 1}; ids lie in 0 … 7"),
        ({"client": [0, 1], "sent": [0, 1e19]}, "row 1: sent is 1e+19; it must be below 4294967296"),
        ({"client": [0, 1, 2], "sent": [0, -1, 2]}, "row 1: sent is -1; it must be 0 or more"),
        ({"client": [0, 1, 2], "sent": [0, 0, 0]}, "row 1: sent is 0; without began_ns, done_ns, received_ns pushes"),
        ({"client": [0, 1], "sent": [0, 17], "time": [0.5, 1.5]}, "row 1: sent is 17; without began_ns, done_ns, "),
        ({"client": [0, 1, 2, 3], "sent": [1, 3, 0, 1], "time": [9.0] * 4, "began_ns": [0] * 4, "done_ns": [5] * 4,
          "received_ns": [7] * 4}, "row 3: sent is 1, as in a row before; it counts gradients; leave that column out"),
        ({"client": [0, 1], "time": [1.0, 2.0], "began_ns": [0, 0], "done_ns": [5, 5], "received_ns": [7, 2 * 10**9 + 1]
          }, "row 1: time is 2.0; it is before received_ns; correct it"),
        ({"client": [], "time": []}, " has no rows; give a row for each event"),
        ({"client": [0, 1, 2]}, ": the trace ends after 3 events; the run has 50: give iterations: 3, or a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_bad_rows(
    suffix: str, columns: dict[str, Any], says: str, small_yaml: Path, refused: Refused, tmp_path: Path
) -> None:
    write(tmp_path / f"t.{suffix}", **columns)
    words = (f"dispatcher={{name: trace, file: t.{suffix}}}", "--out", "out")
    refused("run", small_yaml, *words, says=(f"t.{suffix}", says))
    assert not Path("out").exists()


def test_no_tables(small_yaml: Path, refused: Refused, tmp_path: Path) -> None:
    contents = {
        "empty.csv": b"",
        "folder": None,
        "bytes.csv": b"\xff\xfe\x00",
        "cut.parquet": b"PAR1xx",
        "gone.csv": None,
    }
    contents["other.csv"] = b"client;time\n0;1,5\n"
    contents["long.csv"] = b"client,time\n0,1.0\n1,2.0,3.0\n"
    says = {
        "other.csv": "(columns: client;time); put commas between cells, and points into numbers\n",
        "empty.csv": "empty.csv is empty; give a header", "folder": "cannot read folder: it is a folder",
        "bytes.csv": "bytes.csv is no Parquet file, and no CSV file", "gone.csv": "cannot read gone.csv: No such",
        "cut.parquet": "cut.parquet: is damaged", "long.csv": "long.csv, row 1: has 3 values, the header 2",
    }  # fmt: skip
    (tmp_path / "folder").mkdir()
    for name, content in contents.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        refused("run", small_yaml, f"dispatcher={{name: trace, file: {name}}}", says=(says[name],))


def test_columns_that_are_none(small_yaml: Path, refused: Refused, command: Command, tmp_path: Path) -> None:
    """Lists, two of one name, and zeros that a disk left: NumPy would take `0` and these for 0."""
    once = [0, 1, 2]
    tables: dict[str, tuple[list[tuple[str, Any]], str]] = {
        "lists.parquet": ([("client", [[0], [1], [2]])], "lists.parquet, row 0: client is [0]; ids lie in 0 … 7"),
        "twice.parquet": ([("client", once), ("client", once)], "twice.parquet has 2 columns 'client'; keep one"),
        "done.parquet": (
            [("client", once), ("done_client", once), ("done_number", once)],
            "done.parquet, row 0: done_client is 0; it must be a list of whole numbers below 8; ",
        ),
        "longer.parquet": (
            [("client", once), ("done_client", [[0], [], []]), ("done_number", [[0], [], [3]])],
            "longer.parquet, row 2: done_number is [3]; it must be as long as done_client; ",
        ),
    }
    for name, (columns, _) in tables.items():
        arrays, names = [pa.array(values) for _, values in columns], [name for name, _ in columns]
        pq.write_table(pa.Table.from_arrays(arrays, names=names), tmp_path / name)
    (tmp_path / "twice.csv").write_text("client,client\n0,1\n", encoding="utf-8")
    (tmp_path / "lists.csv").write_text("client,done_client,done_number\n0,[0],[0]\n1,[1],[0]\n", encoding="utf-8")
    (tmp_path / "zeros.csv").write_bytes(b"client\n1\n0\0\0\0\n")
    says = {name: text for name, (_, text) in tables.items()}
    says |= {"twice.csv": "twice.csv has 2 columns 'client'; keep one", "zeros.csv": "it holds NUL bytes; give a whole"}
    says["lists.csv"] = (
        "lists.csv, column done_client: a CSV file has no lists: give the Parquet file; leave that column"
    )
    for name, text in says.items():
        refused("run", small_yaml, f"dispatcher={{name: trace, file: {name}}}", "iterations=2", says=(name, text))
    broken = bytearray((tmp_path / "longer.parquet").read_bytes())
    broken[4:24] = b"\xff" * 20  # the header of a page: what pyarrow says of it has two lines
    (tmp_path / "broken.parquet").write_bytes(broken)
    says_broken = ("broken.parquet: is damaged (", "; give a whole file")
    refused("run", small_yaml, "dispatcher={name: trace, file: broken.parquet}", says=says_broken)
    (tmp_path / "broken.parquet").write_bytes(broken + b"\0")  # its end is damaged, too
    code, _, messages = command("run", small_yaml, "dispatcher={name: trace, file: broken.parquet}")
    assert (code, messages.count("\n"), "note: " in messages) == (2, 1, False)


def test_what_an_order_cannot_give(small_yaml: Path, refused: Refused, tmp_path: Path) -> None:
    write(tmp_path / "t.csv", client=ORDER)
    words = ("run", small_yaml, "dispatcher={name: trace, file: t.csv}", "iterations=10")
    refused(*words, "evaluation={every: 1, unit: seconds}", says=("the dispatcher trace has no clock",))
    refused(
        "run", small_yaml, words[2], "iterations=null", "updates=20", says=("t.csv: the trace ends after 10 events",)
    )
    held = "iteration 2: client 0 arrives in the trace (t.csv, row 2), and the server holds it; release clients"
    refused(*words, "server={name: sync, lr: 0.1}", says=(held,))


def test_a_trace_and_a_share_of_the_clients(
    small_yaml: Path, refused: Refused, command: Callable[..., tuple[int, str, str]]
) -> None:
    """A recorded run's draws are those of any run of its seed and fraction whose server lets as many continue."""
    words = ("run", small_yaml, "iterations=40", "clients.fraction=0.25", "--quiet")
    assert command(*words, "events=true", "--out", "recorded") == (0, "", "")
    follow = "dispatcher={name: trace, file: recorded/events.parquet, check: false}"
    assert command(*words, follow, "server={name: fasgd, lr: 0.01}", "--out", "followed") == (0, "", "")
    arrived = pd.read_parquet("recorded/events.parquet")["client"].tolist()
    for more, fraction in (("seed=5",), "0.25"), (("clients.fraction=0.5", "seed=6"), "0.5"):
        says = f"(recorded/events.parquet, row ROW), and by clients.fraction, {fraction}, it is not at work then: leave"
        code, _, said = command(*words, follow, *more, "--out", "other")
        row = int(said.partition(":")[2].split()[1].rstrip(":"))
        assert (code, said.count("\n")) == (2, 1)
        assert f"iteration {row}: client {arrived[row]} arrives in the trace {says.replace('ROW', str(row))}" in said
        assert "give a trace of a run of this fraction, seed and kind of server" in said
    refused("run", small_yaml, follow, "iterations=40", "server={name: sync, lr: 0.1}", says=("the server holds it;",))


def test_an_order_that_lacks_clients(small_yaml: Path, refused: Refused) -> None:
    """If those that it names wait, the others never come."""
    words = ("run", small_yaml, "dispatcher={name: scripted, order: [0, 1, 0]}")
    says = ": dispatcher.order names 2 of the 8 clients, and these wait: the server holds them, or clients.fraction has"
    for more, at in (("server={name: sync, lr: 0.1}", 2), ("clients.fraction=0.2", None)):
        refused(*words, more, says=(says if at is None else f"iteration {at}{says}", "drawn others; name all clients"))
