"""Runs and their folders: single runs, sweeps, processes, Dask clusters, live runs, results, `verify`, estimates."""
