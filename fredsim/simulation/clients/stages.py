"""The parameters of a pipeline's passes: each stage's part of the flat vector comes from a version of its own age.

A client is a pipeline: minibatch k is computed, in the forward pass of stage s, with what the client held for its
minibatch k − f_s, in the backward pass with that of k − b_s (fredsim.config.stages). PipeMare's discrepancy correction
replaces the backward passes' parameters, which have no delay, by an estimate of the forward passes':

    δ ← γ δ + (1 − γ)(w_k − w_{k−1}),   u = w_k − f_s δ,   γ = D^(1/f_s)

and its learning-rate rescheduling multiplies a stage's learning rate by f_s^−p, p = 1 − min(t/K, 1), at the server's
update t, from 0; f_s is taken as 1 at least. With a synchronous warm-up of W minibatches, minibatch k has the versions
max(min(k, W), k − f_s) and max(min(k, W), k − b_s); δ follows from w_W on, and t counts from W.

Yang et al. 2021, "PipeMare: asynchronous pipeline parallel DNN training", arXiv:1910.05124, sections 3.1 to 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fredsim.config.stages import Stages
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.elementary import pow64
from fredsim.numerics.operations import Operations
from fredsim.plugins.state.states import State, Stateful, part_of
from fredsim.servers.elementwise import PerClient

__all__ = ["PipelineParams", "StagePlan"]


@dataclass(frozen=True)
class StagePlan:
    """The stages of a network: their parts of the flat vector, and their delays in minibatches of a client."""

    parts: Sequence[slice]
    forward: Sequence[int]
    backward: Sequence[int]
    correction: float | None = None
    reschedule: int | None = None
    synchronous: int = 0

    @classmethod
    def of(cls, stages: Stages, layout: Layout) -> Self:
        """Return the stages of a network with this layout. Raises ConfigError if it cannot be cut so."""
        forward, backward = stages.delays()
        synchronous = stages.synchronous or 0
        return cls(stages.parts(layout), forward, backward, stages.correction, stages.reschedule, synchronous)

    @property
    def depth(self) -> int:
        """How many minibatches the oldest parameters are behind the newest."""
        return max(self.forward)

    @property
    def two_vectors(self) -> bool:
        """Whether backward passes have other parameters than forward passes."""
        return self.forward != self.backward

    @property
    def arrays(self) -> int:
        """How many arrays (P,) a client takes beside the versions that it has held."""
        composed = len(set(self.forward)) > 1
        return int(composed) + self.two_vectors + (self.correction is not None)

    def rates(self, t: int) -> list[tuple[slice, float]]:
        """Return what the server's learning rate is multiplied by at update t + 1, for each part of the parameters."""
        begun = t - self.synchronous
        if self.reschedule is None or not 0 <= begun < self.reschedule:
            return [(slice(0, self.parts[-1].stop), 1.0)]
        power = 1.0 - begun / self.reschedule
        factors = [float(pow64(float(max(1, delay)), -power)) for delay in self.forward]
        return list(zip(self.parts, factors, strict=True))


class PipelineParams(Stateful):
    """Composes the parameters of clients' passes from the versions that they have held."""

    def __init__(self, plan: StagePlan, size: int, operations: Operations, pool: Callable[[], Any]) -> None:
        """Prepare for `size` parameters; `pool` returns that of the arrays of single clients."""
        self.plan, self._pool = plan, pool
        self._forward: dict[int, Array] = {}  # by client, what was composed last
        self._backward: dict[int, Array] = {}
        self._drift = PerClient(operations.zeros(size), pool)  # δ, if there is a correction
        self._finished: dict[int, int] = {}  # by client, how many minibatches of a synchronous warm-up are done
        self._gammas = [
            np.float64(pow64(plan.correction, 1.0 / delay)) if plan.correction and delay else np.float64(0)
            for delay in plan.forward
        ]

    def finished(self, client: int) -> bool:
        """Note that a client's minibatch is done; return whether later ones may have what it was computed with."""
        done = self._finished.get(client, 0)
        if done >= self.plan.synchronous:
            return True
        self._finished[client] = done + 1
        return False

    def forward(self, client: int, versions: Sequence[Array]) -> Array:
        """Return the parameters (P,) of a client's forward pass.

        `versions` (P,) are those that it has held, the newest first; of the initial ones, at least one. The next call
        for this client may overwrite what is returned; MARGIN floats behind it are readable.
        """
        return self._composed(self._forward, client, versions, self.plan.forward)

    def backward(self, client: int, versions: Sequence[Array]) -> Array | None:
        """Return the parameters (P,) of a client's backward pass; None if they are those of its forward pass."""
        if not self.plan.two_vectors:
            return None
        if self.plan.correction is None:
            return self._composed(self._backward, client, versions, self.plan.backward)
        room, newest, drift = self._room(self._backward, client), versions[0], self._drift[client]
        with np.errstate(all="ignore"):
            for part, delay in zip(self.plan.parts, self.plan.forward, strict=True):
                room[part] = newest[part] - np.float32(delay) * drift[part]
        self._drift.page_out(client)
        return room

    def began(self, client: int, now: Array, before: Array) -> None:
        """Note that a client holds `now` (P,) for its next minibatch, and held `before` (P,) for the last one."""
        if self.plan.correction is None:
            return
        drift = self._drift[client]
        with np.errstate(all="ignore"):
            for part, gamma in zip(self.plan.parts, self._gammas, strict=True):
                moved = now[part] - before[part]
                drift[part] = np.float32(gamma) * drift[part] + np.float32(1.0 - gamma) * moved
        self._drift.page_out(client)

    def _composed(
        self, rooms: dict[int, Array], client: int, versions: Sequence[Array], delays: Sequence[int]
    ) -> Array:
        places = [min(delay, len(versions) - 1) for delay in delays]
        if len(set(places)) == 1:
            return versions[places[0]]
        room = self._room(rooms, client)
        for part, place in zip(self.plan.parts, places, strict=True):
            room[part] = versions[place][part]
        return room

    def _room(self, rooms: dict[int, Array], client: int) -> Array:
        if client not in rooms:
            rooms[client] = self._pool().take()
        return rooms[client]

    def take_state(self) -> State:
        """Return δ by client, and how many minibatches of its warm-up are done."""
        done = {f"finished.{client}": count for client, count in self._finished.items()}
        return self._drift.take_state() | done

    def put_state(self, state: State) -> None:
        """Restore what `take_state` returned."""
        done = part_of(state, "finished")
        self._finished = {int(client): int(count) for client, count in done.items()}
        self._drift.put_state({key: value for key, value in state.items() if not key.startswith("finished.")})
