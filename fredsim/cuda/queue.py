"""Processes events of the path `queued`: whole stretches of them are launched from the schedule's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.launches import Launches
from fredsim.cuda.layers import ROUNDED
from fredsim.cuda.machines import machine
from fredsim.cuda.operations import add_apply
from fredsim.cuda.places import Places
from fredsim.cuda.rules import unit_of_rule
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule
from fredsim.plugins.state.states import State

__all__ = ["PROCESS", "CudaQueueExecutor", "Processed", "Queueing", "Stretch", "WindowsExecutor", "process"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]


class Queueing(Protocol):
    """What the executor needs of an engine: fredsim.cuda.engine.CudaEngine."""

    mu: int
    stride: int
    draws: bool  # whether random numbers are drawn

    @property
    def alike(self) -> object:
        """What is equal for engines of which each can compute the other's minibatches together with its own."""

    @property
    def most(self) -> int:
        """The most minibatches of a window of several runs."""

    def allocate(self, batches: int) -> None:
        """Have room for so many minibatches. Raises MemoryError if there is none."""

    def shrink(self) -> None:
        """Let go of that room."""

    def add_passes(self, launches: Launches, batches: Any, *, held: Any, rows: Any, losses: Any, **drawn: Any) -> None:
        """Add the forward and backward passes of windows of minibatches.

        An engine that draws is given the addresses of `clients` and `numbers`, int32 (B,), and the `seed`.
        """

    def add_gradients(self, launches: Launches, batches: Any, rows: Any) -> int:
        """Add the gradients of windows of minibatches whose passes are done; return their address."""

    def strips(self, rows: Any, tall: int = 0) -> tuple[int, dict[str, Any]] | None:
        """Return what the kernel of a rule needs to form these gradients itself; None if it cannot.

        These are its blocks and minibatches; with `tall`, those of a kernel whose threads have so many rows.
        """


@dataclass(frozen=True)
class Stretch:
    """Events to process: the arguments of QueueExecutor.advance, of an executor."""

    executor: CudaQueueExecutor
    windows: Sequence[tuple[int, int]]
    held: Integers
    kept: Integers
    rows: NDArray[np.int32]
    coefficients: Array
    keys: Keys | None = None


Processed = tuple[Array, int]  # what QueueExecutor.advance returns

#: How many blocks of the kernel `apply_wide` keep a device busy: it is chosen for networks that have as many.
WIDE = 512
#: The windows that are launched together.
AT_ONCE = 512
#: What processes stretches of this thread's run: the run may go side by side with others.
PROCESS: ContextVar[Callable[[Stretch], Processed] | None] = ContextVar("process", default=None)


class PlacesExecutor:
    """What executors have in common: places for what clients hold, and the server's arrays."""

    def __init__(self, params: Any, arrays: Sequence[Any], stride: int, places: int, *, spill: bool = True) -> None:
        """Allocate places, and copy θ to the first of them; see Places."""
        #: θ and the state of the server.
        self.arrays: list[DeviceArray] = [params, *arrays]
        self.places = Places(places, params.size, stride, spill=spill)
        self.places.begin(params)

    def take_places(self) -> State:
        """Return what is in all places, a copy (places, P)."""
        return {"places": self.places.take()}

    def put_places(self, state: State) -> None:
        """Restore what is in all places."""
        self.places.put(state["places"])

    def update_server(self) -> None:
        """Do nothing: θ and the state are the server's own arrays."""


class CudaQueueExecutor(PlacesExecutor):
    """Processes events: fredsim.compute.engines.QueueExecutor. In `advance` the host waits only once, at the end."""

    def __init__(self, engine: Queueing, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> None:
        """Allocate places, and copy θ to the first of them.

        Raises NoRoomError if they do not fit on the device beside other runs, ConfigError if they fit nowhere.
        """
        self.engine, self.rule = engine, rule
        #: The name of the rule's kernel, and the rows of its threads if it is `apply_wide`.
        self.kernel, self.tall = kernel_for(engine, 1 + len(arrays))
        thin = self.kernel != "apply"
        self.kernels = machine().load(unit_of_rule(rule, ROUNDED[engine.mu] if thin else 0, self.tall))
        # Beside other runs, one whose clients hold too much for the device waits instead.
        super().__init__(params, arrays, engine.stride, places, spill=PROCESS.get() is None)

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
        keys: Keys | None = None,
    ) -> Processed:
        """Process n events, window by window: first all gradients of a window, then its updates in one kernel."""
        stretch = Stretch(self, windows, held, kept, rows, coefficients, keys)
        return (PROCESS.get() or process)(stretch)


def kernel_for(engine: Queueing, arrays: int) -> tuple[str, int]:
    """Return which kernel applies a rule that changes so many arrays: `apply_wide` is one for large networks.

    `apply_thin` and `apply_wide` form the gradients themselves; the second number is the rows of the latter's threads.
    """
    tall = 8 if arrays <= 2 else 4 if arrays <= 4 else 2
    wide = engine.strips(0, tall)
    if wide is None:
        return "apply", 0
    return ("apply_wide", tall) if wide[0] >= WIDE else ("apply_thin", 0)


