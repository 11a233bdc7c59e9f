"""Rescaled ASGD: asynchronous SGD in which all clients count the same, however fast they are.

    θ ← θ − α (t_i / mean_j t_j) g,   t_i the time of client i from one of its gradients to the next

A client that is twice as fast sends twice as many gradients; each moves θ half as far. Under plain ASGD fast clients
pull θ toward the optimum of their own data.

Mahran, Maranjyan and Richtárik 2026, "Rescaled asynchronous SGD: optimal distributed optimization under data and system
heterogeneity", arXiv:2605.13434.

Departures: the paper's computation times are fixed and known, `times: […]`. By default they are measured: t_i is the
time of the client's last arrival divided by its number of arrivals, so it includes transfers and waiting; the mean is
over the clients that have arrived. Without a clock, each update takes time 1.
"""

from __future__ import annotations

from math import fsum
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fredsim.errors import ConfigError, shown
from fredsim.hyper import Positive
from fredsim.networks.layout import Layout
from fredsim.servers.asgd import ASGD
from fredsim.servers.base import Array, Rated

__all__ = ["Rescaled"]


class Rescaled(ASGD):
    """Asynchronous SGD in which each client's step is proportional to its time per gradient."""

    idea = "multiply the step by the client's time over the mean time, so that fast clients count as much as slow ones"
    citation = "Mahran et al. 2026, Rescaled asynchronous SGD, arXiv:2605.13434"

    class Hyper(Rated):
        """Hyper-parameters of Rescaled."""

        times: Annotated[list[Positive], Field(min_length=1)] | Literal["measured"] = "measured"
        """t, the clients' times: a list by client, in any unit; or `measured`: each client's mean time so far."""

        @field_validator("times", mode="before")
        @classmethod
        def check(cls, times: Any) -> Any:
            """Refuse anything else, with a message that names both forms."""
            if not isinstance(times, list) and times != "measured":
                raise ValueError(f"is {shown(times)}; it must be measured, or a list of the clients' times")
            return times

    state_names: ClassVar[tuple[str, ...]] = ("_now", "_times", "_pushes", "_sum", "_known")

    def expect(self, clients: int) -> None:
        """Note the number of clients. Raises ConfigError if the list does not have one time for each."""
        super().expect(clients)
        times = self.hyper.times
        if times != "measured" and len(times) != clients:
            raise ConfigError(f"server.times has {len(times)} values; give one per client, {clients} (clients.count)")

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters, and the given times, if any."""
        super().init(params, clients, layout)
        given = self.hyper.times
        self._times = np.zeros(clients) if given == "measured" else np.array(given, np.float64)
        self._sum = fsum(self._times.tolist())  # the sum of the known times
        self._known = 0 if given == "measured" else clients  # of how many clients the time is known
        self._pushes = np.zeros(clients, np.int64)
        self._now = -1.0  # the time of the present push, in seconds; −1 without a clock

    def tell_time(self, seconds: float) -> None:
        """Note the time at which the next push arrives."""
        self._now = seconds

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Step by the gradient, in proportion to its client's time."""
        if self.hyper.times == "measured":
            self._measure(client_id)
        mean = self._sum / self._known
        share = float(self._times[client_id]) / mean if mean else 1.0  # a trace may begin at time 0
        self._apply(grad, client_id, np.float32(self.rate() * share))

    def _measure(self, client: int) -> None:
        """Update the client's mean time by its present arrival."""
        before, now = float(self._times[client]), self.timestamp + 1 if self._now < 0 else self._now
        self._pushes[client] += 1
        self._known += int(self._pushes[client]) == 1
        self._times[client] = now / int(self._pushes[client])
        self._sum += float(self._times[client]) - before
