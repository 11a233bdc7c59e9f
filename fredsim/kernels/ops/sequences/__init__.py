"""Kernels of the operators of sequences.

products has what they share: products of matrices, and sums over positions, with their sums in registers.
"""
