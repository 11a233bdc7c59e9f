"""One run: prepared, started, advanced, and recorded."""
