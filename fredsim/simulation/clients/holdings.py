"""The parameters that clients hold between a fetch and a push, and what they compute from these.

A version is the parameters of one timestamp. Clients that hold the same version share one array, which is freed when
the last of them fetches another. A client that takes steps of its own steps by the learning rate that belongs to what
it holds: the one that the server had when the client fetched.

If a client is a pipeline, what it held for its last minibatches is kept, too, and what it computes from is composed of
these versions, stage by stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.engines import Engine
from fredsim.compute.storage import Pool
from fredsim.numerics.arrays import Array
from fredsim.plugins.state.state_arrays import as_state
from fredsim.plugins.state.states import State, Stateful, part_of
from fredsim.simulation.clients.stages import PipelineParams
from fredsim.simulation.plugins.local_work import LocalWork, Tasks

__all__ = ["Holdings"]


@dataclass(slots=True, eq=False)
class Version:
    """The parameters (P,) of one timestamp, and how many references clients have to them."""

    params: Array
    timestamp: int
    shared: bool
    holders: int = 0
    copy: NDArray[np.float32] | None = None  # what `Holdings.copy` returned of it, if that is shared, too


#: What a client holds that is not at work.
NOTHING = Version(np.empty(0, np.float32), -1, shared=False)


class Holdings(Stateful):
    """Which version each client holds: for the task under way and, if `wait` is false, also for the next task.

    A client that does not wait begins its next task as soon as it has pushed, from the version that it holds then;
    what it fetches after the push takes effect in the task after that.
    """

    def __init__(
        self,
        engine: Engine,
        params: Array,
        clients: int,
        *,
        wait: bool,
        work: LocalWork,
        tensors: Sequence[slice],
        pool: Pool,
        rates: bool = False,
        pipeline: PipelineParams | None = None,
        current: Callable[[], Array] | None = None,
    ) -> None:
        """Let every client hold the initial `params` (P,).

        `work` computes what clients push, `tensors` are the tensors' slices of the flat vector, and `pool` allocates
        the versions' arrays. `rates`: clients take steps of their own; `set_first_rate` is then called before the
        first gradient. `pipeline` composes the parameters of clients that are pipelines. `current` returns the server's
        parameters (P,), if gradients are to be computed at these.
        """
        self._engine, self._operations = engine, engine.operations
        self._work = work
        self._wait = wait
        self._tensors = tensors
        #: Of clients that hold tensors of different timestamps: by tensor, the timestamp and its learning rate.
        self._stamps: dict[int, list[tuple[int, float]]] = {}
        self._pool = pool
        self._shared: dict[int, Version] = {}  # by timestamp
        self._spare: Array | None = None  # an array of the pool, for the next version
        self._copied = False  # whether `_spare` has a copy of the server's current parameters
        start = self._store(params, 0, shared=True)
        start.holders = clients if wait else 2 * clients
        self._under_way = [start] * clients
        self._fetched = [] if wait else [start] * clients
        self._held = self._under_way if wait else self._fetched  # the list in which a fetch replaces the version
        self._pipeline, self._current = pipeline, current
        depth, nothing = pipeline.plan.depth if pipeline else 0, NOTHING
        #: Of pipelines: by how many minibatches ago, from 1, and by client, the version that it held.
        self._past: list[list[Version]] = [[nothing] * clients for _ in range(depth)]
        self._fresh: Array | None = None  # a copy of the server's parameters, at which gradients are computed
        self._rates = {name: np.full(clients, np.nan) for name in (self._lists() if rates else ())}  # by client

    def timestamp(self, client: int) -> int:
        """Return the timestamp of the version that the task under way started from; of a pipeline, of the oldest."""
        return self._versions(client)[-1].timestamp

    def compute_pushes(self, clients: Sequence[int], tasks: Tasks) -> tuple[Sequence[Array], Array, list[bool]]:
        """Return what B different clients push, their samples' losses, and whether all was finite; see LocalWork."""
        if self._current is not None:
            if self._fresh is None:
                self._fresh = self._pool.take()
            self._operations.duplicate(self._current(), self._fresh)
            return self._work([self._fresh] * len(clients), tasks, ())
        held, backward = [self.params(client) for client in clients], None
        if self._pipeline is not None and self._pipeline.plan.two_vectors:
            backward = [self.backward_params(client) for client in clients]
        return self._work(held, tasks, [self.rate(client) for client in clients] if self._rates else (), backward)

    def params(self, client: int) -> Array:
        """Return the parameters (P,) that the task under way started from; MARGIN floats behind them are readable.

        Of a pipeline, those of its forward pass.
        """
        if self._pipeline is None:
            return self._under_way[client].params
        return self._pipeline.forward(client, [version.params for version in self._versions(client)])

    def copy(self, client: int) -> NDArray[np.float32]:
        """Return a copy (P,) of the parameters that the task under way started from, which stays as it is.

        Clients that share a version share its copy.
        """
        version = self._under_way[client]
        if version.copy is not None:
            return version.copy
        found = np.array(np.asarray(self.params(client)))
        if version.shared:
            version.copy = found
        return found

    def backward_params(self, client: int) -> Array:
        """Return the parameters (P,) of the backward pass of the task under way."""
        found = None
        if self._pipeline is not None:
            found = self._pipeline.backward(client, [version.params for version in self._versions(client)])
        return self.params(client) if found is None else found

    def _versions(self, client: int) -> list[Version]:
        """Return the versions that a client has held for its last minibatches, the newest first."""
        past = [held[client] for held in self._past]
        return [self._under_way[client], *(version for version in past if version is not NOTHING)]

    def finish(self, client: int) -> None:
        """Note that a client's task is done, and that another one follows; it may fetch before that."""
        if not self._past or self._pipeline is None or not self._pipeline.finished(client):
            return
        self._drop(self._past[-1][client])
        for held, later in zip(self._past[:0:-1], self._past[-2::-1], strict=True):
            held[client] = later[client]
        self._past[0][client] = self._under_way[client]
        self._under_way[client].holders += 1

    def note_next(self, client: int) -> None:
        """Note that a client goes on with what it holds now."""
        if self._pipeline is not None and self._past and self._past[0][client] is not NOTHING:
            self._pipeline.began(client, self._under_way[client].params, self._past[0][client].params)

    def rate(self, client: int) -> float:
        """Return the learning rate of the client's own steps in the task under way; 0 if it takes no such steps."""
        return float(self._rates["under_way"][client]) if self._rates else 0.0

    @property
    def lacks_rates(self) -> bool:
        """Whether the learning rate that belongs to the initial parameters is still needed."""
        return any(bool(np.isnan(rates).any()) for rates in self._rates.values())

    def set_first_rate(self, rate: float) -> None:
        """Let the initial parameters, which all clients hold, have this learning rate of the clients' own steps."""
        for rates in self._rates.values():
            rates[...] = rate

    def begin(self, client: int) -> None:
        """Let a client that does not wait begin its next task, from the version that it holds now."""
        if self._rates:
            self._rates["under_way"][client] = self._rates["fetched"][client]
        self._drop(self._under_way[client])
        self._under_way[client] = self._fetched[client]
        self._under_way[client].holders += 1

    def give_own(self, client: int) -> None:
        """Let the client's task under way start from an array that nobody else holds, which may be written into.

        That is what the client holds from then on: it keeps it if its next fetch is dropped.
        """
        version, lists = self._under_way[client], [self._under_way] if self._wait else [self._under_way, self._fetched]
        if version.shared or version.holders > len(lists):
            own = self._store(version.params, version.timestamp, shared=False)
            own.holders = len(lists)
            for held in lists:
                held[client] = own
                self._drop(version)

    def leave(self, client: int) -> None:
        """Let a client hold nothing until it fetches again."""
        self._replace(client, NOTHING)

    def fetch(self, client: int, params: Array, timestamp: int, rate: float | None = None, *, shared: bool) -> None:
        """Let the client hold `params` as the version of this timestamp, with the learning rate of its own steps.

        `shared`: every fetch at this timestamp gets the same parameters, so that only the first one copies them.
        """
        version = self._shared.get(timestamp) if shared else None
        if version is None:
            version = self._store(params, timestamp, shared)
        self._replace(client, version, rate)
        self._stamps.pop(client, None)

    def check(self, params: Array, *, new: bool) -> bool:
        """Return whether a server's parameters (P,) are finite.

        `new`: they have changed, and are copied in the same pass, for the next clients that fetch.
        """
        self._copied = new
        if not new:
            return self._operations.finite(params)
        if self._spare is None:
            self._spare = self._pool.take()
        return self._operations.duplicate_finite(params, self._spare)

    def matches_version(self, params: Array, timestamp: int) -> bool:
        """Return whether all clients that fetched at this timestamp, if any, hold exactly these parameters (P,)."""
        version = self._shared.get(timestamp)
        return version is None or np.asarray(version.params).tobytes() == np.asarray(params).tobytes()

    def keep(self, client: int) -> None:
        """Keep the version that the client holds, after a dropped fetch; the pool may page it out."""
        self._pool.page_out(self._held[client].params)

    def adopt(self, client: int, params: Array, timestamp: int) -> None:
        """Let the client, and no other, hold `params`, an array of the pool that the caller has filled.

        Only for runs whose gate lets all of a copy pass or nothing, so that all tensors have the same timestamp.
        """
        self._pool.page_out(params)
        self._replace(client, Version(params, timestamp, shared=False))

    def fetch_parts(
        self, client: int, params: Array, timestamp: int, rate: float | None, passed: Sequence[bool]
    ) -> None:
        """Replace the client's tensors that passed; the oldest timestamp of all its tensors is the version's.

        The learning rate of the client's own steps is the one that belongs to that timestamp.
        """
        own, before = self._held[client], self._held_rates[client] if self._rates else 0.0
        stamps = self._stamps.setdefault(client, [(own.timestamp, before)] * len(self._tensors))
        version = self._store(own.params, timestamp, shared=False)
        for number, (part, fetched) in enumerate(zip(self._tensors, passed, strict=True)):
            if fetched:
                version.params[part] = params[part]
                stamps[number] = timestamp, rate or 0.0
        version.timestamp, oldest = min(stamps)
        self._replace(client, version, oldest)

    def step(self, client: int, grad: Array) -> bool:
        """Let the client take a step with its own gradient from what it holds; return whether that is finite."""
        own = self._held[client]
        version = self._store(own.params, own.timestamp, shared=False)
        with np.errstate(all="ignore"):
            version.params -= np.float32(self._held_rates[client]) * grad
        self._replace(client, version)
        return self._operations.finite(version.params)

    def restamp(self, client: int, timestamp: int, rate: float | None) -> None:
        """Give everything that the client holds this timestamp and its rate, without changing the parameters."""
        self._stamps.pop(client, None)
        self._replace(client, self._store(self._held[client].params, timestamp, shared=False), rate)

    def take_state(self) -> State:
        """Return the versions that clients hold and, for each client, which of these it holds, int64 (λ,)."""
        state: State = {}
        places: dict[int, int] = {}  # by the version's identity
        versions: list[Version] = []
        for name, held in self._lists().items():
            for version in held:
                if version is not NOTHING and places.setdefault(id(version), len(versions)) == len(versions):
                    versions.append(version)
            state[name] = np.array([places.get(id(version), -1) for version in held], np.int64)
        state["timestamps"] = np.array([version.timestamp for version in versions], np.int64)
        state["shared"] = np.array([version.shared for version in versions])
        state |= {f"version.{number}": as_state(version.params) for number, version in enumerate(versions)}
        state |= {f"rates.{name}": as_state(rates) for name, rates in self._rates.items()}
        for client, stamps in self._stamps.items():
            timestamps, rates = zip(*stamps, strict=True)
            state |= {f"stamps.{client}": np.array(timestamps), f"stamp_rates.{client}": np.array(rates)}
        return state

    def put_state(self, state: State) -> None:
        """Restore what clients hold."""
        for held in self._lists().values():
            for version in held:
                self._drop(version)
        self._copied = False
        stored = zip(state["timestamps"].tolist(), state["shared"].tolist(), strict=True)
        versions = [self._store(state[f"version.{n}"], *of) for n, of in enumerate(stored)]
        for name, held in self._lists().items():
            held[:] = [versions[number] if number >= 0 else NOTHING for number in state[name].tolist()]
            for version in held:
                version.holders += 1
        for name, rates in self._rates.items():
            rates[...] = state[f"rates.{name}"]
        of_stamps = part_of(state, "stamp_rates")
        self._stamps = {
            int(client): list(zip(stamps.tolist(), of_stamps[client].tolist(), strict=True))
            for client, stamps in part_of(state, "stamps").items()
        }

    def _lists(self) -> dict[str, list[Version]]:
        """Return the versions by client: for the task under way and, if clients do not wait, for the next one.

        Of pipelines, also those of the tasks before.
        """
        past = {f"before.{ago}": held for ago, held in enumerate(self._past, start=1)}
        return {"under_way": self._under_way} | ({} if self._wait else {"fetched": self._fetched}) | past

    @property
    def _held_rates(self) -> NDArray[np.float64]:
        """The learning rates of what clients hold, of which a fetch replaces one."""
        return self._rates["under_way" if self._wait else "fetched"]

    def _replace(self, client: int, version: Version, rate: float | None = None) -> None:
        if self._rates and rate is not None:
            self._held_rates[client] = rate
        version.holders += 1
        self._drop(self._held[client])
        self._held[client] = version

    def _store(self, params: Array, timestamp: int, shared: bool) -> Version:
        if shared and self._copied and self._spare is not None:
            room, self._spare, self._copied = self._spare, None, False
        else:
            room = self._pool.take()
            self._operations.duplicate(params, room)
        self._pool.page_out(room)
        version = Version(room, timestamp, shared)
        if shared:
            self._shared[timestamp] = version
        return version

    def _drop(self, version: Version) -> None:
        if version is NOTHING:
            return
        version.holders -= 1
        if version.holders == 0:
            self._pool.give_back(version.params)
            if version.shared:
                del self._shared[version.timestamp]
