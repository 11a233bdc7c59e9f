"""Clocks that no run can be made of: one message each that names the key, the value and the remedy, and exit code 2."""

from collections.abc import Callable
from pathlib import Path

import pytest

Refused = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]

CLOCK = "dispatcher={{name: clock, {}}}"
COMPUTE = "compute: {{seconds: {}}}"
NOISE = "compute: {{noise: {}}}"
LATE = "the clock ends after 4611686018: give shorter times"
EIGHT = "give one per client, 8 (clients.count)"

KEYS = {
    COMPUTE.format("0"): ("dispatcher.compute.seconds: is 0; it should be greater than 0",),
    COMPUTE.format("-1.5"): ("dispatcher.compute.seconds: is -1.5; it should be greater than 0",),
    COMPUTE.format(".nan"): ("dispatcher.compute.seconds: is nan; it should be a finite number",),
    COMPUTE.format(".inf"): ("dispatcher.compute.seconds: is inf; it should be a finite number",),
    COMPUTE.format("1e10"): ("dispatcher.compute.seconds is 1e+10 seconds", LATE),
    COMPUTE.format("[1, 2]"): ("dispatcher.compute.seconds has 2 values", EIGHT),
    COMPUTE.format("[1, 1, 1, 0, 1, 1, 1, 1]"): ("dispatcher.compute.seconds.3: is 0; it should be greater than 0",),
    COMPUTE.format("[1, 1, 1, 1e12, 1, 1, 1, 1]"): ("dispatcher.compute.seconds is 1e+12 seconds", LATE),
    COMPUTE.format("{name: power, base: 1e9, exponent: 1}"): ("dispatcher.compute.seconds is 8e+09 seconds", LATE),
    COMPUTE.format("{name: two_class, share: 0.5, factor: 1e12}"): ("seconds is 1e+12 seconds", LATE),
    COMPUTE.format("{name: gamma, cv: 0.5, mean: 1e12}"): ("dispatcher.compute.seconds.mean is 1e+12 seconds", LATE),
    COMPUTE.format("{name: half_normal, sd: 1e12}"): ("dispatcher.compute.seconds.sd is 1e+12 seconds", LATE),
    COMPUTE.format("{name: gamma, cv: 0.6, add: true}"): (
        "dispatcher.compute.seconds.add is true; only noise",
        "leave it",
    ),
    COMPUTE.format("{name: half_normal, add: true}"): ("dispatcher.compute.seconds.add is true; only noise",),
    COMPUTE.format("{name: bernoulli, p: 1, factor: 2, add: true}"): ("dispatcher.compute.seconds.add is true;",),
    COMPUTE.format("x"): (
        "seconds: is 'x'; it must be seconds, a list of them, or {name: …} of power, two_class, gamma",
    ),
    NOISE.format("{name: exponential, mean: 1e12, add: true}"): (
        "dispatcher.compute.noise.mean is 1e+12 seconds",
        LATE,
    ),
    NOISE.format("{name: pareto, alpha: 1}"): ("dispatcher.compute.noise.alpha: is 1; it should be greater than 1",),
    NOISE.format("{name: power}"): (
        "dispatcher.compute.noise: is {'name': 'power'}; it must be none, or {name: …} of",
    ),
    "link: {latency: -1}": ("dispatcher.link.latency: is -1; it should be greater than or equal to 0",),
    "link: {latency: [1, 2]}": ("dispatcher.link.latency has 2 values", EIGHT),
    "link: {latency: 1e10}": ("dispatcher.link.latency is 1e+10 seconds", LATE),
    "link: {up: 0}": ("dispatcher.link.up: is 0; it should be greater than 0",),
    "link: {down: .nan}": ("dispatcher.link.down: is nan; it should be a finite number",),
    "link: {down: [1, 2]}": ("dispatcher.link.down has 2 values", EIGHT),
    "server: {seconds: -1}": ("dispatcher.server.seconds: is -1; it should be greater than or equal to 0",),
    "server: {seconds: 1e10}": ("dispatcher.server.seconds is 1e+10 seconds", LATE),
    "server: {up: 0}": ("dispatcher.server.up: is 0; it should be greater than 0",),
    "outages: {up: 1}": ("dispatcher.outages.down: is required",),
    "outages: {up: 0, down: 1}": ("dispatcher.outages.up: is 0; it should be greater than 0",),
    "outages: {up: 1, down: 1e10}": ("dispatcher.outages.down is 1e+10 seconds", LATE),
    "outages: {up: {name: pareto, alpha: 2, mean: 1e12}, down: 1}": ("outages.up.mean is 1e+12 seconds", LATE),
    "outages: {up: {name: exponential, mean: 5, add: true}, down: 1}": (
        "dispatcher.outages.up.add is true; only noise",
    ),
    "outages: {up: 1, down: {name: exponential, add: true}}": ("dispatcher.outages.down.add is true; only noise",),
    "compute: {limit: 0}": ("dispatcher.compute.limit: is 0; it should be greater than 0",),
    "compute: {limit: [1, 2]}": ("dispatcher.compute.limit has 2 values", EIGHT),
    "compute: {limit: 1e10}": ("dispatcher.compute.limit is 1e+10 seconds", LATE),
    "compute: {limit: 1}, link: {latency: 1}": ("compute.limit is given, and copies take time", "leave limit out"),
    "compute: {limit: 1}, server: {seconds: 1}": ("compute.limit is given, and copies take time", "leave limit out"),
    "wait: false, link: {latency: 1}": ("dispatcher.wait is false, and copies take time", "leave wait out"),
}


