"""The protocol between clients and server as one plain loop, with which tests compare simulations.

Gradients are the oracle's; minibatches, clients and draws are those of the numerics contract; everything else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fredsim.data.datasets import data_root, load_dataset
from fredsim.data.sampling import make_sampler
from fredsim.networks.mlp import Mlp
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.oracle import mean64, tree_sum
from fredsim.numerics.streams import Stream, Streams
from fredsim.runs.folder.results import Result
from fredsim.simulation.paths.backends import make_engine

Array = NDArray[np.float32]
COUNTS = ("potential_pushes", "pushes", "potential_fetches", "fetches", "bytes_pushed", "bytes_fetched")


class PlainServer:
    """θ and T, and how a gradient changes them; the base is ASGD's."""

    def __init__(self, start: Array, lr: float) -> None:
        self.theta, self.timestamp, self.lr = start.copy(), 0, np.float32(lr)
        self.origin = self.theta  # the parameters that the arriving gradient was computed at

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        """Apply a gradient; return the clients that may continue."""
        del tau
        self.theta = self.theta - self.lr * g
        self.timestamp += 1
        return [client]


class PlainSASGD(PlainServer):
    """θ −= α·(g/max(τ, 1)): any mistake in a timestamp changes the bits."""

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        return super().apply(g / np.float32(max(tau, 1)), client, tau)


class PlainDCASGD(PlainServer):
    """DC-ASGD with Λ = 0.5: θ −= α·(g + ((Λ·g)·g)·(θ − origin))."""

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        return super().apply(g + ((np.float32(0.5) * g) * g) * (self.theta - self.origin), client, tau)


class PlainGapAware(PlainServer):
    """Gap-Aware with C = 0.01: θ −= α·(g/(1 + |θ − origin|/C))."""

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        gap = np.abs(self.theta - self.origin) / np.float32(0.01)
        return super().apply(g / (np.float32(1) + gap), client, tau)


class PlainFASGD(PlainServer):
    """FASGD `std`, with its v."""

    def __init__(self, start: Array, lr: float) -> None:
        super().__init__(start, lr)
        self.n, self.b, self.v = np.zeros_like(start), np.zeros_like(start), np.ones_like(start)

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        def flush(x: Array) -> Array:
            return np.where(np.abs(x) < 2.0**-62, np.float32(0), x)

        keep, fresh = np.float32(0.9), np.float32(1 - 0.9)
        n = keep * self.n + fresh * (g * g)
        b = keep * self.b + fresh * g
        v = keep * self.v + fresh * np.sqrt(np.maximum(n - b * b, np.float32(0)) + np.float32(1e-4))
        self.n, self.b, self.v = flush(n), flush(b), flush(v)
        self.theta = self.theta - (self.lr * g) / (v * np.float32(max(tau, 1)))
        self.timestamp += 1
        return [client]


class PlainBatches(PlainServer):
    """Holds its clients until `needed` gradients have arrived, then steps by their mean: hard-sync and n-softsync."""

    def __init__(self, start: Array, lr: float, needed: int) -> None:
        super().__init__(start, lr)
        self.needed, self.batch, self.waiting = needed, list[Array](), list[int]()

    def apply(self, g: Array, client: int, tau: int) -> Iterable[int]:
        del tau
        self.batch.append(g.copy())
        self.waiting.append(client)
        if len(self.batch) < self.needed:
            return []
        self.theta = self.theta - self.lr * (tree_sum(np.stack(self.batch)) / np.float32(self.needed))
        self.timestamp += 1
        released, self.batch, self.waiting = self.waiting, [], []
        return released


class PlainClient:
    """The parameters that a client holds, and what it has and has not sent, tensor by tensor."""

    def __init__(self, start: Array, tensors: int) -> None:
        self.params, self.stamps, self.number = start.copy(), [0] * tensors, 0
        self.begun = -1  # the event after which it fetched
        self.sent: Array | None = None
        self.sent_stamps = [0] * tensors
        self.unsent, self.counts, self.oldest = np.zeros_like(start), [0] * tensors, [0] * tensors


