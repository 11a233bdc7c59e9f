"""Which operators and losses have kernels on a device."""

from __future__ import annotations

from fredsim.cuda.networks.dropout import DropoutKernels
from fredsim.cuda.networks.elements import BothKernels, PointwiseKernels
from fredsim.cuda.networks.images import ConvolutionKernels, PoolingKernels
from fredsim.cuda.networks.linear import LinearKernels
from fredsim.cuda.networks.losses import CrossEntropyKernels, ElementsKernels
from fredsim.cuda.networks.norms import NormKernels
from fredsim.cuda.networks.operator import LossKernels, OperatorKernels
from fredsim.cuda.networks.sequences import AttentionKernels, EmbeddingKernels, MatMulKernels, SoftmaxKernels
from fredsim.cuda.networks.views import (
    CatKernels,
    DetachKernels,
    PermuteKernels,
    ReshapeKernels,
    SliceKernels,
    SourceKernels,
)
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.arithmetic import Add, Keep, Maximum, Minimum, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import ACTIVATIONS
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Detach, Permute, Reshape, Slice

__all__ = ["KERNELS", "LOSSES", "why_refused"]

KERNELS: dict[type[Operator], type[OperatorKernels]] = {
    **dict.fromkeys(ACTIVATIONS.values(), PointwiseKernels),
    Add: BothKernels,
    AdaptiveAvgPool2d: PoolingKernels,
    Attention: AttentionKernels,
    AvgPool2d: PoolingKernels,
    BatchNorm: NormKernels,
    Cat: CatKernels,
    Constant: SourceKernels,
    Conv2d: ConvolutionKernels,
    Detach: DetachKernels,
    Dropout: DropoutKernels,
    Embedding: EmbeddingKernels,
    FrozenBatchNorm: NormKernels,
    GroupNorm: NormKernels,
    Keep: BothKernels,
    LayerNorm: NormKernels,
    Linear: LinearKernels,
    LogSoftmax: SoftmaxKernels,
    MatMul: MatMulKernels,
    MaxPool2d: PoolingKernels,
    Maximum: BothKernels,
    Minimum: BothKernels,
    Mul: BothKernels,
    Parameter: SourceKernels,
    Permute: PermuteKernels,
    Positions: SourceKernels,
    Reshape: ReshapeKernels,
    RmsNorm: NormKernels,
    Slice: SliceKernels,
    Softmax: SoftmaxKernels,
}
LOSSES: dict[type[Loss], type[LossKernels]] = {
    BinaryCrossEntropy: ElementsKernels,
    CrossEntropy: CrossEntropyKernels,
    MeanSquaredError: ElementsKernels,
}


def why_refused(graph: Graph) -> str:
    """Return which operator or loss of a network has no kernels on a device; "" if all have."""
    if graph.running is not None:
        return "running statistics (model.buffers)"
    for node in graph.nodes:
        kind, name = type(node.operator), f"the operator {type(node.operator).__name__}"
        if kind not in KERNELS:
            return name
        if why := KERNELS[kind].why_not(node.operator, [graph.shapes[i] for i in node.inputs]):
            return f"{name} with {why}"
    return "" if type(graph.loss) in LOSSES else "your own loss, a function of NumPy arrays"
