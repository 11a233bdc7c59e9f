"""What an engine is, whatever computes; the NumPy engine; room for what clients hold."""