Passes = Callable[[int, int, Any], bool | Sequence[bool]]
Compress = Callable[..., tuple[Array, int]]


def always(step: int, client: int, server: PlainServer) -> bool:
    del step, client, server
    return True


class World:
    """The data, model, minibatches, order of clients and draws of the small experiment."""

    def __init__(
        self,
        clients: int = 8,
        batch_size: int = 3,
        sampling: str = "sequential",
        seed: int = 0,
        train: int = 1200,
    ) -> None:
        self.streams, self.clients = Streams(seed), clients
        self.model = Mlp((64, 16, 10))
        self.start = self.model.initial(self.streams)
        self.dataset = load_dataset("digits", train, 297, data_root(None))
        self.engine = make_engine("numpy", self.model, self.dataset, 1, None)
        self._sampler = make_sampler(sampling, train, batch_size, self.streams)
        sizes = [1024, 16, 160, 10]
        self.sizes = [4 * size for size in sizes]
        self.losses: list[Array] = []  # of the samples of each minibatch
        self.thetas: list[Array] = []  # of the server after each arrival
        self.events: list[dict[str, Any]] = []  # rows of events.parquet
        self.parts = [slice(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(4)]

    def choose(self, step: int, eligible: Iterable[int]) -> int:
        """Return the k-th of the clients that are not held, by ascending id."""
        ids = sorted(eligible)
        return ids[int(self.streams.below(len(ids), Stream.DISPATCH, 0, step))]

    def draw(self, stream: int, element: int, step: int, client: int) -> float:
        return int(self.streams.words(Stream(stream), element, step, client) >> 8) * 2.0**-24

    def gradient(self, theta: Array, iteration: int, client: int, number: int) -> Array:
        """Return the gradient at θ on the minibatch of this iteration, or of the client's own number."""
        rows = self._sampler.rows(np.array([iteration]), np.array([client]), np.array([number]))
        keys = Keys(self.streams.seed, np.array([client]), np.array([number]))
        gradients, losses = self.engine.gradients([theta], rows, keys)
        self.losses.append(losses[0].copy())
        gradient: Array = gradients[0].copy()
        return gradient

    def digest(self, theta: Array) -> str:
        return self.model.layout.digest(theta)

    def bandwidth_aware(self, stream: int, c: float, *, per_tensor: bool = False, eps: float = 1e-4) -> Passes:
        """Eq 9: r < 1/(1 + c/(v̄ + ε)), v̄ = 1 before the first push."""

        def passes(step: int, client: int, server: PlainFASGD) -> bool | list[bool]:
            of = [server.v[part] for part in self.parts] if per_tensor else [server.v]
            means = [mean64(v) if server.timestamp else 1.0 for v in of]
            drawn = [self.draw(stream, i, step, client) < 1 / (1 + c / (v + eps)) for i, v in enumerate(means)]
            return drawn if per_tensor else drawn[0]

        return passes

    def run(
        self,
        iterations: int,
        server: PlainServer,
        *,
        push: Passes = always,
        fetch: Passes = always,
        dropped: str = "reapply",
        compress: Compress | None = None,
        replica: bool = False,
        fred_timestamps: bool = False,
    ) -> pd.DataFrame:
        """Let `iterations` gradients arrive; return one row for each."""
        clients = [PlainClient(self.start, len(self.parts)) for _ in range(self.clients)]
        eligible = set(range(self.clients))
        counts = dict.fromkeys(COUNTS, 0)
        rows = []
        for step in range(iterations):
            who = self.choose(step, eligible)
            client = clients[who]
            grad = self.gradient(client.params, step, who, client.number)
            client.number += 1
            server.origin = client.params.copy()
            squeeze = partial(compress, client=who, step=step) if compress else None
            message = self._deliver(client, grad, self._mask(push(step, who, server)), dropped, squeeze)
            staleness, released = np.nan, iter([who])
            before, event = dict(counts), self._event(step, who, client, server.timestamp)
            counts["potential_pushes"] += 1
            if message is not None:
                vector, stamp, size = message
                counts["pushes"] += size > 0
                counts["bytes_pushed"] += size
                staleness = server.timestamp - stamp
                event["staleness"] = staleness
                released = iter(server.apply(vector, who, server.timestamp - stamp))
            eligible.discard(who)
            for other in released:
                eligible.add(other)
                holder, mask = clients[other], self._mask(fetch(step, other, server))
                for i, part in enumerate(self.parts):
                    if mask[i]:
                        holder.params[part] = server.theta[part]
                        holder.stamps[i] = server.timestamp
                if not any(mask):
                    if replica and other == who:
                        holder.params -= server.lr * grad
                    if fred_timestamps:
                        holder.stamps = [server.timestamp] * len(mask)
                holder.begun = step if any(mask) else holder.begun
                counts["potential_fetches"] += 1
                counts["fetches"] += any(mask)
                counts["bytes_fetched"] += self._bytes(mask)
            more = {name: counts[name] - before[name] for name in ("bytes_pushed", "bytes_fetched")}
            copies = {"pushed": counts["pushes"] > before["pushes"], "fetched": counts["fetches"] - before["fetches"]}
            self.events.append(event | more | copies)
            self.thetas.append(server.theta.copy())
            digest = self.digest(server.theta)
            rows.append({"timestamp": server.timestamp, "staleness_mean": staleness, "digest": digest, **counts})
        return pd.DataFrame(rows)

    def _event(self, step: int, who: int, client: PlainClient, timestamp: int) -> dict[str, Any]:
        event = {"iteration": step, "time": float(step), "client": who, "number": client.number - 1, "sent": step}
        return event | {"begun": client.begun, "timestamp": timestamp, "staleness": timestamp - min(client.stamps)}

    def _mask(self, passes: bool | Sequence[bool]) -> list[bool]:
        return [passes] * len(self.parts) if isinstance(passes, bool) else list(passes)

    def _bytes(self, mask: Sequence[bool]) -> int:
        return sum(size for size, passed in zip(self.sizes, mask, strict=True) if passed)

    def _deliver(
        self, client: PlainClient, grad: Array, mask: list[bool], dropped: str, squeeze: Any
    ) -> tuple[Array, int, int] | None:
        """Return what reaches the server of a push, its timestamp and its bytes; None if nothing does."""
        stamp, passed = min(client.stamps), [i for i, passes in enumerate(mask) if passes]
        if dropped == "reapply":
            if client.sent is None:
                client.sent, passed = np.zeros_like(grad), list(range(len(mask)))
            if squeeze and passed:
                grad, size = squeeze(grad)
            else:
                size = sum(self.sizes[i] for i in passed)
            for i in passed:
                client.sent[self.parts[i]] = grad[self.parts[i]]
                client.sent_stamps[i] = stamp
            return client.sent, min(client.sent_stamps), size
        for i, part in enumerate(self.parts):
            if client.counts[i] == 0 or dropped == "skip":
                client.unsent[part], client.oldest[i] = grad[part], stamp
            else:
                client.unsent[part] += grad[part]
            client.counts[i] += 1
        out = np.zeros_like(grad)
        for i in passed:
            part, count = self.parts[i], np.float32(client.counts[i])
            out[part] = client.unsent[part] / count if dropped == "average" else client.unsent[part]
            client.counts[i] = 0
        if not passed:
            return None
        out, size = squeeze(out) if squeeze else (out, self._bytes(mask))
        return out, min(client.oldest[i] for i in passed), size


def check(result: Result, rows: pd.DataFrame) -> None:
    """Compare a simulation that recorded every iteration with the plain loop, row by row."""
    found = result.metrics.iloc[1:].reset_index(drop=True)
    for column in rows.columns:
        pd.testing.assert_series_equal(found[column], rows[column], check_dtype=False, check_exact=True)
