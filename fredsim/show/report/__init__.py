"""A report of recorded runs: one self-contained HTML page. The same runs give the same page, byte for byte."""

from fredsim.show.report.page import report

__all__ = ["report"]
