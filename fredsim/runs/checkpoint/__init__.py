"""Checkpoints: their format, when they are written, and how they travel between machines."""
