"""EF21: compress the difference between a client's push and the estimate of it that client and server share.

    c = C(g − h),   h ← h + c at the client and at the server, from 0;   decoded: h

Richtárik, Sokolov and Fatkhullin 2021, "EF21: a new, simpler, theoretically better, and practically faster error
feedback", arXiv:2106.05203; their method is this compressor with `server: {name: sync}`. C is, for instance, {name:
top_k, k: 0.01}, or any other compressor of fredsim; if it has a memory of its own, that is not used. A push takes the
bytes that C takes.

The theory requires a C that contracts, ‖C(x) − x‖² ≤ (1 − δ) ‖x‖², as top_k and error_feedback_sign do, but not sign,
nor those that draw random numbers.

If a push is cancelled on its way, h stays as it was before it, at the client and at the server.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator

from fredsim.compressors.base import Compressor, Remembering
from fredsim.errors import inside
from fredsim.hyper import HyperParameters, made_by_name
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Streams

__all__ = ["EF21"]


class EF21(Remembering):
    """Keeps an estimate of each client's push, and sends the compressed difference from it."""

    idea = "compress, by another compressor, the difference between a push and the last one as it was decoded"
    citation = "Richtarik et al. 2021, EF21: a new error feedback, arXiv:2106.05203"

    class Hyper(HyperParameters):
        """`inner` is C."""

        inner: Annotated[dict[str, Any], Field(examples=[{"name": "top_k", "k": 0.01}])]
        """C, the compressor of the differences: {name: …}, with its hyper-parameters."""

        @field_validator("inner")
        @classmethod
        def check(cls, inner: dict[str, Any]) -> dict[str, Any]:
            """Fill in C's defaults. Raises ConfigError if C is unknown, or EF21 itself."""
            return {"name": inner.get("name"), **make_inner(inner).hyper.model_dump()}

    def init(self, layout: Layout, streams: Streams) -> None:
        """Start with an estimate of 0 for each client. Raises ConfigError as C does."""
        super().init(layout, streams)
        self._inner = make_inner(self.hyper.inner)
        with inside("compress"):
            self._inner.init(layout, streams)

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Compress the difference from the estimate; return the new estimate, and the bytes."""
        before = self._residuals.get(client, np.float32(0))
        with np.errstate(all="ignore"):
            sent, size = self._inner.memoryless(push - before, client, step)
            estimate = before + sent
        self.keep(client, estimate)
        return estimate.copy(), size


def make_inner(inner: dict[str, Any]) -> Compressor:
    """Return the compressor of {name: …, hyper-parameters}. Raises ConfigError if it is unknown, or EF21 itself."""
    from fredsim.compressors import COMPRESSORS  # not at import: that mapping is made from this module, among others

    return made_by_name(inner, {name: COMPRESSORS[name] for name in COMPRESSORS if name != "ef21"})
