"""The steps of one minibatch's computation: kernels, run one after the other without Python between them.

A program is made once for a network and a batch size. Its buffers lie in one block of memory, the arena: two
buffers share memory if no step needs both. What changes from minibatch to minibatch stands in BATCH.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from ctypes import Structure, addressof
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.buffers import Buffer, Tensor, place_buffers, tensors_of
from fredsim.jit.kernel import Kernel, kernel
from fredsim.jit.pointers import call, int64s, item, put
from fredsim.jit.team import Team, address, addresses
from fredsim.kernels.ops.values import Value
from fredsim.networks.graph import Graph
from fredsim.numerics.arrays import LINE, MARGIN, aligned
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.numerics.ops.operator import Leaves

__all__ = [
    "BATCH",
    "CLIENT",
    "GRADS",
    "LOSSES",
    "NUMBER",
    "PARAMS",
    "ROWS",
    "SEED",
    "WRONG",
    "Batch",
    "Program",
    "Steps",
    "run_batches",
    "run_steps",
]

#: What BATCH has, int64 (8,): the addresses of the parameters, float32 (P,), of the samples' rows, int64 (µ,), of the
#: gradient to be written, float32 (P,), of the losses, float32 (µ,), and of the shares of wrong answers, float64 (µ,);
#: and what random numbers depend on: the seed, the client, and the number of its gradient, −1 if nothing is drawn.
PARAMS, ROWS, GRADS, LOSSES, WRONG, SEED, CLIENT, NUMBER = range(8)
BATCH_WORDS = 8
BATCH = object()  # as an argument of a step: the program's BATCH


@dataclass(frozen=True)
class Batch:
    """A minibatch's arrays, for steps that are Python functions; `arena` has the program's buffers."""

    params: NDArray[np.float32]
    rows: NDArray[np.int64]
    grads: NDArray[np.float32] | None
    losses: NDArray[np.float32]
    wrong: NDArray[np.float64] | None
    arena: NDArray[np.uint8]
    draws: Draws | None = None  # None: nothing is drawn


@dataclass(frozen=True)
class Step:
    """A kernel with its arguments, or a Python function of a Batch."""

    kernel: Kernel | None
    fields: dict[str, Any]
    function: Callable[[Batch], None] | None = None


@kernel(steps=int64s, count=int)
def run_steps(rank, size, barrier, a):
    """Run `count` steps on a team; `steps` has the address of each kernel and of its arguments."""
    for i in range(a.count):
        call(item(a.steps, 2 * i), (rank, size, barrier, item(a.steps, 2 * i + 1)))


@kernel(steps=int64s, count=int, batches=int, words=int64s, own=int64s)
def run_batches(rank, size, barrier, a):
    """Run whole minibatches, each on one thread, which has steps of its own: from steps[rank·2·count] on.

    own[rank] is the address of the thread's BATCH, to which the words of a minibatch, words[batch·BATCH_WORDS :], are
    copied first.
    """
    given = int64s(item(a.own, rank))
    for batch in range(rank, a.batches, size):
        for i in range(BATCH_WORDS):
            put(given, i, item(a.words, batch * BATCH_WORDS + i))
        for i in range(a.count):
            at = 2 * (rank * a.count + i)
            call(item(a.steps, at), (np.int64(0), np.int64(1), barrier, item(a.steps, at + 1)))


class Steps:
    """The steps of a program as they are planned, for µ samples; kernels' arguments may be Buffers and Values.

    `learn`: whether gradients are computed. `targets` are those of all samples, (n, …); BATCH's rows choose from them.
    """

    #: The number of the first step of the backward pass.
    turn = -1
    #: Whether the backward pass may have other parameters than the forward pass, so that it takes nothing from there
    #: that was made of them alone.
    two_vectors = False

    def __init__(self, graph: Graph, targets: NDArray[Any], mu: int, threads: int, *, learn: bool) -> None:
        self.mu, self.threads, self.targets, self.learn = mu, threads, targets, learn
        self.tensors = tensors_of(graph)
        self.leaves: dict[str, list[Leaves]] = {}  # of tensors that definitions compute: samples' own gradients
        self.written: set[str] = set()  # the tensors whose gradients steps write
        self.owned: dict[str, Buffer] = {}  # by tensor of several nodes: the samples' own gradients, (µ, size)
        self.ranges: dict[int, tuple[int, int]] = {}  # by id of a buffer of integers: the lowest and the highest
        self.parts: set[int] = set()  # ids of those that are parts of others, whose own ranges may be smaller
        self._used = Counter(name for node in graph.nodes for _, name in node.tensors)
        self.steps: list[Step] = []
        self.buffers: dict[int, Buffer] = {}

    def gradient(self, tensor: Tensor) -> int:
        """Return where a tensor's gradient begins in the flat vector at GRADS; the caller must write it."""
        self.written.add(tensor.name)
        return tensor.begin

    def shared(self, name: str) -> bool:
        """Return whether several nodes have a tensor."""
        return self._used[name] > 1

    def own(self, tensor: Tensor) -> tuple[Buffer, bool]:
        """Return where a tensor's samples' own gradients, (µ, size), are added up, and whether nothing is there yet."""
        first = tensor.name not in self.owned
        if first:
            self.owned[tensor.name] = self.buffer(self.mu * tensor.size)
        return self.owned[tensor.name], first

    def gradient_fields(self, tensor: Tensor) -> dict[str, Any]:
        """Return `begin`, `apart`, `own` and `add`, as kernels take them that write a tensor's gradient.

        It begins at `begin` in the flat vector at GRADS. If several nodes have the tensor, the samples' own gradients
        are kept `apart`: they are written to `own`, (µ, size), or added to what is there, if `add`.
        """
        apart = self.shared(tensor.name)
        own, first = self.own(tensor) if apart else (0, True)
        return {"begin": self.gradient(tensor), "apart": apart, "own": own, "add": not first}

    def buffer(self, floats: int, itemsize: int = 4) -> Buffer:
        """Return memory for as many floats, and MARGIN more; its content is arbitrary."""
        return Buffer(itemsize * floats)

    def each_thread(self, floats: int) -> tuple[Buffer, int]:
        """Return memory for as many floats for each thread, and how many floats each thread's begins apart."""
        stride = -(-floats // 16) * 16 + 16
        return Buffer(4 * stride * self.threads), stride

    def step(self, kernel: Kernel, **fields: Any) -> None:
        """Add a kernel with its arguments; buffers among them live at least from their first to their last step."""
        self._touch(fields.values())
        self.steps.append(Step(kernel, fields))

    def call(self, function: Callable[[Batch], None], *values: Value | Buffer) -> None:
        """Add a Python function that reads or writes these values; see Value.view."""
        self._touch(values)
        self.steps.append(Step(None, {}, function))

    def _touch(self, fields: Any) -> None:
        now = len(self.steps)
        for one in fields:
            buffer = one.buffer if isinstance(one, Value) else one
            if isinstance(buffer, Buffer):
                self.buffers[id(buffer)] = buffer
                buffer.named_by(now)

    def place_buffers(self) -> int:
        """Give every buffer its offset; return the bytes of the arena."""
        return place_buffers(self.buffers.values(), LINE, 4 * MARGIN)


class Program:
    """Planned steps with a BATCH of their own, and an arena.

    Programs that never run at the same time may share an arena: `shared` is taken if it is large enough.
    """

    def __init__(self, planned: Steps, shared: NDArray[np.uint8] | None = None) -> None:
        self.steps = planned.steps
        #: The bytes that its buffers take.
        self.bytes = planned.place_buffers() + LINE
        if shared is None or shared.nbytes < self.bytes:
            shared = aligned(self.bytes, dtype=np.uint8)
        self.arena = shared
        self.batch = np.zeros(BATCH_WORDS, np.int64)
        self._kept: list[Structure] = []
        self.parts: list[Callable[[Batch], None] | tuple[NDArray[np.int64], Structure]] = []
        #: The number of the first part of the backward pass, if that may have other parameters.
        self._turn = -1
        turn = planned.turn if planned.two_vectors else -1
        for (is_kernel, after), numbered in groupby(
            enumerate(planned.steps), lambda one: (one[1].kernel is not None, 0 <= turn <= one[0])
        ):
            if after and self._turn < 0:
                self._turn = len(self.parts)
            steps = [step for _, step in numbered]
            if is_kernel:
                words = np.array([self._words(step) for step in steps], np.int64)
                self.parts.append((words, run_steps.pack(steps=words, count=len(words))))
            else:
                self.parts += [step.function for step in steps if step.function is not None]
        run_steps.address  # noqa: B018  compiles it now

    @property
    def kernels_only(self) -> bool:
        """Whether no step is a Python function."""
        return all(isinstance(part, tuple) for part in self.parts)

    def _words(self, step: Step) -> tuple[int, int]:
        assert step.kernel is not None
        packed = step.kernel.pack(**{name: self._argument(value) for name, value in step.fields.items()})
        self._kept.append(packed)
        return step.kernel.address, addressof(packed)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Value):
            return address(self.arena) + value.buffer.offset + value.begin
        if isinstance(value, Buffer):
            return address(self.arena) + value.offset
        return self.batch if value is BATCH else value

    def run(self, team: Team, batch: Batch, work: int, backward: NDArray[np.float32] | None = None) -> None:
        """Compute one minibatch on a team; `work` is about how many multiply-adds it takes.

        `backward`: the parameters of the backward pass, if they are not those of the forward pass.
        """
        arrays = (batch.params, batch.rows, batch.grads, batch.losses, batch.wrong)
        self.batch[: len(arrays)] = [0 if array is None else address(array) for array in arrays]
        draws = batch.draws
        self.batch[SEED:] = (0, 0, -1) if draws is None else (draws.seed, draws.client, draws.number)
        for number, part in enumerate(self.parts):
            if backward is not None and number == self._turn:
                self.batch[PARAMS] = address(backward)
                batch = replace(batch, params=backward)
            if isinstance(part, tuple):
                team.run(run_steps, part[1], work)
            else:
                part(batch)


