"""Networks as data: named tensors in one flat vector, graphs of operators, and initial parameters."""
