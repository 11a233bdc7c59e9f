"""Data sets, and which samples a minibatch is made of."""
