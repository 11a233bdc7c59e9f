"""What a run counts and records."""
