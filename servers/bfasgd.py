"""B-FASGD: FASGD whose clients push and fetch less often the less the gradients vary.

    a copy passes iff r < 1 / (1 + c/(v̄ + ε)),   r uniform in [0, 1), v̄ the mean of FASGD's v      (eq 9)

Odena 2016, "Faster asynchronous SGD", arXiv:1601.04033, section 5.

Departures: none beyond FASGD's. The gates are `bandwidth_aware`, with c_push and c_fetch as their c, and ε = 1e-4; the
dispatcher's `dropped_push` says what happens to a dropped push.
"""

from __future__ import annotations

from typing import Any

from fredsim.hyper import NonNegative
from fredsim.servers.fasgd import FASGD

__all__ = ["BFASGD"]


class BFASGD(FASGD):
    """FASGD with its two gates built in."""

    idea = "FASGD whose pushes and fetches pass with a probability that grows with the gradients' deviation"
    citation = "Odena 2016, Faster asynchronous SGD, arXiv:1601.04033, section 5"

    class Hyper(FASGD.Hyper):
        """Hyper-parameters of BFASGD: FASGD's and the gates' c, 0 to let everything pass."""

        c_push: NonNegative = 0.01
        """c of the pushes' gate; 0 lets everything pass."""
        c_fetch: NonNegative = 0.01
        """c of the fetches' gate; 0 lets everything pass."""

    def gates(self) -> dict[str, Any]:
        """Return the keys of `dispatcher` that this server sets itself."""
        h = self.hyper
        return {"push": {"bandwidth_aware": {"c": h.c_push}}, "fetch": {"bandwidth_aware": {"c": h.c_fetch}}}
