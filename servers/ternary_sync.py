"""Synchronous SGD with ternary gradients, exchanged through a keyed parameter server.

A round, for each tensor, with N clients:

    s_l = max|g_l|,  s = max_l s_l if the scaler is shared           pushed and pulled, "max"
    g̃_l = s sign(g_l) b_l,  P(b_l = 1) = |g_l|/s                    pushed, two bits per value
    θ ← θ − α (s Σ_l k_l) / N,  k_l the codes                        pulled, "decode_average"

Wen et al. 2017, "TernGrad", arXiv:1705.07878; PaddlePaddle issue 6599.

Departures: a constant tensor, whose σ is 0, is not clipped. TernGrad clips at 2.5 σ (`clip_sigma: 2.5`), the issue
does not (the default). If each client has a scaler of its own, the decoded gradients are averaged as floats. What a
client pulls counts as ⌈log₂(2N+1)⌉ bits per value with a shared scaler, as 32 without. Fetches have no gate: the mean
of one round is of use only to a client that has those of all rounds before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fredsim.hyper import Positive
from fredsim.networks.layout import Layout
from fredsim.numerics.oracle import tree_sum
from fredsim.numerics.rules import Rule
from fredsim.numerics.streams import Stream, Streams
from fredsim.numerics.ternary import Draws, packed_size
from fredsim.servers.asgd import descend
from fredsim.servers.base import Array, Coefficients, Rated, Reply, Steps
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.parameter_store import ParameterStore

__all__ = ["TernarySync"]


class TernarySync(ElementwiseServer):
    """Synchronous SGD on ternary gradients; the gradient that is applied is decoded from the packed bytes."""

    idea = "synchronous SGD on gradients of three values, two bits each, through a keyed parameter server"
    citation = "Wen et al. 2017, TernGrad, arXiv:1705.07878; PaddlePaddle 2017, issue 6599"

    class Hyper(Rated):
        """Hyper-parameters of TernarySync; `clip_sigma` null does not clip."""

        clip_sigma: Positive | None = None
        """Gradients are clipped at so many standard deviations; null does not clip."""
        share_scaler: bool = True
        """Whether all clients quantise with the largest of their scalers; if not, each uses its own."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for: nothing is clipped."""
            return {"clip_sigma": "no clipping"}

    rule = Rule(descend)
    holds = True
    state_names = ("_round",)

    def init(self, params: Array, clients: int, layout: Layout | None = None) -> None:
        """Take a copy of the initial parameters and declare the store's keys."""
        super().init(params, clients, layout)
        self._layout = layout or Layout((("params", (self.params.size,)),))
        self._round: dict[int, Array] = {}
        self.store = ParameterStore()
        for name, size in zip(self._layout.slices, self._layout.sizes, strict=True):
            self.store.init(f"scaler/{name}", [1], "float32")
            self.store.init(f"codes/{name}", [packed_size(size)], "uint8")
        # Compile now, so that it is not counted in the run's time.
        self.operations.ternary.encode(params[:1], np.float32(1), Draws(Streams(0), Stream.SERVER, 0, 0, 0))

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α,)."""
        return (np.float32(self.rate(t)),)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> Reply:
        """Keep the gradient until the round is full: all scalers must be known before any gradient is quantised."""
        self._round[client_id] = grad.copy()
        if len(self._round) < self.clients:
            return Reply()
        mean = np.concatenate([self._exchange(name, at) for name, at in self._layout.slices.items()])
        self._apply(mean, client_id, *self.coefficients(self.timestamp, 0))
        released = list(self._round)
        self._round = {}
        return Reply(released)

    def _exchange(self, name: str, at: slice) -> Array:
        """Return the mean of one tensor's ternary gradients, through the store."""
        h, store, compute = self.hyper, self.store, self.operations.ternary
        scalers, codes = f"scaler/{name}", f"codes/{name}"
        store.clear(scalers)
        store.clear(codes)
        tensors = {}
        for client, grad in self._round.items():
            part = grad[at] if h.clip_sigma is None else compute.clip(grad[at], h.clip_sigma)
            tensors[client] = part
            store.client(client).push_parameter(scalers, compute.scaler(part))
        shared = np.float32(store.client(0).pull_parameter(scalers, "max")[0])
        if not np.isfinite(shared):  # codes cannot express ∞ or NaN
            return np.full(at.stop - at.start, np.nan, np.float32)
        decoded = []
        for client, part in tensors.items():
            s = shared if h.share_scaler else compute.scaler(part)
            packed = compute.encode(part, s, Draws(self.streams, Stream.SERVER, at.start, self.timestamp, client))
            store.client(client).push_parameter(codes, packed)
            if not h.share_scaler:
                decoded.append(np.asarray(compute.decode(packed, part.size, s)))
        if h.share_scaler:
            mean: Array = store.client(0).pull_parameter(
                codes, "decode_average", count=at.stop - at.start, scaler=shared
            )
            return mean
        return (tree_sum(np.stack(decoded)) / np.float32(len(decoded))).astype(np.float32)

    def gates(self) -> dict[str, Any]:
        """Let every fetch pass: a mean gradient is of use only to a client that has those of all rounds before."""
        return {"fetch": "always"}

    def bytes_pushed(self) -> int:
        """Return the bytes of one client's push: a scaler and the packed codes of each tensor."""
        return sum(4 + packed_size(size) for size in self._layout.sizes)

    def bytes_fetched(self) -> int:
        """Return the bytes of one client's pull: each tensor's mean gradient and, if shared, its scaler."""
        if not self.hyper.share_scaler:
            return 4 * int(self.params.size)
        bits = int(np.ceil(np.log2(2 * self.clients + 1)))
        return sum(4 + (size * bits + 7) // 8 for size in self._layout.sizes)

    def pushes_until_release(self) -> int:
        """Return how many gradients the round still needs."""
        return self.clients - len(self._round)
