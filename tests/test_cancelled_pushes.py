"""Pushes that the server cancels on their way: what they count, and what the server decodes of those that arrive.

A whole run is written out here as sender, network and receiver, each with a memory of its own: what a sender believes
to be delivered is what the receiver got.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.compressors import COMPRESSORS
from fredsim.config.document import dump_yaml
from fredsim.networks.layout import Layout
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from tests.plain_clock import PlainClock
from tests.test_going_on import files_of, stopped

Simulate = Callable[..., Result]
Refused = Callable[..., None]
Array = NDArray[np.float32]
COUNT, EVENTS, K, WHOLE, SECOND = 8, 60, 40, 4840, 10**9
LAYOUT = Layout((("W1", (64, 16)), ("b1", (16,)), ("W2", (16, 10)), ("b2", (10,))))
TIMES = [1.0, 1.0, 2.0, 3.0, 1.0, 5.0, 2.0, 7.0]
NEARER = [1.0, 1.0, 1.25, 1.5, 1.0, 2.0, 1.25, 1.75]  # so that many rounds end, and with a busier server
TOP_K = {"name": "top_k", "k": K}
POLICIES = ["none", "skip", "reapply", "accumulate", "average"]
CHOICES: dict[str, dict[str, Any] | None] = {
    "none": None, "sign": {"name": "sign"}, "qsgd": {"name": "qsgd"}, "ternary": {"name": "ternary"}, "top_k": TOP_K,
    "error_feedback_sign": {"name": "error_feedback_sign"}, "ef21": {"name": "ef21", "inner": TOP_K},
    "ef21 of signs": {"name": "ef21", "inner": {"name": "error_feedback_sign"}},
    "a class of one's own": {"name": "sums_up:Sums"}, "one without a memory": {"name": "sums_up:Halves"},
}  # fmt: skip
OWN = '''
import numpy as np


class Sums:
    """Sends half of all that the client has not sent."""

    def init(self, layout, streams):
        self.left, self.before = {}, {}

    def compress(self, push, client, step):
        self.before[client] = self.left.get(client, np.float32(0))
        total = push + self.before[client]
        self.left[client] = total * np.float32(0.5)
        return total - self.left[client], 99

    def cancelled(self, client):
        self.left[client] = self.before[client]


class Halves:
    def init(self, layout, streams):
        pass

    def compress(self, push, client, step):
        return push * np.float32(0.5), 77


'''


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums_up.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def largest(p: Array) -> Array:
    out = np.zeros_like(p)
    order = np.lexsort((np.arange(len(p)), -np.abs(p)))[:K]
    out[order] = p[order]
    return out


def once(choice: dict[str, Any], push: Array, client: int, step: int) -> tuple[Array, int]:
    """What one of fredsim's compressors, which has seen nothing before, makes of a push."""
    hyper = dict(choice)
    fresh = COMPRESSORS[hyper.pop("name")](**hyper)
    fresh.init(LAYOUT, Streams(0))
    return fresh.compress(push, client, step)


@dataclass
class Sender:
    """A client's side: `learn` is called once its message has arrived, and not if that is cancelled."""

    choice: dict[str, Any] | None
    memory: dict[int, Array] = field(default_factory=dict)  # the error, or the estimate, by client

    def send(self, g: Array, client: int, step: int) -> tuple[Array, int, Array | None]:
        """Return the message, its bytes, and the memory if it arrives."""
        name, old = (self.choice or {"name": ""})["name"], self.memory.get(client, np.float32(0))
        if not name:
            return g, WHOLE, None
        if name in {"top_k", "error_feedback_sign"}:
            p = g + old
            message, size = (largest(p), 8 * K) if name == "top_k" else once({"name": name}, p, client, step)
            return message, size, p - message
        if name == "ef21":
            assert self.choice is not None
            message, size = once(self.choice["inner"], g - old, client, step)
            return message, size, old + message
        if name == "sums_up:Sums":
            p = g + old
            return p - p * np.float32(0.5), 99, p * np.float32(0.5)
        if name == "sums_up:Halves":
            return g * np.float32(0.5), 77, None
        assert self.choice is not None
        return *once(self.choice, g, client, step), None


