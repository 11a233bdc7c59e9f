"""The columns of which less is better, and what they are called in a sentence."""

from __future__ import annotations

from fredsim.config.figures.options import name_of_error

__all__ = ["of_which_less_is_better", "quantity"]

#: The columns of which less is better, and the adjective of the least.
QUANTITIES = {
    "validation_error": ("validation error", "lowest"),
    "validation_loss": ("validation loss", "lowest"),
    "test_error": ("test error", "lowest"),
    "test_loss": ("test loss", "lowest"),
    "perplexity": ("perplexity", "lowest"),
    "test_perplexity": ("test perplexity", "lowest"),
    "train_loss": ("training loss", "lowest"),
    "gap": ("gap to the optimum", "smallest"),
    "gradient_norm": ("gradient norm", "smallest"),
}


def of_which_less_is_better(y: str) -> tuple[str, str] | None:
    """Return the name of a column in a sentence, and the adjective of its least; None of a number of other kinds."""
    error = name_of_error(y)
    return QUANTITIES.get(y, (error, "lowest") if error else None)


def quantity(y: str) -> str:
    """Return the name of a column in a sentence."""
    return (of_which_less_is_better(y) or (y, ""))[0]
