"""The files of a results folder: written, read, and kept whole."""
