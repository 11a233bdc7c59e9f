"""Kernels of multilayer perceptrons."""
