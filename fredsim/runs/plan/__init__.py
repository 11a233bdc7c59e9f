"""What a run would take before it is started: seconds and memory; rates of a target staleness."""