@pytest.mark.parametrize("keys", KEYS)
def test_keys(keys: str, small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, CLOCK.format(keys), says=KEYS[keys])


@pytest.mark.parametrize("path", ["hand", "fused", "snapshots"])
@pytest.mark.parametrize("words", [("iterations=5",), ("iterations=null", "seconds=1e7")], ids=["events", "the end"])
def test_far_too_many_rows(words: tuple[str, ...], path: str, small_yaml: Path, refused: Refused) -> None:
    """They would fill the disk, and the run could not be stopped."""
    clock = "dispatcher={name: clock, compute: {seconds: 2e7}}"
    says = (
        "iteration 0: nothing happens for ",
        " seconds, and evaluation.every is 0.5, so that more than 1,000,000 rows",
    )
    refused("run", small_yaml, clock, *words, "evaluation={every: 0.5, unit: seconds}", f"path={path}", says=says)


def test_a_bandwidth_is_no_time(small_yaml: Path, command: Command) -> None:
    assert command("show", small_yaml, CLOCK.format("link: {up: 1e12}, server: {down: 1e12}"))[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("evaluation={every: 1, unit: seconds}",), ("evaluation.unit is seconds", "{name: clock}")),
        (("iterations=null", "seconds=5"), ("seconds is 5.0; the dispatcher uniform has no clock", "{name: clock}")),
        (("seconds=5", CLOCK.format("")), ("both iterations and seconds are given; give one of",)),
        (("evaluation={every: 1.5}",), ("every is 1.5; it must be a whole number of iterations",)),
        (("evaluation={every: 0, unit: seconds}", CLOCK.format("")), ("evaluation.every: is 0;",)),
    ],
)
def test_seconds(words: tuple[str, ...], says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, *words, says=says)


@pytest.mark.parametrize("seconds", ["1e-10", "1e12"])
@pytest.mark.parametrize("key", ["seconds", "evaluation.every"])
def test_seconds_beyond_the_clock(key: str, seconds: str, small_yaml: Path, refused: Refused) -> None:
    words = ["iterations=null", CLOCK.format(""), "seconds=5", "evaluation={every: 1, unit: seconds}"]
    says = (f"{key} is {float(seconds):g} seconds; the clock counts from 1e-9 to 4611686018",)
    refused("run", small_yaml, *words, f"{key}={seconds}", "--out", "out", says=says)


# Nothing ever arrives

NOBODY = ("no gradient will ever arrive: each client is held by the server, or at a task that never ends",)
NEVER = NOISE.format("{name: bernoulli, p: 1, factor: .inf}")
LOST = ("clients went down 20,001 times, and no gradient has arrived in between", "give dispatcher.outages.up longer")
DOWN = ("client 0 went down 9,999 times during a single task, or while", "give dispatcher.outages longer times")


