"""Processes events of the path `queued`: whole stretches of them are launched from the schedule's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.launches import Launches
from fredsim.cuda.layers import ROUNDED
from fredsim.cuda.machines import machine
from fredsim.cuda.operations import add_apply
from fredsim.cuda.rules import unit_of_rule
from fredsim.errors import ConfigError
from fredsim.numerics.ops.draws import Keys
from fredsim.numerics.rules import Rule

__all__ = ["CudaQueueExecutor"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]


class Queueing(Protocol):
    """What the executor needs of an engine: fredsim.cuda.engine.CudaEngine."""

    mu: int
    stride: int
    draws: bool  # whether random numbers are drawn

    def allocate(self, batches: int) -> None:
        """Have room for so many minibatches."""
        ...

    def add_passes(self, launches: Launches, batches: Any, *, held: Any, rows: Any, losses: Any, **drawn: Any) -> None:
        """Add the forward and backward passes of windows of minibatches.

        An engine that draws is given the addresses of `clients` and `numbers`, int32 (B,), and the `seed`.
        """
        ...

    def add_gradients(self, launches: Launches, batches: Any, rows: Any) -> int:
        """Add the gradients of windows of minibatches whose passes are done; return their address."""
        ...

    def strips(self, rows: Any) -> tuple[int, dict[str, Any]] | None:
        """Return what the kernel of a rule needs to form these gradients itself; None if it cannot."""
        ...


class CudaQueueExecutor:
    """Processes events: fredsim.compute.engines.QueueExecutor. In `advance` the host waits only once, at the end."""

    def __init__(self, engine: Queueing, rule: Rule, params: Any, arrays: Sequence[Any], places: int) -> None:
        """Allocate places, and copy θ to the first of them. Raises ConfigError if the device has too little memory."""
        self._engine, self._strips = engine, engine.strips(0) is not None
        unit = unit_of_rule(rule, ROUNDED[engine.mu]) if self._strips else unit_of_rule(rule)
        self._kernel = machine().load(unit)["apply_thin" if self._strips else "apply"]
        self._arrays: list[DeviceArray] = [params, *arrays]
        try:
            self._places = empty((places, engine.stride))
        except MemoryError:
            raise ConfigError(
                f"backend is cuda; {places:,} versions of {4 * params.size:,} bytes are live at once, more than the "
                "device has room for: choose fewer clients, or backend numba"
            ) from None
        self._held = self._places[:, : params.size]
        self._held[0] = params

    def warm_up(self) -> None:
        """Do nothing: the rule's kernel is compiled, or loaded from the cache, when the executor is made."""

    def take_places(self) -> Array:
        """Return what clients hold, a copy (places, P)."""
        return np.asarray(self._held)

    def put_places(self, values: Array) -> None:
        """Overwrite what clients hold, (places, P)."""
        self._held[...] = values

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
        keys: Keys | None = None,
    ) -> tuple[Array, int]:
        """Process n events, window by window: first all gradients of a window, then its updates in one kernel."""
        engine, n, mu = self._engine, len(held), rows.shape[1]
        start, apart = self._places.address, 4 * engine.stride
        sources = upload(start + held * apart, np.int64)
        targets = upload(np.where(kept >= 0, start + kept * apart, 0), np.int64)
        samples, losses = upload(rows, np.int32), empty(rows.shape)
        numbers = upload(coefficients if coefficients.size else np.zeros((n, 1)), np.float32)
        diverged_at = upload([n], np.int32)
        begin, end = np.array(windows, np.int64).reshape(-1, 2).T
        batches, each = end - begin, numbers.shape[1] if coefficients.size else 0
        engine.allocate(int(batches.max(initial=1)))
        launches, rows_of = Launches(machine(), len(windows)), samples.address + 4 * mu * begin
        fields = {"held": sources.address + 8 * begin, "rows": rows_of, "losses": losses.address + 4 * mu * begin}
        if engine.draws and keys is not None:
            drawn = upload(np.stack([keys.clients, keys.numbers]).astype(np.int32))  # the lower 32 bits of each
            fields |= {"clients": drawn.address + 4 * begin, "numbers": drawn.address + 4 * (n + begin)}
            fields |= {"seed": keys.seed}
        engine.add_passes(launches, batches, **fields)
        update = {
            "coefficients": numbers.address + 4 * each * begin, "targets": targets.address + 8 * begin,
            "diverged_at": diverged_at.address, "first": begin, "events": batches,
        }  # fmt: skip
        arrays = [array.address for array in self._arrays]
        if (found := engine.strips(rows_of)) is not None:
            blocks, minibatches = found
            launches.add(self._kernel, (blocks, 1, 1), arrays=arrays, minibatches=minibatches, **update)
        else:
            update |= {"gradients": engine.add_gradients(launches, batches, rows_of), "stride": engine.stride}
            add_apply(launches, self._kernel, arrays, self._arrays[0].size, **update)
        launches.run()
        return np.asarray(losses), int(np.asarray(diverged_at)[0])
