"""A probe of the true B-staleness: how far a gradient is from the one that the server's own parameters would give.

    ‖g(θ_client) − g(θ_server)‖₂, both gradients of the arriving gradient's minibatch

(Odena 2016, arXiv:1601.04033, eq 3), beside the quantities that algorithms use in its place: the staleness τ, the
distance between the parameters, v̄ of servers that keep v, and whatever a server's own `proxies(client_id, timestamp)`
returns. The three norms can be those of each tensor of the parameters, too. Norms are of float64 values, summed by a
balanced tree, so probe.csv has the same bits on every backend. Nothing in this module changes the run.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import BackendOperations
from fredsim.compute.storage import Limits
from fredsim.numerics.arrays import Array
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.oracle import norm
from fredsim.plugins.state.states import Stateful
from fredsim.simulation.clients.holdings import Holdings
from fredsim.simulation.plugins.guarded_server import GuardedServer
from fredsim.simulation.plugins.local_work import LocalWork

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

__all__ = ["COLUMNS", "OF_TENSORS", "Probe", "of_tensor"]

#: The columns of every probe.csv; further ones depend on the server.
COLUMNS = ("iteration", "timestamp", "client", "staleness", "b_staleness", "gradient_norm", "distance")


#: Those that are measured for each tensor, too, if the experiment says so.
OF_TENSORS = COLUMNS[4:]


def of_tensor(column: str, tensor: str) -> str:
    """Return the name of a column of OF_TENSORS for one tensor."""
    return f"{column} of {tensor}"


class Probe(Stateful):
    """Writes a row of probe.csv at every `every`-th arrival.

    Columns: `iteration`, the number of arrivals so far, this one included; `timestamp`, the server's before it;
    `client`; `staleness` τ; `b_staleness` ‖g(θ_client) − g(θ_server)‖; `gradient_norm` ‖g(θ_client)‖; `distance`
    ‖θ_client − θ_server‖; `v_mean` v̄, if the server keeps v; the three norms of each tensor, such as `distance of W1`,
    if tensors are measured; and the server's own proxies.
    """

    state_names = ("_begun",)

    def __init__(self, every: int, file: SupportsWrite[str], tensors: Mapping[str, slice] | None = None) -> None:
        """Measure every so many arrivals; also these `tensors`, given as parts of the parameters."""
        self.every, self._tensors = every, tensors or {}
        self.seconds = 0.0
        self._writer = csv.writer(file, lineterminator="\n")
        self._begun = False
        self._copy: Array | None = None  # of the server's parameters

    def due(self, iteration: int) -> bool:
        """Return whether the arrival of this iteration, from 0, is measured."""
        return (iteration + 1) % self.every == 0

    def events_until_due(self, iteration: int) -> int:
        """Return how many events, from this one on, come before the next later one that is measured."""
        return self.every if self.due(iteration) else self.every - 1 - iteration % self.every

    def measure(
        self,
        iteration: int,
        client: int,
        rows: NDArray[np.int64],
        keys: Keys,
        holdings: Holdings,
        server: GuardedServer,
        work: LocalWork,
        operations: BackendOperations,
    ) -> None:
        """Measure the arrival of this iteration, before it happens; `rows` (µ,) is its first minibatch.

        Both gradients are computed by `work`, with the random numbers of that minibatch, whose `keys` are of one
        client.
        """
        if self._copy is None:
            self._copy = operations.pool(server.params.size, Limits()).take()
        held, own, timestamp = holdings.params(client), self._copy, holdings.timestamp(client)
        own[...] = server.params
        with np.errstate(all="ignore"):
            both = np.stack([rows, rows])
            backward = holdings.backward_params(client)
            second = None if backward is held else [backward, own]
            grads = work.unchanged([held, own], both, keys.twice(), second)
            stale, fresh = (grads[i].astype(np.float64) for i in range(2))
            vectors = stale - fresh, stale, held.astype(np.float64) - own.astype(np.float64)
            values = iteration + 1, server.timestamp, client, server.timestamp - timestamp, *map(norm, vectors)
            row: dict[str, object] = dict(zip(COLUMNS, values, strict=True))
            if server.contract.v:
                row["v_mean"] = server.mean()
            for tensor, part in self._tensors.items():
                of_part = zip(OF_TENSORS, vectors, strict=True)
                row |= {of_tensor(column, tensor): norm(vector[part]) for column, vector in of_part}
            row |= server.proxies(client, timestamp, iteration, set(row))
        if not self._begun:
            self._writer.writerow(row)
            self._begun = True
        self._writer.writerow(row.values())
