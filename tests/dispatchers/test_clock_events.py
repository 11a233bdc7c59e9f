"""Times and orders of a clock, event by event, against a plain simulation (tests/plain_clock.py), with many ties."""

import math
import random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from fredsim.dispatchers import Clock
from fredsim.numerics.distributions import Distribution, draw
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.state.states import State
from fredsim.simulation.schedule.guarded_clock import OwnClock
from tests.plain_clock import NEVER, PlainClock, Row

SEED = 5
UP, DOWN = 16, 24  # elements of stream 7


class Setting(NamedTuple):
    """A small cluster; times in nanoseconds, bandwidths in nanoseconds a byte."""

    tasks: list[list[int]]  # by client, in turn; 0 never ends
    latency: list[int]
    up: list[int] | None
    down: list[int] | None
    shared_up: int
    shared_down: int
    serving: int
    outages: tuple[int, int, bool, bool] | None  # up, down; whether they are drawn, and tasks are lost
    sizes: list[int]  # of pushes, in turn; 0: dropped

    def push(self, client: int, number: int, sent: int) -> int:
        return self.sizes[(2 * client + 3 * number + sent) % len(self.sizes)]

    def takes(self, client: int, number: int) -> int:
        return self.tasks[client][number % len(self.tasks[client])] or NEVER


