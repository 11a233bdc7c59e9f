"""The figures of an experiment: which ones it asks for, and their options."""
