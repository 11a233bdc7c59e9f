"""The experiments whose runs are killed: all servers, with various dispatchers, extras and backends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from fredsim.config.document import Document
from fredsim.config.registry import KNOWN
from fredsim.errors import ConfigError
from fredsim.runs.single.opening import open_experiment
from tests.servers.variants import VARIANTS

__all__ = ["BACKENDS", "Cell", "cells"]

BACKENDS = ("numba", "numpy", "torch", "cuda")
#: The iterations of a run that is killed 50 times; four times as many if a checkpoint covers many events.
ITERATIONS = {"numba": 1200, "numpy": 300, "torch": 400, "cuda": 70}
ORDERS: list[dict[str, Any]] = [
    {"name": "uniform"},
    {"name": "weighted", "weights": [1.0, 4.0], "on_chosen": {"factor": 0.5, "recover_after": 3}},
    {"name": "round_robin"},
    {"name": "scripted", "order": [0, 3, 1, 1, 4, 2, 0]},
]
CLOCKS: list[dict[str, Any]] = [
    {"name": "clock", "compute": {"seconds": {"name": "gamma", "cv": 0.6}, "noise": {"name": "exponential"}}},
    {
        "name": "clock",
        "compute": {"noise": {"name": "lognormal", "sigma": 0.5}},
        "outages": {"up": {"name": "exponential", "mean": 5.0}, "down": 2.0},
    },
]
NETWORK = {"link": {"latency": 0.1, "up": 1e4, "down": [1e4, 3e3, 2e4, 1e4, 1e5]}, "server": {"seconds": 0.1}}
DROPPED = ("skip", "accumulate", "average", "reapply")
#: What is added to an experiment, in this order: for each name, the first change that fits the rest, if one does.
Extras = dict[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Cell:
    """One run that is killed repeatedly."""

    kind: str
    server: str
    dispatcher: str
    extras: tuple[str, ...]
    backend: str
    data: Mapping[str, Any]
    replays: bool = False
    """Whether the run replays the trace of the cell before."""
    sweep: bool = False


def merged(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment with changes; mappings such as dispatcher and clients are merged key by key."""
    within = {key: dict(data[key]) | dict(value) for key, value in changes.items() if isinstance(data.get(key), dict)}
    return {**data, **changes, **within}


def fits(data: Mapping[str, Any]) -> bool:
    try:
        open_experiment(dict(data), Document(dict(data)).place)
    except ConfigError:
        return False
    return True