@dataclass
class Receiver:
    """The server's side: Ringmaster ASGD with stops, or plain ASGD, and what it knows of each client."""

    theta: Array
    number: float  # the rule's own
    estimates: dict[int, Array] | None
    timestamp: int = 0
    last: dict[int, tuple[Array, int]] = field(default_factory=dict)
    arrived: dict[int, list[Array]] = field(default_factory=dict)  # since all began anew, by client

    def decode(self, client: int, message: Array) -> Array:
        if self.estimates is None:
            return message
        self.estimates[client] = self.estimates.get(client, np.float32(0)) + message
        return self.estimates[client]

    def step(self, direction: Array, alpha: float = 0.05) -> bool:
        self.theta, self.timestamp = self.theta - np.float32(alpha) * direction, self.timestamp + 1
        return True

    def apply(self, client: int, push: Array, timestamp: int) -> bool:
        """Let the rule have a push; return whether clients may have to begin anew."""
        del client
        return self.timestamp - timestamp < self.number and self.step(push)

    def late(self, stamp: int) -> bool:
        """Whether a client that has fetched this timestamp begins anew."""
        return self.timestamp - stamp >= self.number


class Malenia(Receiver):
    """The mean of the means of the clients' gradients of one round, once their harmonic mean is `number`."""

    def apply(self, client: int, push: Array, timestamp: int) -> bool:
        if timestamp < self.timestamp:
            return False
        self.arrived.setdefault(client, []).append(push)
        if (
            len(self.arrived) < COUNT
            or Fraction(self.number) * sum(Fraction(1, len(some)) for some in self.arrived.values()) > COUNT
        ):
            return False
        means = [sum(some[1:], some[0]) / np.float32(len(some)) for _, some in sorted(self.arrived.items())]
        self.arrived = {}
        return self.step(tree_sum(np.stack(means)) / np.float32(COUNT))

    def late(self, stamp: int) -> bool:
        del stamp
        return True


class Throttle(Malenia):
    """A client's first gradient of a round counts 1/n, one after c others 1/`number`ᶜ."""

    def apply(self, client: int, push: Array, timestamp: int) -> bool:
        del timestamp
        before = self.arrived.setdefault(client, [])
        self.step(push, 0.05 / (self.number ** len(before) if before else COUNT))
        before.append(push)
        if len(self.arrived) < COUNT:
            return False
        self.arrived = {}
        return True


RULES: dict[str, type[Receiver]] = {"ringmaster": Receiver, "malenia": Malenia, "throttle": Throttle}


@dataclass
class Sent:
    """What a client has sent: None if the gate dropped it; `again` if the server is to apply the last one instead."""

    message: Array | None
    timestamp: int
    memory: Array | None
    again: bool = False


@dataclass
class Clients:
    """The clients: what they hold, gates, and what they do with pushes that are dropped."""

    world: Any
    sender: Sender
    receiver: Receiver
    policy: str
    asked: Counter[int] = field(default_factory=Counter)
    unsent: dict[int, list[tuple[Array, int]]] = field(default_factory=dict)
    under_way: dict[int, Sent] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held, self.stamps = [self.receiver.theta] * COUNT, [0] * COUNT

    def fetch(self, client: int) -> None:
        self.held[client], self.stamps[client] = self.receiver.theta, self.receiver.timestamp

    def done(self, client: int, number: int, sent: int) -> int:
        """Decide about the push of a gradient that is done; return its bytes."""
        g, stamp = self.world.gradient(self.held[client], sent, client, number), self.stamps[client]
        self.asked[client] += 1
        passes = self.policy == "none" or self.asked[client] % 2 == 0
        if self.policy in {"accumulate", "average"}:
            waiting = self.unsent.setdefault(client, [])
            waiting.append((g, stamp))
            if passes:
                total = waiting[0][0]
                for other, _ in waiting[1:]:
                    total = total + other
                g = total / np.float32(len(waiting)) if self.policy == "average" else total
                stamp = min(old for _, old in waiting)
                waiting.clear()
        again = self.policy == "reapply" and client in self.receiver.last and not passes
        if not (passes or (self.policy == "reapply" and not again)):
            self.under_way[client], self.sizes[client] = Sent(None, stamp, None, again), 0
            return 0
        message, self.sizes[client], memory = self.sender.send(g, client, sent)
        self.under_way[client] = Sent(message, stamp, memory)
        return self.sizes[client]

    def arrive(self, client: int) -> bool:
        """Let the server have what has arrived; return whether clients may have to begin anew."""
        sent, receiver = self.under_way.pop(client), self.receiver
        if sent.again:
            return receiver.apply(client, *receiver.last[client])
        if sent.message is None:
            return False
        if sent.memory is not None:
            self.sender.memory[client] = sent.memory
        receiver.last[client] = receiver.decode(client, sent.message).copy(), sent.timestamp
        return receiver.apply(client, *receiver.last[client])


