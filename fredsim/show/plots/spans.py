"""What each client of a run does at each time, to the nanosecond and without gaps, from its events.parquet.

A client computes; its push is sent, and waits at the server. Then the client is held until it may continue, and
fetches. A task that was given up, or lost with a client that went down, is not recorded: only its number is missing.
`lost` is the time since its client could have begun it. `unfinished` is the time after a client's last push.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fredsim.config.figures.options import Options, client_ids
from fredsim.errors import ConfigError, option
from fredsim.numerics.arrays import Integers
from fredsim.runs.folder.results import Result
from fredsim.show.colours import PALETTE

__all__ = ["COLOURS", "STATES", "Spans", "shares", "spans_of", "window_of"]

#: The states of a client, and their colours.
COLOURS = {
    "computing": PALETTE[0], "sending": PALETTE[1], "waiting": PALETTE[3], "held": "#8C8C8C", "fetching": PALETTE[7],
    "lost": PALETTE[6], "unfinished": "#949494",
}  # fmt: skip
STATES = tuple(COLOURS)
TIMES = ("began_ns", "done_ns", "received_ns", "time_ns")


@dataclass(frozen=True)
class Spans:
    """Spans of clients' time, arrays (n,): for each client in order and without gaps; no span is empty."""

    client: Integers
    #: Indices into STATES.
    state: Integers
    #: In nanoseconds.
    begin: Integers
    end: Integers
    #: The event to which the span leads, -1 for an unfinished one.
    event: Integers
    #: The time at which the run ends, in nanoseconds.
    until: int

    def within(self, begin: int, end: int, clients: Collection[int] | None = None) -> Spans:
        """Return the parts of the spans between two times, in nanoseconds, of these clients or of all (None)."""
        starts, stops = np.maximum(self.begin, begin), np.minimum(self.end, end)
        kept = starts < stops
        if clients is not None:
            kept &= np.isin(self.client, np.array(sorted(clients), np.int64))
        return Spans(self.client[kept], self.state[kept], starts[kept], stops[kept], self.event[kept], self.until)

    def totals(self, clients: int) -> Integers:
        """Return how many nanoseconds each client spends in each state, int64 (clients, states)."""
        found = np.zeros((clients, len(STATES)), np.int64)
        np.add.at(found, (self.client, self.state), self.end - self.begin)
        return found


def spans_of(run: Result) -> Spans:
    """Return the spans of a run's clients. Raises ConfigError without a clock, OutputError for a damaged file."""
    if not run.timed:
        clock = "give its experiment `dispatcher: {name: clock}`"
        raise ConfigError(f"{run.folder}: has no clock, and so no times; {clock}")
    clients = int(run.config["clients"]["count"])
    events = run.events_of(("client", "number", "begun", "fetched", *TIMES))
    client, time = events["client"].to_numpy(np.int64), events["time_ns"].to_numpy(np.int64)
    order = np.argsort(client, kind="stable")
    before = _before(client, order)
    free = _at(time, before)  # the time at which the server was done with the client's previous push
    ends, states = _stages(events, before, free, run.config)
    begins = np.concatenate([free[:, None], ends[:, :-1]], axis=1)
    if (wrong := np.flatnonzero((ends < begins).any(axis=1))).size:
        raise run.damaged_events(f"row {wrong[0]}: its times do not follow one another, or the client's push before")
    until = max(round(run.summary["time"] * 1e9), int(time.max(initial=0)))
    last = np.zeros(clients, np.int64)
    np.maximum.at(last, client, time)
    everyone, rows = np.arange(clients), np.arange(len(events))
    of_client = np.concatenate([np.repeat(client[order], ends.shape[1]), everyone])
    state = np.concatenate([states[order].ravel(), np.full(clients, STATES.index("unfinished"))])
    begin = np.concatenate([begins[order].ravel(), last])
    end = np.concatenate([ends[order].ravel(), np.full(clients, until)])
    event = np.concatenate([np.repeat(rows[order], ends.shape[1]), np.full(clients, -1)])
    kept = np.argsort(of_client, kind="stable")
    kept = kept[begin[kept] < end[kept]]
    return Spans(of_client[kept], state[kept], begin[kept], end[kept], event[kept], until)


