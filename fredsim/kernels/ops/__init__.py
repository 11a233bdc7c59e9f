"""The numba backend for every network: kernels of operators, and the engine that plans and runs them.

fredsim.kernels.ops.operator says how an operator gets kernels.
"""
