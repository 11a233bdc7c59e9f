"""Which operators and losses have kernels."""

from __future__ import annotations

from fredsim.kernels.ops.dense_positions import PositionsKernels
from fredsim.kernels.ops.embedding import EmbeddingKernels, PositionsOfPlaces
from fredsim.kernels.ops.operator import LossKernels, OperatorKernels
from fredsim.kernels.ops.pointwise import AddKernels, ReluKernels
from fredsim.kernels.ops.views import ReshapeKernels
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Relu
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.views import Reshape

__all__ = ["KERNELS", "LOSSES"]

KERNELS: dict[type[Operator], type[OperatorKernels]] = {
    Add: AddKernels,
    Embedding: EmbeddingKernels,
    Linear: PositionsKernels,
    Positions: PositionsOfPlaces,
    Relu: ReluKernels,
    Reshape: ReshapeKernels,
}
LOSSES: dict[type[Loss], type[LossKernels]] = {}
