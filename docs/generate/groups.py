"""The tables to choose a server or a dispatcher by: groups of one idea, and what each does, in a few words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from docs.generate.markdown import linked, one_line, table
from fredsim.networks.layout import Layout
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.servers.batches import TreeSum

__all__ = ["GROUPS", "Group", "facts", "group_of", "overview"]


@dataclass(frozen=True)
class Group:
    """Parts that rest on one idea: its heading, a sentence about it, and for each name a phrase for the table."""

    heading: str
    idea: str
    phrases: Mapping[str, str]


SERVERS = (
    Group(
        "Plain steps",
        "The update rule of an ordinary optimizer. Staleness is ignored, so the learning rate must be small enough for "
        "the stalest gradients. These are what other servers are compared with.",
        {
            "asgd": "nothing",
            "momentum": "nothing; momentum and delay add up",
            "async_nesterov": "discounts every gradient by 1 − γ, and looks ahead along the momentum",
            "delayed_nesterov": "nothing; momentum changes only every N arrivals, by their mean",
        },
    ),
    Group(
        "Smaller steps for stale gradients",
        "The step depends on τ, the number of updates since the client fetched. The rules know nothing of how far the "
        "parameters have moved meanwhile.",
        {
            "average_staleness": "divides all steps by the same number, the expected τ",
            "sasgd": "divides the step by τ",
            "exponential": "multiplies the step by exp(−κτ)",
            "delay_adaptive": "divides the step by τ/n where τ exceeds n",
            "ringmaster": "drops gradients with τ ≥ R, or restarts their clients",
        },
    ),
    Group(
        "Second moments and variance",
        "Each parameter has a step of its own, divided by how large its gradients are (the adaptive optimizers), or by "
        "how much they vary (FASGD): where gradients hardly vary, a stale one is nearly as good as a fresh one.",
        {
            "adagrad": "nothing; steps shrink as squared gradients add up",
            "rmsprop": "nothing; steps are divided by a moving root mean square",
            "adam": "nothing; as `rmsprop`, with momentum",
            "nadam": "as `adam`, but looks ahead along the momentum",
            "fasgd": "divides the step by τ and by a moving deviation of the gradient",
            "bfasgd": "as `fasgd`; copies are dropped where gradients vary little",
        },
    ),
    Group(
        "Delay compensation",
        "The server keeps an array for each client, and corrects for what has changed since the client fetched.",
        {
            "dcasgd": "adds a first-order estimate of how the gradient has changed",
            "gap_aware": "divides each parameter's step by how far it has moved, in usual steps",
            "dana": "hands out the parameters that all clients' momenta are about to lead to",
        },
    ),
    Group(
        "Buffers: one step for several gradients",
        "A step is made by the mean of several arrivals, so that there are fewer updates, and τ is smaller.",
        {
            "soft_sync": "a step for each ⌊λ/n⌋ gradients; with `aware` each is divided by τ",
            "fedbuff": "a step for each K clients' updates, each divided by √(1 + τ)",
            "fadas": "as `fedbuff` with AMSGrad; smaller steps if the buffer has a very stale update",
            "rennala": "throws away every stale gradient, and steps by the mean of B fresh ones",
        },
    ),
    Group(
        "Every client counts the same",
        "Fast clients send more gradients, and pull the parameters towards their own data. These servers prevent that; "
        "they are for clients with data of their own.",
        {
            "rescaled": "nothing; the longer a client takes, the larger its steps",
            "ia2sgd": "steps by the mean of every client's latest gradient, however old; `max_delay` bounds that",
            "ca2fl": "as `fedbuff`, calibrated by the last update of every client",
            "malenia": "gradients of the same parameters only: none is stale",
            "ringleader": "rounds with an update per client; none is more than 2n − 2 updates old",
            "throttle": "in a round, each further gradient of a client counts less; all restart at its end",
        },
    ),
    Group(
        "Clients that move on their own",
        "Clients take steps on parameters of their own, and exchange sums or parameters with the server now and then.",
        {
            "downpour": "nothing; clients push sums of several steps",
            "easgd": "pulls client and centre towards each other by the same share of their distance",
            "fedasync": "mixes a client's parameters in, with a weight that may fall with τ",
        },
    ),
    Group(
        "Synchronous rounds",
        "The server waits for all clients, or for some, and fast clients idle. All gradients of a round are of the "
        "same parameters; only a client whose fetch a gate drops computes from older ones.",
        {
            "sync": "none is stale; with `aggregate`, late gradients are dropped",
            "slowmo": "none is stale: rounds of local steps, with momentum on the server",
            "mindflayer": "none is stale: trials with a time limit, so that slow ones do not delay a round",
        },
    ),
    Group(
        "A few bits a number",
        "Synchronous rounds in which clients push signs or three values.",
        {
            "sign_majority": "none is stale: the majority's signs are the step",
            "ternary_sync": "none is stale: gradients of three values are averaged",
        },
    ),
    Group(
        "Averaged iterates",
        "The parameters that are evaluated are a mean of those that training has gone through. The key `average` does "
        "this for any server ([averages.md](averages.md)).",
        {"averaged": "nothing; noise and outdated steps average out"},
    ),
)
DISPATCHERS = (
    Group(
        "An order without time",
        "The next client is drawn, or in turn. What staleness does per gradient shows already here.",
        {
            "uniform": "any client that is not waiting, each equally likely",
            "weighted": "drawn by weights, which may change for a while when a client is chosen",
            "round_robin": "all in turn",
            "scripted": "as a list or a CSV column says",
        },
    ),
    Group(
        "Time",
        "Clients take time, in nanoseconds, and so may copies and the server: what is best per second shows only here.",
        {
            "clock": "whose task ends first; machines, networks and outages are described",
            "trace": "as a recorded run, or a cluster's log, says",
        },
    ),
)
GROUPS: dict[str, tuple[Group, ...]] = {"server": SERVERS, "dispatcher": DISPATCHERS}
COLUMNS = {
    "server": ("server", "what it does with staleness", "clients", "it keeps, beside θ", "source"),
    "dispatcher": ("dispatcher", "who arrives next"),
}
CLIENTS, SIZE = 8, 15


def group_of(kind: str, name: str) -> Group:
    """Return the group of a server or a dispatcher. Raises ValueError if it has none."""
    for group in GROUPS[kind]:
        if name in group.phrases:
            return group
    raise ValueError(f"{kind} {name} is in no group: add it to docs/generate/groups.py")


def overview(kind: str, classes: Mapping[str, Any], examples: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the paragraphs of the page to choose by: a table for each group.

    `classes` and `examples` have the class of each name and the hyper-parameters to make one with.
    """
    for group in GROUPS[kind]:
        yield f"## {group.heading}"
        yield linked(group.idea, "../")
        rows = []
        for name, phrase in group.phrases.items():
            row = [f"[`{name}`]({kind}s/{name}.md)", phrase]
            if kind == "server":
                found = facts(classes[name], examples[name])
                row += [found["clients"], found["keeps"], _short(classes[name].citation)]
            rows.append(row)
        yield table(COLUMNS[kind], rows)


def _short(citation: str) -> str:
    """Return the authors and the year of a citation."""
    found = re.match(r"(.*?\d{4})\b", one_line(citation))
    return found[1] if found else citation


def facts(found: Any, example: dict[str, Any]) -> dict[str, str]:
    """Return what the clients of a server do (`clients`), and how many numbers it keeps beside θ (`keeps`)."""
    server = found(**example)
    server.bind_runtime(Streams(0), NumpyOperations())
    server.init(np.zeros(SIZE, np.float32), CLIENTS, Layout((("W1", (4, 3)), ("b1", (3,)))))
    waits = "wait" if server.holds else "may start over" if server.cancels else "never wait"
    fixed = len(getattr(server, "arrays", {}))
    own = len(getattr(server, "own", {}))
    terms = [_times(fixed, "P"), _times(own, "λP")]
    terms += ["the sum of a batch"] if isinstance(getattr(server, "_sum", None), TreeSum) else []
    terms += ["the gradients of a round"] if "_round" in server.take_state() else []
    return {"clients": waits, "keeps": " + ".join(filter(None, terms)) or "nothing"}


def _times(count: int, unit: str) -> str:
    return "" if count == 0 else unit if count == 1 else f"{count} {unit}"