@pytest.mark.parametrize(
    ("keys", "server", "says"),
    [
        (NEVER, "asgd", ("iteration 0: ", *NOBODY)),
        (f"{NEVER}, link: {{latency: 1}}", "asgd", ("iteration 0: ", *NOBODY)),
        (f"{NEVER}, outages: {{up: 1, down: 1, task: paused}}", "asgd", ("iteration 0: ", *NOBODY)),
        (NOISE.format("{name: bernoulli, p: 0.5, factor: .inf}"), "sync", NOBODY),
        (COMPUTE.format("[1e8, 4e9, 4e9, 4e9, 4e9, 4e9, 4e9, 4e9]"), "asgd", ("iteration 53: ", *NOBODY)),
        ("link: {up: 1e-300, latency: 4e9}", "asgd", ("iteration 0: ", *NOBODY)),
        ("link: {down: 1e-300}", "asgd", ("iteration 8: ", *NOBODY)),
        ("outages: {up: 0.5, down: 1}", "asgd", LOST),
        (f"{NEVER}, outages: {{up: 0.5, down: 1}}", "asgd", LOST),
        ("outages: {up: 1e-9, down: 1e-9, task: paused}", "asgd", DOWN),
        ("outages: {up: 1e-9, down: 1e-9, task: paused}, link: {latency: 1}, compute: {seconds: 1e-8}", "asgd", DOWN),
    ],
)
def test_nobody_arrives(
    keys: str, server: str, says: tuple[str, ...], small_yaml: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fredsim.dispatchers.outages.MOST_PERIODS", 9999)
    words = (CLOCK.format(keys), f"server={{name: {server}, lr: 0.1}}", "iterations=100", "--quiet", "--out", "out")
    refused("run", small_yaml, *words, says=says)
    if keys == NEVER:
        refused("run", small_yaml, *words, "path=snapshots", says=says)


# A user's own

MODULE = """
import math

import numpy as np


class Clock:
    def seconds(self, client, task):
        return self.what(client, task)


def of(name, what, **attributes):
    globals()[name] = type(name, (Clock,), {"what": staticmethod(what), **attributes})


of("Zero", lambda client, task: 0 if task else 1)
of("Nan", lambda client, task: math.nan)
of("Text", lambda client, task: "1")
of("Flag", lambda client, task: True)
of("Nothing", lambda client, task: None)
of("Raises", lambda client, task: 1 / (3 - client))
of("Never", lambda client, task: math.inf)
of("Huge", lambda client, task: 10**400)
of("Link", lambda client, task: 1.0, link={"latency": -1})
of("Server", lambda client, task: 1.0, server=3)
of("Outages", lambda client, task: 1.0, outages={"up": 1})


class Signature:
    def seconds(self, client):
        return 1.0


class Refuses(Clock):
    def expect(self, clients):
        raise ValueError("too many")

    def what(self, client, task):
        return 1.0


class Forgetful:
    def __init__(self):
        self.times = iter(range(1, 10**6))

    def seconds(self, client, task):
        return np.float64(1 / next(self.times))
"""
NUMBER = "it must be a number of seconds above 0, or math.inf for a task without end"


@pytest.fixture
def own(small_yaml: Path) -> Path:
    small_yaml.with_name("own_clocks.py").write_text(MODULE, encoding="utf-8")
    return small_yaml


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Zero", ("Zero, client 0, task 1, seconds: returned 0; ", NUMBER)),
        ("Nan", ("Nan, client 0, task 0, seconds: returned nan; ", NUMBER)),
        ("Text", ("Text, client 0, task 0, seconds: returned '1'; ", NUMBER)),
        ("Flag", ("Flag, client 0, task 0, seconds: returned True; ", NUMBER)),
        ("Nothing", ("Nothing, client 0, task 0, seconds: returned None; ", NUMBER)),
        ("Raises", ("Raises, client 3, task 0, seconds: ZeroDivisionError: division by zero (own_clocks.py:",)),
        ("Never", ("iteration 0: ", *NOBODY)),
        ("Huge", ("iteration 0: ", *NOBODY)),
        ("Link", ("dispatcher.name: Link.link.latency: is -1; it should be greater than or equal to 0",)),
        ("Server", ("dispatcher.name: Server.server: is 3; it must be a mapping",)),
        ("Outages", ("dispatcher.name: Outages.outages.down: is required",)),
        ("Signature", ("seconds: is seconds(self, client) (own_clocks.py:", "it must be seconds(self, client, task)")),
        ("Refuses", ("Refuses, expect: ValueError: too many (own_clocks.py:",)),
    ],
)
def test_a_users_clock(name: str, says: tuple[str, ...], own: Path, refused: Refused) -> None:
    refused("run", own, f"dispatcher.name=own_clocks:{name}", "--quiet", "--out", "out", says=says)


def test_a_users_clock_that_changes_its_mind(own: Path, command: Command) -> None:
    """It is asked once for each task, so its run is as good as any; that it cannot be repeated is found out."""
    words = ("dispatcher.name=own_clocks:Forgetful", "iterations=60", "evaluation.every=10", "--out", "out")
    assert command("run", own, *words)[0] == 0
    assert command("verify", "out")[:2] == (0, "out: same bits\n")
