"""The launches of one minibatch's computation, as they are planned; a launch is for all minibatches of a window.

A kernel has its minibatch as blockIdx.z, and finds what it needs of it from the addresses of the first one's. What a
step is given is known when planning, but for addresses: of Buffers, which Program places, and of what is Given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.buffers import Buffer, Tensor, place_buffers, tensors_of
from fredsim.cuda.array import DeviceArray, upload
from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph

__all__ = ["THREADS", "Choice", "Given", "Place", "Step", "Steps", "Value", "blocks_for"]

#: The threads of a block of kernels that have an element a thread.
THREADS = 128
#: The most blocks of a launch along its second axis, and the most sums over groups of samples that sources/tree.h adds.
MOST_BLOCKS, MOST_GROUPS = 65_535, 2**21 - 8
#: The most sums over groups of samples, of one minibatch, for which groups are small.
MOST_SUMS = 2**21


class Given(Enum):
    """What a window of minibatches is given: addresses, each of the first minibatch's."""

    HELD = auto()  # of the parameters' addresses, (B,)
    ROWS = auto()  # of the samples' rows, int32 (B, µ)
    SAMPLES = auto()  # of the data set's samples, (n, …)
    TARGETS = auto()  # and of its targets
    LOSSES = auto()  # where the losses go, float32 (B, µ)
    WRONG = auto()  # where the shares of wrong answers go, float64 (B, µ); 0: nowhere
    GRADS = auto()  # where the gradients go, float32 (B, stride)
    CLIENTS = auto()  # whose gradients they are, int32 (B,); 0: nothing is drawn
    NUMBERS = auto()  # and which of the client's, int32 (B,)
    SEED = auto()  # the run's seed, itself


@dataclass(frozen=True)
class Place:
    """A place in a buffer with one minibatch, or in the first of (B, n) of each sample: so many floats behind it."""

    buffer: Buffer
    floats: int


@dataclass(frozen=True)
class Value:
    """A value of a minibatch of µ samples, (µ, *shape) in C order: float32, or int32 if `whole`.

    `bounds` are the lowest and the highest integer that there may be.
    """

    buffer: Buffer = field(repr=False)
    samples: int
    shape: tuple[int, ...]
    whole: bool = False
    bounds: tuple[int, int] = (0, 0)

    @property
    def each(self) -> int:
        """The number of elements of a sample."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """The number of elements of a minibatch."""
        return self.samples * self.each

    def like(self, **changes: Any) -> Value:
        """Return a value with a buffer of its own that is otherwise like this one, but for `changes`."""
        other = replace(self, **changes)
        return replace(other, buffer=Buffer(other.size))


@dataclass(frozen=True)
class Choice:
    """A kernel that can do a step: its family and name, the blocks of a minibatch, the fields that it alone has."""

    family: str
    name: str
    blocks: tuple[int, int]
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A launch of the first of several kernels that has enough blocks to use a device; of the last if none has."""

    choices: Sequence[Choice]
    fields: dict[str, Any]


