"""Sends the k largest values of a push; the others are kept and added to the client's next push.

    p = g + e,   send the k elements of p largest in magnitude,   e ← p without them

Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with memory", arXiv:1809.07599. A sent value takes four bytes, and
four more for its index. Of equal magnitudes those with the lowest indices are sent. If a push is cancelled on its way,
e stays as it was before it.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fredsim.compressors.base import Remembering
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, PositiveInt
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Streams

__all__ = ["TopK"]


class TopK(Remembering):
    """Sends the k values of largest magnitude of the whole push."""

    idea = "send the k largest values; the rest is added to the next push"
    citation = "Stich et al. 2018, Sparsified SGD with memory, arXiv:1809.07599"

    class Hyper(HyperParameters):
        """`k`: how many values are sent or, as a number below 1, which fraction of them."""

        k: PositiveInt | Annotated[float, Field(gt=0, lt=1)]
        """How many values are sent or, as a number below 1, which fraction of them: k·P in float64, rounded down, 1 at
        least."""

    def init(self, layout: Layout, streams: Streams) -> None:
        """Start with nothing unsent. Raises ConfigError if there are fewer parameters than k."""
        super().init(layout, streams)
        k = self.hyper.k
        self._k = k if isinstance(k, int) else max(1, int(k * layout.size))
        if self._k > layout.size:
            raise ConfigError(f"compress.k is {k}; there are only {layout.size} parameters")

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Send the largest values of the push plus what was not sent before; keep the others."""
        if client in self._residuals:
            with np.errstate(all="ignore"):
                push = push + self._residuals[client]
        chosen = self._largest(push)
        left = push.copy()
        left[chosen] = 0
        if self._k < push.size:
            self.keep(client, left)
        return self._send(chosen, push)

    def memoryless(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Send the largest values of the push alone."""
        return self._send(self._largest(push), push)

    def _largest(self, push: Array) -> NDArray[np.intp]:
        """Return the indices of the k values of largest magnitude."""
        magnitude = np.where(np.isnan(push), np.inf, np.abs(push))  # a NaN is sent, not hidden at the client
        return np.argsort(-magnitude, kind="stable")[: self._k]

    def _send(self, chosen: NDArray[np.intp], push: Array) -> tuple[Array, int]:
        """Return the push with 0 at all indices but the chosen ones, and the bytes that sending these takes."""
        out = np.zeros_like(push)
        out[chosen] = push[chosen]
        return out, 8 * self._k
