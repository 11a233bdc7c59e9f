"""Figures of recorded runs, each with a table. The same runs give the same files, byte for byte."""

from fredsim.show.plots.figure import Options, draw, plot
from fredsim.show.plots.groups import labels

__all__ = ["Options", "draw", "labels", "plot"]