class Tasks:
    """A user's clock."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.link = {"latency": [time / 1e9 for time in setting.latency]}
        self.link |= {name: [1e9 / b for b in own] for name in ("up", "down") if (own := getattr(setting, name))}
        self.server: dict[str, Any] = {"seconds": setting.serving / 1e9}
        shared = {"up": setting.shared_up, "down": setting.shared_down}
        self.server |= {name: 1e9 / b for name, b in shared.items() if b}
        self.outages = None
        if setting.outages is not None:
            up, down, drawn, lost = setting.outages
            times = {"up": up / 1e9, "down": down / 1e9}
            if drawn:
                times = {name: {"name": "uniform", "mean": mean, "spread": 1.0} for name, mean in times.items()}  # type: ignore[misc]
            self.outages = {**times, "task": "lost" if lost else "paused"}

    def seconds(self, client: int, task: int) -> float:
        taken = self._setting.takes(client, task)
        return math.inf if taken == NEVER else taken / 1e9

    def take_state(self) -> State:
        return {}

    def put_state(self, state: State) -> None:
        pass


def drawn_time(element: int, mean: int, client: int, number: int) -> int:
    (unit,) = draw(Distribution("uniform", (0.0, 2.0)), Streams(SEED), Stream.TIME, number, client, element)
    return max(1, round(float(unit) * (mean / 1e9) * 1e9))


def plain(setting: Setting) -> PlainClock:
    outages = None
    if setting.outages is not None:
        up, down, drawn, lost = setting.outages
        times = [
            (lambda client, number, e=element, m=mean: drawn_time(e, m, client, number) if drawn else m)
            for element, mean in ((UP, up), (DOWN, down))
        ]
        outages = (*times, lost)
    return PlainClock(
        len(setting.tasks), setting.takes, setting.push, setting.latency, setting.up, setting.down, setting.shared_up,
        setting.shared_down, setting.serving, outages,  # type: ignore[arg-type]
    )  # fmt: skip


def clock(setting: Setting, *, reacts: bool, size: int | None = None) -> OwnClock:
    found = OwnClock(Tasks(setting))
    found.init(len(setting.tasks), Streams(SEED))
    found.configure(reacts=reacts, size=7 if size is None else size)
    if size is None:
        found.on_gradient_done = setting.push
    return found


def rows_of(order: Any) -> list[Row]:
    columns = [order.client, order.number, order.sent, order.time, *order.stages.T]
    return list(zip(*(column.tolist() for column in columns), strict=True))


FEW = st.integers(0, 4)


@st.composite
def clusters(draws: st.DrawFn) -> Setting:
    n = draws(st.integers(2, 5))
    links = st.none() | st.lists(st.integers(1, 3), min_size=n, max_size=n)
    times = st.integers(1, 7) | st.integers(1, 3) | st.sampled_from([2, 4, 4, 0])
    outages = st.tuples(st.integers(2, 20), st.integers(1, 9), st.booleans(), st.booleans())
    return Setting(
        tasks=draws(st.lists(st.lists(times, min_size=1, max_size=4), min_size=n, max_size=n)),
        latency=draws(st.lists(FEW, min_size=n, max_size=n)),
        up=draws(links),
        down=draws(links),
        shared_up=draws(st.integers(0, 2)),
        shared_down=draws(st.integers(0, 2)),
        serving=draws(FEW),
        outages=draws(st.none() | outages),
        sizes=draws(st.lists(st.integers(0, 3), min_size=1, max_size=5)),
    )


def ends(setting: Setting) -> bool:
    """Whether no client loses one task after the other for ever."""
    if setting.outages is None or not setting.outages[3]:
        return True
    return all(
        min(time or 99 for time in tasks) <= setting.outages[0] // (4 if setting.outages[2] else 1)
        for tasks in setting.tasks
    )


@settings(max_examples=80)
@given(
    setting=clusters().filter(ends),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    size=st.integers(0, 3) | st.none(),
)
def test_whom_nobody_holds(setting: Setting, chunks: list[int], size: int | None) -> None:
    """Copies of one size, or pushes whose size is asked for: in however many pieces arrivals are drawn."""
    fetched, found = (7 if size is None else size), clock(setting, reacts=size is None, size=size)
    one = plain(setting if size is None else setting._replace(sizes=[size]))
    for count in chunks:
        rows = rows_of(found.draw(count))
        for row in rows:
            assert row == one.next()
            one.release(row[0], fetched)
        if len(rows) < count:
            assert one.next() is None
            return


@settings(max_examples=200)
@given(
    setting=clusters().filter(ends),
    replies=st.lists(st.tuples(st.integers(0, 31), st.integers(0, 31), FEW), min_size=1, max_size=25),
    seed=st.integers(0, 99),
    state_at=st.integers(0, 4),
)
def test_a_server_that_holds_and_restarts(
    setting: Setting, replies: list[tuple[int, int, int]], seed: int, state_at: int
) -> None:
    """In whatever order those that are released and restarted at one time are named; from a state the clock goes on."""
    found, one, rng = clock(setting, reacts=True), plain(setting), random.Random(seed)
    held: set[int] = set()
    for number, (released, restarted, size) in enumerate(replies):
        if number % 4 == state_at:
            state, found = found.take_state(), clock(setting, reacts=True)
            found.put_state(state)
        rows = rows_of(found.draw(1))
        assert rows == [row for row in [one.next()] if row is not None]
        if not rows:
            return
        found.hold(rows[0][0])
        held.add(rows[0][0])
        everybody = range(len(setting.tasks))
        replied = [
            (client, client in held)
            for client in everybody
            if (released if client in held else restarted & ~released) >> client & 1
        ]
        for client, goes_on in replied:
            (one.release if goes_on else one.restart)(client, (size + client) % 4)
        rng.shuffle(replied)
        for client, goes_on in replied:
            (found.release if goes_on else found.restart)(client, (size + client) % 4)
        held -= {client for client, goes_on in replied if goes_on}
        for client in set(everybody) - held:
            found.release(client, 9)  # who is not held
            if released & restarted >> client & 1:  # who has just been let go
                one.restart(client, size)
                found.restart(client, size)


def test_a_paused_task_is_part_of_the_state() -> None:
    setting = Setting([[1], [10]], [0, 0], None, None, 0, 0, 0, (4, 2, False, False), [1])
    one, found = (clock(setting, reacts=True) for _ in range(2))
    for number in range(40):
        state, found = found.take_state(), clock(setting, reacts=True)
        found.put_state(state)
        assert rows_of(found.draw(1)) == rows_of(one.draw(1)), number


NOISES: list[tuple[dict[str, Any], Distribution]] = [
    ({"name": "gamma", "cv": 2.0}, Distribution("gamma", (0.25, 4.0))),
    ({"name": "uniform", "spread": 1.0}, Distribution("uniform", (0.0, 2.0))),
    ({"name": "pareto", "alpha": 1.1}, Distribution("pareto", (1.1,))),
    ({"name": "lognormal", "sigma": 10.0}, Distribution("lognormal", (10.0,))),
    ({"name": "bernoulli", "p": 0.2, "factor": 30.0}, Distribution("bernoulli", (0.2, 30.0))),
    ({"name": "bernoulli", "p": 0.1, "factor": math.inf}, Distribution("bernoulli", (0.1, math.inf))),
]


@settings(max_examples=80)
@given(
    own=st.lists(st.integers(1, 5), min_size=2, max_size=5) | st.just([1, 1, 300]),
    noise=st.sampled_from(NOISES),
    scale=st.sampled_from([1, 1, 10**6, 2**52, 2**58]),
    mean=st.sampled_from([1.0, 1.0, 0.01, 50.0]),
    add=st.booleans(),
    chunks=st.lists(st.integers(1, 60), min_size=1, max_size=8),
)
def test_all_clients_at_once(
    own: list[int], noise: tuple[dict[str, Any], Distribution], scale: int, mean: float, add: bool, chunks: list[int]
) -> None:
    """Arrivals that are drawn in stretches of time, and one by one, up to the end of the clock."""
    given_noise, distribution = noise
    seconds, mean = (
        [min(time * scale, 2**61) / 1e9 for time in own],
        1.0 if given_noise["name"] == "bernoulli" else mean,
    )
    hyper = {**given_noise, "add": add} | ({} if mean == 1.0 else {"mean": mean})

    def takes(client: int, number: int) -> int:
        (unit,) = draw(distribution, Streams(SEED), Stream.TIME, number, client, 0)
        x = float(unit) * mean
        time = seconds[client] * 1e9 + x * 1e9 if add else seconds[client] * 1e9 * x
        return max(1, round(time)) if time < NEVER else NEVER

    one, n = PlainClock(len(own), takes), len(own)
    stretches, events = (Clock(compute={"seconds": seconds, "noise": hyper}) for _ in range(2))
    for found in (stretches, events):
        found.init(n, Streams(SEED))
    stretches.configure(reacts=False)
    for place, count in enumerate(chunks):
        if place == 2:  # another goes on from its state
            state, stretches = stretches.take_state(), Clock(compute={"seconds": seconds, "noise": hyper})
            stretches.init(n, Streams(SEED))
            stretches.configure(reacts=False)
            stretches.put_state(state)
        order = stretches.draw(count)
        few = events.draw(len(order))
        assert (len(order) > 0) == (len(few) > 0)
        for row, *times in zip(rows_of(few), order.client, order.number, order.time, strict=True):
            assert row == one.next()
            assert (row[0], row[1], row[3]) == tuple(times)
            one.release(row[0], 0)
        if not len(order):
            assert one.next() is None
            return
