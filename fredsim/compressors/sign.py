"""Signs alone: −1, 0 or +1 a value.

Bernstein et al. 2018, "signSGD", arXiv:1802.04434. sign(0) = 0, so a value takes two bits, in the ternary code;
MNIST's quiet pixels have gradients of exactly zero, and one bit would make them steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fredsim.compressors.base import Array, PerTensor
from fredsim.numerics.rules import sign
from fredsim.numerics.ternary import packed_size

__all__ = ["Sign"]


class Sign(PerTensor):
    """Signs, unscaled."""

    idea = "signs alone"
    citation = "Bernstein et al. 2018, signSGD, arXiv:1802.04434"

    def tensor(self, g: Array, words: NDArray[np.uint32]) -> tuple[Array, int]:
        """Return the signs."""
        return sign(g), packed_size(g.size)
