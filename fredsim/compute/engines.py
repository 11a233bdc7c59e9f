"""The interfaces of engines and executors.

An engine computes gradients and evaluates, for one model on one data set on one backend. It knows neither clients nor
servers. All portable engines give the same bits.

An executor processes the events of one path (fredsim.simulation.paths.choice), many per call. Executors of the paths
`hand` and `fused` keep pending passes in numbered slots: the losses, activations and back-propagated errors that the
forward and backward pass of a client's minibatch leave. The gradient is formed from them when the client's push
arrives.

Letters in shapes: B minibatches, µ samples per minibatch, P parameters, C coefficients of a rule, n events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Limits, Pool
from fredsim.networks.network import Numerics
from fredsim.networks.own_problem import OwnProblem
from fredsim.numerics.arrays import Array
from fredsim.numerics.operations import Operations
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule
from fredsim.plugins.state.states import State

__all__ = [
    "BackendOperations",
    "Engine",
    "FusedExecutor",
    "GradientExecutor",
    "HandExecutor",
    "Part",
    "QueueExecutor",
]

Part = Literal["train", "validation", "test"]


class BackendOperations(Operations, Protocol):
    """The operations of a backend that do not depend on the model, and storage for what clients hold."""

    def pool(self, size: int, limits: Limits) -> Pool:
        """Return a pool of float32 arrays (size,) for clients. Raises ConfigError for limits that it cannot keep."""

    def close(self) -> None:
        """End the threads."""


class Engine(Protocol):
    """Gradients and evaluation of one model."""

    @property
    def operations(self) -> BackendOperations:
        """The backend's operations on whole arrays."""

    def close(self) -> None:
        """End the threads."""

    threads: int
    #: The name of the device that kernels run on; None for the processor.
    device_name: str | None
    #: Whether bits are those of the contract; native ones hold on one machine, for `threads` and the window alone.
    numerics: Numerics
    #: Why it can only form whole gradients; '' if it can also apply a rule while it forms them.
    why_whole: str
    #: Whether kernels that apply a rule read the parameters as the server has them; if not, they are on `hand` alone.
    in_place: bool
    #: Whether stretches of events can be processed in one call (`queue_executor`).
    queues: bool
    #: Whether it can keep a client's passes until its push arrives (`hand_executor`).
    keeps_passes: bool
    #: Whether backward passes may have other parameters than forward passes (`gradients_at_two`).
    two_vectors: bool
    #: The packages whose versions native bits depend on, besides NumPy and numba.
    packages: Sequence[str]

    #: Whether gradients are also of the server's parameters, which `current` then returns; a user's problem's may be.
    takes_current: bool
    #: The user's own problem that it computes; None if there is a network.
    problem: OwnProblem | None
    current: Callable[[], Any] | None

    #: What clients' tasks leave behind beside gradients, by client (fredsim.compute.statistics); None if nothing.
    statistics: Any

    @property
    def buffer_bytes(self) -> int:
        """The most bytes that gradients and evaluations take beside parameters and gradients; 0 if it is not known."""

    def note_evaluation(self, part: Part) -> None:
        """Count in `buffer_bytes` what the evaluation of a part of the data set takes, though there is none yet."""

    @property
    def seconds(self) -> float:
        """The seconds spent in kernels so far; NaN if the backend has no kernels."""

    def facts(self) -> dict[str, Any]:
        """Return what summary.json says about the engine's numerics, by key."""

    def fix_window(self, wanted: int | None, clients: int, nbytes: int) -> int:
        """Return how many minibatches are to be computed at once in a run, which native bits depend on.

        `wanted`: what the run asks for; None: as many as are efficient for parameters of `nbytes` bytes.
        """

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Return the mean gradients (B, P) and the samples' losses (B, µ), float32, of B minibatches of the same size.

        `rows` (B, µ) are their samples' indices in the training data; `held[b]`, float32 (P,), are the parameters that
        client b holds, with MARGIN readable floats behind them. The next call overwrites what is returned.

        `keys` says whose gradients they are, which random numbers depend on; None: nothing is drawn, as in evaluation.
        """

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Return gradients as `gradients` does, whose forward and backward passes have different parameters.

        Only for engines with `two_vectors`.
        """

    def evaluate(self, params: Array, part: Part) -> tuple[float, float]:
        """Return the mean loss and the error rate over a part of the data set; NaN for a part without samples.

        The error rate is also NaN if samples have targets instead of labels, as no answer is right or wrong then.
        """

    def measured(self, params: Array) -> dict[str, float]:
        """Return what a problem says of parameters (P,), by name; nothing without a `problem`."""

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[Any]]:
        """Return the loss of each sample of a part of the data set, and whether its answer is wrong, (n,) each.

        If samples have targets instead of labels, the second array is NaN.
        """

    def samples_changed(self) -> None:
        """Note that samples of the data set have been written anew, in place (fredsim.compute.staged)."""

    def outputs(self, params: Array, part: Part) -> Iterator[tuple[slice, NDArray[Any]]]:
        """Yield the network's outputs for a part of the data set in blocks: which samples, and float32 (n, …).

        What was yielded is overwritten by the next block. Engines of linear models have none.
        """

    # Which of these an engine has, `why_whole` and `queues` say, and which paths its backend takes.

    def fused_executor(self, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> FusedExecutor:
        """Return an executor that applies a rule in place to θ and state, `arrays`, (P,) each; `window` events at most.

        `watched` names the array of the state whose mean decides on fetches; it is empty if there is none.
        """

    def hand_executor(
        self, rule: Rule, params: Array, arrays: Sequence[Array], slots: int, limits: Limits
    ) -> HandExecutor:
        """Return an executor with this many slots and its own copies of parameters and state, (P,) each."""

    def gradient_executor(self, slots: int, limits: Limits) -> GradientExecutor:
        """Return an executor with this many slots, for servers that get whole gradients."""

    def queue_executor(
        self, rule: Rule, params: Array, arrays: Sequence[Array], places: int, pool: Pool
    ) -> QueueExecutor:
        """Return an executor that applies a rule in place to θ and state, with `places` for what clients hold.

        On the host, these are arrays of the pool.
        """


class HandExecutor(Protocol):
    """Processes events of the path `hand`, where clients hold pending passes instead of parameters.

    The executor has its own copy of the parameters and of the rule's state.
    """

    #: The bytes of the pending passes of one minibatch.
    slot_bytes: int

    @property
    def pending(self) -> Mapping[str, NDArray[Any]]:
        """The pending passes: arrays with one row per slot, by name, which may be read and written."""

    def advance(
        self,
        arriving: NDArray[np.int64],
        target: NDArray[np.int64],
        source: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
    ) -> tuple[Array, int]:
        """Process n events; return the losses (n, µ) and the first event after which θ is not finite, else n.

        At event i, the push of the client whose pending passes are in slot arriving[i] arrives. These passes were done
        at event source[i] (negative: before these events). The rule is applied to their gradient with coefficients[i].
        Then the passes of the client's next minibatch, the samples rows[i], are done and kept in slot target[i]. Either
        slot may be −1: nothing arrives, or no passes are done.

        `arriving`, `target` and `source` are (n,); `rows` (n, µ) are training samples; `coefficients` (n, C).
        """

    def copy_to(self, params: Array, arrays: Sequence[Array]) -> None:
        """Write parameters and state to flat arrays (P,)."""

    def shares(self) -> dict[str, float]:
        """Return which share of the executor's time each activity took, by its name; the shares add up to 1."""


class GradientExecutor(Protocol):
    """Does passes for the path `hand`, and forms their gradients one by one, for servers that get whole gradients.

    `slot_bytes` and `pending` are as in HandExecutor.
    """

    slot_bytes: int

    @property
    def pending(self) -> Mapping[str, NDArray[Any]]:
        """The pending passes, by name of the array."""

    def run_passes(self, slots: NDArray[np.int64], params: Array, rows: NDArray[np.int32]) -> None:
        """Do the passes of n minibatches, the samples `rows` (n, µ), at the parameters (P,); keep them in `slots`."""

    def gradient(self, slot: int) -> tuple[Array, Array]:
        """Return the mean gradient (P,) and the losses (µ,) of the pending passes in a slot.

        The next call overwrites the gradient.
        """


class FusedExecutor(Protocol):
    """Applies a rule to gradients in the order of their arrival, and copies θ for clients whose fetch passes."""

    #: The number of slots for pending passes: at least the events of a window.
    slots: int

    def run_passes(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        """Do the passes of minibatches, given as in `Engine.gradients`, and keep them in these slots."""

    def prepare(
        self, slots: Sequence[int], coefficients: Array, bounds: NDArray[np.float64], copies: Sequence[Array | None]
    ) -> Array:
        """Prepare the next B arrivals, whose passes are in `slots`; return their samples' losses (B, µ).

        Those of an arrival may be written only when `apply` yields its verdict. `coefficients` (B, C) are the rule's.
        The fetch after arrival b is refused if the mean of the watched array is below bounds[b, 0]. If it is above
        bounds[b, 1], θ is copied to copies[b], which is None if this cannot happen; an array is taken from the pool
        when it is asked for.
        """

    def apply(self, b: int, end: int) -> Iterable[int]:
        """Apply the rule to the gradients of arrivals b … end − 1, or up to the first UNDECIDED or DIVERGED one.

        The first call after `prepare` has b = 0. Returns the verdicts on the clients' fetches
        (fredsim.numerics.verdicts). They may be found one by one, while they are asked for.
        """

    def mean(self, b: int) -> float:
        """Return the approximate mean of the watched array after arrival b; NaN if none is watched."""


class QueueExecutor(Protocol):
    """Processes events of the path `queued`: clients hold parameters in numbered places."""

    def take_places(self) -> State:
        """Return what clients hold."""

    def put_places(self, state: State) -> None:
        """Restore what clients hold."""

    def update_server(self) -> None:
        """Bring the server's θ and state up to date, if the executor has its own."""

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: NDArray[np.int64],
        kept: NDArray[np.int64],
        rows: NDArray[np.int32],
        coefficients: Array,
        keys: Keys | None = None,
    ) -> tuple[Array, int]:
        """Process n events; return the losses (n, µ) and the first event after which θ is not finite, else n.

        The gradients of a window, given by the begin and the end of its events, are computed together. The gradient of
        event i is computed from the parameters in place held[i] and the samples rows[i]. The rule is applied to it with
        coefficients[i]; then θ is copied to place kept[i], unless that is −1.

        `held` and `kept` are (n,); `rows` (n, µ) are training samples; `coefficients` (n, C); random numbers depend on
        `keys` (n,).
        """
