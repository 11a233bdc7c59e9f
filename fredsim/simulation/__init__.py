"""One simulated run: who arrives when, what clients hold, what a server does, what is recorded."""
