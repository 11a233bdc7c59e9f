"""The numba backend: the functions of fredsim.numerics as compiled, threaded kernels, without any fast-math flag.

Importing a module of this package imports numba and registers the vector type; `import fredsim` does neither.
"""