def plain_run(
    plain: ModuleType, choice: dict[str, Any] | None, policy: str, number: float, rule: str = "ringmaster"
) -> list[dict[str, Any]]:
    """Rows of metrics.csv: digest, time, pushes and bytes after each event."""
    world = plain.World(sampling="iid")
    estimates: dict[int, Array] | None = {} if choice and choice["name"] == "ef21" else None
    receiver = RULES[rule](world.start, number, estimates)
    clients = Clients(world, Sender(choice), receiver, policy)
    times, serving = (TIMES, SECOND // 8) if rule == "ringmaster" else (NEARER, SECOND // 4)
    clock = PlainClock(
        COUNT, lambda client, _: int(times[client] * SECOND), clients.done, latency=[SECOND // 2] * COUNT,
        up=[200_000] * COUNT, shared_up=100_000, serving=serving,
    )  # fmt: skip
    counts, rows = Counter[str](), []

    def count(size: int) -> None:
        counts.update(potential_pushes=1, pushes=size > 0, bytes_pushed=size)

    for _ in range(EVENTS):
        arrival = clock.next()
        assert arrival is not None
        client = arrival[0]
        count(clients.sizes[client])
        anew = clients.arrive(client)
        clients.fetch(client)
        clock.release(client, WHOLE)
        counts["fetches"] += 1
        for other in range(COUNT) if anew else ():
            if other != client and receiver.late(clients.stamps[other]):
                if clients.under_way.pop(other, None) is not None:
                    count(clients.sizes[other])
                    counts["cancelled"] += 1
                clients.fetch(other)
                clock.restart(other, WHOLE)
                counts["fetches"] += 1
        stamp = receiver.timestamp
        rows.append({**counts, "timestamp": stamp, "time": clock.now / SECOND, "digest": world.digest(receiver.theta)})
    return rows


def experiment(choice: dict[str, Any] | None, policy: str, number: float, rule: str = "ringmaster") -> dict[str, Any]:
    times, serving = (TIMES, 0.125) if rule == "ringmaster" else (NEARER, 0.25)
    link, server = {"latency": 0.5, "up": 5000.0}, {"up": 10_000.0, "seconds": serving}
    gate = {} if policy == "none" else {"push": {"every": 2}, "dropped_push": policy}
    own: dict[str, dict[str, Any]] = {
        "ringmaster": {"threshold": number, "stop": True}, "malenia": {"harmonic": number}, "throttle": {"q": number}
    }  # fmt: skip
    return {
        "iterations": EVENTS, "compress": choice, "evaluation": {"every": 1, "per_client": True}, "events": True,
        "clients": {"count": COUNT, "batch_size": 3, "sampling": "iid"}, "data": {"name": "digits", "train": 1200},
        "dispatcher": {"name": "clock", "compute": {"seconds": times}, "link": link, "server": server, **gate},
        "server": {"name": rule, "lr": 0.05, **own[rule]},
    }  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_the_server_decodes_what_arrived(
    choice: dict[str, Any] | None, policy: str, simulate: Simulate, plain: ModuleType
) -> None:
    """Whatever was dropped or cancelled; and whatever was sent took its bytes."""
    follow(plain, simulate, choice, policy, 6 if policy == "none" else 3, "ringmaster")


@pytest.mark.parametrize(("choice", "policy"), [*zip(CHOICES.values(), 2 * POLICIES, strict=True)], ids=CHOICES)
@pytest.mark.parametrize(
    ("rule", "number"), [("malenia", 1.0), ("malenia", 1.5), ("throttle", 1.5), ("throttle", math.inf)]
)
def test_sums_and_weights_follow_what_arrived(
    rule: str, number: float, choice: dict[str, Any] | None, policy: str, simulate: Simulate, plain: ModuleType
) -> None:
    """Of servers whose clients all begin anew at the end of a round, whatever is on its way then."""
    follow(plain, simulate, choice, policy, number, rule)


def follow(
    plain: ModuleType, simulate: Simulate, choice: dict[str, Any] | None, policy: str, number: float, rule: str
) -> None:
    """Compare a run with the plain one."""
    rows, result = plain_run(plain, choice, policy, number, rule), simulate(experiment(choice, policy, number, rule))
    assert rows[-1].get("cancelled", 0) >= 2 or (rule != "ringmaster" and policy != "none")
    found = result.metrics[1:]
    for name in ("time", "timestamp", "potential_pushes", "pushes", "bytes_pushed", "fetches", "digest"):
        assert found[name].tolist() == [row[name] for row in rows], name
    assert result.clients["pushes"].sum() == rows[-1]["pushes"]
    assert result.clients["bytes_pushed"].sum() == rows[-1]["bytes_pushed"]
    own = result.events["pushed"].sum()
    assert rows[-1]["pushes"] - own <= rows[-1].get("cancelled", 0)  # an event says what became of its own push alone


@pytest.mark.parametrize(("choice", "policy"), [*zip(CHOICES.values(), 2 * POLICIES, strict=True)], ids=CHOICES)
def test_stopped_and_replayed(choice: dict[str, Any] | None, policy: str, tmp_path: Path) -> None:
    """What a cancelled push takes back is part of the state, and a trace knows of it."""
    data = {"model": {"hidden": [16]}, **experiment(choice, policy, 4), "iterations": 40}
    whole = fredsim.run(data, out=tmp_path / "whole")
    assert isinstance(whole, Result)
    status, stops = "interrupted", 0
    while status == "interrupted":
        status, _ = stopped(data, tmp_path / "stopped", 7)
        stops += 1
    assert stops > 4
    assert files_of(tmp_path / "stopped") == files_of(whole.folder)
    kept = {key: data["dispatcher"][key] for key in ("push", "dropped_push") if key in data["dispatcher"]}
    trace = {"name": "trace", "file": str(whole.folder / "events.parquet"), **kept}
    again = fredsim.run(data | {"dispatcher": trace}, out=tmp_path / "again")
    assert isinstance(again, Result)
    assert files_of(again.folder) == files_of(whole.folder)


def half_of_the_pairs() -> Iterator[object]:
    """Pairs of a choice and a policy, those of one colour of a chessboard; the others take --slow."""
    for row, name in enumerate(CHOICES):
        for column, policy in enumerate(POLICIES):
            marks = [pytest.mark.slow] * ((row + column) % 2)
            yield pytest.param(CHOICES[name], policy, marks=marks, id=f"{name}-{policy}")


@pytest.mark.parametrize(("choice", "policy"), [*half_of_the_pairs()])
def test_a_task_that_was_given_up_sends_nothing(
    choice: dict[str, Any] | None, policy: str, simulate: Simulate, plain: ModuleType
) -> None:
    """It is no push, asks no gate, and leaves every memory as it is."""
    data = experiment(choice, policy, 1)
    compute = {"seconds": TIMES, "noise": {"name": "exponential"}, "limit": 2.0}
    exchanges = {key: data["dispatcher"][key] for key in ("push", "dropped_push") if key in data["dispatcher"]}
    data |= {"dispatcher": {"name": "clock", "compute": compute, **exchanges}, "server": {"name": "asgd", "lr": 0.05}}
    result = simulate(data)
    world = plain.World(sampling="iid")
    estimates: dict[int, Array] | None = {} if choice and choice["name"] == "ef21" else None
    receiver = Receiver(world.start, 10**6, estimates)
    clients, digests, counts = Clients(world, Sender(choice), receiver, policy), [], Counter[str]()
    events = result.events
    for sent, (client, number, lost) in enumerate(
        zip(events["client"], events["number"], events["given_up"], strict=True)
    ):
        counts["potential_pushes"] += 1
        if not lost:
            size = clients.done(client, number, sent)
            clients.arrive(client)
            counts.update(pushes=size > 0, bytes_pushed=size)
        clients.fetch(client)
        digests.append(world.digest(receiver.theta))
    assert result.metrics["digest"].tolist()[1:] == digests
    assert {name: result.metrics.iloc[-1][name] for name in counts} == counts
    assert 5 < events["given_up"].sum() < EVENTS - 5
    assert events["sent"].tolist() == [*range(EVENTS)]  # it counts there, and so its minibatch is skipped


def test_a_class_that_cannot_take_back_what_it_keeps(small_yaml: Path, refused: Refused) -> None:
    """Only where a push of its own is cancelled; the message says what to add."""
    Path("forgets.py").write_text(OWN.replace("def cancelled", "def other"), encoding="utf-8")
    data = {"name": "small", "model": {"hidden": [16]}, **experiment({"name": "forgets:Sums"}, "none", 6)}
    small_yaml.write_text(dump_yaml(data), encoding="utf-8")
    says = ("Sums, client ", ", cancelled: the server cancelled a push on its way, and the class keeps something",
            "give it a method cancelled(client)")  # fmt: skip
    refused("run", small_yaml, "--quiet", "--out", "results", says=says)
