"""Models as named tensors in one flat vector, and their initial parameters."""
