"""The arithmetic that defines a run's bits: docs/numerics.md states the contract, these modules implement it in NumPy.

Everything here is slow and plain on purpose: it is the definition that the kernels are tested against.
"""

__all__ = ["CONTRACT"]

#: The version of the contract; it changes with every change of a bit that the contract fixes.
CONTRACT = 2
