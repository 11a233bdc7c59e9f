"""Real training on worker processes, recorded so that the simulator can replay it."""
