"""Checks of the calls to a run's server and of its replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from fredsim.config.registry import KNOWN
from fredsim.runs.folder.results import Result
from tests.properties import Sizes, applied, gate_of, given_up

__all__ = ["ServerLog", "check_server", "logged_server"]


@dataclass
class Push:
    """A push to a server: the client, the timestamps of the push and of the server before and after, and the reply."""

    client: int
    timestamp: int
    before: int
    after: int
    released: tuple[int, ...]
    restarted: tuple[int, ...]


@dataclass
class ServerLog:
    """The calls to a server."""

    sizes: Sizes | None = None
    entries: list[Push | int] = field(default_factory=list)
    """The pushes, and the ids of clients that fetched, in order."""


@contextmanager
def logged_server(name: str, log: ServerLog) -> Iterator[None]:
    """Replace the class of the server with this name by one that also logs its pushes and fetches."""
    base: Any = KNOWN["server"][name]

    class LoggingServer(base):  # type: ignore[misc]
        def init(self, *given: Any) -> None:
            log.entries.clear()  # a run that diverges is repeated
            super().init(*given)

        def apply_update(self, grad: Any, client_id: int, timestamp: int) -> Any:
            if log.sizes is not None:
                log.sizes.check_sent(np.array(grad))
            return self.logged("apply_update", client_id, timestamp, grad)

        if hasattr(base, "given_up"):

            def given_up(self, client_id: int, timestamp: int) -> Any:
                return self.logged("given_up", client_id, timestamp)

        def logged(self, method: str, client_id: int, timestamp: int, *grad: Any) -> Any:
            before = self.timestamp
            reply = getattr(super(), method)(*grad, client_id, timestamp)
            released = (client_id,) if reply is None else tuple(reply.released)
            restarted = () if reply is None else tuple(reply.restarted)
            log.entries.append(Push(client_id, timestamp, before, self.timestamp, released, restarted))
            return reply

        def fetch(self, client_id: int) -> Any:
            log.entries.append(client_id)
            return super().fetch(client_id)

    for attribute in ("__module__", "__name__", "__qualname__"):
        setattr(LoggingServer, attribute, getattr(base, attribute))
    with patch.dict(KNOWN, server={**KNOWN["server"], name: LoggingServer}):
        yield


def round_size(config: Mapping[str, Any]) -> int | None:
    """Return how many pushes a server waits for before it releases its clients; None if it holds no clients."""
    server, clients = config["server"], int(config["clients"]["count"])
    if server["name"] == "sync":
        return int(server["aggregate"] or clients)
    if server["name"] == "soft_sync":
        return clients // int(server["n"])
    return clients if server["name"] in {"sign_majority", "ternary_sync", "slowmo"} else None


def check_server(result: Result, entries: Sequence[Push | int]) -> None:
    """Check the server's calls against events.parquet, and that it holds, releases and serves the right clients."""
    config, events, remaining = result.config, result.events, list(entries[::-1])
    needed, clients, counted = round_size(config), config["clients"]["count"], 0
    held: set[int] = set()
    tasks, lost = [0] * clients, "outages" in config["dispatcher"]
    gated = gate_of(config, "fetch")
    columns = (events[name] for name in ("client", "number", "timestamp", "staleness", "fetched"))
    calls = applied(config, events) | (given_up(events) & (config["server"]["name"] == "mindflayer"))
    for client, number, stamp, staleness, fetched, reached in zip(*columns, calls, strict=True):
        assert client not in held  # a client cannot push while it is held
        assert number == tasks[client] or (lost and number > tasks[client])
        tasks[client] = number + 1
        released, restarted = {client}, set[int]()
        if reached:
            push = remaining.pop()
            assert isinstance(push, Push)
            assert (push.client, push.before, push.before - push.timestamp) == (client, stamp, staleness)
            released, restarted = set(push.released), set(push.restarted)
            assert len(released) == len(push.released)  # each once
            assert len(restarted) == len(push.restarted)
            held.add(client)
            assert released <= held
            held -= released
            assert not restarted & (held | released)
            for other in restarted:  # which give up a task
                tasks[other] += 1
            assert (held | released | restarted) <= {*range(clients)}
            late = needed is not None and needed < clients and push.timestamp < push.before
            late = late and config["server"]["name"] == "sync"
            counted += not late
            # All clients that are held are released when the round is full, and none before.
            assert len(held) == (counted % needed if needed else 0) or config["server"]["name"] == "mindflayer"
        served = [one for one in (remaining.pop() for _ in range(fetched)) if isinstance(one, int)]
        assert len(set(served)) == fetched
        assert set(served) <= released | restarted
        assert gated or fetched == len(released | restarted)
    assert not remaining
