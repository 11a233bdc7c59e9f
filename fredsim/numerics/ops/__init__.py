"""The operators of networks, one file each: shapes, forward and backward in plain NumPy, which define the bits.

docs/numerics.md fixes the order and rounding of every sum; the kernels of other backends give the same bits.
"""
