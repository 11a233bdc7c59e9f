"""Servers that count clients, not gradients, against float64 formulas from their papers; Ringleader's promises."""

import math
from collections.abc import Callable
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.dispatchers import Clock
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result

Wide = NDArray[np.float64]
Spec = dict[str, Any]
State = dict[str, Any]
Push = SimpleNamespace
Formula = Callable[[Wide, State, Push], Wide | None]
Simulate = Callable[..., Result]


def ia2sgd(spec: Spec) -> Formula:
    most = spec.get("max_delay", math.inf)

    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        table: dict[int, tuple[int, Wide]] = s.setdefault("table", {})
        table[p.client] = p.t - p.tau, p.g
        counted = [g for stamp, g in table.values() if p.t - stamp <= most]
        if len(table) < p.clients or not counted:
            return None
        return np.asarray(theta - p.alpha * np.mean(counted, axis=0))

    return step


def malenia(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        s["restarted"] = []
        if p.tau > 0:
            return None
        gathered: dict[int, list[Wide]] = s.setdefault("gathered", {})
        gathered.setdefault(p.client, []).append(p.g)
        if len(gathered) < p.clients:
            return None
        if p.clients / sum(Fraction(1, len(some)) for some in gathered.values()) < Fraction(spec.get("harmonic", 1)):
            return None
        s["restarted"] = [client for client in range(p.clients) if client != p.client]
        del s["gathered"]
        return np.asarray(theta - p.alpha * np.mean([np.mean(some, axis=0) for some in gathered.values()], axis=0))

    return step


def ringleader() -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide | None:
        main: dict[int, list[Wide]] = s.setdefault("main", {})
        if "to_update" in s and p.client not in s["to_update"]:
            s.setdefault("later", {}).setdefault(p.client, []).append(p.g)
            return None
        main.setdefault(p.client, []).append(p.g)
        if len(main) < p.clients:
            return None
        s.setdefault("to_update", set(range(p.clients))).remove(p.client)
        new = theta - p.alpha * sum(np.mean(main[client], axis=0) for client in range(p.clients)) / p.clients
        if not s["to_update"]:
            del s["to_update"]
            s["main"] = s.pop("later", {})
        return np.asarray(new)

    return step


def throttle(spec: Spec) -> Formula:
    def step(theta: Wide, s: State, p: Push) -> Wide:
        sent: list[int] = s.setdefault("sent", [0] * p.clients)
        share = spec["q"] ** -sent[p.client] if sent[p.client] else 1 / p.clients
        sent[p.client] += 1
        s["restarted"] = []
        if all(sent):
            s["restarted"] = [client for client in range(p.clients) if client != p.client]
            del s["sent"]
        return np.asarray(theta - p.alpha * share * p.g)

    return step


FORMULAS: dict[str, Callable[[Spec], Formula]] = {
    "ia2sgd": ia2sgd,
    "malenia": malenia,
    "ringleader": lambda spec: ringleader(),
    "throttle": throttle,
}


def test_a_thousand_pushes_follow_the_formula(spec: Spec, follow: Callable[..., Any]) -> None:
    server = follow(spec, FORMULAS[spec["name"]](spec)).server
    assert server.timestamp > (30 if spec["name"] == "malenia" else 200)
    assert server.finite


def test_a_hundred_pushes_of_one_client_follow_the_formula(spec: Spec, follow: Callable[..., Any]) -> None:
    assert follow(spec, FORMULAS[spec["name"]](spec), pushes=100, clients=1).server.timestamp >= 50


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "malenia", "lr": 0.1, "harmonic": 1.75},
        {"name": "malenia", "lr": 0.1, "harmonic": 3.0},
        {"name": "throttle", "lr": 0.1, "q": math.inf},
        {"name": "throttle", "lr": 0.02, "q": 1.0},
        {"name": "ia2sgd", "lr": 0.05, "max_delay": 1},
        {"name": "ia2sgd", "lr": 0.05, "max_delay": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("clients", [2, 5])
def test_their_keys_do_as_the_formula_says(spec: Spec, clients: int, follow: Callable[..., Any]) -> None:
    assert follow(spec, FORMULAS[spec["name"]](spec), clients=clients).server.timestamp > 30


def test_malenia_compares_the_harmonic_mean_exactly_but_only_where_it_is_close(
    make: Callable[[Spec], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """n ≥ (S/n) Σ 1/b, also where both are equal; sums of fractions, which are slow, are made for these cases only."""
    sums = list[Fraction]()

    def counted(*number: Any) -> Fraction:
        sums.append(Fraction(*number))
        return sums[-1]

    monkeypatch.setattr("fredsim.servers.malenia.Fraction", counted)
    rng, exact, far = np.random.default_rng(3), 0, 0
    for number in range(300):
        counts = rng.integers(1, 30, int(rng.integers(1, 9)))
        mean = len(counts) / sum((Fraction(1, int(b)) for b in counts), Fraction(0))
        chosen = float(mean) if number % 2 else float(rng.uniform(1, 30))  # float(mean) is often the mean itself
        for harmonic in (chosen, math.nextafter(chosen, 0), math.nextafter(chosen, 99)):
            if harmonic < 1:
                continue
            server = make({"name": "malenia", "lr": 0.1, "harmonic": harmonic})
            server.init(np.zeros(2, np.float32), len(counts))
            server._counts[:] = counts
            sums.clear()
            assert server._enough() == (mean >= Fraction(harmonic)), (harmonic, counts)
            exact += mean == Fraction(harmonic)
            if abs(mean - Fraction(harmonic)) > 1e-3:
                assert not sums
                far += 1
    assert min(exact, far) > 10


@pytest.mark.parametrize("name", ["ia2sgd", "ringleader"])
def test_the_sum_of_a_table_does_not_drift(name: str, make: Callable[[Spec], Any]) -> None:
    """After 20,000 changes, by gradients of very different size, it is that of the present entries."""
    rng, clients, size = np.random.default_rng(5), 7, 50
    server = make({"name": name, "lr": 1e-9})
    server.init(np.zeros(size, np.float32), clients)
    largest = 0.0
    for number in range(20_000):
        g = (10.0 ** (3 * math.sin(number / 300)) * rng.standard_normal(size)).astype(np.float32)
        server.apply_update(g, int(rng.integers(clients)), 0)
        largest = max(largest, float(np.abs(server.arrays["total"]).max()))
        if number % 500 == 0 and server.timestamp:
            table = server.own["latest" if name == "ia2sgd" else "gathered"]
            entries = [entry.astype(np.float64) for entry in table.values()]
            if name == "ringleader":  # the mean of so many gradients, rounded once
                entries = [np.float64(entry / np.float32(server._counts[client])) for client, entry in table.items()]
            exact = np.array([math.fsum(column) for column in zip(*entries, strict=True)])
            off = np.abs(server.arrays["total"] - exact)
            assert (off <= 2.0**-24 * np.abs(exact) + 2.0**-40 * largest).all(), number
    assert largest > 1000


def test_where_every_entry_is_too_old_nothing_is_left_of_the_sum(make: Callable[[Spec], Any]) -> None:
    """Not the rounding errors of entries of very different size either."""
    server = make({"name": "ia2sgd", "lr": 1e-20, "max_delay": 2})
    server.init(np.zeros(50, np.float32), 3)
    rng = np.random.default_rng(1)
    for push in range(300):
        scale = (1e12, 1.0, 1e-9)[push % 3] * (1 if push < 297 else 1e-9)
        late = push % 30 >= 27  # all three are of the parameters at the start
        server.apply_update(
            (scale * rng.standard_normal(50)).astype(np.float32), push % 3, 0 if late else server.timestamp
        )
        if push > 30 and push % 30 == 29:
            assert not server._counted.any()
            assert not any(server.arrays[name].any() for name in ("total", "remainder")), push


def test_a_state_is_taken_up_wherever_the_round_is(spec: Spec, make: Callable[[Spec], Any]) -> None:
    rng, size = np.random.default_rng(6), 40
    pushes = [(rng.standard_normal(size).astype(np.float32), int(rng.integers(6))) for _ in range(70)]

    def started() -> Any:
        server = make(spec)
        server.init(np.ones(size, np.float32), 6)
        return server

    def go_on(server: Any, begin: int, end: int) -> None:
        for g, client in pushes[begin:end]:
            server.apply_update(g, client, server.timestamp)

    whole, stopped = started(), started()
    go_on(whole, 0, 70)
    for event in range(70):
        again = started()
        again.put_state(stopped.take_state())
        go_on(again, event, 70)
        assert again.params.tobytes() == whole.params.tobytes(), event
        assert again.timestamp == whole.timestamp
        go_on(stopped, event, event + 1)


@pytest.mark.parametrize("sampling", ["sequential", "shuffled"])
def test_malenia_on_a_clock_of_equal_times_is_synchronous(sampling: str, simulate: Simulate) -> None:
    """Nobody is done twice before everybody is done once."""
    base = {"clients": {"count": 6, "batch_size": 3, "sampling": sampling}, "iterations": 120, "seed": 3}
    base |= {"dispatcher": {"name": "clock", "compute": {"seconds": 0.3}}, "evaluation": {"every": 12}}
    one, two = (simulate({**base, "server": {"name": name, "lr": 0.3}}) for name in ("malenia", "sync"))
    assert one.summary["updates"] == 20
    assert one.metrics["digest"].tolist() == two.metrics["digest"].tolist()
    assert one.metrics["time"].tolist() == two.metrics["time"].tolist()


def violations(compute: Spec, clients: int, events: int, make: Callable[[Spec], Any], seed: int = 0) -> list[str]:
    """Let clients push to Ringleader on a clock; return how what happens differs from what the paper promises.

    Client i's gradients are c·e_i, c counting them, so that each update shows of which gradients it is made. Beside it
    stand the two tables of the paper, as lists of (c, timestamp).
    """
    clock, found = Clock(compute=compute), []
    clock.init(clients, Streams(seed))
    slowest = max(compute["seconds"]) if isinstance(compute.get("seconds"), list) and "noise" not in compute else None
    server = make({"name": "ringleader", "lr": 1.0})
    server.init(np.zeros(clients, np.float32), clients)
    sent, used = [0] * clients, [0] * clients
    held = [0] * clients  # the timestamp of what each client computes from
    tables: list[list[list[tuple[int, int]]]] = [[[] for _ in range(clients)] for _ in range(2)]
    due: set[int] = set()
    round_began = now = done = 0
    while done < events:
        order = clock.draw(min(10_000, events - done))
        assert order.time is not None
        for now, client in zip(order.time.tolist(), order.client.tolist(), strict=True):
            sent[client] += 1
            c, stamp, t = sent[client], held[client], server.timestamp
            g = np.zeros(clients, np.float32)
            g[client] = c % 1000
            before = server.params.copy()
            if server.apply_update(g, client, stamp) is not None:
                found.append(f"{done}: somebody is held or restarted")
            tables[bool(due) and client not in due][client].append((c, stamp))
            ready = bool(due) or all(tables[0])
            if server.timestamp != t + (ready and (not due or client in due)):
                found.append(f"{done}: an update that is none of the round's, or none where one is due")
            if server.timestamp > t:
                due = due or set(range(clients))
                due.discard(client)
                step = np.array([np.mean([c % 1000 for c, _ in row]) for row in tables[0]]) / clients
                if np.abs(before - server.params - step).max() > 1e-5 * (np.abs(before).max() + step.max()):
                    found.append(f"{done}: an update by other gradients")
                delays = [t - stamp for row in tables[0] for _, stamp in row]
                if max(delays) > 2 * clients - 2:
                    found.append(f"{done}: a delay of {max(delays)}")
                if not due:
                    for one, row in enumerate(tables[0]):  # each gradient of the client was used, in turn
                        if [c for c, _ in row] != list(range(used[one] + 1, used[one] + len(row) + 1)):
                            found.append(f"{done}: a gradient of client {one} is missing")
                        used[one] += len(row)
                    tables = [tables[1], [[] for _ in range(clients)]]
                    if slowest is not None and now - round_began > round(2e9 * slowest):
                        found.append(f"{done}: a round of {now - round_began} ns")
                    round_began = now
                    server.params[...] = 0  # lest rounding hide what an update is made of
            held[client] = server.timestamp
            done += 1
    if any(sent[one] != used[one] + len(tables[0][one]) + len(tables[1][one]) for one in range(clients)):
        found.append("at the end: a gradient is neither used nor kept")
    return found


CLOCKS: dict[str, Spec] = {
    "fixed": {"seconds": [1.0, 1.7, 2.1, 2.100000001, 3.9, 8.3]},
    "fixed, one slow": {"seconds": [1.0, 1.0, 1.0, 1.0, 1.0, 61.7]},
    "equal": {"seconds": [0.7] * 6},
    "gamma": {"seconds": {"name": "power"}, "noise": {"name": "gamma", "cv": 2.0}},
    "exponential": {"noise": {"name": "exponential"}},
    "pareto": {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "pareto", "alpha": 1.2}},
    "half normal": {
        "seconds": {"name": "power", "exponent": 1.0}, "noise": {"name": "half_normal", "sd": "sqrt", "add": True}
    },
}  # fmt: skip


@pytest.mark.parametrize("events", [4_000, pytest.param(150_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("clock", CLOCKS)
def test_ringleader_keeps_its_promises(clock: str, events: int, make: Callable[[Spec], Any]) -> None:
    """No delay above 2n − 2, nothing lost, nobody idle, n updates in twice the slowest time where times are fixed."""
    assert violations(CLOCKS[clock], 6, events, make, seed=events) == []