class EachItsOwn:
    """Programs of one network for one thread each, which then compute different minibatches at the same time.

    All steps must be kernels.
    """

    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs
        tables = [part[0] for program in programs for part in program.parts if isinstance(part, tuple)]
        self._steps = np.concatenate(tables)
        self._own = addresses(program.batch for program in programs)
        run_batches.address  # noqa: B018  compiles it now

    def run(
        self,
        team: Team,
        held: Sequence[NDArray[np.float32]],
        rows: NDArray[np.int64],
        grads: NDArray[np.float32],
        losses: NDArray[np.float32],
        keys: Keys | None,
    ) -> None:
        """Compute minibatches at the parameters that clients hold; `team` has as many threads as there are programs."""
        words = np.zeros((len(held), BATCH_WORDS), np.int64)
        words[:, PARAMS] = addresses(held)
        for column, array in ((ROWS, rows), (GRADS, grads), (LOSSES, losses)):
            words[:, column] = address(array) + array.strides[0] * np.arange(len(held))
        words[:, NUMBER] = -1
        if keys is not None:
            words[:, SEED], words[:, CLIENT], words[:, NUMBER] = keys.seed, keys.clients, keys.numbers
        count = len(self._steps) // len(self._programs)
        packed = run_batches.pack(steps=self._steps, count=count, batches=len(held), words=words, own=self._own)
        team.run(run_batches, packed)
