"""Which operators and losses have kernels."""

from __future__ import annotations

from fredsim.kernels.ops.activations import (
    GeluKernels,
    LeakyReluKernels,
    MulKernels,
    SigmoidKernels,
    SiluKernels,
    TanhKernels,
)
from fredsim.kernels.ops.attention import AttentionKernels
from fredsim.kernels.ops.conv2d import ConvKernels
from fredsim.kernels.ops.cross_entropy import CrossEntropyKernels
from fredsim.kernels.ops.dense_positions import PositionsKernels
from fredsim.kernels.ops.embedding import EmbeddingKernels, PositionsOfPlaces
from fredsim.kernels.ops.layer_norm import LayerNormKernels
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.pointwise import AddKernels, ReluKernels
from fredsim.kernels.ops.views import ReshapeKernels
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.conv2d import Conv2d
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Gelu, LeakyRelu, Relu, Sigmoid, Silu, Tanh
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.views import Reshape

__all__ = ["KERNELS", "LOSSES"]

KERNELS: dict[type[Operator], type[OperatorKernels]] = {
    Add: AddKernels,
    Attention: AttentionKernels,
    Conv2d: ConvKernels,
    Embedding: EmbeddingKernels,
    Gelu: GeluKernels,
    LayerNorm: LayerNormKernels,
    LeakyRelu: LeakyReluKernels,
    Linear: PositionsKernels,
    Mul: MulKernels,
    Positions: PositionsOfPlaces,
    Relu: ReluKernels,
    Reshape: ReshapeKernels,
    RmsNorm: LayerNormKernels,
    Sigmoid: SigmoidKernels,
    Silu: SiluKernels,
    Tanh: TanhKernels,
}
LOSSES: dict[type[Loss], type[LossKernels]] = {CrossEntropy: CrossEntropyKernels}
