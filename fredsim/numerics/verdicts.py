"""What became of a client's fetch after a rule was applied to its gradient."""

from __future__ import annotations

__all__ = ["DIVERGED", "PASSED", "REFUSED", "UNDECIDED"]

#: REFUSED and PASSED are sure; with UNDECIDED sums in float32 could not tell; DIVERGED: θ is not finite.
REFUSED, PASSED, UNDECIDED, DIVERGED = range(4)
