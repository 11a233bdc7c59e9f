"""A report of recorded runs: one HTML page that holds all it needs. The same runs give the same page."""

from fredsim.show.report.page import report

__all__ = ["report"]
