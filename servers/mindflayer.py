"""MindFlayer SGD: in each round a client has several trials to compute a gradient, each given up if it takes too long.

    θ ← θ − α (Σ g) / (Σ_i p_i B_i),   g all that arrived of B_i trials of each client i, each of t_i seconds at most
    p_i = P(client i's gradient takes t_i or less)

The time limit of a trial is a key of the clock: `dispatcher: {name: clock, compute: {limit: t}}`. A client whose trials
are used up waits; when all clients' are, the server steps, and the next round begins.

Maranjyan, Omar and Richtárik 2025, "MindFlayer SGD: efficient parallel SGD in the presence of heterogeneous and random
worker compute times", arXiv:2410.04285.

Departures: t_i is the whole time of a trial; in the paper it is added to the least time that a gradient takes. By
default p_i is measured: it is the share of the client's trials so far, this round's included, that arrived; the paper
assumes it is known. A round without any gradient leaves θ and the timestamp as they are. A client with 0 trials begins
its first task before the server can hold it; what it sends is dropped, and it waits from then on. A push that a gate
drops uses up no trial: its client goes on, so that a round takes more than B_i tasks of it, and p_i does not tell.
"""

from __future__ import annotations

from math import fsum
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator

from fredsim.errors import ConfigError, shown
from fredsim.hyper import PositiveInt
from fredsim.networks.layout import Layout
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.batches import CollectingServer

__all__ = ["MindFlayer"]

Probability = Annotated[float, Field(gt=0, le=1)]
Trials = Annotated[int, Field(ge=0, lt=2**32)]


class MindFlayer(CollectingServer):
    """Rounds of trials, some of which are given up."""

    idea = "give each client a few trials per round, each of limited time, and step by the gradients that arrive"
    citation = "Maranjyan et al. 2025, MindFlayer SGD, arXiv:2410.04285"

    class Hyper(Rated):
        """Hyper-parameters of MindFlayer; `trials` is B, `probability` p."""

        trials: PositiveInt | Annotated[list[Trials], Field(min_length=1)] = 1
        """B, the trials of each client in a round: a number, or a list with one for each client."""
        probability: Probability | Annotated[list[Probability], Field(min_length=1)] | Literal["measured"] = "measured"
        """p, the share of trials that arrive: a number, a list by client, or `measured`: each client's share so far."""

        @field_validator("probability", mode="before")
        @classmethod
        def check(cls, probability: Any) -> Any:
            """Refuse any text other than `measured`, with a message that names what is allowed."""
            if isinstance(probability, str) and probability != "measured":
                what = "it must be measured, a number above 0 and up to 1, or a list of these"
                raise ValueError(f"is {shown(probability)}; {what}")
            return probability

    holds = True
    state_names = ("_used", "_tried", "_came")

    def expect(self, clients: int) -> None:
        """Set each client's trials. Raises ConfigError if a list does not have one value per client, or all are 0."""
        super().expect(clients)
        for key in ("trials", "probability"):
            given = getattr(self.hyper, key)
            if isinstance(given, list) and len(given) != clients:
                raise ConfigError(
                    f"server.{key} has {len(given)} values; give one per client, {clients} (clients.count)"
                )
        self._trials = np.broadcast_to(np.array(self.hyper.trials, np.int64), clients)
        if not self._trials.any():
            raise ConfigError("server.trials are all 0, so nothing would ever be computed; give some client one")

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters, and begin the first round."""
        super().init(params, clients, layout)
        # Trials by client: used up in this round; in all rounds; and those in all rounds of which a gradient arrived.
        self._used, self._tried, self._came = np.zeros((3, clients), np.int64)

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, Σ p_i B_i)."""
        p: Any = self.hyper.probability
        if p == "measured":
            p = self._came / np.maximum(self._tried, 1)
        return np.float32(self.rate(t)), np.float32(fsum((p * self._trials).tolist()))

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Add the gradient of a successful trial; step when no client has a trial left."""
        if self._used[client_id] < self._trials[client_id]:
            self._sum.add(grad.copy())
            self._came[client_id] += 1
        return self._count(client_id)

    def given_up(self, client_id: int, timestamp: int) -> Reply:
        """Count a trial that was given up; step when no client has a trial left."""
        return self._count(client_id)

    def _count(self, client_id: int) -> Reply:
        """Count a trial; when no client has a trial left, step and let all begin the next round."""
        self._used[client_id] += 1
        self._tried[client_id] += 1
        if self._used[client_id] < self._trials[client_id]:
            return Reply((client_id,))
        if self._trials[client_id]:
            self._waiting.append(client_id)
        if (self._used < self._trials).any():
            return Reply()
        if self._sum.count:
            self.step(self._sum.close(), client_id)
        self._used[:] = 0
        released, self._waiting = self._waiting, []
        return Reply(released)

    def pushes_until_release(self) -> int:
        """Return 1: any push may release its client, for its next trial."""
        return 1
