"""Gates: what passes, by the contract's draws; how they are written in YAML, and what is refused."""

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.dispatchers.gates import Gate
from fredsim.dispatchers.gates.always import Always
from fredsim.dispatchers.gates.bandwidth_aware import BandwidthAware
from fredsim.dispatchers.gates.budget import Budget
from fredsim.dispatchers.gates.every import Every
from fredsim.errors import ConfigError
from fredsim.numerics.streams import Stream, Streams, philox4x32
from fredsim.runs.folder.results import Result

Simulate = Callable[..., Result]
Refused = Callable[..., None]
TENSORS = [4096, 64, 640, 40]  # bytes


class Deviation:
    """A server's v̄, of the model and of each tensor."""

    def __init__(self, mean: float, means: Sequence[float] = ()) -> None:
        self._mean, self._means = mean, means

    def mean(self) -> float:
        return self._mean

    def means(self) -> Sequence[float]:
        return self._means


def started(gate: Gate, stream: Stream = Stream.PUSH_GATE, seed: int = 5) -> Gate:
    gate.init(8, TENSORS, Streams(seed), stream)
    return gate


def draw(stream: int, element: int, step: int, client: int, seed: int = 5) -> float:
    """(word >> 8)·2⁻²⁴ of the block at (element ÷ 4, step, client, attempt 0), lane element mod 4."""
    words = philox4x32((element // 4, step, client, 0), (seed, stream))
    return float(int(words[element % 4]) >> 8) * 2.0**-24


def test_always() -> None:
    gate = started(Always())
    assert all(gate.passes(step, step % 8, Deviation(0.0)) is True for step in range(50))


def test_every_counts_for_each_client() -> None:
    gate = started(Every(k=3))
    passed: dict[int, list[bool]] = {0: [], 5: [], 7: []}
    for step, client in enumerate([0, 5, 5, 0, 5, 7, 0, 5, 5, 5, 7, 0]):
        passed[client].append(bool(gate.passes(step, client, Deviation(1.0))))
    assert passed == {0: [False, False, True, False], 5: [False, False, True] * 2, 7: [False, False]}
    started(gate)
    assert [gate.passes(0, 7, Deviation(1.0)) for _ in range(3)] == [False, False, True]  # counting began anew
    assert all(started(Every(k=1)).passes(step, 0, Deviation(1.0)) for step in range(9))


@pytest.mark.parametrize("stream", [Stream.PUSH_GATE, Stream.FETCH_GATE])
@pytest.mark.parametrize(
    ("c", "eps", "v"), [(0.01, 1e-4, 0.013), (1.0, 1e-4, 1.0), (0.5, 0.25, 0.0), (2.0, 1e-4, 1e-9)]
)
def test_bandwidth_aware(stream: Stream, c: float, eps: float, v: float) -> None:
    gate = started(BandwidthAware(c=c, eps=eps), stream)
    expected = [
        draw({Stream.PUSH_GATE: 4, Stream.FETCH_GATE: 5}[stream], 0, step, client) < 1 / (1 + c / (v + eps))
        for step in range(100)
        for client in range(8)
    ]
    assert [gate.passes(step, client, Deviation(v)) for step in range(100) for client in range(8)] == expected
    assert np.mean(expected) == pytest.approx(1 / (1 + c / (v + eps)), abs=0.06)


def test_a_gate_that_starts_over_draws_anew() -> None:
    gate = started(BandwidthAware(c=1.0))
    gate.look_ahead(0, [0] * 100)
    gate.init(8, TENSORS, Streams(6), Stream.PUSH_GATE)
    assert [gate.passes(step, 0, Deviation(1.0)) for step in range(100)] == [
        draw(4, 0, step, 0, seed=6) < 1 / (1 + 1 / 1.0001) for step in range(100)
    ]


def test_draws_that_are_over_take_no_memory() -> None:
    gate = started(BandwidthAware(c=1.0))
    tracemalloc.start()
    try:
        for begin in range(0, 40_000, 1000):
            gate.look_ahead(begin, [begin % 8] * 1000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1e6  # two thousand draws; all would take ten times as much


def test_bandwidth_aware_of_each_tensor() -> None:
    means = [0.5, 0.05, 0.005, 0.0]
    gate = started(BandwidthAware(c=0.05, per="tensor"), Stream.FETCH_GATE)
    for step in range(200):
        expected = [draw(5, i, step, 3) < 1 / (1 + 0.05 / (v + 1e-4)) for i, v in enumerate(means)]
        assert gate.passes(step, 3, Deviation(9.0, means)) == expected


@pytest.mark.parametrize("v", [0.0, 1e-9, 1.0])
def test_without_c_everything_passes(v: float) -> None:
    whole, parts = started(BandwidthAware(c=0.0)), started(BandwidthAware(c=0.0, per="tensor"))
    for step in range(300):
        assert whole.passes(step, 0, Deviation(v)) is True
        assert parts.passes(step, 0, Deviation(v, [v] * 4)) == [True] * 4


@pytest.mark.parametrize("means", [[0.1, 0.1, 0.1, 0.1], [0.5, 0.001, 0.01, 0.0]])
def test_a_budget_is_kept_where_the_deviation_is_steady(means: list[float]) -> None:
    """Tensor t passes with probability min(1, s·(v̄_t + ε) ÷ its bytes), s such that the budget is spent."""
    budget, steps, low, high = 1000.0, 4000, 0.0, 1e12
    for _ in range(200):
        s = (low + high) / 2
        shares = [min(1.0, s * (v + 1e-4) / size) for v, size in zip(means, TENSORS, strict=True)]
        low, high = (s, high) if np.dot(shares, TENSORS) < budget else (low, s)
    gate = started(Budget(bytes=budget))
    passed = np.zeros(4)
    for step in range(steps):
        mask = gate.passes(step, step % 8, Deviation(1.0, means))
        assert isinstance(mask, Sequence)
        passed += mask
        if step < 200:
            drawn = [draw(4, i, step, step % 8) for i in range(4)]
            assert list(mask) == [r < share for r, share in zip(drawn, shares, strict=True)]
    np.testing.assert_allclose(passed / steps, shares, atol=0.03)
    spent = float(passed @ np.array(TENSORS)) / steps
    assert spent == pytest.approx(budget, rel=0.08)


INFINITE: list[tuple[float, list[float], list[float]]] = [
    # budget, v̄ of each tensor, the bytes that each gets
    (1000.0, [np.inf, 0.1, np.inf, 0.1], [500, 0, 500, 0]),  # however large they are: the same for each
    (2000.0, [np.inf, 0.1, np.inf, 0.1], [1360, 0, 640, 0]),  # one has more than it takes
    (4786.0, [np.inf, 0.1, np.inf, 0.1], [4096, 25, 640, 25]),  # all of these have: the others share the rest
    (4736.0, [np.inf, 0.1, np.inf, 0.1], [4096, 0, 640, 0]),
    (90.0, [np.inf] * 4, [22.5] * 4),
    (90.0, [np.nan, 0.1, 0.1, 0.0], [0, 45 - 0.045 / 2, 45 - 0.045 / 2, 0.045]),
    (9000.0, [np.nan, np.inf, 0.1, -1.0], [0, 64, 640, 0]),
    (100.0, [0.0, 0.0, 0.0, 1e13], [20, 20, 20, 40]),  # far larger than the rest: what it leaves is shared all the same
    (900.0, [0.0, 0.0, 1e9, 1e26], [156, 64, 640, 40]),
]


@pytest.mark.parametrize(("budget", "means", "spent"), INFINITE)
def test_a_budget_where_a_deviation_is_not_finite_or_very_large(
    budget: float, means: list[float], spent: list[float]
) -> None:
    gate = started(Budget(bytes=budget))
    for step in range(300):
        drawn = [draw(4, i, step, step % 8) for i in range(4)]
        expected = [r < share / size for r, share, size in zip(drawn, spent, TENSORS, strict=True)]
        assert gate.passes(step, step % 8, Deviation(1.0, means)) == expected


@pytest.mark.parametrize("per", ["model", "tensor"])
def test_bandwidth_aware_where_a_deviation_is_not_finite(per: str) -> None:
    gate = started(BandwidthAware(c=0.5, per=per))
    for v, passes in ((np.inf, True), (np.nan, False)):
        for step in range(50):
            assert np.all(gate.passes(step, 0, Deviation(v, [v] * 4))) == passes


def test_a_budget_for_everything_lets_everything_pass() -> None:
    gate = started(Budget(bytes=sum(TENSORS)))
    assert all(gate.passes(step, 0, Deviation(1.0, [0.5, 0.001, 0.01, 0.0])) == [True] * 4 for step in range(300))


def test_a_budget_lets_pushes_pass_while_no_deviation_is_known(simulate: Simulate) -> None:
    """v of `released` starts at 0, and stays there for a tensor none of whose gradients ever arrives."""
    fasgd = {"server": {"name": "fasgd", "lr": 0.005, "variant": "released"}, "dispatcher": {"push": {"budget": 900}}}
    result = simulate({"iterations": 400, **fasgd})
    start = simulate({"iterations": 1, "dispatcher": {"push": {"every": 2}}})
    for name, values in result.params.items():
        assert not np.array_equal(values, start.params[name]), name


def test_a_budget_in_a_run(simulate: Simulate) -> None:
    """The first layer has 84 % of the parameters: no tensor's share exceeds its size, and the budget is met."""
    fasgd = {"server": {"name": "fasgd", "lr": 0.002}, "dispatcher": {"fetch": {"budget": 60.0}}}
    result = simulate({"iterations": 1000, **fasgd, "evaluation": {"every": 1000}})
    last = result.metrics.iloc[-1]
    assert last["bytes_fetched"] / 1000 == pytest.approx(60, rel=0.25)
    assert last["potential_fetches"] == 1000
    assert last["bytes_pushed"] == 1000 * 4840


OWN = """
class Odd:
    def __init__(self, plus=0):
        self.plus = plus

    def init(self, clients, tensors, streams, stream):
        assert clients == 8 and list(tensors) == [4096, 64, 640, 40]
        assert int(stream) in (4, 5)

    def passes(self, step, client, statistics):
        return (step + self.plus) % 2 == 1


class Curious(Odd):
    def passes(self, step, client, statistics):
        return statistics.mean() > 0


class Deaf:
    def init(self, clients, tensors, streams, stream):
        pass
"""


@pytest.fixture
def own(small_yaml: Path) -> Path:
    small_yaml.with_name("odd_gates.py").write_text(OWN, encoding="utf-8")
    return small_yaml


def test_a_users_gate(own: Path) -> None:
    for spec, fetches in (("{'odd_gates:Odd': {}}", 25), ("{'odd_gates:Odd': {plus: 1}}", 25), ("odd_gates:Odd", 25)):
        result = fredsim.run(own, overrides=[f"dispatcher.fetch={spec}"], out=own.parent / str(len(spec)))
        assert isinstance(result, Result)
        assert result.summary["fetches"] == fetches
        assert result.summary["bytes_fetched"] == fetches * 4840


@pytest.mark.parametrize("server", ["asgd", "fasgd"])
def test_a_users_gate_that_hides_what_it_needs(server: str, own: Path, refused: Refused) -> None:
    says = ("Curious, client 7, iteration 0, passes: uses statistics.mean; declare needs_statistics = True",)
    refused("run", own, f"server.name={server}", "dispatcher.fetch=odd_gates:Curious", says=says)


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ({"every": 4}, {"every": {"k": 4}}),
        ({"budget": 900.0}, {"budget": {"bytes": 900.0, "eps": 0.0001}}),
        ({"budget": 900}, {"budget": {"bytes": 900.0, "eps": 0.0001}}),
        ({"bandwidth_aware": {"c": 0.3}}, {"bandwidth_aware": {"c": 0.3, "eps": 1e-4, "per": "model"}}),
        ("always", "always"),
    ],
    ids=str,
)
def test_short_forms(simulate: Simulate, short: Any, full: Any) -> None:
    fasgd = {"server": {"name": "fasgd", "lr": 0.005}}
    one, other = (simulate({**fasgd, "dispatcher": {"push": gate, "fetch": gate}}) for gate in (short, full))
    assert one.config["dispatcher"] == other.config["dispatcher"]
    assert one.config["dispatcher"]["push"] == full
    assert one.summary["digest"] == other.summary["digest"]
    assert one.metrics.equals(other.metrics)


BAD = {
    "5": ("dispatcher.push: is 5",),
    "sometimes": ("dispatcher.push: unknown gate 'sometimes'", "known: always, bandwidth_aware, budget, every"),
    "{evry: 4}": ("dispatcher.push: is {'evry': 4}; the hyper-parameters of evry must be", "did you mean 'every'?"),
    "every": ("dispatcher.push.every.k: is required",),
    "{evry: {k: 4}}": ("dispatcher.push: unknown gate 'evry'; did you mean 'every'?",),
    "{every: 0}": ("dispatcher.push.every.k: is 0", "greater than 0"),
    "{every: 1.5}": ("dispatcher.push.every.k: is 1.5",),
    "{every: true}": ("dispatcher.push.every.k: is true",),
    "{every: null}": ("dispatcher.push.every.k: is null",),
    "{every: 4, budget: 100}": ("dispatcher.push: is {'every': 4, 'budget': 100}; it must be always, or one name",),
    "{}": ("dispatcher.push: is {}; it must be always, or one name",),
    "{always: 3}": ("the hyper-parameters of always must be a mapping",),
    "{bandwidth_aware: 0.1}": ("the hyper-parameters of bandwidth_aware must be a mapping",),
    "{bandwidth_aware: {}}": ("dispatcher.push.bandwidth_aware.c: is required",),
    "{bandwidth_aware: {c: -1}}": ("dispatcher.push.bandwidth_aware.c: is -1",),
    "{bandwidth_aware: {c: 1, eps: 0}}": ("dispatcher.push.bandwidth_aware.eps: is 0",),
    "{bandwidth_aware: {c: 1, per: layer}}": ("per: is 'layer'; it must be 'model' or 'tensor'",),
    "{bandwidth_aware: {c: 1, epsilon: 1}}": ("unknown key; did you mean 'eps'?",),
    "{budget: 0}": ("dispatcher.push.budget.bytes: is 0",),
    "{budget: {bytes: 100, eps: 0}}": ("dispatcher.push.budget.eps: is 0; it should be greater than 0\n",),
    "{budget: lots}": ("dispatcher.push.budget.bytes: is 'lots'",),
    "{'odd_gates:Deaf': {}}": ("class 'odd_gates:Deaf' has no method 'passes'; a gate needs init, passes",),
    "{'odd_gates:Odd': {minus: 1}}": ("dispatcher.push.odd_gates:Odd.minus: unknown key (known: plus)",),
    "{'odd_gates:Od': {}}": ("has no 'Od'; did you mean 'Odd'?",),
}


@pytest.mark.parametrize(("spec", "says"), BAD.items(), ids=BAD)
def test_bad_forms(spec: str, says: tuple[str, ...], own: Path, refused: Refused) -> None:
    override = f"dispatcher.push={spec}"
    refused("show", own, override, says=(f"override '{override}': ", *says))


@pytest.mark.parametrize("key", ["push", "fetch"])
@pytest.mark.parametrize("gate", ["{bandwidth_aware: {c: 0.1}}", "{budget: 100}"])
@pytest.mark.parametrize("server", ["asgd", "downpour", "sync"])
def test_a_server_without_v(key: str, gate: str, server: str, small_yaml: Path, refused: Refused) -> None:
    if server == "downpour":
        says: tuple[str, ...] = (f"dispatcher.{key} is given; the server downpour brings its own",)
    else:
        says = (f"dispatcher.{key} asks for the gradients' deviation v, which this server does not keep; fasgd does",)
    refused("show", small_yaml, f"server.name={server}", f"dispatcher.{key}={gate}", says=says)


@pytest.mark.parametrize("key", ["push", "fetch"])
def test_bfasgd_brings_its_own_gates(key: str, small_yaml: Path, refused: Refused) -> None:
    refused(
        "show",
        small_yaml,
        "server={name: bfasgd, lr: 0.01}",
        f"dispatcher.{key}={{every: 2}}",
        says=(f"dispatcher.{key} is given; the server bfasgd brings its own",),
    )


@pytest.mark.parametrize("policy", ["repeat", "Skip", "null", "3"])
def test_an_unknown_answer_to_a_dropped_push(policy: str, small_yaml: Path, refused: Refused) -> None:
    says = ("dispatcher.dropped_push: is ", "it must be 'reapply', 'skip', 'accumulate' or 'average'")
    refused("show", small_yaml, f"dispatcher.dropped_push={policy}", says=says)


def test_hyper_parameters_in_python_are_checked_too() -> None:
    for make in (lambda: Every(k=0), lambda: Budget(bytes=-1.0), lambda: BandwidthAware(c=0.1, per="layer")):
        with pytest.raises(ConfigError):
            make()


TURNS = """
from fredsim.dispatchers.gates import Gate


class Turns(Gate):
    def init(self, clients, tensors, streams, stream):
        self._streams, self._stream = streams, stream

    def passes(self, step, client, statistics):
        return step % 3 > 0
"""


def test_a_gate_of_ones_own_that_does_without_draws(simulate: Simulate, tmp_path: Path, monkeypatch: Any) -> None:
    """It is derived from Gate, and its `init` does not call that of Gate, but keeps things by the same names."""
    (tmp_path / "own_turns.py").write_text(TURNS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    result = simulate({"iterations": 30, "dispatcher": {"fetch": "own_turns:Turns"}})
    assert result.summary["fetches"] == 20
