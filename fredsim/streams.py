"""Random draws for a user's own classes: the names that docs/ promises, of fredsim.numerics.streams."""

from fredsim.numerics.streams import Stream, Streams

__all__ = ["Stream", "Streams"]
