"""Reads and writes the YAML of experiments: plain documents fast, any other by ruamel.yaml."""
