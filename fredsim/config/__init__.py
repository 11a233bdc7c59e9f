"""Turns YAML into frozen experiments: documents, names, hyper-parameters, sweeps. Nothing here runs anything."""
