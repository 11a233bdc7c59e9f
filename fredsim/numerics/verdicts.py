"""A fetch gate's decisions, by the mean of a server's state that is summed in float32 while a rule is applied."""

from __future__ import annotations

__all__ = ["ALLOWED", "DIVERGED", "REFUSED", "UNDECIDED"]

#: REFUSED, ALLOWED: the gate's decision. UNDECIDED: the mean is too near the gate's bound to decide by a sum in
#: float32; it must be computed exactly. DIVERGED: θ is not finite.
REFUSED, ALLOWED, UNDECIDED, DIVERGED = range(4)
