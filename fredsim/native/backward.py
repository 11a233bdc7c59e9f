"""The two ways in which PyTorch gives gradients of parameters: `backward`, and torch.autograd.grad.

For small modules the first takes up to a tenth less time than the second, which finds out what is to be computed.
Where a CUDA graph is captured, the second is taken: the first adds on a stream of each parameter's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from fredsim.system.memory import uncollected

__all__ = ["Way", "by_backward", "by_grad", "python_called", "usual_way"]

#: Returns the gradients of a number, or of the sum of a vector's elements times weights, a tensor for each parameter.
Way = Callable[[torch.Tensor, Sequence[torch.Tensor], torch.Tensor | None], Sequence[torch.Tensor]]


def by_backward(
    of: torch.Tensor, values: Sequence[torch.Tensor], weights: torch.Tensor | None
) -> Sequence[torch.Tensor]:
    """Let PyTorch add gradients to the parameters' `grad`, which are None before and afterwards; see Way."""
    try:
        of.backward(weights)
        return [_filled(value.grad, value) for value in values]
    finally:
        for value in values:
            value.grad = None


def by_grad(of: torch.Tensor, values: Sequence[torch.Tensor], weights: torch.Tensor | None) -> Sequence[torch.Tensor]:
    """Let PyTorch return gradients; see Way."""
    found = torch.autograd.grad(of, values, weights, allow_unused=True)
    return [_filled(*pair) for pair in zip(found, values, strict=True)]


def usual_way(device: torch.device) -> Way:
    """Return the way that is taken on a device."""
    return by_backward if device.type == "cpu" else by_grad


def python_called(of: torch.Tensor, values: Sequence[torch.Tensor]) -> set[CodeType]:
    """Return the Python code that is called while the gradients of a number are computed.

    Beside PyTorch's own, that is code of a torch.autograd.Function, of hooks, and of torch.utils.checkpoint.
    """
    found = set[CodeType]()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if event == "call":
            found.add(frame.f_code)

    before = sys.getprofile()
    with uncollected():  # a collection may call anything
        sys.setprofile(note)
        try:
            torch.autograd.grad(of, values, allow_unused=True)
        finally:
            sys.setprofile(before)
    return found


def _filled(gradient: torch.Tensor | None, value: torch.Tensor) -> torch.Tensor:
    """Return a parameter's gradient: zeros if it is not used, dense if it is sparse, as of some embeddings."""
    if gradient is None:
        return torch.zeros_like(value)
    return gradient if gradient.layout == torch.strided else gradient.to_dense()
