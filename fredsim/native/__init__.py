"""PyTorch modules as models, under native numerics: the same bits on the same machine and library versions only.

All but `model` import torch, and are themselves imported only where an experiment names such a model.
"""
