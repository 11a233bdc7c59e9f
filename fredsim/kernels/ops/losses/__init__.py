"""Kernels of losses, a file for each file of fredsim.numerics.ops.losses."""
