"""Networks that are graphs on a device: each operator's launches, planned once, for all minibatches of a window."""
