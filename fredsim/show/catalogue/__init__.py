"""What an experiment may name: listed, described, completed and cited, without importing it."""
