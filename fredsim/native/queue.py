"""The executor of the path `queued` for PyTorch modules on the processor.

A minibatch's passes are done when its push arrives, so a client may come again and again without a pause in between;
or, if those of several clients are computed at the same time, as soon as what it holds is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
from fredsim.system.heap import fill_holes

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
        fill_holes()  # those that trying the module left, too

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
                follows = keys if self._engine.statistics is not None else None  # each client's task the one before
                after = _updates_before(held.tolist(), kept.tolist(), follows and follows.clients.tolist())
                return losses, self._at_once(concurrent, after, params, copies, samples, coefficients, keys)
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
        engine, updates, keyed = self._engine, self._updates, self._engine.keyed
        for i, (held, copy) in enumerate(zip(params, copies, strict=True)):
            if not keyed:
                finite = updates.compute(i, held, rows[i], coefficients[i], copy)
            else:
                with engine.beginning(updates.passes, keys, i):
                    found = updates.found(held, rows[i])
                engine.computed(keys, i, updates.passes.statistics, arrived=True)
                finite = updates.apply(i, found, held, coefficients[i], copy)
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
        keys: Keys | None,
    ) -> int:
        """Process all events, the gradient of each after so many updates; see `_one_by_one`."""

        def compute(passes: Passes, i: int) -> tuple[Found, Any]:
            with self._engine.beginning(passes, keys, i):
                return self._updates.apart(passes, params[i], rows[i]), passes.statistics

        def apply(i: int, result: tuple[Found, Any]) -> bool:
            found, statistics = result
            self._engine.computed(keys, i, statistics, arrived=True)
            finite = self._updates.apply(i, found, params[i], coefficients[i], copies[i])
            self._page_out(params[i], copies[i])
            return finite

        return concurrent.run(after, compute, apply)

    def _page_out(self, held: Array, copy: Array | None) -> None:
        """Let the pool page out what a gradient was computed at, and what was fetched after it."""
        self._pool.page_out(held)
        if copy is not None:
            self._pool.page_out(copy)


def _updates_before(held: Sequence[int], kept: Sequence[int], clients: Sequence[int] | None) -> list[int]:
    """Return for each event how many there must be before what it begins with is there; see `advance`.

    That is what it reads, `held`, and what its client, if they are given, has after its task before.
    """
    written: dict[int, int] = {}
    last: dict[int, int] = {}
    found = []
    for i, (read, copied) in enumerate(zip(held, kept, strict=True)):
        found.append(written.get(read, 0))
        if clients is not None:
            found[i] = max(found[i], last.get(clients[i], 0))
            last[clients[i]] = i + 1
        if copied >= 0:
            written[copied] = i + 1
    return found
