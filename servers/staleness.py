"""The divisor of gradients in staleness-aware rules."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

__all__ = ["Divisor", "divisor"]

Divisor = Literal["max1", "plus1"]


def divisor(kind: Divisor, staleness: Any) -> Any:
    """Return max(τ, 1), as in Zhang et al. (2015), or τ + 1, as in FRED's released code."""
    return np.float32(np.maximum(staleness, 1) if kind == "max1" else staleness + 1)
