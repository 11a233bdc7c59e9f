"""Which operators and losses have kernels: of those that take the shapes, the first."""

from __future__ import annotations

from collections.abc import Sequence

from fredsim.kernels.ops import activations
from fredsim.kernels.ops.arithmetic import AddKernels, BothKernels
from fredsim.kernels.ops.dropout import DropoutKernels
from fredsim.kernels.ops.images.conv2d import ConvKernels
from fredsim.kernels.ops.images.depthwise import DepthwiseKernels
from fredsim.kernels.ops.images.norms import NormKernels
from fredsim.kernels.ops.images.pooling import PoolKernels
from fredsim.kernels.ops.images.repeated import RepeatedPixels, RepeatedPixelsKernels
from fredsim.kernels.ops.linear import LinearKernels
from fredsim.kernels.ops.losses.bce import BinaryCrossEntropyKernels
from fredsim.kernels.ops.losses.cross_entropy import CrossEntropyKernels
from fredsim.kernels.ops.losses.mse import SquaredErrorKernels
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.pointwise import ReluKernels
from fredsim.kernels.ops.sequences.attention import AttentionKernels
from fredsim.kernels.ops.sequences.dense_positions import PositionsKernels
from fredsim.kernels.ops.sequences.embedding import EmbeddingKernels
from fredsim.kernels.ops.sequences.heads import HeadsAttention, HeadsKernels
from fredsim.kernels.ops.sequences.layer_norm import LayerNormKernels
from fredsim.kernels.ops.sequences.matmul import MatMulKernels
from fredsim.kernels.ops.sequences.softmax import LogSoftmaxKernels, SoftmaxKernels
from fredsim.kernels.ops.sources import ConstantKernels, ParameterKernels, PositionsOfPlaces
from fredsim.kernels.ops.views import CatKernels, DetachKernels, PermuteKernels, ReshapeKernels, SliceKernels
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
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.pooling import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.products import LogSoftmax, MatMul, Softmax
from fredsim.numerics.ops.sources import Constant, Parameter
from fredsim.numerics.ops.views import Cat, Detach, Permute, Reshape, Slice

__all__ = ["LOSSES", "kernels_of"]

KERNELS: dict[type[Operator], tuple[type[OperatorKernels], ...]] = {
    **{kind: (kernels,) for kind, kernels in activations.KERNELS.items()},
    Add: (AddKernels,),
    AdaptiveAvgPool2d: (PoolKernels,),
    Attention: (AttentionKernels,),
    AvgPool2d: (PoolKernels,),
    BatchNorm: (NormKernels,),
    Cat: (CatKernels,),
    Constant: (ConstantKernels,),
    Conv2d: (DepthwiseKernels, ConvKernels),
    Detach: (DetachKernels,),
    Dropout: (DropoutKernels,),
    Embedding: (EmbeddingKernels,),
    FrozenBatchNorm: (NormKernels,),
    GroupNorm: (NormKernels,),
    HeadsAttention: (HeadsKernels,),
    Keep: (BothKernels,),
    LayerNorm: (LayerNormKernels,),
    Linear: (LinearKernels, PositionsKernels),
    LogSoftmax: (LogSoftmaxKernels,),
    MatMul: (MatMulKernels,),
    MaxPool2d: (PoolKernels,),
    Maximum: (BothKernels,),
    Minimum: (BothKernels,),
    Mul: (BothKernels,),
    Parameter: (ParameterKernels,),
    Permute: (PermuteKernels,),
    Positions: (PositionsOfPlaces,),
    Relu: (ReluKernels,),
    RepeatedPixels: (RepeatedPixelsKernels,),
    Reshape: (ReshapeKernels,),
    RmsNorm: (LayerNormKernels,),
    Slice: (SliceKernels,),
    Softmax: (SoftmaxKernels,),
}
LOSSES: dict[type[Loss], type[LossKernels]] = {
    BinaryCrossEntropy: BinaryCrossEntropyKernels,
    CrossEntropy: CrossEntropyKernels,
    MeanSquaredError: SquaredErrorKernels,
}


def kernels_of(operator: Operator, shapes: Sequence[Shape], *, shared: bool = False) -> type[OperatorKernels] | None:
    """Return the kernels of an operator for inputs of these shapes; None if there are none.

    `shared`: other nodes have one of its tensors, too; kernels that add up samples' own gradients come first.
    """
    kinds = [kind for kind in KERNELS.get(type(operator), ()) if kind.takes(operator, shapes)]
    return next((kind for kind in kinds if kind.shares or not shared), kinds[0] if kinds else None)
