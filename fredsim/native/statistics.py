"""Running statistics of a module's norms, such as BatchNorm's: which buffers they are, and how to do without them."""

from __future__ import annotations

from typing import Any

from torch.nn.modules.batchnorm import _NormBase

__all__ = ["forget", "norms_alone", "running_names"]


def running_names(module: Any) -> tuple[str, ...]:
    """Return the names of the buffers in which a module's norms keep running statistics."""
    found = []
    for path, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats and part.running_mean is not None:
            found += [f"{path}.{name}".lstrip(".") for name, _ in part.named_buffers(recurse=False)]
    return tuple(found)


def norms_alone(module: Any) -> None:
    """Let a module compute as in evaluation, but for norms that go by the minibatch in training, which still do.

    Its own `train()` may leave some in evaluation, such as those of a pretrained part.
    """
    module.train()
    in_training = [part for part in module.modules() if isinstance(part, _NormBase) and part.training]
    module.eval()
    for part in in_training:
        part.train()


def forget(module: Any) -> None:
    """Let a module's norms keep no running statistics, so that evaluation goes by the rows that are evaluated."""
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
