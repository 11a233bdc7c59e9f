"""Counts what clients and server exchange, and records the rows of metrics.csv and the histogram of staleness.

Nothing in this module changes the run: how often a row is recorded changes no parameter.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.arrays import Integers
from fredsim.numerics.oracle import mean64, tree_sum
from fredsim.plugins.state.states import State, Stateful
from fredsim.system.csv_files import LARGEST_INTEGER

__all__ = ["MEASURED", "METRICS", "TEST", "ClientCounts", "Kind", "Recorder", "Row", "histogram_text"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of metrics.csv.

    Pushes, fetches and bytes are cumulative; staleness and train_loss are over the pushes since the row before. `more`
    has the optional columns: those of the test data, the measures of the parameters, then the server's own numbers,
    which are also over the pushes since the row before.
    """

    iteration: int
    timestamp: int
    time: float
    train_loss: float | None
    validation_loss: float
    validation_error: float
    potential_pushes: int
    pushes: int
    potential_fetches: int
    fetches: int
    bytes_pushed: int
    bytes_fetched: int
    staleness_mean: float | None
    staleness_p50: int | None
    staleness_p95: int | None
    staleness_max: int | None
    digest: str
    more: Mapping[str, float | None] = field(default_factory=dict)

    def values(self) -> tuple[object, ...]:
        """Return the values in the order of the columns; a float's text reads back as the same float."""
        return *(getattr(self, name) for name in METRICS), *self.more.values()


#: Columns of every metrics.csv.
METRICS = tuple(column.name for column in fields(Row) if column.name != "more")
#: The columns that `evaluation: {test: true}` adds.
TEST = ("test_loss", "test_error")
#: The columns of what may be measured of the parameters (fredsim.compute.objectives).
MEASURED = ("gap", "gradient_norm")
#: The events whose losses are added up together: about what a processor's cache holds.
TOGETHER = 1024
Kind = Literal["sum", "mean"]


class ClientCounts(Stateful):
    """Counts, int64 (λ,) each: pushes sent, pushes applied, the sum of the latters' staleness, and bytes."""

    state_names = ("pushes", "applied", "staleness", "bytes_pushed", "bytes_fetched")

    def __init__(self, clients: int) -> None:
        self.pushes, self.applied, self.staleness, self.bytes_pushed, self.bytes_fetched = np.zeros(
            (5, clients), np.int64
        )

    def count_push(self, client: int, size: int) -> None:
        """Count a push of `size` bytes; 0 for a dropped one."""
        self.pushes[client] += size > 0
        self.bytes_pushed[client] += size

    def count_applied(self, client: int, staleness: int) -> None:
        """Count a push that the server applied, and its staleness."""
        self.applied[client] += 1
        self.staleness[client] += staleness

    def count_pushes(self, clients: Integers, staleness: Integers, size: int) -> None:
        """Count n pushes by `clients` (n,), `size` bytes each, all of them applied with `staleness` (n,)."""
        np.add.at(self.pushes, clients, 1)
        np.add.at(self.bytes_pushed, clients, size)
        np.add.at(self.applied, clients, 1)
        np.add.at(self.staleness, clients, staleness)

    def count_fetches(self, clients: Integers | int, size: int) -> None:
        """Count fetches of `size` bytes each."""
        np.add.at(self.bytes_fetched, clients, size)


