"""The numba backend: the same functions as fredsim.numerics, threaded, without any fast-math flag.

Importing a module of this package imports numba and registers the vector type; `import fredsim` does neither.
"""
