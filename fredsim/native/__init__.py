"""PyTorch modules as models. Their bits are PyTorch's: the same only on the same machine with the same versions.

All but `model` import torch, and are themselves imported only where an experiment names such a model.
"""
