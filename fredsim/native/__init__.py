"""PyTorch modules as models. PyTorch computes them: the bits are the same only on one machine with the same versions.

All modules of this package except `model` import torch. They are imported only if an experiment names such a model.
"""
