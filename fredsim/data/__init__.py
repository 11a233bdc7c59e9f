"""Data sets, the clients' shards of them, and which of their samples make up a minibatch."""
