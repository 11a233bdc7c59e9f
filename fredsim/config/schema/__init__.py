"""The JSON Schema of an experiment's file."""
