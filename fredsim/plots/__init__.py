"""Figures from recorded runs, each with a table. The same runs give the same files."""

from fredsim.plots.figure import KINDS, Options, plot
from fredsim.plots.groups import labels

__all__ = ["KINDS", "Options", "labels", "plot"]
