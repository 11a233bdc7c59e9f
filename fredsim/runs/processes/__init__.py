"""Processes that runs are done in, apart from this one, and what they report."""
