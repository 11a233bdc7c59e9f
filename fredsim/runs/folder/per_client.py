"""clients.csv: what each client pushed and fetched, and the loss and error of the final parameters on its samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine
from fredsim.data.partitions.shards import Shards
from fredsim.numerics.oracle import tree_sum
from fredsim.simulation.record.recorder import ClientCounts
from fredsim.system.csv_files import COUNT, NUMBER, OPTIONAL, CellCheck

__all__ = ["CLIENTS", "clients_text"]

#: The columns of every clients.csv, with the check of their cells.
CLIENTS: Mapping[str, CellCheck] = {
    "client": COUNT,
    "samples": COUNT,
    "pushes": COUNT,
    "staleness_mean": OPTIONAL,
    "bytes_pushed": COUNT,
    "bytes_fetched": COUNT,
    "loss": NUMBER,
    "error": NUMBER,
}


def clients_text(
    engine: Engine, params: NDArray[np.float32], rows: int, shards: Shards | None, counts: ClientCounts
) -> str:
    """Return the content of clients.csv, one row per client.

    The loss and the error are those of `params` (P,) on the client's shard; each training row is evaluated once. They
    are NaN if a parameter is not finite.
    """
    count = len(counts.pushes)
    values = np.full((rows, 2), np.nan)
    if engine.operations.finite(params):
        values[:, 0], values[:, 1] = engine.outcomes(params, "train")
    samples, means = _over_shards(values, shards, count)
    with np.errstate(invalid="ignore", divide="ignore"):  # a forged checkpoint may count the staleness of no push
        staleness = counts.staleness / counts.applied
    columns = {
        "client": range(count),
        "samples": samples.tolist(),
        "pushes": counts.pushes.tolist(),
        "staleness_mean": ["" if mean != mean else mean for mean in staleness.tolist()],  # NaN if none was applied
        "bytes_pushed": counts.bytes_pushed.tolist(),
        "bytes_fetched": counts.bytes_fetched.tolist(),
        "loss": means[:, 0].tolist(),
        "error": means[:, 1].tolist(),
    }
    lines = (",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    return "\n".join([",".join(columns), *lines, ""])


def _over_shards(
    values: NDArray[np.float64], shards: Shards | None, count: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the sizes (λ,) of the clients' shards, and means (λ, 2) of the rows' values (n, 2), by a balanced tree."""
    sizes, result = np.full(count, len(values)), np.empty((count, 2))
    if shards is None:
        result[:] = tree_sum(values) / np.float64(len(values))
        return sizes, result
    for clients, of, rows in shards.blocks():
        sizes[clients] = of
        begins = np.cumsum(of) - of
        for size in np.unique(of):  # shards of the same size together
            some = np.flatnonzero(of == size)
            leaves = values[rows[begins[some] + np.arange(size)[:, None]]]  # (size, clients, 2)
            result[clients[some]] = tree_sum(leaves) / np.float64(size)
    return sizes, result
