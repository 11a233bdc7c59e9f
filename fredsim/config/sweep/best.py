"""What every sweep may select by, as far as its runs measure it."""

__all__ = ["BEST", "SECONDS_TO"]

SECONDS_TO = "seconds_to"  # the simulated seconds until the error that `select` names is reached
BEST = ("validation_error", "validation_loss", "gap", "gradient_norm", SECONDS_TO)
