"""The interfaces of engines for all backends; the NumPy engine; storage for what clients hold."""
