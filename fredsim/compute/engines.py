"""What an engine is: one backend's gradients, evaluation and operations, for one model on one data set.

These are the interfaces. An engine knows neither clients nor servers; all give the same bits (but see NativeEngine).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, Pool
from fredsim.numerics.operations import Operations
from fredsim.numerics.rules import Rule

__all__ = [
    "BackendOperations",
    "Engine",
    "FusedEngine",
    "FusedMachine",
    "GradientMachine",
    "HandMachine",
    "NativeEngine",
    "Part",
    "QueueMachine",
    "QueueingEngine",
]

Array = NDArray[np.float32]
Part = Literal["train", "validation", "test"]


class BackendOperations(Operations, Protocol):
    """What a backend computes whatever the model is, and storage for what clients hold."""

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of float32 arrays (size,) for clients. Raises ConfigError for limits that it cannot keep to."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class Engine(BackendOperations, Protocol):
    """Gradients and evaluation of one model, and the backend's operations."""

    threads: int
    #: The name of the device that kernels run on, None for processors.
    device_name: str | None

    @property
    def seconds(self) -> float:
        """The seconds spent in kernels so far; NaN where there are none."""
        ...

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the mean gradients (B, P) and the samples' losses (B, µ), float32, of B minibatches of the same size.

        `rows` (B, µ) are their samples' indices in the training data; `held[b]`, float32 (P,), are the parameters that
        client b holds, with MARGIN readable floats behind them. The next call overwrites what is returned.
        """
        ...

    def evaluate(self, params: Array, part: Part) -> tuple[float, float]:
        """Return the mean loss and the error rate over a part of the data set; NaN for a part without samples.

        The error is NaN, too, where samples have targets: no answer is right or wrong.
        """
        ...

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part of the data set, and whether its answer is wrong, (n,) each.

        In place of that a NaN where samples have targets.
        """
        ...


class HandMachine(Protocol):
    """Processes whole windows of events of the path `hand`: clients hold a work in hand each (fredsim.kernels.hand).

    It has its own copy of parameters and state.
    """

    #: The bytes that one work in hand takes.
    each: int

    @property
    def work(self) -> Mapping[str, NDArray[Any]]:
        """The works in hand: arrays of a row a slot, by name, to be read and written."""
        ...

    def advance(
        self,
        arriving: NDArray[np.int64],
        target: NDArray[np.int64],
        source: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events; return the losses (n, µ) and the first event after which θ is not finite, else n.

        Event i is the arrival of the work in slot arriving[i], begun at event source[i] (negative: before these), whose
        gradient the rule applies with coefficients[i]; then the work of the samples rows[i] is begun in slot target[i].
        Either slot may be −1: nothing arrives, or nothing is begun.
        """
        ...

    def copy_to(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        ...

    def shares(self) -> dict[str, float]:
        """Return which share of its time it spent on what, by name."""
        ...


class GradientMachine(Protocol):
    """Begins the works of the path `hand` and forms their gradients, one by one, for servers that see whole gradients.

    `each` and `work` are as in HandMachine.
    """

    each: int

    @property
    def work(self) -> Mapping[str, NDArray[Any]]:
        """The works in hand."""
        ...

    def begin(self, slots: NDArray[np.int64], params: Array, rows: NDArray[np.int32]) -> None:
        """Begin n works from the same parameters (P,): of the samples rows[i] (µ,) in slot slots[i]."""
        ...

    def gradient(self, slot: int) -> tuple[Array, Array]:
        """Return the mean gradient (P,) of the work in a slot, which the next call overwrites, and its losses (µ,)."""
        ...


class FusedEngine(Engine, Protocol):
    """An engine that applies an elementwise rule to a gradient as it is formed, and keeps works in hand."""

    def fused_machine(self, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> FusedMachine:
        """Return a machine that applies a rule in place to θ and state, `arrays`, (P,) each; `window` events at most.

        `watched` names the array of the state whose mean decides on fetches, or is empty.
        """
        ...

    def hand_machine(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> HandMachine:
        """Return a machine with so many slots, and copies of the parameters and the rule's state, (P,) each."""
        ...

    def gradient_machine(self, slots: int, limits: Limits) -> GradientMachine:
        """Return a machine with so many slots for servers that see whole gradients."""
        ...


class FusedMachine(Protocol):
    """Applies a rule to the gradients of works as they arrive, one by one, and lets their clients fetch.

    A work is what the passes of a minibatch leave: errors and activations.
    """

    #: How many works there may be at once: more than the events of a window.
    slots: int

    def begin(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        """Do the passes of minibatches, as `Engine.gradients` takes them; the works take these slots."""
        ...

    def take(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Take the works that arrive next, B at most, the rule's `coefficients` (B, C), bounds and copies.

        A client's fetch is refused where the mean of the watched array is below bounds[b, 0]; where it is above
        bounds[b, 1], θ is copied to copies[b], None where it never is. Returns the samples' losses (B, µ).
        """
        ...

    def apply(self, b: int, end: int) -> list[int]:
        """Apply the rule to the gradients of works b … end − 1, or to the first UNDECIDED or DIVERGED; b is 0 at first.

        Returns the verdict (fredsim.numerics.verdicts) on each client's fetch.
        """
        ...

    def mean(self, b: int) -> float:
        """Return about the mean of the watched array after work b; NaN where none is watched."""
        ...


class QueueingEngine(Engine, Protocol):
    """An engine on a device to which whole windows of events can be queued."""

    def queue_machine(self, rule: Rule, params: Array, arrays: Sequence[Array], places: int) -> QueueMachine:
        """Return a machine that applies a rule in place to parameters and state; `places` are for what clients hold."""
        ...


class QueueMachine(Protocol):
    """Processes events of the path `queued`: clients hold parameters in its places, which are on a device."""

    def warm(self) -> None:
        """Compile before any clock runs."""
        ...

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P), float32."""
        ...

    def put_places(self, values: Array) -> None:
        """Overwrite what clients hold, (places, P)."""
        ...

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: NDArray[np.int64],
        kept: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events; return the losses (n, µ) and the first event after which θ is not finite, else n.

        The gradients of a window, begin and end of its events, are computed together. Event i's is of the parameters in
        place held[i] and the samples rows[i]; after the event θ is copied to place kept[i], unless that is −1.
        """
        ...


@runtime_checkable
class NativeEngine(Engine, Protocol):
    """An engine whose bits hold on one machine, for one number of threads and of minibatches computed at once."""

    def settle(self, window: int | None, clients: int) -> int:
        """Fix how many minibatches are computed at once, `window` or the usual number; return it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says of its numerics."""
        ...
