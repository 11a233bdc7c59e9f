"""Kernels of least squares and of a quadratic."""
