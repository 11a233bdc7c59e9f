"""A small VGG (Simonyan and Zisserman 2015) with batch normalisation (Ioffe and Szegedy 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fredsim.networks.graph import Graph
from fredsim.networks.running import Running, RunningNorm
from fredsim.networks.zoo.builder import Builder, image_of
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import BatchNorm
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.pooling import MaxPool2d
from fredsim.numerics.ops.views import Reshape

__all__ = ["vgg"]


def vgg(
    classes: int,
    shape: Shape,
    widths: Sequence[int] = (16, 32, 64),
    loss: Loss | None = None,
    dropout: float = 0.0,
    served: Literal["averaged", "last"] | None = None,
) -> Graph:
    """Return two convolutions 3×3 at each of `widths`, each with batch norm and ReLU, then max pooling; a dense layer.

    A share `dropout` of its inputs is dropped in training. `served`: whose running statistics it is evaluated with;
    None: the samples' own statistics.

    Raises ValueError for images that are too small to be halved so often.
    """
    _, rows, columns = image_of("vgg", shape)
    least = 2 ** len(widths)
    if not widths or min(rows, columns) < least:
        raise ValueError(f"vgg halves an image for each of its {len(widths)} widths; these are {rows}×{columns}")
    network, part, norms = Builder(shape), 0, list[RunningNorm]()
    for width in widths:
        for _ in range(2):
            network.convolution(width, 3, f"{part}")
            network.add(BatchNorm(), name=f"{part + 1}")
            norms.append(RunningNorm(f"{part + 1}.running_mean", f"{part + 1}.running_var"))
            network.add(Relu())
            part += 3
        network.add(MaxPool2d((2, 2), (2, 2)))
        part += 1
    network.dropout(dropout)
    network.add(Reshape((-1,)))
    network.dense(classes, f"{part + 1}")
    graph = network.graph(loss or CrossEntropy())
    return graph if served is None else replace(graph, running=Running(tuple(norms), served))
