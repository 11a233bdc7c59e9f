"""Kernels of a quadratic."""
