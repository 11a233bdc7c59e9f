"""Signs with error feedback: the error of a compressed push is added to the client's next one.

    p = g + e,   Δ = (‖p‖₁/d) sign(p),   e ← p − Δ

Karimireddy, Rebjock, Stich and Jaggi 2019, "Error feedback fixes SignSGD and other gradient compression schemes",
arXiv:1901.09847. A push takes two bits per value, since sign(0) = 0, and four bytes per tensor. The learning rate is
not part of it: the server applies it. If a push is cancelled on its way, e stays as it was before it.
"""

from __future__ import annotations

import numpy as np

from fredsim.compressors.base import PerTensor, Remembering
from fredsim.numerics.arrays import Array
from fredsim.numerics.oracle import mean64
from fredsim.numerics.rules import sign
from fredsim.numerics.ternary import packed_size

__all__ = ["ErrorFeedbackSign"]


class ErrorFeedbackSign(Remembering, PerTensor):
    """Signs times a tensor's mean magnitude, with each client's error kept for its next push."""

    idea = "signs times the tensor's mean magnitude; the error is added to the next push"
    citation = "Karimireddy et al. 2019, Error feedback fixes SignSGD, arXiv:1901.09847"

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Add the client's error to the push, compress it, and keep the new error."""
        with np.errstate(all="ignore"):
            if client in self._residuals:
                push = push + self._residuals[client]
            out, size = self.memoryless(push, client, step)
            self.keep(client, push - out)
        return out, size

    def memoryless(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Compress the push alone."""
        return PerTensor.compress(self, push, client, step)

    def compress_tensor(self, g: Array, words: object) -> tuple[Array, int]:
        """Return the scaled signs."""
        return np.float32(mean64(np.abs(g))) * sign(g), 4 + packed_size(g.size)
