"""The numba types of vectors of float32, float64 and truth values; fredsim.jit.vector defines their operations.

LLVM splits a vector over as many registers as needed, but only if its number of lanes is a power of two; other vectors
it turns into scalars. So a vector of 112 lanes is represented by three LLVM vectors, of 64, 32 and 16 lanes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

__all__ = ["DoublesType", "MaskType", "OneValue", "VectorType"]

PARTS = 64, 32, 16, 8  # the numbers of lanes of LLVM vectors


class Lanes(types.Type):
    """The numba type of `lanes` values of one LLVM type; `parts` are (first lane, LLVM vector type), widest first."""

    of: str
    element: ir.Type

    def __init__(self, lanes):
        super().__init__(name=f"fredsim_{self.of}x{lanes}")
        self.lanes = lanes
        self.parts = [(lanes & -2 * part, ir.VectorType(self.element, part)) for part in PARTS if lanes & part]
        kinds = [kind for _, kind in self.parts]
        self.llvm = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)

    def split(self, builder, value):
        """Return the LLVM vectors that represent a value of this type."""
        if len(self.parts) == 1:
            return [value]
        return [builder.extract_value(value, i) for i in range(len(self.parts))]

    def join(self, builder, vectors):
        """Return the value of this type that LLVM vectors represent."""
        if len(vectors) == 1:
            return vectors[0]
        value = ir.Constant(self.llvm, ir.Undefined)
        for i, vector in enumerate(vectors):
            value = builder.insert_value(value, vector, i)
        return value


class VectorType(Lanes):
    """A vector of `lanes` float32, a multiple of 8."""

    of, element, number = "float32", ir.FloatType(), types.float32


class DoublesType(Lanes):
    """A vector of `lanes` float64, a multiple of 8; kernels use it inside exp, log, sin, tanh and erf."""

    of, element, number = "float64", ir.DoubleType(), types.float64


class MaskType(Lanes):
    """A vector of `lanes` truth values, the result of comparing two vectors."""

    of, element = "bool1", ir.IntType(1)


class OneValue(models.PrimitiveModel):
    """Tells numba that a vector, or a tile, is one LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


register_model(VectorType)(OneValue)
register_model(DoublesType)(OneValue)
register_model(MaskType)(OneValue)
