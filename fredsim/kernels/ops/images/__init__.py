"""Kernels of operators on images: convolutions, pooling, norms, and the order of an image in memory."""
