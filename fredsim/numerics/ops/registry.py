"""The operators and losses that a graph may have, by their names in files.

A name stays; a new field needs a default, which files of before mean, and its name in `added`.
"""

from __future__ import annotations

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

__all__ = ["LOSSES", "OPERATORS"]

OPERATORS: dict[str, type[Operator]] = {
    "linear": Linear, "conv2d": Conv2d, "embedding": Embedding, "positions": Positions, "attention": Attention,
    **ACTIVATIONS, "softmax": Softmax, "log_softmax": LogSoftmax, "dropout": Dropout, "add": Add,
    "mul": Mul, "maximum": Maximum, "minimum": Minimum, "keep": Keep, "matmul": MatMul,
    "max_pool2d": MaxPool2d, "avg_pool2d": AvgPool2d, "adaptive_avg_pool2d": AdaptiveAvgPool2d,
    "group_norm": GroupNorm, "layer_norm": LayerNorm, "rms_norm": RmsNorm, "batch_norm": BatchNorm,
    "frozen_batch_norm": FrozenBatchNorm, "reshape": Reshape, "permute": Permute, "slice": Slice, "cat": Cat,
    "detach": Detach,     "constant": Constant, "parameter": Parameter,
}  # fmt: skip
LOSSES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy, "mse": MeanSquaredError, "bce": BinaryCrossEntropy,
}  # fmt: skip