def blocks_for(elements: int) -> tuple[int, int]:
    """Return the blocks of a kernel that has an element a thread."""
    return -(-elements // THREADS), 1


class Steps:
    """The steps of a plan, for µ samples. `learn`: whether gradients are computed."""

    def __init__(self, graph: Graph, mu: int, stride: int, *, learn: bool) -> None:
        """`stride`: how far the gradients of a window are apart, in elements."""
        self.mu, self.stride, self.learn = mu, stride, learn
        self.tensors = tensors_of(graph)
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.written: set[str] = set()  # the tensors whose gradients steps write
        self._own: dict[str, Buffer] = {}  # of tensors of several nodes: the samples' own gradients, (µ, size)
        self._used = Counter(name for node in graph.nodes for _, name in node.tensors)
        self._tables: dict[bytes, DeviceArray] = {}

    def step(self, family: str, name: str, blocks: tuple[int, int], **fields: Any) -> None:
        """Add a launch of a kernel of one of fredsim.cuda.kernels.FAMILIES."""
        self.choose([Choice(family, name, blocks)], **fields)

    def choose(self, choices: Sequence[Choice], **fields: Any) -> None:
        """Add a launch of one of several kernels, the one with the largest tiles first.

        Raises ConfigError if it has more blocks than a device takes, as those of very large minibatches.
        """
        self._check(max(choice.blocks[1] for choice in choices), MOST_BLOCKS)
        self.steps.append(Step(choices, fields))
        self._touch(fields)

    def _check(self, count: int, most: int) -> None:
        if count > most:
            raise ConfigError(
                f"backend is cuda, which takes no minibatches of {self.mu:,} samples here: give backend numba"
            )

    def _touch(self, fields: dict[str, Any]) -> None:
        now = len(self.steps) - 1
        for one in fields.values():
            if isinstance(one, dict):
                self._touch(one)
            elif isinstance(one, Value | Place):
                self._touch({"": one.buffer})
            elif isinstance(one, Buffer):
                if one.first < 0:
                    self.buffers.append(one)
                one.named_by(now)

    def table(self, values: Any) -> DeviceArray:
        """Return integers, or numbers of four bytes, on the device; equal ones are there once."""
        array: NDArray[Any] = np.ascontiguousarray(values, None if isinstance(values, np.ndarray) else np.int32)
        key = array.tobytes()
        if key not in self._tables:
            self._tables[key] = upload(array.reshape(-1))
        return self._tables[key]

    def shared(self, tensor: Tensor) -> bool:
        """Return whether several nodes have a tensor."""
        return self._used[tensor.name] > 1

    def sum_samples(
        self, family: str, name: str, blocks: int, tensors: Sequence[Tensor], each: int = 0, **fields: Any
    ) -> None:
        """Add a kernel that sums samples in groups (sources/networks/samples.h), then what makes means.

        `tensors` are the one or two whose numbers follow each other in the sums. `each`: the samples of a group, a
        power of two; 0: 8 at most, and fewer while the sums are at most MOST_SUMS, as more blocks use more of a device.
        """
        alone, count = not any(map(self.shared, tensors)), sum(tensor.size for tensor in tensors)
        each = each or next((some for some in (1, 2, 4) if -(-self.mu // some) * count <= MOST_SUMS), 8)
        each = each if alone else 1
        groups = -(-self.mu // each)
        target: dict[str, Any] = {"size": tensors[0].size, "groups": groups, "each": each, "mu": self.mu}
        if groups == 1 and alone:
            self.written |= {tensor.name for tensor in tensors}
            target |= {"out": Given.GRADS, "stride": self.stride, "weight": tensors[0].begin, "means": 1}
            target |= {"bias": tensors[-1].begin}
            self.step(family, name, (blocks, 1), target=target, **fields)
            return
        sums = Buffer(groups * count)
        target |= {"out": sums, "stride": count, "bias": tensors[0].size}
        self.step(family, name, (blocks, groups), target=target, **fields)
        self.mean_samples(sums, tensors, groups)

    def mean_samples(self, sums: Buffer, tensors: Sequence[Tensor], groups: int, stride: int = 0) -> None:
        """Add what makes gradients of sums over groups of samples, or over each one where a tensor is shared.

        The groups' sums are `stride` apart: if it is 0, as many as the tensors have numbers.
        """
        count, at = stride or sum(tensor.size for tensor in tensors), 0
        if not any(map(self.shared, tensors)):
            self._mean(sums, tensors, groups, count)
            return
        for tensor in tensors:
            if self.shared(tensor):
                adds = tensor.name in self._own
                own = self._own.setdefault(tensor.name, Buffer(self.mu * tensor.size))
                self.step(
                    "networks/copies", "keep_own", blocks_for(self.mu * tensor.size), values=Place(sums, at), out=own,
                    stride=count, mu=self.mu, size=tensor.size, adds=int(adds),
                )  # fmt: skip
            else:
                self._mean(Place(sums, at), [tensor], groups, count)
            at += tensor.size

    def _mean(self, sums: Buffer | Place, tensors: Sequence[Tensor], groups: int, count: int) -> None:
        self._check(groups, MOST_GROUPS)
        self.written |= {tensor.name for tensor in tensors}
        number = sum(tensor.size for tensor in tensors)
        self.step(
            "networks/means", "mean_of_groups", blocks_for(number), sums=sums, out=Given.GRADS, stride=self.stride,
            weight=tensors[0].begin, bias=tensors[-1].begin, size=tensors[0].size, number=number, count=count,
            groups=groups, mu=self.mu,
        )  # fmt: skip

    def finish_gradients(self) -> None:
        """Make the gradients of shared tensors, and +0 of tensors that have none."""
        for name, own in self._own.items():
            self._mean(own, [self.tensors[name]], self.mu, self.tensors[name].size)
        for name, tensor in self.tensors.items():
            if name not in self.written:
                self.step(
                    "networks/means", "clear_gradients", blocks_for(tensor.size), out=Given.GRADS, stride=self.stride,
                    at=tensor.begin, count=tensor.size,
                )  # fmt: skip

    def place_buffers(self) -> int:
        """Give every buffer its offset; return the floats of a minibatch."""
        return place_buffers(self.buffers, 32)
