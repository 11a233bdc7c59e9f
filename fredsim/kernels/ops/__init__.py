"""The numba backend for every network: kernels of operators, and the engine that plans and runs them.

- values, program, operator: what values, steps and an operator's kernels are; the last says how to add some;
- rows, sums, linear, pointwise, activations, views, and the folders losses, images and sequences: the kernels;
- registry, fallback: which operators have kernels, and what computes the others;
- plan, engine: the steps of a network's minibatch, and what fredsim.simulation uses.
"""
