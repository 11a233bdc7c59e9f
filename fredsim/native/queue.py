"""The executor of the path `queued` for PyTorch modules on the processor.

A minibatch's passes are done when its push arrives, so a client may come again and again without a pause in between;
or, if those of several clients are computed at the same time, as soon as what it holds is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.storage import Pool
from fredsim.native.concurrent import ConcurrentPasses
from fredsim.native.passes import Passes
from fredsim.native.updates import Found, Gradients, Updates
from fredsim.numerics.arrays import Array, Integers
from fredsim.numerics.ops.draws import Keys
from fredsim.plugins.state.state_arrays import as_state
from fredsim.plugins.state.states import State, part_of
from fredsim.system.memory import release_free_memory

__all__ = ["TorchQueueExecutor"]


class TorchQueueExecutor:
    """Processes events one after the other; see fredsim.compute.engines.QueueExecutor.

    A place is taken from the pool when it is first used; place 0, of the initial parameters, is so by the first event.
    If the executor has θ and the state in an order of its own, clients hold parameters in that order.
    """

    def __init__(
        self, engine: Gradients, updates: Updates, params: Array, places: int, pool: Pool,
        update_server: Callable[[], None],
    ) -> None:  # fmt: skip
        """`params` (P,) is θ, which the updates change; `update_server` makes the server's own arrays equal."""
        self._engine, self._updates, self._params, self._pool = engine, updates, params, pool
        self._places: list[Array | None] = [None] * places
        self.update_server = update_server
        release_free_memory()  # what trying the module left lies here and there, and passes that take it are slower

    def _place(self, number: int) -> Array:
        """Return what is in a place, (P,)."""
        found = self._places[number]
        if found is None:
            found = self._places[number] = self._pool.take()
            if number == 0:
                found[...] = self._params
        return found

    def take_places(self) -> State:
        """Return what was copied to places."""
        return {f"place.{i}": as_state(held) for i, held in enumerate(self._places) if held is not None}

    def put_places(self, state: State) -> None:
        """Restore what was copied to places."""
        for number, held in part_of(state, "place").items():
            self._place(int(number))[...] = held

    def advance(
        self,
        windows: Sequence[tuple[int, int]],
        held: Integers,
        kept: Integers,
        rows: NDArray[np.int32],
        coefficients: Array,
        keys: Keys | None = None,
    ) -> tuple[Array, int]:
        """Process n events; the gradients of a window are computed first if several are computed at once."""
        losses, samples = np.empty(rows.shape, np.float32), rows.astype(np.int64)
        params = [self._place(number) for number in held.tolist()]
        copies = [None if number < 0 else self._place(number) for number in kept.tolist()]
        self._updates.write_to(losses)
        with self._engine.computing():
            if (concurrent := self._engine.concurrent) is not None:
                after = _updates_before(held.tolist(), kept.tolist())
                return losses, self._at_once(concurrent, after, params, copies, samples, coefficients)
            if self._engine.width == 1:
                return losses, self._one_by_one(params, copies, samples, coefficients, keys)
            for begin, end in windows:
                some = slice(begin, end)
                found = zip(*self._engine.gradients(params[some], samples[some], keys and keys.part(some)), strict=True)
                for i, (gradient, its_losses) in enumerate(found, begin):
                    if not self._updates.take(i, gradient, its_losses, coefficients[i], copies[i]):
                        return losses, i
                    self._page_out(params[i], copies[i])
        return losses, len(rows)

    def _one_by_one(
        self,
        params: Sequence[Array],
        copies: Sequence[Array | None],
        rows: Integers,
        coefficients: Array,
        keys: Keys | None,
    ) -> int:
        """Process all events; return the first after which θ is not finite, else their number."""
        compute, drawn = self._updates.compute, keys if self._engine.draws else None
        for i, (held, copy) in enumerate(zip(params, copies, strict=True)):
            if drawn is None:
                finite = compute(i, held, rows[i], coefficients[i], copy)
            else:
                with self._engine.drawing(drawn.one(i)):
                    finite = compute(i, held, rows[i], coefficients[i], copy)
            if not finite:
                return i
            self._page_out(held, copy)
        return len(rows)

    def _at_once(
        self,
        concurrent: ConcurrentPasses,
        after: Sequence[int],
        params: Sequence[Array],
        copies: Sequence[Array | None],
        rows: Integers,
        coefficients: Array,
    ) -> int:
        """Process all events, the gradient of each after so many updates; see `_one_by_one`."""

        def compute(passes: Passes, i: int) -> Found:
            return self._updates.apart(passes, params[i], rows[i])

        def apply(i: int, found: Found) -> bool:
            finite = self._updates.apply(i, found, params[i], coefficients[i], copies[i])
            self._page_out(params[i], copies[i])
            return finite

        return concurrent.run(after, compute, apply)

    def _page_out(self, held: Array, copy: Array | None) -> None:
        """Let the pool page out what a gradient was computed at, and what was fetched after it."""
        self._pool.page_out(held)
        if copy is not None:
            self._pool.page_out(copy)


def _updates_before(held: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Return for each event how many updates there must be before what it reads, `held`, is there; see `advance`."""
    written: dict[int, int] = {}
    found = []
    for number, (read, copied) in enumerate(zip(held, kept, strict=True), 1):
        found.append(written.get(read, 0))
        if copied >= 0:
            written[copied] = number
    return found
