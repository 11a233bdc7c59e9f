"""Writes clients' spans in the Trace Event Format (JSON), for Perfetto: a process per run, a thread per client.

Each span is a complete event (`"ph": "X"`), with `ts` and `dur` in microseconds with three decimals, so exact to the
nanosecond. Names of processes and threads are metadata events (`"ph": "M"`). No two threads have the same id, even in
different processes, since Perfetto names threads by their id. No thread has the id 0, which is the idle thread's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

from fredsim.runs.folder.results import Result
from fredsim.show.plots.groups import Panel
from fredsim.show.plots.spans import STATES, Spans
from fredsim.system.files import replacing, write_errors

__all__ = ["write_trace"]


def write_trace(
    path: Path, panels: Sequence[Panel], shown: Sequence[Spans], clients: Sequence[int] | None, about: Mapping[str, str]
) -> None:
    """Write the spans of the run of each panel, of these clients or of all (None); `about` is added as metadata.

    Raises OutputError if the file cannot be written.
    """
    with write_errors(path, "choose another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as binary, TextIOWrapper(binary, encoding="utf-8", newline="") as file:
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about, ensure_ascii=False)},\n')
            file.write('"traceEvents": [')
            separator, first = "\n", 1
            for number, (panel, spans) in enumerate(zip(panels, shown, strict=True)):
                line = panel.lines[0]
                for event in _events(number + 1, first, line.label, line.runs[0], spans, clients):
                    file.write(separator + event)
                    separator = ",\n"
                first += int(line.runs[0].config["clients"]["count"])
            file.write("\n]}\n")


def _events(
    process: int, first: int, label: str, run: Result, spans: Spans, clients: Sequence[int] | None
) -> Iterator[str]:
    """Yield the events of a run as JSON: names first, then the spans, client after client.

    `first` is the thread id of client 0.
    """

    def named(what: str, thread: int, **values: object) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": process, "tid": thread, "args": values}, ensure_ascii=False)

    yield named("process_name", first, name=label)
    for client in range(int(run.config["clients"]["count"])) if clients is None else clients:
        yield named("thread_name", first + client, name=f"client {client}")
        yield named("thread_sort_index", first + client, sort_index=client)
    columns = [run.events[name].tolist() for name in ("number", "begun", "staleness")]
    stretches = (spans.client, spans.state, spans.begin, spans.end, spans.event)
    for client, state, begin, end, event in zip(*(values.tolist() for values in stretches), strict=True):
        arguments = {}
        if event >= 0:
            task, begun, staleness = (column[event] for column in columns)
            arguments = {"task": task, "iteration": event, "begun": begun, "staleness": staleness}
        yield (
            f'{{"ph": "X", "name": "{STATES[state]}", "cat": "client", "pid": {process}, "tid": {first + client}, '
            f'"ts": {_microseconds(begin)}, "dur": {_microseconds(end - begin)}, "args": {json.dumps(arguments)}}}'
        )


def _microseconds(nanoseconds: int) -> str:
    """Return nanoseconds as a decimal number of microseconds, exactly."""
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"
