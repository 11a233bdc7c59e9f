"""B-FASGD as a whole: what c changes and what it does not; and what moves no bit whatever gates drop."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.snapshots import Snapshots
from fredsim.simulation.schedule.length import Length

Simulate = Callable[..., Result]
FASGD = {"name": "fasgd", "lr": 0.005}
POWERS = [2.0**-k for k in range(6, -1, -1)]


def bfasgd(push: float, fetch: float, **hyper: Any) -> dict[str, Any]:
    return {"name": "bfasgd", "lr": 0.005, "c_push": push, "c_fetch": fetch, **hyper}


@pytest.mark.parametrize("variant", ["std", "released", "printed"])
@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_without_c_it_is_fasgd(simulate: Simulate, variant: str, backend: str) -> None:
    """Bit for bit, and every copy passes."""
    server = {"variant": variant, "lr": 0.05 if variant == "printed" else 0.005}
    one = simulate({"server": FASGD | server, "backend": backend, "evaluation": {"every": 10}})
    other = simulate({"server": bfasgd(0.0, 0.0) | server, "backend": backend, "evaluation": {"every": 10}})
    for name in ("metrics.csv", "staleness.csv", "params.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert other.summary["pushes"] == other.summary["fetches"] == 50


def test_its_gates_are_the_dispatchers(simulate: Simulate) -> None:
    own = simulate({"iterations": 120, "server": bfasgd(0.3, 0.1)})
    gates = {"push": {"bandwidth_aware": {"c": 0.3}}, "fetch": {"bandwidth_aware": {"c": 0.1}}}
    given = simulate({"iterations": 120, "server": FASGD, "dispatcher": gates})
    assert (own.folder / "metrics.csv").read_bytes() == (given.folder / "metrics.csv").read_bytes()
    assert own.summary["pushes"] < 100
    default = simulate({"iterations": 120, "server": {"name": "bfasgd", "lr": 0.005}})
    hundredth = simulate({"iterations": 120, "server": bfasgd(0.01, 0.01)})
    assert default.summary["digest"] == hundredth.summary["digest"]


@pytest.mark.parametrize("sampling", ["sequential", "iid", "shuffled"])
def test_c_moves_no_client_and_no_minibatch(simulate: Simulate, monkeypatch: pytest.MonkeyPatch, sampling: str) -> None:
    seen: list[Any] = []
    advance = Snapshots._advance

    def watched(simulation: Snapshots, length: Length) -> None:
        rows = simulation._sampler.rows

        def noting(*of: Any) -> Any:
            drawn = rows(*of)
            seen.append((of[1].tolist(), drawn.tolist()))
            return drawn

        with monkeypatch.context() as patch:
            patch.setattr(simulation._sampler, "rows", noting)
            advance(simulation, length)

    monkeypatch.setattr(Snapshots, "_advance", watched)
    clients = {"count": 8, "batch_size": 3, "sampling": sampling}
    draws, digests = [], set()
    for server in (FASGD, bfasgd(0.0, 0.0), bfasgd(0.0, 1.0), bfasgd(1.0, 0.0), bfasgd(0.2, 0.7)):
        run = {"iterations": 60, "path": "snapshots", "clients": clients, "server": server}
        digests.add(simulate(run).summary["digest"])
        draws.append(list(seen))
        seen.clear()
    assert len(draws[0]) > 1
    assert all(other == draws[0] for other in draws)
    assert len(digests) == 4


def test_fewer_copies_for_a_larger_c(simulate: Simulate) -> None:
    """Over every doubling of c, of either gate, and the bytes are those of the copies."""
    for gate in ("push", "fetch"):
        fractions = []
        for c in POWERS:
            server = bfasgd(c, 0.0) if gate == "push" else bfasgd(0.0, c)
            last = simulate({"iterations": 600, "server": server}).metrics.iloc[-1]
            for copies, direction in (("pushes", "bytes_pushed"), ("fetches", "bytes_fetched")):
                assert last[f"potential_{copies}"] == 600
                assert last[direction] == 4840 * last[copies]
            fractions.append(last["pushes" if gate == "push" else "fetches"] / 600)
            assert last["fetches" if gate == "push" else "pushes"] == 600
        assert all(np.diff(fractions) < 0), (gate, fractions)
        assert fractions[-1] < 0.2 < 0.5 < fractions[0]


def test_one_server_over_the_whole_range_follows_eq_9(simulate: Simulate, plain: ModuleType) -> None:
    world = plain.World()
    for c in (POWERS[0], POWERS[-1]):
        push, fetch = world.bandwidth_aware(4, c), world.bandwidth_aware(5, c)
        rows = world.run(50, plain.PlainFASGD(world.start, 0.005), push=push, fetch=fetch)
        plain.check(simulate({"server": bfasgd(c, c), "evaluation": {"every": 1}}), rows)


PER_TENSOR = {"bandwidth_aware": {"c": 0.1, "per": "tensor"}}
SETUPS: dict[str, dict[str, Any]] = {
    "bfasgd": {"server": bfasgd(0.1, 0.1)},
    "bfasgd, released": {"server": bfasgd(0.01, 0.05, variant="released")},
    "per tensor": {"server": FASGD, "dispatcher": dict.fromkeys(("push", "fetch"), PER_TENSOR)},
    "budget": {"server": FASGD, "dispatcher": {"push": {"budget": 900}, "fetch": {"budget": 700}}},
    **{
        policy: {"server": bfasgd(0.1, 0.1), "dispatcher": {"dropped_push": policy}}
        for policy in ("skip", "accumulate", "average")
    },
    "FRED's timestamps": {"server": bfasgd(0.1, 0.1), "dispatcher": {"fred_timestamps": True}},
    "without waiting": {"server": bfasgd(0.1, 0.1), "dispatcher": {"wait": False}},
    "downpour": {"server": {"name": "downpour", "lr": 0.05, "n_push": 2, "n_fetch": 3}},
    "sync": {"server": {"name": "sync", "lr": 0.1}, "dispatcher": {"fetch": {"every": 2}}},
    "sync, skip": {
        "server": {"name": "sync", "lr": 0.1},
        "dispatcher": {"push": {"every": 2}, "dropped_push": "skip"},
    },
    "backup workers": {"server": {"name": "sync", "lr": 0.1, "aggregate": 5}, "dispatcher": {"fetch": {"every": 3}}},
    "soft_sync": {"server": {"name": "soft_sync", "lr": 0.1, "n": 2}, "dispatcher": {"fetch": {"every": 2}}},
    "rennala": {"server": {"name": "rennala", "lr": 0.1, "batch": 4}, "dispatcher": {"fetch": {"every": 2}}},
    "ringmaster": {"server": {"name": "ringmaster", "lr": 0.1, "threshold": 6, "stop": True}},
    "ringmaster, gated": {
        "server": {"name": "ringmaster", "lr": 0.1, "threshold": 6, "stop": True},
        "dispatcher": {"fetch": {"every": 2}, "push": {"every": 2}},
    },
    "fedasync": {"server": {"name": "fedasync", "lr": 0.1}, "clients": {"count": 8, "batch_size": 2, "local_steps": 3}},
    "fedbuff": {
        "server": {"name": "fedbuff", "lr": 0.1, "buffer": 3},
        "clients": {"count": 8, "batch_size": 2, "local_steps": 2},
    },
    "easgd": {"server": {"name": "easgd", "lr": 0.1, "period": 2}},
    **{name: {"compress": {"name": name}} for name in ("ternary", "qsgd", "sign", "error_feedback_sign")},
    "top_k": {"compress": {"name": "top_k", "k": 50}},
}
KNOBS: list[dict[str, Any]] = [
    {"threads": 2, "window": 2},
    {"window": 1},
    {"window": 7},
    {"window": 1000},
    {"backend": "numpy"},
]


@pytest.mark.parametrize("name", SETUPS)
def test_no_knob_moves_a_bit(simulate: Simulate, name: str) -> None:
    runs = [simulate({"iterations": 50, **SETUPS[name], **knob}) for knob in ({}, *KNOBS)]
    assert len({run.summary["digest"] for run in runs}) == 1
    assert len({(run.folder / "metrics.csv").read_bytes() for run in runs}) == 1


def test_the_deviation_counts_as_1_before_the_first_push(simulate: Simulate) -> None:
    """Though `released` starts from v = 0, of which one push in a hundred would pass."""
    for seed in range(8):
        server = bfasgd(0.01, 0.01, variant="released")
        one = {"iterations": 1, "server": server, "dispatcher": {"dropped_push": "skip"}, "seed": seed}
        assert simulate(one).summary["pushes"] == 1
