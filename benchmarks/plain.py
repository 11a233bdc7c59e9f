"""A user's own server in plain NumPy, like the README's: it shows what a server costs that is not a rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["PlainASGD"]

Array = NDArray[np.float32]


class PlainASGD:
    """θ ← θ − α g."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def init(self, params: Array, clients: int) -> None:
        """Take a copy of the initial parameters."""
        del clients
        self.params = params.copy()

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Step; the pushing client is released."""
        del client_id, timestamp
        self.params -= self.lr * grad
