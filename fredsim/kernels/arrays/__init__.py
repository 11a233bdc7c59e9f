"""Kernels on arrays, whatever the model: elementary functions, draws, sums, updates."""
