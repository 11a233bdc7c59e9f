"""The interfaces of engines: one backend's gradients, evaluation and operations, for one model on one data set.

An engine knows neither clients nor servers; all engines give the same bits (but see NativeEngine). The machines below
process the events of one path (fredsim.simulation.paths). A work is what a client does between two pushes; a machine
keeps works in numbered slots.
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
    """The operations of a backend that do not depend on the model, and storage for what clients hold."""

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of float32 arrays (size,) for clients. Raises ConfigError for limits that it cannot keep."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class Engine(BackendOperations, Protocol):
    """Gradients and evaluation of one model, and the backend's operations."""

    threads: int
    #: The name of the device that kernels run on; None for the processor.
    device_name: str | None

    @property
    def seconds(self) -> float:
        """The seconds spent in kernels so far; NaN if the backend has no kernels."""
        ...

    def gradients(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the mean gradients (B, P) and the samples' losses (B, µ), float32, of B minibatches of the same size.

        `rows` (B, µ) are their samples' indices in the training data; `held[b]`, float32 (P,), are the parameters that
        client b holds, with MARGIN readable floats behind them. The next call overwrites what is returned.
        """
        ...

    def evaluate(self, params: Array, part: Part) -> tuple[float, float]:
        """Return the mean loss and the error rate over a part of the data set; NaN for a part without samples.

        The error rate is also NaN if samples have targets instead of labels, as no answer is right or wrong then.
        """
        ...

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part of the data set, and whether its answer is wrong, (n,) each.

        If samples have targets instead of labels, the second array is NaN.
        """
        ...


class HandMachine(Protocol):
    """Processes whole windows of events of the path `hand`, where each client has a work in hand.

    A work in hand is the activations and back-propagated errors of a client's minibatch (fredsim.kernels.hand). The
    machine has its own copy of parameters and state.
    """

    #: The bytes that one work in hand takes.
    each: int

    @property
    def work(self) -> Mapping[str, NDArray[Any]]:
        """The works in hand: arrays with one row per slot, by name, which may be read and written."""
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

        Event i is the arrival of the work in slot arriving[i], which was begun at event source[i] (negative: before
        these events). The rule is applied to its gradient with coefficients[i]; then a work on the samples rows[i] is
        begun in slot target[i]. Either slot may be −1: nothing arrives, or nothing is begun.
        """
        ...

    def copy_to(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""
        ...

    def shares(self) -> dict[str, float]:
        """Return the shares of the machine's time, by the name of what it was spent on."""
        ...


class GradientMachine(Protocol):
    """Begins works of the path `hand`, and computes their gradients one by one, for servers that see whole gradients.

    `each` and `work` are as in HandMachine.
    """

    each: int

    @property
    def work(self) -> Mapping[str, NDArray[Any]]:
        """The works in hand."""
        ...

    def begin(self, slots: NDArray[np.int64], params: Array, rows: NDArray[np.int32]) -> None:
        """Begin n works from the same parameters (P,), on the samples rows[i] (µ,) in slot slots[i]."""
        ...

    def gradient(self, slot: int) -> tuple[Array, Array]:
        """Return the mean gradient (P,) of the work in a slot, which the next call overwrites, and its losses (µ,)."""
        ...


class FusedEngine(Engine, Protocol):
    """An engine that can apply an elementwise rule to a gradient while it is formed, and can keep works in hand."""

    def fused_machine(self, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> FusedMachine:
        """Return a machine that applies a rule in place to θ and state, `arrays`, (P,) each; `window` events at most.

        `watched` names the array of the state whose mean decides on fetches; it is empty if there is none.
        """
        ...

    def hand_machine(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> HandMachine:
        """Return a machine with this many slots, and with copies of the parameters and the rule's state, (P,) each."""
        ...

    def gradient_machine(self, slots: int, limits: Limits) -> GradientMachine:
        """Return a machine with this many slots, for servers that see whole gradients."""
        ...


class FusedMachine(Protocol):
    """Applies a rule to the gradients of works when they arrive, one by one, and copies θ for clients that fetch.

    A work is what the passes of a minibatch leave: errors and activations.
    """

    #: The most works at once: more than the events of a window.
    slots: int

    def begin(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        """Do the passes of minibatches, given as in `Engine.gradients`, and keep the works in these slots."""
        ...

    def take(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Take the next B works that arrive, the rule's `coefficients` (B, C), and the gate's bounds and copies.

        A client's fetch is refused if the mean of the watched array is below bounds[b, 0]; if it is above bounds[b, 1],
        θ is copied to copies[b], which is None if this cannot happen. Returns the samples' losses (B, µ).
        """
        ...

    def apply(self, b: int, end: int) -> list[int]:
        """Apply the rule to the gradients of works b … end − 1, or up to the first UNDECIDED or DIVERGED one.

        The first call has b = 0. Returns the verdict on each client's fetch (fredsim.numerics.verdicts).
        """
        ...

    def mean(self, b: int) -> float:
        """Return the approximate mean of the watched array after work b; NaN if none is watched."""
        ...


class QueueingEngine(Engine, Protocol):
    """An engine on a device to which whole windows of events can be queued."""

    def queue_machine(self, rule: Rule, params: Array, arrays: Sequence[Array], places: int) -> QueueMachine:
        """Return a machine that applies a rule in place to θ and state, with `places` for what clients hold."""
        ...


class QueueMachine(Protocol):
    """Processes events of the path `queued`: clients hold parameters in numbered places on a device."""

    def warm(self) -> None:
        """Compile now, so that this is not counted in the run's time."""
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

        The gradients of a window, given by the begin and the end of its events, are computed together. The gradient of
        event i is computed from the parameters in place held[i] and the samples rows[i]; after the event θ is copied to
        place kept[i], unless that is −1.
        """
        ...


@runtime_checkable
class NativeEngine(Engine, Protocol):
    """An engine whose bits are only the same on one machine, with the same number of threads and the same window."""

    def settle(self, window: int | None, clients: int) -> int:
        """Fix how many minibatches are computed at once, to `window` or the usual number; return that number."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about its numerics."""
        ...
