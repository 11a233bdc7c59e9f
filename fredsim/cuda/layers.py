"""Chooses the kernels of a network's layers by the size of a minibatch and of a window, and adds their launches.

Every choice gives the same bits. A window may have other kernels than the next: `batches` is a number for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from fredsim.cuda.interface import Loaded
from fredsim.cuda.kernels import unit_of
from fredsim.cuda.launches import Launches
from fredsim.cuda.machines import machine

__all__ = [
    "LEAVES", "ROUNDED", "THIN", "Workspace", "add_backward", "add_forward", "add_gradients", "add_outputs",
    "add_softmax", "parts_of", "strips",
]  # fmt: skip

#: The most samples of a thin minibatch, for which there are kernels of their own, and what each number of samples is
#: rounded up to.
THIN, ROUNDED = 8, (1, 1, 2, 4, 4, 8, 8, 8, 8)
#: The most outputs of a narrow layer, for which there are kernels of their own.
NARROW = 16
#: The samples that one block of a gradient's kernel sums, the layers that one launch of it takes, the threads of a
#: block of thin minibatches and the rows of each.
LEAVES, LAYERS, BLOCK, ROWS = 128, 4, 128, 4
#: The tiles of dense layers: samples, outputs, the warps of a block, and what a term of a thread's sums costs: about
#: the instructions that it takes on compute capability 9.0, and a few more where much is read from shared memory.
TILES = ((64, 64, 4, 71), (64, 32, 2, 72), (16, 32, 2, 24), (8, 16, 2, 10))
#: The multiprocessors of an H100 or H200, and the warps of which each can do an instruction at once.
MULTIPROCESSORS, SCHEDULERS = 132, 4


@dataclass(frozen=True)
class Workspace:
    """Addresses on the device: of each layer's z and errors, (B, µ, width) each; and the network's shape.

    Where z of a hidden layer would be is h, what it gives the next one: z, or 0 if that is negative.
    """

    sizes: Sequence[int]
    z: Sequence[int]
    errors: Sequence[int]

    @property
    def offsets(self) -> list[int]:
        """Where each layer begins in the flat parameters."""
        return self._ends[:-1]

    @property
    def size(self) -> int:
        """The number of parameters."""
        return self._ends[-1]

    @property
    def _ends(self) -> list[int]:
        return [0, *accumulate((inputs + 1) * width for inputs, width in pairwise(self.sizes))]

    @property
    def narrow(self) -> bool:
        """Whether the last layer and the loss are computed by one kernel."""
        return self.sizes[-1] <= NARROW


def parts_of(mu: int) -> int:
    """Return into how many parts a minibatch's gradient is divided, which are summed one by one."""
    return -(-mu // LEAVES)


def add_forward(launches: Launches, space: Workspace, batches: Any, mu: int, layers: int, **given: Any) -> None:
    """Add the forward pass of the first layers; `given` are the fields held, rows and x, the data set's inputs."""
    kernels = machine().load(unit_of("dense"))
    for layer, (inputs, width) in enumerate(pairwise(space.sizes[: layers + 1])):
        fields = {
            "held": given["held"], "rows": 0 if layer else given["rows"],
            "x": space.z[layer - 1] if layer else given["x"],
            "out": space.z[layer], "at": space.offsets[layer], "mu": mu, "inputs": inputs, "width": width,
            "hidden": layer < len(space.sizes) - 2,
        }  # fmt: skip
        _add(launches, kernels, "forward", width, batches, mu, fields)


def add_outputs(launches: Launches, space: Workspace, batches: Any, mu: int, x: int, **fields: Any) -> None:
    """Add a narrow last layer, with losses and errors; the fields are held, rows, labels and losses."""
    kernels, hidden = machine().load(unit_of("outputs")), len(space.sizes) > 2
    launches.add(
        kernels["outputs"], (-(-mu // 8), 1, batches), x=space.z[-2] if hidden else x, z=space.z[-1],
        errors=space.errors[-1], at=space.offsets[-1], mu=mu, inputs=space.sizes[-2], classes=space.sizes[-1],
        gathered=not hidden, **fields,
    )  # fmt: skip


def add_backward(launches: Launches, space: Workspace, batches: Any, mu: int, held: Any) -> None:
    """Add the errors of all layers but the last, whose errors are there."""
    kernels = machine().load(unit_of("dense"))
    for layer in range(len(space.sizes) - 2, 0, -1):
        inputs, width = space.sizes[layer : layer + 2]
        fields = {
            "held": held, "x": space.errors[layer], "h": space.z[layer - 1], "out": space.errors[layer - 1],
            "at": space.offsets[layer], "mu": mu, "inputs": inputs, "width": width,
        }  # fmt: skip
        if width <= NARROW:
            launches.add(kernels["propagate_narrow"], (-(-mu // 8), -(-inputs // 128), batches), **fields)
        else:
            _add(launches, kernels, "propagate", inputs, batches, mu, fields)


def _add(
    launches: Launches, kernels: dict[str, Loaded], name: str, columns: int, batches: Any, mu: int, fields: Any
) -> None:
    """Add the kernel of a layer with so many outputs a sample."""
    if mu <= THIN:
        launches.add(kernels[f"{name}_thin_{ROUNDED[mu]}"], (-(-columns // 64), 1, batches), **fields)
        return
    grids = [(-(-mu // down), -(-columns // across), batches) for down, across, *_ in TILES]
    costs = [
        np.maximum(-(-x * y * np.asarray(z) // MULTIPROCESSORS) * warps, SCHEDULERS) * cost
        for (x, y, z), (_, _, warps, cost) in zip(grids, TILES, strict=True)
    ]
    chosen = np.argmin(costs, axis=0)  # by the multiprocessor that has the most blocks
    for number, (grid, (down, across, *_)) in enumerate(zip(grids, TILES, strict=True)):
        if np.any(where := chosen == number):
            launches.add(kernels[f"{name}_{down}x{across}"], grid, where, **fields)


def _across(space: Workspace, begin: int) -> int:
    """Return how many columns the gradients' tiles have, of LAYERS layers: 32 if these cover an eighth less than 64."""
    layers = list(pairwise(space.sizes[begin : begin + LAYERS + 1]))
    narrow, wide = (sum(inputs * -(-width // across) * across for inputs, width in layers) for across in (32, 64))
    return 32 if 8 * narrow <= 7 * wide else 64


def add_softmax(launches: Launches, space: Workspace, samples: Any, **fields: Any) -> None:
    """Add the losses of so many samples; the fields are those of losses.cu."""
    kernel = machine().load(unit_of("losses"))["softmax_cross_entropy"]
    blocks = (-(-np.asarray(samples) // kernel.threads), 1, 1)
    launches.add(kernel, blocks, z=space.z[-1], n=samples, classes=space.sizes[-1], **fields)


def add_gradients(
    launches: Launches, space: Workspace, batches: Any, mu: int, *, x: int, rows: Any, out: int, sums: int, stride: int
) -> None:
    """Add the mean gradients of all layers, `stride` elements apart; `sums` are those of parts of a minibatch."""
    kernels, parts = machine().load(unit_of("gradients")), parts_of(mu)
    for begin in range(0, len(space.sizes) - 1, LAYERS):
        kernel = kernels[f"gradient_thin_{ROUNDED[mu]}" if mu <= THIN else f"gradient_{_across(space, begin)}"]
        blocks, fields = _minibatches(space, begin, mu, x, rows)
        fields |= {"out": sums if parts > 1 else out, "stride": stride, "parts": parts}
        launches.add(kernel, (blocks, parts, batches), **fields)
    if parts > 1:
        kernel, size = kernels["sum_parts"], space.size
        blocks = -(-size // kernel.threads)
        launches.add(kernel, (blocks, 1, batches), sums=sums, out=out, stride=stride, size=size, mu=mu, parts=parts)


def strips(space: Workspace, mu: int, x: int, rows: Any, tall: int = 0) -> tuple[int, dict[str, Any]] | None:
    """Return the blocks and the minibatches of sources/rule_thin.cu, or with `tall` of sources/rule_wide.cu.

    None if they cannot form these gradients.
    """
    return _minibatches(space, 0, mu, x, rows, tall) if mu <= THIN and len(space.sizes) - 1 <= LAYERS else None


def _minibatches(space: Workspace, begin: int, mu: int, x: int, rows: Any, tall: int = 0) -> tuple[int, dict[str, Any]]:
    """Return how many blocks LAYERS layers from `begin` on take, and the fields of their structure `Gradients`."""
    layers = range(begin, min(begin + LAYERS, len(space.sizes) - 1))
    padding = [0] * (LAYERS - len(layers))

    def each(values: Sequence[int]) -> list[int]:
        return [values[layer] for layer in layers] + padding

    across = _across(space, begin)
    tiles = [_tiles(space.sizes[layer], space.sizes[layer + 1], mu, tall, across) for layer in layers]
    firsts = [sum(tiles[:number]) for number in range(len(tiles))]
    fields = {
        "x": each([x, *space.z]), "errors": each(space.errors), "at": each(space.offsets), "inputs": each(space.sizes),
        "width": each(space.sizes[1:]), "gathered": each([1, *[0] * len(space.sizes)]), "first_tile": firsts + padding,
        "rows": rows, "layers": len(layers), "mu": mu,
    }  # fmt: skip
    return sum(tiles), fields


def _tiles(inputs: int, width: int, mu: int, tall: int, across: int) -> int:
    """Return how many blocks a layer's gradient takes, of one minibatch and one part; with `tall`, its updates."""
    if tall:
        return -(-(inputs + 1) // (4 * tall)) * -(-width // 128)
    if mu <= THIN:
        return -(-(-(-(inputs + 1) // ROWS) * width) // BLOCK)
    return -(-(inputs + 1) // 64) * -(-width // across)
