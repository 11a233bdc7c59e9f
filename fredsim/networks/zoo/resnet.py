"""A residual network for small images (He et al. 2016, section 4.2), with GroupNorm (Wu and He 2018) for BatchNorm."""

from __future__ import annotations

from fredsim.networks.graph import Graph
from fredsim.networks.zoo.builder import Builder, image_of
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import GroupNorm
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d
from fredsim.numerics.ops.views import Reshape

__all__ = ["resnet"]

EACH = 8  # channels that are normalized together


def resnet(classes: int, shape: Shape, depth: int = 8, width: int = 16, loss: Loss | None = None) -> Graph:
    """Return a first convolution, three stages of blocks, the mean over the image, and a dense layer.

    `depth` is 6n + 2, with n blocks of two convolutions 3×3 at each of the widths `width`, 2·`width`, 4·`width`, the
    first of which halves the image in the second and third stage; `width` is a multiple of 8. Raises ValueError for
    another depth or width, and for samples that are no images.
    """
    blocks, rest = divmod(depth - 2, 6)
    if blocks < 1 or rest:
        raise ValueError(f"depth is {depth}; it must be 6n + 2, such as 8, 14 or 20")
    if width < EACH or width % EACH:
        raise ValueError(f"width is {width}; it must be a multiple of 8, the channels that are normalized together")
    image_of("resnet", shape)
    network = Builder(shape)
    network.convolution(width, 3, "0")
    _normalize(network, "1")
    network.add(Relu())
    number = 3  # of the block among the module's parts
    for stage in range(3):
        for block in range(blocks):
            _add_block(network, f"{number}", width * 2**stage, stride=2 if stage and not block else 1)
            number += 1
    network.add(AdaptiveAvgPool2d((1, 1)))
    network.add(Reshape((-1,)))
    network.dense(classes, f"{number + 1}")
    return network.graph(loss or CrossEntropy())


def _normalize(network: Builder, name: str) -> int:
    return network.add(GroupNorm(network.shape[0] // EACH), name=name)


def _add_block(network: Builder, name: str, outputs: int, stride: int) -> None:
    """Add two convolutions beside a shortcut, which is a convolution 1×1 where the shapes differ."""
    x, channels = network.last, network.shape[0]
    network.convolution(outputs, 3, f"{name}.first", stride=stride)
    _normalize(network, f"{name}.first_norm")
    network.add(Relu())
    network.convolution(outputs, 3, f"{name}.second")
    y = _normalize(network, f"{name}.second_norm")
    same = channels == outputs and stride == 1
    shortcut = x if same else network.convolution(outputs, 1, f"{name}.shortcut", x, stride=stride)
    network.add(Add(), y, shortcut)
    network.add(Relu())
