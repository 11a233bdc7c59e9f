"""Which training rows each client has: shards, and the ways to divide rows among clients."""
