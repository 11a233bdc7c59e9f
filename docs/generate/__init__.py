"""Generates pages of the manual and the schema for editors: `python -m docs.generate` writes them, a test compares."""
