"""The numba backend: the functions of fredsim.numerics as compiled kernels for several threads, without fast-math.

Each kernel gives the same bits as the NumPy function that its docstring names. Layers of this package, from the bottom:

- elementary, streams, draws, reductions, ternary, update: functions of numbers and of whole arrays;
- data, workspace, dense, upper, trees, specialisation: the parts of a multilayer perceptron's passes and gradients;
- gradient, evaluation, window, hand, fused, linear, quadratic: the kernels that run on a team of threads;
- pending, steady, hand_executor, fused_executor: what the paths `hand` and `fused` keep between calls of kernels;
- ops: the operators of networks that are graphs, and their engine, which plans a minibatch's computation once;
- operations, engine, linear_engine, quadratic_engine: what fredsim.simulation uses.

Importing a module of this package imports numba and registers the vector type; `import fredsim` does neither.
"""
