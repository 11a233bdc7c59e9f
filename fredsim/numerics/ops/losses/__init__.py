"""Losses: what a network's output costs, and the error that it sends back."""
