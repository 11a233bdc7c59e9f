"""What a fetch gate decides by the mean of a server's state, summed in float32 while a rule is applied."""

from __future__ import annotations

__all__ = ["DIVERGED", "PASSED", "REFUSED", "UNDECIDED"]

#: UNDECIDED: the mean is too near the gate's bound for float32, compute it exactly; DIVERGED: θ is not finite.
REFUSED, PASSED, UNDECIDED, DIVERGED = range(4)