def cells(
    backend: str, kills: int, servers: Collection[str] | None = None, kinds: Collection[str] | None = None
) -> Iterator[list[Cell]]:
    """Yield the cells of a backend, each in a list with the cell that replays it, if there is one.

    There are five per server on numba, and fewer on other backends. Runs are long enough for so many kills.
    """
    turn = count()
    for number, server in enumerate(KNOWN["server"]):
        variants = [spec for spec in VARIANTS.values() if spec["name"] == server and "average" not in spec]
        for kind in kinds_of(backend, number):
            n = next(turn)
            if (servers and server not in servers) or (kinds and kind not in kinds):
                continue
            base = merged(plain(backend, n), {"server": variants[n % len(variants)]})
            longer = 4 if backend == "numba" and kind in {"plain", "fetches"} else 1
            base["iterations"] = max(50, base["iterations"] * longer * kills // 50)
            dispatcher, extras = choices(n)[kind]
            data, taken = merged(base, {"dispatcher": dispatcher}), list[str]()
            for name, several in extras.items():
                if backend == "cuda" and name == "memory spill":  # a device's memory is not the host's
                    continue
                fitting = next((wider for changes in several if fits(wider := merged(data, changes))), None)
                data, taken = (data, taken) if fitting is None else (fitting, [*taken, name])
            found = [Cell(kind, server, dispatcher["name"], tuple(taken), backend, data)]
            if kind == "network":
                found.append(Cell(kind, server, "trace", tuple(taken), backend, data, replays=True))
            yield found
    if backend == "numba" and not servers and (not kinds or "others" in kinds):
        yield from others()


def others() -> Iterator[list[Cell]]:
    """Yield a run that diverges, one with two threads, and a sweep."""
    base = plain("numba", 0) | {"server": {"name": "asgd", "lr": 0.01}, "dispatcher": {"name": "uniform"}}
    schedule = {"name": "step", "base": 0.01, "factor": 1e30, "every": 1000}
    diverges = {"server": {"name": "asgd", "lr": schedule}, "path": "snapshots"}
    yield [Cell("others", "asgd", "uniform", ("diverges",), "numba", base | diverges)]
    yield [Cell("others", "asgd", "uniform", ("two threads",), "numba", base | {"threads": 2, "path": "fused"})]
    sweep: dict[str, Any] = {"sweep": {"server": [{"name": "sync", "lr": 0.05}, {"name": "fasgd", "lr": 0.005}]}}
    sweep |= {"path": "snapshots", "iterations": 2400}
    yield [
        Cell("others", "sync, fasgd", "uniform", ("sweep",), "numba", base | sweep | {"iterations": 2400}, sweep=True)
    ]


def kinds_of(backend: str, number: int) -> tuple[str, ...]:
    """Return the kinds of cells of a server; `network` makes two cells."""
    if backend == "numba":
        return "plain", "fetches", "gates", "network"
    some, first = {"numpy": (2, 0), "torch": (2, 1), "cuda": (4, 0)}[backend]
    return (("gates", "network", "plain")[number // some % 3],) if number % some == first else ()


def plain(backend: str, n: int) -> dict[str, Any]:
    """Return a plain experiment."""
    slow = backend == "cuda"
    return {
        "name": "killed",
        "seed": n,
        "iterations": ITERATIONS[backend],
        "data": {"name": "digits", "train": 120, "validation": 20},
        "model": {"name": "torch:own_modules:dense", "numerics": "native"}
        if backend == "torch"
        else {"hidden": [6] if slow else [12, 7]},
        "clients": {"count": 5, "batch_size": 2, "sampling": ("sequential", "iid", "shuffled")[n % 3]},
        "evaluation": {"every": 7 if slow else 37, "per_client": True},
        "events": True,
        "threads": 1,
        **({} if backend == "torch" else {"backend": backend}),
    }


def choices(n: int) -> dict[str, tuple[dict[str, Any], Extras]]:
    """Return the dispatcher and the extras of the n-th cell, by kind; alternatives take turns."""
    order, clock = ORDERS[n % len(ORDERS)], CLOCKS[n % len(CLOCKS)]
    gates = {"push": {"every": 2}, "fetch": {"every": 3}, "dropped_push": DROPPED[n % len(DROPPED)]}
    of_v = {"push": {"bandwidth_aware": {"c": 0.3}}, "fetch": {"budget": 1500.0}, "dropped_push": "accumulate"}
    average = {"average": {"name": "window", "min_window": 3, "max_window": 50, "rate": 0.3}}
    shards = {"clients": {"partition": {"name": "dirichlet", "alpha": 0.5, "self_balancing": True}}}
    spill = {"memory": 1}
    pushes: list[dict[str, Any]] = [
        {"dispatcher": {"push": {"every": 2}, "dropped_push": policy}} for policy in ("accumulate", "skip")
    ]
    compressors: list[dict[str, Any]] = [
        {"compress": {"name": "error_feedback_sign"}},
        {"compress": {"name": "top_k", "k": 0.1}},
    ]
    return {
        "plain": (order, {}),
        "fetches": (
            order,
            {
                "fetch gate": [{"dispatcher": {"fetch": {"every": 2}}}],
                "no waiting": [{"dispatcher": {"wait": False}}],
                "memory spill": [spill],
            },
        ),
        "gates": (
            clock,
            {
                "gates": [{"dispatcher": of} for of in (of_v, gates, gates | {"dropped_push": "skip"})],
                "local steps": [{"clients": {"local_steps": 3}}],
                "window average": [average],
                "rows on the clock": [{"evaluation": {"every": 8.5, "unit": "seconds"}}],
            },
        ),
        "network": (
            clock | NETWORK,
            {
                "compressor with memory": compressors if n % 2 else compressors[::-1],
                "push gate": pushes,
                "memory spill": [spill],
                "shards": [shards],
                "probe": [{"probe": {"every": 23}}],
            },
        ),
    }
