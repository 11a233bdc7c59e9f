"""Which operators and losses have kernels."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.kernels.ops.dropout import DropoutKernels
from fredsim.kernels.ops.images.conv2d import ConvKernels
from fredsim.kernels.ops.images.norms import NormKernels
from fredsim.kernels.ops.images.pooling import PoolKernels
from fredsim.kernels.ops.linear import LinearKernels
from fredsim.kernels.ops.losses import CrossEntropyKernels, SquaredErrorKernels
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.pointwise import AddKernels, ReluKernels
from fredsim.kernels.ops.sequences.registry import LOSSES_OF_SEQUENCES, SEQUENCES
from fredsim.kernels.ops.views import ReshapeKernels
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, GroupNorm
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.views import Reshape

__all__ = ["KERNELS", "LOSSES", "kernels_of", "loss_kernels_of"]

KERNELS: dict[type[Operator], type[OperatorKernels]] = {
    Add: AddKernels,
    AdaptiveAvgPool2d: PoolKernels,
    AvgPool2d: PoolKernels,
    BatchNorm: NormKernels,
    Conv2d: ConvKernels,
    Dropout: DropoutKernels,
    GroupNorm: NormKernels,
    Linear: LinearKernels,
    MaxPool2d: PoolKernels,
    Relu: ReluKernels,
    Reshape: ReshapeKernels,
}
LOSSES: dict[type[Loss], type[LossKernels]] = {
    CrossEntropy: CrossEntropyKernels,
    MeanSquaredError: SquaredErrorKernels,
}


def kernels_of(operator: Operator, shapes: Sequence[Shape]) -> type[OperatorKernels] | None:
    """Return the kernels of an operator for inputs of these shapes: the first that take them; None if none do."""
    kinds = (KERNELS.get(type(operator)), SEQUENCES.get(type(operator)))
    return next((kind for kind in kinds if kind is not None and kind.takes(operator, shapes)), None)


def loss_kernels_of(loss: Loss, output: Shape, target: Shape) -> type[LossKernels] | None:
    """Return the kernels of a loss for outputs and targets of these shapes; None if there are none."""
    kinds = (LOSSES.get(type(loss)), LOSSES_OF_SEQUENCES.get(type(loss)))
    return next((kind for kind in kinds if kind is not None and kind.takes(loss, output, target)), None)
