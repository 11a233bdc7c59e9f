"""The ways to compute a run, all with the same bits."""
