"""Runs done again and compared, bit by bit."""
