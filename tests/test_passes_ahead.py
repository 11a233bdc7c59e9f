"""Tasks that are begun before the window of their arrival are of the parameters that their client then holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.kernels.mlp.fused_executor import NumbaFusedExecutor
from fredsim.numerics.rules import Rule
from fredsim.simulation.clients.passes_ahead import PassesAhead
from tests.test_gate_bounds import RUN, Simulate, same

Array = NDArray[np.float32]


class Executor:
    """Keeps of each task its parameters and its first sample."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.tasks: dict[int, tuple[int, int]] = {}
        self.begun = 0

    def run_passes(self, slots: Sequence[int], held: Sequence[Array], rows: NDArray[np.int64]) -> None:
        assert len(set(slots)) == len(slots)
        assert all(0 <= slot < self.slots for slot in slots)
        for slot, params, row in zip(slots, held, rows, strict=True):
            self.tasks[slot] = int(params[0]), int(row[0])
        self.begun += len(slots)

    def prepare(self, *_: Any) -> Any: ...
    def apply(self, *_: Any) -> Any: ...
    def mean(self, *_: Any) -> Any: ...


@pytest.mark.parametrize("spare", [0, 1, 5, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_tasks_ahead_are_those_that_arrive(seed: int, spare: int) -> None:
    """Whatever passes, however wrong it was expected, and wherever a window ends before its last event."""
    rng = np.random.default_rng(seed)
    clients, window, count = int(rng.integers(1, 12)), int(rng.integers(1, 9)), 400
    executor = Executor(window + spare)
    ahead = PassesAhead(executor, window)
    held, event = [0] * clients, 0  # the event after which each client fetched what it holds
    for _ in range(3):
        order, first = rng.integers(0, clients, count), event
        samples = rng.integers(0, 1000, (count, 2))
        expected = rng.random(count) < 0.8
        ahead.set_events(order, samples)
        while event < first + count:
            at = event - first
            n = int(rng.integers(1, 1 + min(window, count - at)))
            while len(set(order[at : at + n].tolist())) < n:
                if all(expected[at : at + n]):
                    break
                n -= 1
            slots = ahead.begin(at, n, expected, lambda client: np.array([held[client]], np.float32))
            assert len(slots) == n
            for i in range(int(rng.integers(1, n + 1))):  # a fetch that passes unexpectedly ends the window
                client = int(order[at + i])
                assert executor.tasks[slots[i]] == (held[client], samples[at + i, 0])
                passes = bool(expected[at + i] == (rng.random() < 0.1))
                ahead.free(at + i, fetched=passes)
                event += 1
                if passes:
                    held[client] = event
                    if client in order[at + i + 1 : at + n]:
                        break
    assert executor.begun >= event


def test_a_client_that_is_refused_has_its_next_tasks_begun_together() -> None:
    executor = Executor(10)
    ahead = PassesAhead(executor, 2)
    ahead.set_events(np.array([0, 1, 0, 0, 1, 0]), np.arange(12).reshape(6, 2))
    params = np.array([7.0], np.float32)
    refused = np.array([True, False, True, False, True, True])
    (first, other) = ahead.begin(0, 2, refused, lambda client: params + client)
    assert executor.begun == 4  # the first client's third fetch passes, the other's first
    assert [executor.tasks[slot] for slot in (first, other)] == [(7, 0), (8, 2)]
    ahead.free(0, fetched=False)
    ahead.free(1, fetched=True)
    (slot,) = ahead.begin(2, 1, refused, lambda client: params + 10 * client)
    assert executor.begun == 4
    assert executor.tasks[slot] == (7, 4)
    ahead.free(2, fetched=True)  # not expected: what was begun for event 3 is thrown away
    ahead.begin(3, 1, refused, lambda client: params + 100)
    assert executor.begun == 5


def test_of_what_is_not_watched_no_mean_is_known(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no refusal is expected, and no passes are done for nothing."""
    begun: list[int] = []
    make, run_passes = NumbaEngine.fused_executor, NumbaFusedExecutor.run_passes

    def unwatched(engine: NumbaEngine, rule: Rule, arrays: Any, watched: str, window: int) -> NumbaFusedExecutor:
        assert watched == "v"
        return make(engine, rule, arrays, "", window)

    def counted(executor: NumbaFusedExecutor, slots: list[int], *given: Any) -> None:
        begun.extend(slots)
        run_passes(executor, slots, *given)

    monkeypatch.setattr(NumbaEngine, "fused_executor", unwatched)
    monkeypatch.setattr(NumbaFusedExecutor, "run_passes", counted)
    run = {**RUN, "iterations": 300}
    same(simulate({**run, "path": "fused"}), simulate({**run, "path": "snapshots"}))
    assert len(begun) == 300
