"""Random bad tables: orders of arrival and traces, and checks of what is read from them."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fredsim
from tests.bad_cases import BASE, Case, Outcome, as_yaml, damaged
from tests.bad_files import RUN
from tests.bad_values import CELLS

__all__ = ["a_trace", "an_order"]


def an_order(rng: random.Random) -> Case:
    """Write an invalid CSV file of clients."""
    rows = [
        rng.choice(("0", "1", "2", "3", "-1", "x", "", "1.0", "9" * 5000, "1,2", '"', "\0", "١", " 1 ", "1_0"))
        for _ in range(4)
    ]
    text = "\n".join([rng.choice(("client", "\ufeffclient", "Client", "", "client,client", '"client')), *rows])
    content = text.encode() if rng.random() < 0.9 else rng.choice((b"", b"\xff\xfe", text.encode("utf-16")))
    data = BASE | {"dispatcher": {"name": "scripted", "order": {"csv": "order.csv"}}}
    return Case("order", ["show", "x.yaml"], {"x.yaml": as_yaml(data, ""), "order.csv": content})


CLOCK = BASE | {
    "iterations": 30,
    "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}, "link": {"latency": 0.1}},
    "events": True,
}


@functools.cache
def recorded() -> Mapping[str, bytes]:
    """Return the trace of a run on a clock, as its Parquet file and as CSV files, by name."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        result = fredsim.run(CLOCK, out=folder)
        assert isinstance(result, fredsim.Result)
        names = ["client", "number", "begun", "sent", "time"]
        table = result.events.assign(sent=result.events.get("sent", 1))
        some = table[[name for name in names if name in table]]
        texts = {"all.csv": some, "time.csv": table[["client", "time"]], "client.csv": table[["client"]]}
        texts["lists.csv"] = some.assign(done_client="[0]", done_number="[0]")
        return {"whole.parquet": Path(folder, "events.parquet").read_bytes()} | {
            name: of.to_csv(index=False).encode() for name, of in texts.items()
        }


def a_trace(rng: random.Random) -> Case:
    """Damage a trace, or write a table that is no trace."""
    kind = rng.choice(("parquet", "csv", "csv", "table"))
    if kind == "csv":
        content = recorded()[rng.choice(("all.csv", "time.csv", "client.csv", "lists.csv"))]
        content = damaged(rng, content, text=True)
    elif kind == "parquet":
        content = damaged(rng, recorded()["whole.parquet"])
    else:
        content = odd_table(rng)
    name = f"t.{rng.choice(('csv', 'parquet'))}"  # the suffix does not decide how a file is read
    data = BASE | {"iterations": rng.choice((3, 20)), "events": True, "dispatcher": {"name": "trace", "file": name}}

    def judge(outcome: Outcome) -> str:
        if outcome.code != 0:
            return ""
        import pyarrow.parquet as pq

        clients = pq.read_table(outcome.folder / "out" / "events.parquet")["client"].to_pylist()
        wanted = clients_in(content)[: len(clients)]
        return "" if clients == wanted else f"who came is not who stands in the file: {clients} for {wanted}"

    return Case("trace", RUN, {"x.yaml": as_yaml(data, ""), name: content}, judge=judge)


def clients_in(content: bytes) -> list[int]:
    """Return the clients in a table, read by plain code."""
    if content[:4] != b"PAR1":
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        return [int(float(row["client"])) for row in rows]
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = len(content)
    while end > 0:  # damaged bytes may follow the footer
        with contextlib.suppress(pa.ArrowException, OSError, ValueError):
            return [
                int(client)
                for client in pq.read_table(pa.BufferReader(content[:end]), columns=["client"])["client"].to_pylist()
            ]
        end = content.rfind(b"PAR1", 4, end - 1) + 4
        end = end if end > 4 else 0
    return []


def odd_table(rng: random.Random) -> bytes:
    """Return a Parquet file with columns of odd types and values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column() -> Any:
        n = 30
        return rng.choice(
            (
                pa.array([rng.randrange(3) for _ in range(n)]),
                pa.array([rng.randrange(3) for _ in range(n)], pa.uint8()),
                pa.array([float(rng.randrange(3)) for _ in range(n)]),
                pa.array([rng.choice((0, 1, None)) for _ in range(n)]),
                pa.array([rng.choice(CELLS).encode("utf-8", "replace").decode() for _ in range(n)]),
                pa.array([str(rng.randrange(3)) for _ in range(n)]),
                pa.array([str(rng.randrange(3)) for _ in range(n)]).dictionary_encode(),
                pa.array([[rng.randrange(3)] for _ in range(n)]),
                pa.array([{"x": 1}] * n),
                pa.array([None] * n),
                pa.array([True, False] * (n // 2)),
                pa.array([rng.choice((2**63, 2**64 - 1, 1)) for _ in range(n)], pa.uint64()),
                pa.array(range(n)).cast(pa.timestamp("ns")),
                pa.array(range(n)).cast(pa.decimal128(30, 2)),
                pa.array([b"x"] * n),
                pa.array([rng.choice((0, 10**18, -1)) for _ in range(n)]),
                pa.array(sorted(rng.random() * 10 ** rng.choice((0, 9, 300)) for _ in range(n))),
            )
        )

    names = ("time", "time_ns", "number", "begun", "sent", "began_ns", "done_ns", "received_ns", "done_client")
    chosen = ["client", *rng.sample(names, rng.randrange(4)), "done_number"][: rng.choice((1, 2, 3, 5))]
    made = [column() for _ in chosen]
    if rng.random() < 0.7:
        made[0] = pa.array([rng.randrange(3) for _ in range(30)])
    table = pa.Table.from_arrays(made, names=chosen)
    if rng.random() < 0.1:
        table = pa.Table.from_arrays([*made, made[0]], names=[*chosen, "client"])
    if rng.random() < 0.1:
        table = table.slice(0, 0)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, row_group_size=rng.choice((1, 7, 100)), compression=rng.choice(("none", "snappy")))
    return buffer.getvalue()
