"""Checks a module's outputs for probable mistakes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fredsim.data.datasets import Dataset
from fredsim.native.model import TorchModel

__all__ = ["about_outputs"]

NEAR = 1e-5  # how near to 1 the sums of probabilities are


def about_outputs(model: TorchModel, dataset: Dataset, mu: int) -> Iterator[str]:
    """Yield a remark if the outputs for the first minibatch of µ samples are probabilities; none if that fails."""
    x = torch.from_numpy(dataset.train.x[:mu]).reshape(-1, *model.shape).to(model.device)
    try:
        with torch.no_grad():
            outputs = model.module(x)
            found = outputs.dim() == 2 and outputs.shape[1] > 1 and bool((outputs >= 0).all())
            found = found and bool(((outputs.sum(dim=1) - 1).abs() <= NEAR).all())
    except Exception:  # of any type: the module is the user's, and the run itself says what is wrong
        return
    if found:
        what = "gives probabilities: for each sample of the first minibatch they are not negative, and their sum is 1"
        remedy = "the loss is softmax cross-entropy, which takes logits; leave softmax out"
        yield f"model.name: {model.name} {what}; {remedy}"
