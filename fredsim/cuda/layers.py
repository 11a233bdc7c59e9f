"""Chooses the kernels of a network's layers by the size of a minibatch and of a window, and adds their launches.

Every choice gives the same bits. A window may have other kernels than the next: `batches` is a number for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.interface import Loaded
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import machine

__all__ = ["LEAVES", "Workspace", "add_backward", "add_forward", "add_gradients", "add_softmax", "parts_of"]

Integers = NDArray[np.int64]

#: The most samples of a thin minibatch, for which there are kernels of their own; what those of 8 are rounded up to.
THIN, ROUNDED = 8, (1, 2, 2, 4, 4, 8, 8, 8, 8)
#: The samples that one block of a gradient's kernel sums, and the layers that one launch of it takes.
LEAVES, LAYERS = 128, 4
#: How many large blocks a launch should have at least; with fewer, small blocks use more of a device.
FEW_BLOCKS = 64


@dataclass(frozen=True)
class Workspace:
    """Addresses on the device: of each layer's z and errors, (B, µ, width) each; and the network's shape."""

    sizes: Sequence[int]
    z: Sequence[int]
    errors: Sequence[int]

    @property
    def offsets(self) -> list[int]:
        """Where each layer begins in the flat parameters."""
        heights = [(inputs + 1) * width for inputs, width in pairwise(self.sizes)]
        return [sum(heights[:layer]) for layer in range(len(heights))]


def parts_of(mu: int) -> int:
    """Return into how many parts a minibatch's gradient is divided, which are summed one by one."""
    return -(-mu // LEAVES)


def add_forward(launches: Launches, space: Workspace, batches: Any, mu: int, **given: Any) -> None:
    """Add the forward pass; `given` are the fields held, rows and x, the data set's inputs."""
    kernels = machine().load(unit_of("dense"))
    for layer, (inputs, width) in enumerate(pairwise(space.sizes)):
        fields = {
            "held": given["held"], "rows": given["rows"], "x": given["x"] if layer == 0 else space.z[layer - 1],
            "out": space.z[layer], "at": space.offsets[layer], "mu": mu, "inputs": inputs, "width": width,
        }  # fmt: skip
        _add(launches, kernels, "forward" if layer else "forward_first", width, batches, mu, fields)


def add_backward(launches: Launches, space: Workspace, batches: Any, mu: int, held: Any) -> None:
    """Add the errors of all layers but the last, whose errors are there."""
    kernels = machine().load(unit_of("dense"))
    for layer in range(len(space.sizes) - 2, 0, -1):
        inputs, width = space.sizes[layer : layer + 2]
        fields = {
            "held": held, "x": space.errors[layer], "z": space.z[layer - 1], "out": space.errors[layer - 1],
            "at": space.offsets[layer], "mu": mu, "inputs": inputs, "width": width,
        }  # fmt: skip
        _add(launches, kernels, "propagate", inputs, batches, mu, fields)


def _add(
    launches: Launches, kernels: dict[str, Loaded], name: str, columns: int, batches: Any, mu: int, fields: Any
) -> None:
    """Add the kernel of a layer with so many outputs a sample."""
    if mu <= THIN:
        launches.add(kernels[f"{name}_thin_{ROUNDED[mu]}"], (-(-columns // 64), 1, batches), **fields)
        return
    blocks = -(-mu // 64) * -(-columns // 64)
    few = (blocks * np.asarray(batches) < FEW_BLOCKS) | (mu <= 16)
    launches.add(kernels[f"{name}_64"], (-(-mu // 64), -(-columns // 64), batches), ~few, **fields)
    launches.add(kernels[f"{name}_16"], (-(-mu // 16), -(-columns // 32), batches), few, **fields)


def add_softmax(launches: Launches, space: Workspace, samples: Any, **fields: Any) -> None:
    """Add the losses of so many samples; the fields are those of losses.cu."""
    kernel = machine().load(unit_of("losses"))["softmax_cross_entropy"]
    blocks = (-(-np.asarray(samples) // kernel.threads), 1, 1)
    launches.add(kernel, blocks, z=space.z[-1], n=samples, classes=space.sizes[-1], **fields)


def add_gradients(
    launches: Launches, space: Workspace, batches: Any, mu: int, *, x: int, rows: Any, out: int, sums: int, stride: int
) -> None:
    """Add the mean gradients of all layers, `stride` elements apart; `sums` are those of parts of a minibatch."""
    kernels, parts, layers = machine().load(unit_of("gradients")), parts_of(mu), list(pairwise(space.sizes))
    thin = mu <= THIN
    kernel = kernels[f"gradient_thin_{ROUNDED[mu]}" if thin else "gradient_64"]
    for begin in range(0, len(layers), LAYERS):
        some = range(begin, min(begin + LAYERS, len(layers)))
        tiles = [_tiles(*layers[layer], thin=thin) for layer in some]
        firsts = np.cumsum([0, *tiles])

        def each(values: Sequence[Any], some: range = some) -> list[int]:
            return [int(values[layer]) for layer in some] + [0] * (LAYERS - len(some))

        launches.add(
            kernel, (firsts[-1], parts, batches), x=each([x, *space.z]), errors=each(space.errors),
            at=each(space.offsets), inputs=each(space.sizes), width=each(space.sizes[1:]),
            gathered=each([1, *[0] * len(layers)]), first_tile=[*firsts[:-1], *[0] * (LAYERS - len(some))], rows=rows,
            out=sums if parts > 1 else out, stride=stride, layers=len(some), mu=mu, parts=parts,
        )  # fmt: skip
    if parts > 1:
        kernel = kernels["sum_parts"]
        blocks = (-(-stride // kernel.threads), 1, batches)
        launches.add(kernel, blocks, sums=sums, out=out, stride=stride, mu=mu, parts=parts)


def _tiles(inputs: int, width: int, *, thin: bool) -> int:
    """Return how many blocks a layer's gradient takes, of one minibatch and one part."""
    if thin:
        return -(-(-(-(inputs + 1) // 8) * width) // 128)
    return -(-(inputs + 1) // 64) * -(-width // 64)
