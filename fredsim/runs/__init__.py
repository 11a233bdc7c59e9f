"""Runs and their folders: one, a sweep, on processes or a Dask cluster; results, verification, estimates."""
