"""What an engine is, whatever computes: a backend's machinery for one model on one data set. All give the same bits.

An engine knows neither clients nor servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.shelf import Limits, Shelf
from fredsim.numerics.operations import Operations
from fredsim.numerics.rules import Rule

__all__ = [
    "Applier",
    "Engine",
    "FusedEngine",
    "Machine",
    "NativeEngine",
    "Part",
    "QueueMachine",
    "QueueingEngine",
    "RoomyOperations",
]

Array = NDArray[np.float32]
Part = Literal["train", "validation", "test"]


class RoomyOperations(Operations, Protocol):
    """The operations of servers on one backend, and room for what clients hold."""

    def shelf(self, size: int, limits: Limits) -> Shelf:
        """Return room for arrays (size,) of what clients hold. Raises ConfigError for limits that it cannot keep to."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class Engine(RoomyOperations, Protocol):
    """Gradients, evaluation and the operations of servers on one backend."""

    threads: int
    #: The name of the device that kernels run on, None for this machine's processors.
    device_name: str | None

    @property
    def seconds(self) -> float:
        """The seconds spent in kernels so far; NaN where there are none."""
        ...

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the mean gradients (B, P) and the samples' losses (B, µ) of the minibatches `rows` (B, µ).

        `held[b]`, float32 (P,), are the parameters of minibatch b, with MARGIN readable floats behind them. The arrays
        returned are overwritten by the next call.
        """
        ...

    def evaluate(self, params: Array, part: Part) -> tuple[float, float]:
        """Return the mean loss and the error rate over a part of the data set; NaN for a part without samples."""
        ...

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[np.bool_]]:
        """Return the loss of each sample of a part of the data set, and whether its answer is wrong, (n,) each."""
        ...


class Machine(Protocol):
    """Events whose clients hold the work they have in hand (fredsim.kernels.inhand)."""

    #: The bytes that one work in hand takes.
    each: int

    @property
    def work(self) -> Mapping[str, NDArray[Any]]:
        """The work in hand, by what it is: arrays of a row a slot, to be read and written."""
        ...

    def advance(
        self,
        arriving: NDArray[np.int64],
        target: NDArray[np.int64],
        source: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events; return the losses (n, µ) and the first event that is not finite, else n."""
        ...

    def give(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        ...

    def shares(self) -> dict[str, float]:
        """Return the shares of its time by what it did."""
        ...


class FusedEngine(Engine, Protocol):
    """An engine that applies an elementwise rule to a gradient as it is formed."""

    def passes(self, held: Sequence[Array], rows: NDArray[np.int64]) -> Array:
        """Do the forward and error passes of minibatches, as `gradients` takes them; return the losses (B, µ)."""
        ...

    def applier(self, rule: Rule, arrays: Sequence[Array], watched: str) -> Applier:
        """Return what applies a rule in place on θ and state; `watched` names an array of the state, or nothing."""
        ...

    def work_in_hand(self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits) -> Machine:
        """Return a machine for events whose minibatches are known when clients fetch."""
        ...


class Applier(Protocol):
    """A rule applied to the gradients of the last passes, and what their clients fetch then."""

    def begin(self, coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array]) -> None:
        """Take what belongs to the minibatches of the last passes: `coefficients` (B, C) and what their clients fetch.

        That is refused where the mean of the watched array is below bounds[b, 0]; above bounds[b, 1] θ is copied to
        copies[b].
        """
        ...

    def __call__(self, b: int) -> list[int]:
        """Apply the rule to the gradients of minibatches b on, to the end or the first UNDECIDED or DIVERGED.

        Return the verdict (fredsim.numerics.verdicts) on each client's fetch.
        """
        ...


class QueueingEngine(Engine, Protocol):
    """An engine whose device works through what is queued."""

    def machine(self, rule: Rule, params: Array, arrays: Sequence[Array], places: int) -> QueueMachine:
        """Return a machine for a rule in place on parameters and state, with so many places for what clients hold."""
        ...


class QueueMachine(Protocol):
    """Events that are queued on a device (fredsim.cuda.engine)."""

    def warm(self) -> None:
        """Compile before any clock runs."""
        ...

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P)."""
        ...

    def put_places(self, values: Array) -> None:
        """Let clients hold this, (places, P)."""
        ...

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: NDArray[np.int64],
        kept: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events, window by window; return the losses (n, µ) and the first event not finite, else n.

        Each event's gradient is of the parameters in place held[i]; after it θ is put in place kept[i], unless −1.
        """
        ...


@runtime_checkable
class NativeEngine(Engine, Protocol):
    """An engine whose bits hold on one machine, for one number of threads and of minibatches computed at once."""

    def settle(self, window: int | None, clients: int) -> int:
        """Settle how many minibatches are computed at once, `window` or the usual number; return it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what a summary says of its numerics."""
        ...
