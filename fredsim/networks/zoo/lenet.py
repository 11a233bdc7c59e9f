"""The LeNet of Wen et al. 2017 (TernGrad): Caffe's, which has ReLU only between its dense layers."""

from __future__ import annotations

from fredsim.networks.graph import Graph
from fredsim.networks.zoo.builder import Builder, image_of
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.pooling import MaxPool2d
from fredsim.numerics.ops.views import Reshape

__all__ = ["lenet"]


def lenet(classes: int, shape: Shape, loss: Loss | None = None) -> Graph:
    """Return two convolutions 5×5 of 20 and 50 filters, each followed by max pooling 2×2, then 500 units.

    431,080 parameters for images of 1×28×28. Raises ValueError for images smaller than 16×16.
    """
    _, rows, columns = image_of("lenet", shape)
    if min(rows, columns) < 16:
        raise ValueError(f"lenet needs images of 16×16 at least, for two convolutions 5×5; these are {rows}×{columns}")
    network = Builder(shape)
    network.add(Conv2d(20, (5, 5)), name="0")
    network.add(MaxPool2d((2, 2), (2, 2)))
    network.add(Conv2d(50, (5, 5)), name="2")
    network.add(MaxPool2d((2, 2), (2, 2)))
    network.add(Reshape((-1,)))
    network.dense(500, "5")
    network.add(Relu())
    network.dense(classes, "7")
    return network.graph(loss or CrossEntropy())