class Recorder(Stateful):
    """Counts what passes between clients and server, and turns it into rows."""

    state_names = (
        "potential_pushes", "pushes", "bytes_pushed", "potential_fetches", "fetches", "bytes_fetched",
        "histogram", "_staleness", "_losses", "_numbers", "by_client",
    )  # fmt: skip

    def __init__(
        self, on_row: Callable[[Row], None], *, more: Sequence[str] = (), clients: int = 0, losses: bool = True
    ) -> None:
        """Call `on_row` with each row; `more` are its optional columns, between METRICS and the server's own.

        `clients` is their number if each is counted by itself, too; 0 if not. `losses`: whether gradients have some.
        """
        self._on_row, self._has_losses = on_row, losses
        #: The last row; None before the first.
        self.last: Row | None = None
        self.histogram: Counter[int] = Counter()
        self.potential_pushes = self.pushes = self.bytes_pushed = 0
        self.potential_fetches = self.fetches = self.bytes_fetched = 0
        self._staleness: list[int] = []
        self._losses: list[NDArray[np.float32]] = []
        self._more = tuple(more)
        self._kinds: Mapping[str, Kind] = {}
        self.by_client = ClientCounts(clients) if clients else None
        self._numbers: dict[str, list[float]] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of metrics.csv."""
        return *METRICS, *self._more, *self._kinds

    @property
    def fetched(self) -> tuple[int, int]:
        """How many fetches there were, and how many bytes they took."""
        return self.fetches, self.bytes_fetched

    def declare_metrics(self, kinds: Mapping[str, Kind]) -> None:
        """Add columns for the numbers that a server records: the sum or the mean since the row before, by name."""
        self._kinds = kinds
        self._numbers = {name: [] for name in kinds}

    def record_number(self, name: str, value: float) -> None:
        """Add a number that the server records."""
        self._numbers[name].append(value)

    def count_push(self, size: int, losses: NDArray[np.float32] | None, client: int) -> None:
        """Count a client's push of `size` bytes (0 if it was dropped).

        Also take its samples' losses, (k·µ,) for k local steps, if there are any.
        """
        self.potential_pushes += 1
        self.pushes += size > 0
        self.bytes_pushed += size
        if losses is not None:
            self._losses.append(losses[None])
        if self.by_client is not None:
            self.by_client.count_push(client, size)

    def count_pushes(self, staleness: Integers, losses: NDArray[np.float32], size: int, clients: Integers) -> None:
        """Count n applied pushes of `size` bytes each: staleness (n,), samples' losses (n, k·µ), clients (n,)."""
        n = len(staleness)
        self.potential_pushes += n
        self.pushes += n
        self.bytes_pushed += n * size
        self._staleness.extend(staleness.tolist())
        self._losses.append(losses)
        if self.by_client is not None:
            self.by_client.count_pushes(clients, staleness, size)

    def count_exchanges(self, staleness: Integers, losses: NDArray[np.float32], size: int, clients: Integers) -> None:
        """Count n applied pushes as `count_pushes` does, each followed by a fetch of as many bytes."""
        self.count_pushes(staleness, losses, size, clients)
        if self.by_client is not None:
            self.by_client.count_fetches(clients, size)
        self.potential_fetches += len(staleness)
        self.fetches += len(staleness)
        self.bytes_fetched += len(staleness) * size

    def count_applied(self, staleness: int, client: int) -> None:
        """Count a push of this client that the server applied, and its staleness."""
        self._staleness.append(staleness)
        if self.by_client is not None:
            self.by_client.count_applied(client, staleness)

    def count_fetch(self, size: int, client: int) -> None:
        """Count a client's fetch of `size` bytes; 0 if it was dropped."""
        self.potential_fetches += 1
        self.fetches += size > 0
        self.bytes_fetched += size
        if self.by_client is not None and size:
            self.by_client.count_fetches(client, size)

    def record_row(
        self,
        iteration: int,
        timestamp: int,
        time: float,
        validation: tuple[float, float],
        digest: str,
        more: Mapping[str, float],
    ) -> None:
        """Record a row; `time` is in simulated seconds, or the iteration if there is no clock.

        `validation` are the loss and the error rate over the validation data; `more` has the optional columns.
        """
        ordered = np.sort(np.array(self._staleness, np.int64))
        self.histogram.update(self._staleness)
        row = Row(
            iteration=iteration,
            timestamp=timestamp,
            time=time,
            train_loss=self._train_loss(),
            validation_loss=validation[0],
            validation_error=validation[1],
            potential_pushes=self.potential_pushes,
            pushes=self.pushes,
            potential_fetches=self.potential_fetches,
            fetches=self.fetches,
            bytes_pushed=self.bytes_pushed,
            bytes_fetched=self.bytes_fetched,
            staleness_mean=int(ordered.sum()) / len(ordered) if len(ordered) else None,
            staleness_p50=_nearest_rank(ordered, 50),
            staleness_p95=_nearest_rank(ordered, 95),
            staleness_max=int(ordered[-1]) if len(ordered) else None,
            digest=digest,
            more={name: more[name] for name in self._more} | self._own_numbers(),
        )
        self._staleness, self._losses = [], []
        self.last = row
        self._on_row(row)

    def take_state(self) -> State:
        """Return the counts, what was recorded since the last row, and the last row itself."""
        self._losses = [np.concatenate(self._losses)] if self._losses else []
        return super().take_state() | {"row": json.dumps(asdict(self.last)) if self.last else ""}

    def put_state(self, state: State) -> None:
        """Restore a state, with the last row."""
        super().put_state(state)
        self.last = Row(**json.loads(state["row"])) if state["row"] else None

    def _own_numbers(self) -> dict[str, float | None]:
        """Return the sums and means of the server's numbers since the row before, by balanced trees in float64."""
        found: dict[str, float | None] = {}
        for name, kind in self._kinds.items():
            values = self._numbers[name]
            if kind == "mean":
                found[name] = mean64(np.array(values, np.float64)) if values else None
            else:
                whole = all(isinstance(value, int) for value in values) and abs(sum(values)) < LARGEST_INTEGER
                found[name] = sum(values) if whole else float(tree_sum(np.array(values, np.float64)))
            values.clear()
        return found

    def _train_loss(self) -> float | None:
        """Return the mean of the minibatches' mean losses, both means by balanced trees in float64."""
        if not (self._losses and self._has_losses):
            return None
        losses = np.concatenate(self._losses)
        means = np.empty(len(losses))
        for begin in range(0, len(losses), TOGETHER):
            some = losses[begin : begin + TOGETHER].astype(np.float64)
            means[begin : begin + TOGETHER] = tree_sum(some.T) / np.float64(some.shape[1])
        return mean64(means)


def _nearest_rank(ordered: NDArray[np.int64], percent: int) -> int | None:
    """Return the percentile by nearest rank: the smallest value that at least `percent` of the values do not exceed."""
    if len(ordered) == 0:
        return None
    return int(ordered[math.ceil(percent * len(ordered) / 100) - 1])


def histogram_text(histogram: Counter[int]) -> str:
    """Return the content of staleness.csv: how many pushes had each staleness."""
    return "staleness,count\n" + "".join(f"{staleness},{count}\n" for staleness, count in sorted(histogram.items()))
