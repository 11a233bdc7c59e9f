"""The memory of one minibatch's computation, as a plan lays it out: where values lie, and where tensors begin."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fredsim.networks.graph import Graph

__all__ = ["Buffer", "Tensor", "place_buffers", "tensors_of"]


@dataclass(eq=False)
class Buffer:
    """Memory for the steps that name it. Sizes and offsets are in the unit of the plan: bytes, or floats."""

    size: int
    first: int = -1  # the first and the last step that names it; −1: none does
    last: int = -1
    offset: int = -1  # where it begins in the memory of all buffers

    def named_by(self, step: int) -> None:
        """Note that a step names it; steps come in their order."""
        self.first = step if self.first < 0 else self.first
        self.last = step


@dataclass(frozen=True)
class Tensor:
    """A tensor of the network: its name, its shape, and where it begins in the flat vector."""

    name: str
    shape: tuple[int, ...]
    begin: int

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)


def tensors_of(graph: Graph) -> dict[str, Tensor]:
    """Return the tensors of a network by name, in the order of its layout."""
    layout = graph.layout
    return {name: Tensor(name, shape, layout.slices[name].start) for name, shape in layout.tensors}


def place_buffers(buffers: Iterable[Buffer], line: int, behind: int = 0) -> int:
    """Give every buffer its offset, a multiple of `line`; return the size of all. The largest ones come first.

    Two buffers share memory if no step needs both. Each has at least `behind` more than its size.
    """

    def whole(size: int) -> int:
        return -(-(size + behind) // line) * line

    placed: list[Buffer] = []
    end = 0
    for buffer in sorted(buffers, key=lambda one: (-one.size, one.first)):
        size, at = whole(buffer.size), 0
        together = [one for one in placed if one.first <= buffer.last and buffer.first <= one.last]
        for one in sorted(together, key=lambda one: one.offset):
            if at + size <= one.offset:
                break
            at = max(at, one.offset + whole(one.size))
        buffer.offset = at
        placed.append(buffer)
        end = max(end, at + size)
    return end
