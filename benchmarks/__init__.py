"""Benchmarks of fredsim. They are run from the root of the repository and belong to no installed package."""
