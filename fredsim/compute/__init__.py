"""The interfaces of engines, whichever backend computes; the NumPy engine; storage for what clients hold."""
