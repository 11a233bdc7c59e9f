"""The numba backend: the functions of fredsim.numerics as compiled kernels for several threads, without fast-math.

Each kernel gives the same bits as the NumPy function that its docstring names. The folders, from the bottom:

- arrays: functions of numbers and of whole arrays, which servers use, too;
- ops: the operators of networks that are graphs, and their engine, which plans a minibatch's computation once;
- mlp: multilayer perceptrons, and what the paths `hand` and `fused` keep between calls of kernels;
- quadratic: a quadratic, which has no samples.

fredsim.kernels.backend chooses the engine of a network.

Importing a module of this package imports numba and registers the vector type; `import fredsim` does neither.
"""
