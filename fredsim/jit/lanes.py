"""The numba types of vectors, and of vectors of truth values (fredsim.jit.vector).

LLVM splits a vector over as many registers as needed, but only if its number of lanes is a power of two; any other
vector it turns into scalars. So one of 112 lanes is kept as three LLVM vectors, of 64, 32 and 16 lanes.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import models, register_model

__all__ = ["MaskType", "VectorType"]

PARTS = 64, 32, 16  # the lanes that an LLVM vector may have; rows are padded to the smallest


class Lanes(types.Type):
    """`lanes` values of one LLVM type; `parts` are its LLVM vectors, the widest first, each with its first lane."""

    def __init__(self, name, element, lanes):
        super().__init__(name=f"fredsim_{name}x{lanes}")
        self.lanes = lanes
        self.parts = [(lanes & -2 * part, ir.VectorType(element, part)) for part in PARTS if lanes & part]
        kinds = [kind for _, kind in self.parts]
        self.llvm = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds)

    def split(self, builder, value):
        """Return the LLVM vectors of a value of this type."""
        if len(self.parts) == 1:
            return [value]
        return [builder.extract_value(value, i) for i in range(len(self.parts))]

    def joined(self, builder, vectors):
        """Return the value of this type made of LLVM vectors."""
        if len(vectors) == 1:
            return vectors[0]
        value = ir.Constant(self.llvm, ir.Undefined)
        for i, vector in enumerate(vectors):
            value = builder.insert_value(value, vector, i)
        return value


class VectorType(Lanes):
    """A vector of `lanes` float32, a multiple of 16."""

    def __init__(self, lanes):
        super().__init__("float32", ir.FloatType(), lanes)


class MaskType(Lanes):
    """A vector of `lanes` truth values, the result of comparing two vectors."""

    def __init__(self, lanes):
        super().__init__("bool1", ir.IntType(1), lanes)


class _Model(models.PrimitiveModel):
    """Represents a vector as one LLVM value."""

    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


register_model(VectorType)(_Model)
register_model(MaskType)(_Model)
