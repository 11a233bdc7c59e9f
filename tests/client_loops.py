"""Federated averaging, FedProx, SCAFFOLD and asynchronous DiLoCo as plain loops, with which tests compare runs.

A `Setting` says where gradients come from, which minibatches clients have, and who arrives next. The rest is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.distributions import Distribution, draw
from fredsim.numerics.elementary import pow64
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.streams import Stream, Streams

Array = NDArray[np.float32]
F = np.float32


@dataclass
class Setting:
    """Where a loop begins, and what it is made of; what it did is counted here, too."""

    start: Array
    clients: int
    gradient: Callable[[Array, int, int], Array]
    """The gradient at parameters, of a client's minibatch with this number among all of the client's."""
    digest: Callable[[Array], str]
    steps: Sequence[int]
    """How many local steps each client takes."""
    own: Sequence[float] | None = None
    """The seconds that a client's gradient takes without noise; None: no clock, and clients are chosen uniformly."""
    noise: Distribution | None = None
    streams: Streams = field(default_factory=lambda: Streams(0))
    digests: list[str] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    pushed: int = 0
    fetched: int = 0

    def __post_init__(self) -> None:
        self.tasks = [0] * self.clients
        self.iteration = 0

    def local(self, client: int, start: Array, step: Callable[[Array, Array], Array]) -> Array:
        """Let a client take its local steps from `start`; `step` takes parameters and gradient."""
        x = start.copy()
        for k in range(self.steps[client]):
            x = step(x, self.gradient(x, client, self.tasks[client] * self.steps[client] + k))
        self.tasks[client] += 1
        return x

    def takes(self, client: int) -> int:
        """The nanoseconds of the client's next task."""
        assert self.own is not None
        assert self.noise is not None
        unit = draw(self.noise, self.streams, Stream.TIME, self.tasks[client], client)[0]
        return max(1, round(float(self.own[client] * self.steps[client] * 1e9 * unit)))

    def order(self, team: Sequence[int]) -> list[int]:
        """The order in which clients that begin together arrive."""
        if self.own is not None:
            return sorted(team, key=lambda client: (self.takes(client), client))
        found, left = [], sorted(team)
        for _ in team:
            found.append(left.pop(int(self.streams.below(len(left), Stream.DISPATCH, 0, self.iteration))))
            self.iteration += 1
        return found

    def record(self, theta: Array, tau: int, arrays: int = 1) -> None:
        """Count an arrival, after which the server's parameters are θ: `arrays` vectors pushed, as many fetched."""
        self.digests.append(self.digest(theta))
        self.staleness.append(tau)
        self.pushed += 4 * len(theta) * arrays
        self.fetched += 4 * len(theta) * arrays


def draw_team(world: Setting, idle: set[int], drawn: int, count: int) -> list[int]:
    """Draw `count` of the idle clients, one after the other, each the k-th by id; `drawn` were drawn before."""
    team = []
    for n in range(count):
        ids = sorted(idle)
        team.append(ids[int(world.streams.below(len(ids), Stream.PARTICIPATION, 0, drawn + n))])
        idle.remove(team[-1])
    return team


def rounds(
    world: Setting,
    count: int,
    *,
    team: int,
    lr: float,
    prox: float = 0.0,
    control: bool = False,
) -> None:
    """Synchronous rounds of FedAvg with a fraction of the clients, of FedProx, or of SCAFFOLD."""
    theta, alpha, idle = world.start.copy(), F(lr), set(range(world.clients))
    c, own = np.zeros_like(theta), [np.zeros_like(theta) for _ in range(world.clients)]
    for number in range(count):
        members = draw_team(world, idle, number * team, team)
        differences, fetched_c = [], c
        for client in world.order(members):

            def step(x: Array, g: Array, client: int = client) -> Array:
                if control:
                    g = g + (fetched_c - own[client])  # noqa: B023  it is called in this round only
                if prox:
                    g = g + F(prox) * (x - theta)  # noqa: B023
                return x - alpha * g

            y = world.local(client, theta, step)
            differences.append(theta - y)
            if control:
                divisor = F(float(alpha) * world.steps[client])
                new = (own[client] - fetched_c) + (theta - y) / divisor
                c, own[client] = c + (new - own[client]) / F(world.clients), new
            if len(differences) < team:
                world.record(theta, 0, 2 if control else 1)
        theta = theta - F(1) * (tree_sum(np.stack(differences)) / F(team))
        world.record(theta, 0, 2 if control else 1)
        idle |= set(members)


def flush(x: Array) -> Array:
    found: Array = np.where(np.abs(x) < 2.0**-62, F(0), x)
    return found


def diloco(
    world: Setting, count: int, *, lr: float, decay: float, keep: bool, server_lr: float, beta: float, every: int
) -> None:
    """Asynchronous DiLoCo: AdamW at the clients, whose differences arrive one by one; delayed Nesterov, c = 0."""
    b1, b2, eps = 0.9, 0.999, F(1e-8)
    theta, m, total, t = world.start.copy(), np.zeros_like(world.start), np.zeros_like(world.start), 0
    held, stamps = [theta] * world.clients, [0] * world.clients
    moments = [(np.zeros_like(theta), np.zeros_like(theta), 0)] * world.clients
    due = [world.takes(client) for client in range(world.clients)]
    for _ in range(count):
        client = min(range(world.clients), key=lambda one: (due[one], one))
        if not keep:
            moments[client] = (np.zeros_like(theta), np.zeros_like(theta), 0)

        def adamw(x: Array, g: Array, client: int = client) -> Array:
            a, s, n = moments[client]
            x = x - F(float(F(lr)) * decay) * x
            a, s = F(b1) * a + F(1 - b1) * g, F(b2) * s + F(1 - b2) * (g * g)
            hat1, hat2 = (F(1 - pow64(b, n + 1)) for b in (b1, b2))
            moments[client] = flush(a), flush(s), n + 1
            moved: Array = (F(lr) * (a / hat1)) / (np.sqrt(s / hat2) + eps)
            return x - moved

        delta = world.local(client, held[client], adamw) - held[client]
        tau, t = t - stamps[client], t + 1
        total, n = total + delta, F(every)
        if renewed := t % every == 0:
            m = F(beta) * m + total / n
        step: Array = F(server_lr) * (F(beta if renewed else 0.0) * m + delta / n)
        theta = theta + step
        m, total = flush(m), np.zeros_like(total) if renewed else flush(total)
        world.record(theta, tau)
        held[client], stamps[client] = theta, t
        due[client] += world.takes(client)
