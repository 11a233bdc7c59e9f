"""Checks a module's outputs for probable mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fredsim.plugins.failures import is_interrupt

__all__ = ["are_probabilities"]

NEAR = 1e-5  # how near to 1 the sums of probabilities are


def are_probabilities(module: Callable[[torch.Tensor], Any], x: torch.Tensor) -> bool:
    """Return whether the outputs for samples are probabilities of classes; False if the module fails."""
    try:
        with torch.no_grad():
            outputs = module(x)
            found = outputs.dim() == 2 and outputs.shape[1] > 1 and bool((outputs >= 0).all())
            return found and bool(((outputs.sum(dim=1) - 1).abs() <= NEAR).all())
    except BaseException as error:  # of any type: the module is the user's, and the run itself says what is wrong
        if is_interrupt(error):
            raise
        return False
