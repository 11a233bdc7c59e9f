"""A user's own classes: imported, guarded against their mistakes, their code and their state recorded."""
