"""Puts a graph together, node by node."""

from __future__ import annotations

from collections.abc import Mapping

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.operator import Operator, Shape

__all__ = ["Builder", "image_of"]


class Builder:
    """A graph that grows. Values are numbered as in a Node: 0 is the sample."""

    def __init__(self, sample: Shape) -> None:
        self._shapes = [sample]
        self._nodes: list[Node] = []
        self._tensors: dict[str, Shape] = {}

    @property
    def last(self) -> int:
        """The number of the last value."""
        return len(self._nodes)

    @property
    def shape(self) -> Shape:
        """The shape of the last value, without the samples' axis."""
        return self._shapes[-1]

    def add(self, operator: Operator, *inputs: int, name: str = "", tied: Mapping[str, str] | None = None) -> int:
        """Add a node, which takes the last value unless `inputs` are given, and return the number of its value.

        Its tensors are called "name.role", except for the roles in `tied`, which share a tensor of that name. Raises
        ValueError if it does not take such inputs.
        """
        taken = inputs or (self.last,)
        given = [self._shapes[i] for i in taken]
        tensors = operator.tensors(*given)
        names = {role: f"{name}.{role}" for role in tensors} | dict(tied or {})
        self._tensors |= {names[role]: shape for role, shape in tensors.items()}
        self._shapes.append(operator.shape(*given))
        self._nodes.append(Node(operator, taken, tuple((role, names[role]) for role in tensors)))
        return self.last

    def dense(self, outputs: int, name: str) -> int:
        """Add a dense layer with a bias to the last value."""
        return self.add(Linear(outputs, layout="out_in"), name=name)

    def convolution(self, outputs: int, kernel: int, name: str, *inputs: int, stride: int = 1) -> int:
        """Add a convolution without a bias that keeps the image's size, but for the stride."""
        pad = kernel // 2
        operator = Conv2d(outputs, (kernel, kernel), (stride, stride), (pad, pad), bias=False)
        return self.add(operator, *inputs, name=name)

    def dropout(self, p: float) -> int:
        """Add dropout of the last value, unless nothing is dropped."""
        return self.add(Dropout(p)) if p else self.last

    def graph(self, loss: Loss) -> Graph:
        """Return the graph; the last value is the output, which the loss compares with a target."""
        layout = Layout(tuple(self._tensors.items()))
        return Graph(self._shapes[0], loss.target(self._shapes[-1]), tuple(self._nodes), loss, layout)


def image_of(name: str, shape: Shape) -> tuple[int, int, int]:
    """Return channels, rows and columns of an image. Raises ValueError for another shape; `name` is the network's."""
    if len(shape) != 3:
        raise ValueError(f"{name} takes images (channels, rows, columns); a sample has the shape {shape}")
    channels, rows, columns = shape
    return channels, rows, columns
