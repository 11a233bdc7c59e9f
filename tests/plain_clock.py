"""A clock as plain code: a list of pending steps, which is sorted by (time, client) before each step.

Times are whole nanoseconds, and bandwidths whole nanoseconds per byte. Nothing here comes from fredsim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["NEVER", "PlainClock", "Row"]

NEVER = 2**62
Row = tuple[int, int, int, int, int, int, int]
"""client, number, sent, time, begun, done, received."""


@dataclass
class PlainClock:
    """Clients, their links, and a server; `takes` returns how long a client's task takes, `sends` a push's bytes."""

    clients: int
    takes: Callable[[int, int], int]
    sends: Callable[[int, int, int], int] = lambda client, number, sent: 1
    latency: Sequence[int] | None = None
    up: Sequence[int] | None = None  # nanoseconds a byte
    down: Sequence[int] | None = None
    shared_up: int = 0  # nanoseconds a byte
    shared_down: int = 0
    serving: int = 0
    #: Functions that return how long a client's n-th times up and down are; and whether a running task is lost.
    outages: tuple[Callable[[int, int], int], Callable[[int, int], int], bool] | None = None
    uplink_free: int = 0
    downlink_free: int = 0
    server_free: int = 0
    now: int = 0
    done: int = 0  # gradients
    pending: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        n = self.clients
        self.latency = self.latency or [0] * n
        self.number, self.began, self.finished, self.received = ([0] * n for _ in range(4))
        self.sent, self.size, self.left = ([0] * n for _ in range(3))
        self.pending = [(0, client, "begin") for client in range(n)]

    def next(self) -> Row | None:
        """Return the next arrival; its client waits."""
        while self.pending:
            self.pending.sort(key=lambda one: one[:2])
            self.now, client, what = self.pending.pop(0)
            if what == "arrive":
                number = self.number[client]
                self.number[client] += 1
                stages = self.began[client], self.finished[client], self.received[client]
                return client, number, self.sent[client], self.now, *stages
            getattr(self, what)(client)
        return None

    def release(self, client: int, size: int) -> None:
        """Let a waiting client fetch `size` bytes and continue."""
        self.size[client] = size
        self.put(client, self.now, "fetch")

    def restart(self, client: int, size: int) -> None:
        """Let a client give up what it does, and fetch `size` bytes."""
        self.pending = [one for one in self.pending if one[1] != client]
        self.number[client] += 1
        self.release(client, size)

    def put(self, client: int, time: int, what: str) -> None:
        if time < NEVER:
            self.pending.append((time, client, what))

    def fetch(self, client: int) -> None:
        size = self.size[client]
        if not size:
            self.put(client, self.now, "begin")
            return
        time = self.now
        if self.shared_down:
            time = self.downlink_free = max(self.downlink_free, time) + size * self.shared_down
        self.put(client, time + self.own(self.down, client, size), "begin")

    def own(self, link: Sequence[int] | None, client: int, size: int) -> int:
        assert self.latency is not None
        return self.latency[client] + (size * link[client] if link else 0)

    def begin(self, client: int) -> None:
        self.left[client] = self.takes(client, self.number[client])
        self.began[client] = self.stay_up(client)[0]
        self.work(client)

    def stay_up(self, client: int) -> tuple[int, int]:
        """Return from when on, beginning now, the client is up, and until when."""
        if self.outages is None:
            return self.now, NEVER
        up, down, _ = self.outages
        begin, end, which = 0, up(client, 0), 0
        while end <= self.now:
            begin = end + down(client, which)
            which += 1
            end = begin + up(client, which)
        return max(begin, self.now), end

    def work(self, client: int) -> None:
        at, end = self.stay_up(client)
        if at + self.left[client] <= end:
            self.put(client, at + self.left[client], "finish")
        elif self.left[client] < NEVER or (self.outages and self.outages[2]):
            self.left[client] -= end - at
            self.put(client, end, "go_down")

    def go_down(self, client: int) -> None:
        assert self.outages is not None
        if self.outages[2]:
            self.number[client] += 1
            self.begin(client)
        else:
            self.work(client)

    def finish(self, client: int) -> None:
        self.finished[client], self.sent[client] = self.now, self.done
        size = self.size[client] = self.sends(client, self.number[client], self.done)
        self.done += 1
        self.put(client, self.now + (self.own(self.up, client, size) if size else 0), "share")

    def share(self, client: int) -> None:
        time = self.now
        if self.size[client] and self.shared_up:
            time = self.uplink_free = max(self.uplink_free, time) + self.size[client] * self.shared_up
        self.put(client, time, "serve")

    def serve(self, client: int) -> None:
        self.received[client] = self.now
        self.server_free = max(self.server_free, self.now) + (self.serving if self.size[client] else 0)
        self.put(client, self.server_free, "arrive")
