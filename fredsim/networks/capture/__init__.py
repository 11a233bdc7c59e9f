"""A PyTorch module as a graph: torch.export traces it, and each operator that it calls becomes nodes."""
