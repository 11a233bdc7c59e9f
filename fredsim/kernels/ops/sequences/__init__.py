"""Kernels of the operators of sequences, of activations and of views; `registry` lists them.

products has what they share: products of matrices, and sums over positions, with their sums in registers.
"""
