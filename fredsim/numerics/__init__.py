"""The arithmetic that defines a run's bits: docs/numerics.md states the contract, these modules write it in NumPy.

Everything here is slow and plain on purpose: it is the definition that the kernels are tested against.
"""

__all__ = ["CONTRACT"]

#: The version of the contract: another one where any bit that it fixes is another.
CONTRACT = 1
