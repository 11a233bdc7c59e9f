"""The windowed average of any server's iterates, for evaluation; training continues with the iterates themselves.

After each update, with p the new parameters (PaddlePaddle's ParameterAverageOptimizer, shipped as ModelAverage):

    updates += 1; acc += 1; sum₁ += p
    every 16,384 updates: sum₂ += sum₁; sum₁ = 0
    if acc ≥ min_window and acc ≥ ⌊min(max_window, updates·rate)⌋:
        sum₃ = sum₁ + sum₂; sum₁ = sum₂ = 0; old = acc; acc = 0
    average = (sum₁ + sum₂ + sum₃) / (acc + old)

The average spans one to two windows, since sum₃ is replaced at the end of each window.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from fredsim.hyper import Configurable, HyperParameters, NonNegative, PositiveInt
from fredsim.networks.layout import Layout
from fredsim.numerics.operations import NumpyOperations
from fredsim.plugins.state.states import State, part_of, put_state, take_state
from fredsim.servers.base import Array, Reply, Server

__all__ = ["SUMS", "WindowAverage"]

SUMS = 3  # the arrays (P,) that it keeps
SPILL = 16384  # after this many updates sum₁ is added to sum₂, since longer sums in float32 would lose digits


class WindowAverage(Configurable):
    """Wraps a server, and adds the average; all other attributes are the server's."""

    idea = "evaluate a windowed average of any server's iterates"
    citation = "Srinet 2017, Averaging parameter in PaddlePaddle (ParameterAverageOptimizer, shipped as ModelAverage)"
    state_names = ("_sums", "_updates", "_accumulated", "_old", "_seen")

    class Hyper(HyperParameters):
        """Hyper-parameters: the window is `rate` of all updates, between `min_window` and `max_window` updates.

        `device` cpu keeps the sums on the host, whatever the backend; null keeps them where the parameters are.
        """

        rate: NonNegative = 0.15
        """The window's length as a share of all updates so far."""
        min_window: PositiveInt = 10000
        """The smallest length of the window, in updates."""
        max_window: PositiveInt = 10000
        """The largest length of the window, in updates."""
        device: Literal["cpu"] | None = None
        """cpu keeps the sums on the host; null keeps them where the parameters are."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for."""
            return {"device": "where the parameters are"}

        @model_validator(mode="after")
        def check(self) -> WindowAverage.Hyper:
            """Refuse a min_window that exceeds max_window."""
            if self.min_window > self.max_window:
                raise ValueError(f"min_window is {self.min_window}; it must not exceed max_window, {self.max_window}")
            return self

    def __init__(self, server: Any, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        self.server = server

    def __getattr__(self, name: str) -> Any:
        if name == "server":  # not set yet, as while this object is being copied
            raise AttributeError(name)
        return getattr(self.server, name)

    @property
    def on_backend(self) -> bool:
        """Whether the sums are arrays of the backend's, as on a device; else they are NumPy's."""
        return isinstance(self.server, Server) and self.hyper.device is None

    def bind_runtime(self, streams: Any, operations: Any, pool: Any = None) -> None:
        """Take these, and pass them to the server if its class derives from fredsim's."""
        super().bind_runtime(streams, operations, pool)
        if isinstance(self.server, Server):
            self.server.bind_runtime(streams, operations, pool)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Start the server, and set the sums to zero."""
        if isinstance(self.server, Server):
            self.server.init(params, clients, layout)
        else:
            self.server.init(params.copy(), clients)
        operations = self.server.operations if self.on_backend else NumpyOperations()
        self._sums = [operations.zeros(len(params)) for _ in range(SUMS)]
        self._updates = self._accumulated = self._old = 0
        self._seen = getattr(self.server, "timestamp", 0)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply | None:
        """Pass the push to the server; if it stepped, add its new parameters to the average."""
        reply: Reply | None = self.server.apply_update(grad, client_id, timestamp)
        self._check_for_update(pushed=True)
        return reply

    def given_up(self, client_id: int, timestamp: int) -> Reply | None:
        """Tell the server that a task was given up; if it stepped, add its new parameters to the average."""
        reply: Reply | None = self.server.given_up(client_id, timestamp)
        self._check_for_update(pushed=False)
        return reply

    def _check_for_update(self, *, pushed: bool) -> None:
        """Add the server's parameters if its timestamp has changed or, without a timestamp, after each push."""
        now = getattr(self.server, "timestamp", self._seen + pushed)
        if now != self._seen:
            self._seen = now
            self._add(self.server.params)

    def _add(self, params: Array) -> None:
        h, sums = self.hyper, self._sums
        self._updates += 1
        self._accumulated += 1
        with np.errstate(all="ignore"):
            sums[0] += params
            if self._updates % SPILL == 0:
                sums[1] += sums[0]
                sums[0][...] = 0
            window = int(min(h.max_window, self._updates * h.rate))
            if self._accumulated >= h.min_window and self._accumulated >= window:
                np.add(sums[0], sums[1], out=sums[2])
                sums[0][...] = sums[1][...] = 0
                self._old, self._accumulated = self._accumulated, 0

    @property
    def averaged_params(self) -> Array:
        """The average, float32 (P,); before the first update the parameters."""
        count = self._accumulated + self._old
        if count == 0:
            params: Array = self.server.params.copy()
            return params
        sums = self._sums
        return ((sums[0] + sums[1]) + sums[2]) / np.float32(count)

    @contextmanager
    def averaged(self) -> Iterator[Array]:
        """Replace the server's parameters by the average within a `with` block, and restore them after it."""
        raw = self.server.params.copy()
        self.server.params[...] = self.averaged_params
        try:
            yield self.server.params
        finally:
            self.server.params[...] = raw

    def take_state(self) -> State:
        """Return the server's state and that of the average."""
        return super().take_state() | {f"server.{name}": value for name, value in take_state(self.server).items()}

    def put_state(self, state: State) -> None:
        """Restore the state of the server and of the average."""
        super().put_state(state)
        put_state(self.server, part_of(state, "server"))
