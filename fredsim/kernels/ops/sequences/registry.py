"""Which operators have kernels in this package beside those for images: those of sequences, and activations."""

from __future__ import annotations

from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.sequences.activations import (
    GeluKernels,
    LeakyReluKernels,
    MulKernels,
    SigmoidKernels,
    SiluKernels,
    TanhKernels,
)
from fredsim.kernels.ops.sequences.attention import AttentionKernels
from fredsim.kernels.ops.sequences.binary_cross_entropy import BinaryCrossEntropyKernels
from fredsim.kernels.ops.sequences.copies import CatKernels, PermuteKernels, SliceKernels
from fredsim.kernels.ops.sequences.cross_entropy import CrossEntropyKernels
from fredsim.kernels.ops.sequences.dense_positions import PositionsKernels
from fredsim.kernels.ops.sequences.embedding import EmbeddingKernels, PositionsOfPlaces
from fredsim.kernels.ops.sequences.heads import HeadsAttention, HeadsKernels
from fredsim.kernels.ops.sequences.layer_norm import LayerNormKernels
from fredsim.numerics.ops.arithmetic import Mul
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Gelu, LeakyRelu, Sigmoid, Silu, Tanh
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.views import Cat, Permute, Slice

__all__ = ["LOSSES_OF_SEQUENCES", "SEQUENCES"]

SEQUENCES: dict[type[Operator], type[OperatorKernels]] = {
    Attention: AttentionKernels,
    Cat: CatKernels,
    Embedding: EmbeddingKernels,
    Gelu: GeluKernels,
    HeadsAttention: HeadsKernels,
    LayerNorm: LayerNormKernels,
    LeakyRelu: LeakyReluKernels,
    Linear: PositionsKernels,
    Mul: MulKernels,
    Permute: PermuteKernels,
    Positions: PositionsOfPlaces,
    RmsNorm: LayerNormKernels,
    Sigmoid: SigmoidKernels,
    Silu: SiluKernels,
    Slice: SliceKernels,
    Tanh: TanhKernels,
}
LOSSES_OF_SEQUENCES: dict[type[Loss], type[LossKernels]] = {
    BinaryCrossEntropy: BinaryCrossEntropyKernels,
    CrossEntropy: CrossEntropyKernels,
}
