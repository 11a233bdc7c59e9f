"""Every server: the contract, what it must survive, its state, and its messages."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.errors import ConfigError
from fredsim.servers import (
    ASGD,
    BFASGD,
    DCASGD,
    FASGD,
    SASGD,
    SERVERS,
    Downpour,
    ExponentialASGD,
    FedAsync,
    GapAware,
    Server,
    Sync,
)

Spec = dict[str, Any]
Exchange = Any
Begin = Callable[..., Exchange]
CLIENTS = 6
WITH_TABLES = {"ia2sgd", "malenia", "ringleader"}  # of gradients, and their sums
WAIT_FOR_ALL = {"sync", "sign_majority", "ternary_sync", "slowmo", "mindflayer"} | WITH_TABLES


def formulas() -> list[ModuleType]:
    modules = []
    for path in sorted(Path(__file__).parent.glob("test_formulas*.py")):
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        modules.append(module)
    return modules


def test_every_server_is_in_the_battery_has_a_formula_and_cites_its_source(variants: Mapping[str, Spec]) -> None:
    assert {spec["name"] for spec in variants.values()} == set(SERVERS)
    assert {name for module in formulas() for name in module.FORMULAS} == set(SERVERS)
    for server in SERVERS.values():
        assert server.idea
        assert any(character.isdigit() for character in server.citation)


def test_the_contract(spec: Spec, make: Callable[[Spec], Any]) -> None:
    start = np.linspace(-1, 1, 40, dtype=np.float32)
    server = make(spec)
    for again in (0.0, 1.0):  # the same object can start over
        server.init(start + np.float32(again), CLIENTS)
        assert server.params.dtype == np.float32
        assert server.timestamp == 0
        assert server.finite
        np.testing.assert_array_equal(server.params, start + np.float32(again))
        for client in range(CLIENTS):
            np.testing.assert_array_equal(server.fetch(client), start + np.float32(again))
        for client in range(CLIENTS):
            grad = np.linspace(-1, 2, 40, dtype=np.float32)
            server.apply_update(grad, client, server.timestamp if not server.holds else 0)
        assert server.timestamp >= 1
        assert (server.params != start + np.float32(again)).any()
    np.testing.assert_array_equal(start, np.linspace(-1, 1, 40, dtype=np.float32))  # a copy was taken


def test_every_client_is_released_and_parameters_move_only_with_the_timestamp(spec: Spec, exchange: Begin) -> None:
    ex = exchange(spec, size=40)
    pushed = np.zeros(CLIENTS, int)
    moves = 0
    for _ in range(300):
        before, stamp = ex.server.params.copy(), ex.server.timestamp
        pushed[ex.push_any()] += 1
        assert ex.server.timestamp - stamp in {0, 1}
        moved = bool((before != ex.server.params).any())
        assert not moved or ex.server.timestamp == stamp + 1
        moves += moved
        assert ex.eligible
    assert (pushed > 10).all()
    assert moves == ex.server.timestamp or spec["name"] == "ternary_sync"
    if not ex.server.holds:
        assert len(ex.eligible) == CLIENTS


def test_gradients_of_zeros_move_nothing_but_by_decay(spec: Spec, exchange: Begin) -> None:
    ex = exchange(spec)
    start = ex.server.params.copy()
    for _ in range(120):
        client = int(ex.rng.choice(sorted(ex.eligible)))
        ex.push(client, [np.zeros_like(g) for g in ex.gradients()])
    assert ex.server.timestamp > 5
    assert ex.server.finite
    shrinks = {"l1", "l2", "weight_decay"} & spec.keys() or spec.get("mode") == "torch"
    if shrinks:
        assert (np.abs(ex.server.params) <= np.abs(start)).all()
        assert (ex.server.params != start).any()
    else:
        np.testing.assert_allclose(ex.server.params, start, rtol=1e-5 if spec["name"] == "fedasync" else 0, atol=0)


def test_a_client_that_never_comes_back(spec: Spec, exchange: Begin) -> None:
    ex = exchange(spec)
    for _ in range(200):
        others = sorted(ex.eligible - {5})
        if not others:
            break
        ex.push(int(ex.rng.choice(others)), ex.gradients())
    waits_for_all = spec["name"] in WAIT_FOR_ALL and "aggregate" not in spec
    assert ex.server.timestamp == 0 if waits_for_all else ex.server.timestamp >= 20
    if waits_for_all:  # and when it comes at last, the round closes
        assert len(ex.eligible) == (1 if ex.server.holds else CLIENTS)
        ex.push(5, ex.gradients())
        assert ex.server.timestamp == 1
        assert len(ex.eligible) == CLIENTS
    assert ex.server.finite


def test_ten_thousand_clients(spec: Spec, exchange: Begin) -> None:
    clients = 10_000
    ex = exchange(spec, clients, size=4)
    waits_for_all = spec["name"] in WAIT_FOR_ALL and "aggregate" not in spec
    pushes = clients if waits_for_all or (ex.server.holds and not ex.server.cancels) else 300
    for client in range(pushes):
        ex.push(client * 7 % clients, ex.gradients())
    assert ex.server.timestamp >= 1
    assert ex.server.finite
    state = ex.server.take_state()
    assert len(state) < 4 * pushes  # clients that never pushed cost nothing
    ex.push(min(ex.eligible), ex.gradients())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite_is_noticed(spec: Spec, exchange: Begin, bad: float) -> None:
    ex = exchange(spec)
    for client in range(CLIENTS):
        assert ex.server.finite
        grads = ex.gradients()
        grads[0][17] = bad
        ex.push(client, grads)
        if ex.server.timestamp:
            break
    if spec["name"] == "sign_majority" and not np.isnan(bad):
        assert ex.server.finite  # an infinite gradient has a sign
    else:
        assert not ex.server.finite


def equal_states(one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    assert list(one) == list(two)
    for name, value in one.items():
        assert type(value) is type(two[name]), name
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.shape) == (two[name].dtype, two[name].shape), name
            assert value.tobytes() == two[name].tobytes(), name
        else:
            assert value == two[name], name


@pytest.mark.parametrize("before", [0, 1, 30, 33])
def test_a_state_taken_is_taken_up(spec: Spec, exchange: Begin, before: int) -> None:
    one, two = exchange(spec, drops=0.1), exchange(spec, drops=0.1)
    for _ in range(before):
        one.push_any()
    for _ in range(7 * (before % 2)):  # what the other has seen before is forgotten
        two.push_any()
    state = one.server.take_state()
    assert all(type(name) is str for name in state)
    assert all(isinstance(value, np.ndarray | int | float | str) for value in state.values())
    kept = {name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in state.items()}
    two.server.put_state(state)
    two.held, two.stamps = [x.copy() for x in one.held], list(one.stamps)
    two.eligible, two.rng = set(one.eligible), np.random.default_rng(9)
    one.rng = np.random.default_rng(9)
    for _ in range(30):
        assert one.push_any() == two.push_any()
        assert one.released == two.released
        for name in ("params", "averaged_params"):
            if hasattr(one.server, name):
                assert getattr(one.server, name).tobytes() == getattr(two.server, name).tobytes()
    equal_states(one.server.take_state(), two.server.take_state())
    equal_states(kept, state)  # what was taken is a copy, and what was put stays the caller's
    for mine, other in zip(one.held, two.held, strict=True):
        np.testing.assert_array_equal(mine, other)
    fresh = exchange(spec).server
    for client in range(CLIENTS):
        if client in one.eligible:
            one.push(client, one.gradients())
        fresh.put_state(one.server.take_state())
        for other in (client, (client + 1) % CLIENTS):
            np.testing.assert_array_equal(fresh.fetch(other), one.server.fetch(other))


@pytest.mark.parametrize("before", [1, 17])
def test_a_server_that_starts_over_has_forgotten_everything(spec: Spec, exchange: Begin, before: int) -> None:
    used, fresh = exchange(spec, drops=0.1), exchange(spec, drops=0.1)
    for _ in range(before):
        used.push_any()
    client = min(used.eligible)
    used.push(client, [np.full_like(g, np.nan) for g in used.gradients()])
    used.server.init(fresh.server.params, CLIENTS, getattr(fresh.server, "layout", None))
    assert used.server.finite
    equal_states(used.server.take_state(), fresh.server.take_state())
    for other in range(CLIENTS):
        np.testing.assert_array_equal(used.server.fetch(other), fresh.server.fetch(other))
    used.held, used.stamps = [x.copy() for x in fresh.held], list(fresh.stamps)
    used.eligible, used.rng = set(fresh.eligible), np.random.default_rng(9)
    fresh.rng = np.random.default_rng(9)
    for _ in range(30):
        assert used.push_any() == fresh.push_any()
        assert used.released == fresh.released
        assert used.server.params.tobytes() == fresh.server.params.tobytes()
    equal_states(used.server.take_state(), fresh.server.take_state())


def test_what_is_averaged_is_stored_flushed(spec: Spec, exchange: Begin) -> None:
    """Below 2⁻⁶² it is +0; what a server keeps of parameters stays as it is."""
    ex = exchange(spec)
    flushed: dict[str, bool] = {}
    for exponent in range(-75, -15):
        client = int(ex.rng.choice(sorted(ex.eligible)))
        ex.push(client, [np.float32(2.0**exponent) * np.sign(g) for g in ex.gradients()])
        for name, value in ex.server.take_state().items():
            kind = name.removeprefix("_inner.").split(".")
            averaged = (
                kind[0] in {"arrays", "own"}
                and kind[1:]
                and kind[1] not in {"backup", "held", "mean", "answer", "last"}
            )
            if averaged and spec["name"] not in WITH_TABLES:
                assert not ((value != 0) & (np.abs(value) < 2.0**-62)).any(), (name, exponent)
                assert not np.signbit(value[value == 0]).any()
                flushed[name] = flushed.get(name, False) or bool((value == 0).any())
    assert all(flushed.values()) or spec["name"] in {"fasgd", "bfasgd", "sync"}  # whose v starts at 1


@pytest.mark.parametrize("clients", [0, -3])
def test_clients_must_be_positive(spec: Spec, make: Callable[[Spec], Any], clients: int) -> None:
    with pytest.raises(ValueError) as caught:
        make(spec).init(np.ones(5, np.float32), clients)
    assert "clients" in str(caught.value)
    assert str(clients) in str(caught.value)


def test_servers_that_bring_settings_of_the_dispatcher() -> None:
    gates = {"push": {"bandwidth_aware": {"c": 0.3}}, "fetch": {"bandwidth_aware": {"c": 0.0}}}
    assert BFASGD(lr=0.1, c_push=0.3, c_fetch=0.0).gates() == gates
    every = {"push": {"every": 2}, "fetch": {"every": 5}, "dropped_push": "accumulate", "replica": True}
    assert Downpour(lr=0.1, n_push=2, n_fetch=5).gates() == every


@pytest.mark.parametrize("client", [-1, 3, 100])
def test_dcasgd_knows_its_clients(client: int) -> None:
    server = DCASGD(lr=0.1)
    server.init(np.ones(5, np.float32), 3)
    with pytest.raises(ValueError) as caught:
        server.apply_update(np.ones(5, np.float32), client, 0)
    assert f"client_id is {client}; it must lie in 0 … 2" in str(caught.value)
    assert server.timestamp == 0
    np.testing.assert_array_equal(server.params, np.ones(5, np.float32))


@pytest.mark.parametrize(
    ("make_bad", "words"),
    [
        (lambda: ASGD(), ["lr", "required"]),
        (lambda: ASGD(lr=0), ["lr", "0", "greater than 0"]),
        (lambda: ASGD(lr="fast"), ["lr", "'fast'", "number"]),
        (lambda: ASGD(lr=0.1, weight_decay=-1.0), ["weight_decay", "-1.0"]),
        (lambda: FASGD(lr=0.1, gama=0.9), ["gama", "gamma"]),
        (lambda: FASGD(lr=0.1, eps=0.0), ["eps", "0.0"]),
        (lambda: FASGD(lr=0.1, variant="writen"), ["variant", "'writen'", "'std', 'released' or 'printed'"]),
        (lambda: SASGD(lr=0.1, divisor="tau"), ["divisor", "'tau'", "'max1' or 'plus1'"]),
        (lambda: ExponentialASGD(lr=0.1, kappa=-1.0), ["kappa", "-1.0"]),
        (lambda: FedAsync(lr=0.1, mixing=1.5), ["mixing", "1.5"]),
        (lambda: GapAware(lr=0.1, c=0.0), ["c", "0.0", "greater than 0"]),
        (lambda: GapAware(lr=0.1, c=float("nan")), ["c", "nan"]),
        (lambda: Sync(), ["one of lr and inner"]),
        (lambda: Sync(lr=0.1, inner={"name": "asgd", "lr": 0.1}), ["one of lr and inner"]),
        (lambda: Sync(inner={"name": "dcasg", "lr": 0.1}), ["inner.name", "'dcasg'", "dcasgd"]),
        (lambda: Sync(inner={"name": "fedavg", "lr": 0.1}), ["inner.name", "fedavg", "known"]),
        (lambda: Sync(inner={"name": "sync", "lr": 0.1}), ["inner.name", "holds nobody"]),
        (lambda: Sync(inner={"name": "easgd", "lr": 0.1}), ["inner.name", "takes gradients"]),
        (lambda: Sync(inner={"name": "asgd", "lr": 0.1}, weight_decay=0.1), ["weight_decay", "inner"]),
    ],
)
def test_wrong_hyper_parameters_name_value_and_remedy(make_bad: Callable[[], Server], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_bad()
    for word in words:
        assert word in str(caught.value)
