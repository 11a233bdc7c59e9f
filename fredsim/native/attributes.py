"""The attributes of modules that are a user's, as opposed to those that PyTorch sets itself in each forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.weight_norm import WeightNorm

__all__ = ["own_attributes"]


def own_attributes(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of those of a module itself."""
    of_torch = {*vars(nn.Module()), *_of_hooks(module)}
    if isinstance(module, nn.RNNBase):
        of_torch |= {"_flat_weights", "_flat_weight_refs"}  # its parameters
    return ((name, value) for name, value in vars(module).items() if name not in of_torch)


def _of_hooks(module: Any) -> Iterator[str]:
    """Yield the names of what hooks of PyTorch's compute from parameters before each forward pass."""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            yield hook.name
        elif isinstance(hook, BasePruningMethod):
            yield str(hook._tensor_name)