def _before(client: Integers, order: Integers) -> Integers:
    """Return, for each event, that of the client's previous push, −1 for none; `order` groups events by client."""
    again = np.zeros(len(order), bool)
    again[1:] = client[order[1:]] == client[order[:-1]]
    before = np.full(len(order), -1, np.int64)
    before[order[again]] = order[np.flatnonzero(again) - 1]
    return before


def _stages(
    events: pd.DataFrame, before: Integers, free: Integers, config: Mapping[str, Any]
) -> tuple[Integers, Integers]:
    """Return the ends of the six spans that lead to each event, and their states, in order; both (n, 6).

    `before` is the client's previous event, and `free` its time.
    """
    number, begun = (events[name].to_numpy(np.int64) for name in ("number", "begun"))
    began, done, received, time = (events[name].to_numpy(np.int64) for name in TIMES)
    down, instant = _outages(config)
    task_lost = number - np.where(before >= 0, number[before], -1) > 1 if len(events) else np.zeros(0, bool)
    waits = begun >= before  # otherwise its fetch was dropped, or it does not wait, so that a fetch takes no time
    fetched = np.where(waits, np.maximum(_at(time, begun), free), began)
    released = np.where(task_lost, np.clip(_at(time, _next_fetch(events, before)), free, fetched), fetched)
    released = np.where(~waits & (task_lost | down), free, released)
    held, lost, fetching, computing, sending, waiting = (
        STATES.index(name) for name in ("held", "lost", "fetching", "computing", "sending", "waiting")
    )
    stages = (  # in order: the state, and when it ends
        (held, released),
        (lost, fetched),
        (np.where(down & (task_lost | instant), lost, fetching), began),
        (computing, done),
        (sending, received),
        (waiting, time),
    )
    states = np.stack([np.broadcast_to(state, len(events)) for state, _ in stages], axis=1)
    return np.stack([end for _, end in stages], axis=1), states


def _at(time: Integers, event: Integers) -> Integers:
    """Return the times of these events; 0 for event −1."""
    return np.where(event >= 0, time[event], 0) if len(time) else np.zeros(0, np.int64)


def _next_fetch(events: pd.DataFrame, event: Integers) -> Integers:
    """Return, for each event, the first one from it on after which a task may have been given up; −1 for event −1.

    At such an event there were more fetches than tasks in the record began with. If none comes, it is the last event.
    """
    begun = events[["begun", "client"]].drop_duplicates()["begun"].to_numpy()
    recorded = np.bincount(begun[begun >= 0], minlength=len(events))
    fetches = np.flatnonzero(events["fetched"].to_numpy() > recorded)
    places = np.searchsorted(fetches, event)
    following = np.append(fetches, len(events) - 1)[places]
    return np.where(event >= 0, following, -1)


def _outages(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether a run's clients have outages, and whether their fetches take no time."""
    dispatcher = config["dispatcher"]
    link, server = (of if isinstance(of := dispatcher.get(key), Mapping) else {} for key in ("link", "server"))
    instant = not any((link.get("latency"), link.get("down"), server.get("down")))
    return bool(dispatcher.get("outages")), instant


def window_of(run: Result, spans: Spans, options: Options) -> tuple[int, int, list[int] | None]:
    """Return the begin and the end, in nanoseconds, and the clients that the options select (None: all).

    Raises ConfigError if the run has no such time or client.
    """
    count = int(run.config["clients"]["count"])
    clients = None if options.clients is None else client_ids(options.clients)
    if clients and clients[-1] >= count:
        raise ConfigError(f"{option('clients')}: names client {clients[-1]}; {run.folder} has clients 0 to {count - 1}")
    begin = 0 if options.begin is None else round(options.begin * 1e9)
    end = spans.until if options.end is None else min(spans.until, round(options.end * 1e9))
    if begin >= spans.until and options.begin is not None:
        raise ConfigError(
            f"{option('from')}: is {options.begin:g}; {run.folder} ends at {spans.until / 1e9:g} simulated seconds"
        )
    if begin >= end and options.end is not None:
        least = f"it must be later than {option('from')}, {begin / 1e9:g}, by a nanosecond"
        raise ConfigError(f"{option('to')}: is {options.end:g}; {least}")
    return begin, end, clients


def shares(totals: Sequence[Integers]) -> dict[str, float]:
    """Return each state's share of these clients' times, which are int64 (states,); only the last division rounds."""
    sums = [sum(int(one[place]) for one in totals) for place in range(len(STATES))]
    return {state: value / max(1, sum(sums)) for state, value in zip(STATES, sums, strict=True)}
