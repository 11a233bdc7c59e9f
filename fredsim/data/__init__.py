"""Data sets, and which of their samples make a minibatch."""
