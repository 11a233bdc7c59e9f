"""Sweeps: the grid of their values, the experiments that it expands to, and the choice of the best."""
