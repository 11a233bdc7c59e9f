"""Synchronous SGD: a round collects one gradient of every client, and a step is made by their mean.

    θ ← θ − α (Σ g_l) / c,   l in order of arrival, c = λ or `aggregate`

FRED's hard-sync (Odena 2016, arXiv:1601.04033, section 3). With `aggregate: k` a round closes at its first k gradients,
and later ones are dropped: Chen et al. 2016, "Revisiting distributed synchronous SGD", arXiv:1604.00981 (backup
workers). With `restart` as well, clients that are not done when a round closes give up what they are computing, and all
begin the next round together: Begunov and Tyurin 2026, "Do we need asynchronous SGD? On the near-optimality of
synchronous methods", arXiv:2602.03802 (m-synchronous SGD).

With `inner` the mean is given to another server, as a push of its only client, as TensorFlow's SyncReplicasOptimizer
wraps an optimizer: {name: sync, inner: {name: dcasgd, lr: 0.001}}. The mean is as stale as its stalest gradient: if a
gate drops a copy, a client may compute from parameters of a round before. Under an inner server that corrects gradients
by what they were computed from (`dcasgd`, `gap_aware`), fetches have no gate. What an inner server takes from the
number of clients, such as the n of `delay_adaptive`, is that of one client, the rounds' mean.

Departures: none. A late gradient releases its client at once and leaves the timestamp as it is. With `restart` no
gradient is late, except that of a client whose fetch was dropped, and which therefore continues from old parameters.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from fredsim.errors import ConfigError, inside
from fredsim.hyper import HyperParameters, NonNegative, PositiveInt, made_by_name, wrong_name
from fredsim.networks.layout import Layout
from fredsim.servers.base import Array, Reply, Server, Steps
from fredsim.servers.batches import RoundServer
from fredsim.servers.schedules import Rate

__all__ = ["Sync"]


class Sync(RoundServer):
    """Synchronous SGD, with backup workers if fewer gradients than there are clients close a round."""

    idea = "wait for a gradient of every client (or of the first `aggregate`), then step by their mean"
    citation = (
        "Odena 2016, arXiv:1601.04033 (hard-sync); Chen et al. 2016, arXiv:1604.00981 (backup workers); "
        "Begunov and Tyurin 2026, arXiv:2602.03802 (m-synchronous)"
    )

    class Hyper(HyperParameters):
        """Hyper-parameters of Sync; `aggregate` null means every client; `inner` takes the place of `lr`."""

        lr: Rate | None = None
        """The learning rate α: a number, or a schedule; null if there is an inner server."""
        weight_decay: NonNegative = 0.0
        """Decoupled weight decay: before each step θ loses this share of itself, times α."""
        aggregate: PositiveInt | None = None
        """A round closes after this many gradients, and later ones are dropped; null waits for every client."""
        inner: Annotated[dict[str, Any] | None, Field(examples=[{"name": "adam", "lr": 0.001}])] = None
        """Another server, {name: …}, that takes each round's mean as one push; null makes plain steps by `lr`."""
        restart: bool = False
        """Whether clients that are late for a round give up what they are computing, and begin the next round, too."""

        @model_serializer(mode="wrap")
        def leave_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
            """Leave out `restart`, a later key, if it is false, so that earlier configurations keep their digests."""
            data: dict[str, Any] = handler(self)
            if not self.restart:
                del data["restart"]
            return data

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what each null stands for."""
            return {"aggregate": clients, "lr": "the inner server's", "inner": "none"}

        @field_validator("inner")
        @classmethod
        def check_inner(cls, inner: dict[str, Any] | None) -> dict[str, Any] | None:
            """Refuse an inner server that is unknown, or cannot be one."""
            if inner is not None:
                inner_server(inner)
            return inner

        @model_validator(mode="after")
        def check(self) -> Sync.Hyper:
            """Refuse an experiment that gives both or neither of lr and inner."""
            if (self.lr is None) == (self.inner is None):
                raise ValueError("give one of lr and inner")
            if self.inner is not None and self.weight_decay:
                raise ValueError("weight_decay goes with lr; give it to inner")
            return self

    state_names = ("_inner", "_oldest")

    def expect(self, clients: int) -> None:
        """Note the clients, and how many gradients close a round. Raises ConfigError if `aggregate` exceeds them."""
        super().expect(clients)
        self._round = self.needed
        self.needed = self.hyper.aggregate or self._round
        if self.needed > self._round:
            key = "clients.count" if self.at_work is None else "the clients at work (clients.fraction)"
            raise ConfigError(f"server.aggregate is {self.needed}; it must not exceed {key}, {self._round}")
        self.cancels = self.hyper.restart and self.needed < self._round
        self._inner = inner_server(self.hyper.inner) if self.hyper.inner else None
        if self.pipelines and self.needed < self._round:
            what = "a gradient is late if its parameters are older than the round, and all of a pipeline's are"
            raise ConfigError(f"server.aggregate is {self.needed}, and stages is given; {what}: leave one of them out")
        if self._inner:
            with inside("server", "; an inner server has one client, the rounds' mean"):
                self._inner.expect(1)
            self.corrects = self._inner.corrects
            if self.corrects and self.pipelines:  # whose passes are at parameters of several ages
                self.begins = self._inner_begins

    def _inner_begins(self, client_id: int, params: Array, timestamp: int) -> None:
        """Tell the inner server what its client, the round, computes from: the same for all clients."""
        del client_id
        inner: Any = self._inner
        inner.begins(0, params, timestamp)

    def gates(self) -> dict[str, Any]:
        """Let every fetch pass if the inner server corrects: a round's gradients must be of the same parameters."""
        return {"fetch": "always"} if self.corrects else {}

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters, and start the inner server, if any, with one client."""
        super().init(params, clients, layout)
        if self._inner:
            self.share_runtime(self._inner)
            self._inner.init(params, 1, layout)
            self._oldest = 0  # the timestamp of the stalest gradient of the round
            self.params = self._inner.params

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Collect the gradient; or drop it and release its client, if its round has closed already."""
        if timestamp < self.timestamp and self.needed < self._round:
            return Reply((client_id,))
        if self._inner and (timestamp < self._oldest or not self._sum.count):
            self._oldest = timestamp
        reply = self.collect(grad.copy(), client_id)
        return self.restart_all(reply.released) if self.cancels and reply.released else reply

    def step(self, total: Array, client_id: int) -> None:
        """Step by the mean, or push it to the inner server as the gradient of that server's only client."""
        if self._inner is None:
            super().step(total, client_id)
            return
        with np.errstate(all="ignore"):
            mean = total / np.float32(self.needed)
        self._inner.apply_update(mean, 0, self._oldest)
        if self.corrects:  # all clients of the next round compute from the same; pipelines tell what else it is
            self._inner_begins(0, self._inner.fetch(0), self._inner.timestamp)
        self.finite = self._inner.finite
        self.timestamp = self._inner.timestamp  # an inner server may apply nothing

    def fetch(self, client_id: int) -> Array:
        """Return the parameters, or what the inner server's `fetch` returns."""
        return self._inner.fetch(0) if self._inner else super().fetch(client_id)

    @property
    def averaged_params(self) -> Array:
        """The inner server's average. Raises AttributeError if there is none."""
        inner: Any = self._inner  # not every server has an average
        averaged: Array = inner.averaged_params
        return averaged

    def rate(self, t: Steps | None = None) -> Any:
        """Return the learning rate, that of the inner server if there is one."""
        return self._inner.rate(t) if self._inner else super().rate(t)

    def pushes_until_release(self) -> int:
        """Return how many gradients the round still needs; 1 with backup workers: a late one releases its client."""
        return super().pushes_until_release() if self.needed == self._round else 1


def inner_server(given: dict[str, Any]) -> Server:
    """Return the server of {name: …, hyper-parameters}. Raises ConfigError if it is unknown or cannot be inner."""
    from fredsim.servers import SERVERS  # not at import: that mapping is made from this module, among others

    server = made_by_name(given, SERVERS)
    name = given["name"]
    if server.holds or server.pushes != "gradient":
        raise wrong_name(f"is {name!r}; it must be a server that takes gradients and holds nobody")
    if hasattr(server, "gates"):
        raise wrong_name(
            f"is {name!r}, whose gates stand between clients and server: a mean of gradients passes none; "
            f"use {type(server).__mro__[1].__name__.lower()}, and give the gates to the dispatcher"
        )
    return server
