"""The arithmetic that defines a run's bits: docs/numerics.md states the contract, these modules write it in NumPy.

Everything here is slow and plain on purpose: it is the definition that the kernels are tested against.
"""