def process(stretch: Stretch, engine: Queueing | None = None) -> Processed:
    """Process a stretch by itself. While the device computes some windows, the host prepares the next ones.

    `engine`: one that is like the executor's own, and computes instead of it.
    """
    executor, rows, keys = stretch.executor, stretch.rows, stretch.keys
    engine, n, mu = engine or executor.engine, len(stretch.held), rows.shape[1]
    sources, targets = (upload(executor.places.addresses(of), np.int64) for of in (stretch.held, stretch.kept))
    samples, losses = upload(rows, np.int32), empty(rows.shape)
    numbers = upload_coefficients(stretch.coefficients, n)
    diverged_at = upload([n], np.int32)
    begin, end = np.array(stretch.windows, np.int64).reshape(-1, 2).T
    engine.allocate(int((end - begin).max(initial=1)))
    drawn, of_keys = upload_keys(engine, keys, begin)
    for some in (slice(at, at + AT_ONCE) for at in range(0, len(begin), AT_ONCE)):
        first, batches = begin[some], (end - begin)[some]
        launches, rows_of = Launches(machine(), len(batches)), samples.address + 4 * mu * first
        engine.add_passes(
            launches, batches, held=sources.address + 8 * first, rows=rows_of, losses=losses.address + 4 * mu * first,
            **{name: value[some] if np.ndim(value) else value for name, value in of_keys.items()},
        )  # fmt: skip
        update = {
            "coefficients": numbers.address + 4 * numbers.shape[1] * first, "targets": targets.address + 8 * first,
            "diverged_at": diverged_at.address, "first": first, "events": batches,
        }  # fmt: skip
        add_update(executor, engine, launches, batches, rows_of, update)
        launches.run()
    del drawn
    return np.asarray(losses), int(np.asarray(diverged_at)[0])


def add_update(
    executor: CudaQueueExecutor, engine: Queueing, launches: Launches, batches: Any, rows: Any, update: dict[str, Any]
) -> None:
    """Add the gradients of windows, and the pushes that are made of them."""
    arrays = [array.address for array in executor.arrays]
    kernel = executor.kernels[executor.kernel]
    if (found := engine.strips(rows, executor.tall)) is not None:
        blocks, minibatches = found
        launches.add(kernel, (blocks, 1, 1), arrays=arrays, minibatches=minibatches, **update)
    else:
        update |= {"gradients": engine.add_gradients(launches, batches, rows), "stride": engine.stride}
        add_apply(launches, kernel, arrays, executor.arrays[0].size, **update)


def upload_coefficients(coefficients: Array, n: int) -> DeviceArray:
    """Return the coefficients of n pushes, (n, C), on the device; C is 0 if there are none, of which one is there."""
    numbers = upload(coefficients if coefficients.size else np.zeros((n, 1)), np.float32)
    return numbers if coefficients.size else numbers[:, :0]


def upload_keys(engine: Queueing, keys: Keys | None, begin: Integers) -> tuple[DeviceArray | None, dict[str, Any]]:
    """Return what random numbers depend on, on the device, and the fields of windows that begin at `begin`."""
    if keys is None or not engine.draws:
        return None, {}
    clients, numbers = keys.clients, keys.numbers
    drawn = upload(np.stack([clients, numbers]).astype(np.int32))  # the lower 32 bits of each
    at = drawn.address + 4 * begin
    return drawn, {"clients": at, "numbers": at + 4 * len(clients), "seed": keys.seed}


class OfWindows(Protocol):
    """What a WindowsExecutor needs of an engine: fredsim.native.on_device.DeviceTorchEngine."""

    #: How far gradients are apart, in elements, and the address of the first.
    stride: int
    grads: int

    def computing(self) -> AbstractContextManager[None]:
        """Return what is to be entered while windows are computed."""

    def compute(self, held: Integers, rows: int, losses: int, keys: Keys | None) -> None:
        """Queue the gradients of a window of B minibatches, as many as `fix_window` says at most.

        `held` are the addresses of parameters (B,), `rows` that of samples, int64 (B, µ), and `losses` that of where
        the losses go, float32 (B, µ).
        """


class WindowsExecutor(PlacesExecutor):
    """Processes events whose gradients an engine computes window by window; see QueueExecutor."""

    def __init__(self, engine: OfWindows, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> None:
        """Allocate places, and copy θ to the first of them. Raises ConfigError if they do not fit."""
        self._engine, self._kernel = engine, machine().load(unit_of_rule(rule))["apply"]
        super().__init__(params, arrays, engine.stride, places)

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
        keys: Keys | None = None,
    ) -> Processed:
        """Process n events, window by window: first all gradients of a window, then its updates in one kernel."""
        engine, n = self._engine, len(held)
        sources, targets = self.places.addresses(held), upload(self.places.addresses(kept), np.int64)
        samples, losses = upload(rows, np.int64), empty(rows.shape)
        numbers, diverged_at = upload_coefficients(coefficients, n), upload([n], np.int32)
        begin, end = np.array(windows, np.int64).reshape(-1, 2).T
        launches = Launches(machine(), len(begin))
        add_apply(
            launches, self._kernel, [array.address for array in self.arrays], self.arrays[0].size,
            gradients=engine.grads, stride=engine.stride, coefficients=numbers.address + 4 * numbers.shape[1] * begin,
            targets=targets.address + 8 * begin, diverged_at=diverged_at.address, first=begin, events=end - begin,
        )  # fmt: skip
        update = launches.by_window()
        with engine.computing():
            for number, (first, last) in enumerate(windows):
                some, at = slice(first, last), first * rows.shape[1]
                engine.compute(
                    sources[some], samples.address + 8 * at, losses.address + 4 * at, keys and keys.part(some)
                )
                update(number)
        return np.asarray(losses), int(np.asarray(diverged_at)[0])
