"""Losses of PyTorch: each sample's loss, (n,), of a minibatch's outputs and targets, tensors (n, …)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fredsim.errors import FredsimError
from fredsim.native.own_loss import AnyLoss, OwnLoss, find_function
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.plugins.failures import briefly, is_interrupt

__all__ = ["Each", "check_own", "losses_of", "outputs_problem", "wrong_answers"]

Each = Callable[[Any, Any], Any]


def losses_of(loss: AnyLoss) -> Each:
    """Return the function that computes a loss in PyTorch. Raises ConfigError if a user's own is not to be had."""
    if isinstance(loss, OwnLoss):
        return _own(loss)
    if isinstance(loss, CrossEntropy):
        return _cross_entropy(loss)
    return {MeanSquaredError: _squared, BinaryCrossEntropy: _binary}[type(loss)]


def _cross_entropy(loss: CrossEntropy) -> Each:
    options: dict[str, Any] = {"label_smoothing": loss.smoothing} if loss.smoothing else {}
    some = options if loss.ignored is None else {**options, "ignore_index": loss.ignored}

    def each(output: Any, y: Any) -> Any:
        if y.dim() == 1:
            return cross_entropy(output, y, reduction="none", **some)
        ignored = -1 if loss.ignored is None else loss.ignored
        flat = cross_entropy(output.flatten(0, -2), y.flatten(), reduction="none", ignore_index=ignored, **options)
        return flat.view(len(y), -1).sum(dim=1) / (y != ignored).flatten(1).sum(dim=1).clamp(min=1)

    return each


def _squared(output: Any, y: Any) -> Any:
    return (output.reshape(len(y), -1) - y.reshape(len(y), -1)).square().mean(dim=1)


def _binary(output: Any, y: Any) -> Any:
    z, wanted = output.reshape(len(y), -1), y.reshape(len(y), -1)
    return binary_cross_entropy_with_logits(z, wanted, reduction="none").mean(dim=1)


def _own(loss: OwnLoss) -> Each:
    function = find_function(loss.name, "loss.name")

    def each(output: Any, y: Any) -> Any:
        try:
            found = function(output, y.clone(), **loss.arguments)  # perhaps they are the data set's own
        except FredsimError:
            raise
        except BaseException as error:  # of any type: the function is the user's
            if is_interrupt(error):
                raise
            shapes = f"outputs {tuple(output.shape)} and targets {tuple(y.shape)}, tensors of PyTorch"
            raise loss.refused(f"failed on {shapes}: {briefly(error)}") from error
        if not isinstance(found, torch.Tensor) or found.shape != (len(y),) or not found.is_floating_point():
            is_tensor = isinstance(found, torch.Tensor)
            what = f"{found.dtype} {tuple(found.shape)}" if is_tensor else type(found).__name__
            wanted = f"each sample's loss, a tensor of {len(y)} floats, such as by reduction='none'"
            raise loss.refused(f"returned {what} for {len(y)} samples; it must return {wanted}")
        return found

    return each


def outputs_problem(loss: AnyLoss, output: Any, y: Any, classes: int) -> str:
    """Return what a module should give instead of its output for samples with targets y (n, …); "" if it fits."""
    target = tuple(y.shape[1:])
    is_tensor = isinstance(output, torch.Tensor)
    if isinstance(loss, OwnLoss):
        fits = is_tensor and output.dim() > 0 and len(output) == len(y) and output.is_floating_point()
        return "" if fits else f"a tensor of floats whose first axis has the {len(y)} samples"
    shape = loss.output(target, classes)
    kind = "outputs of the targets' shape" if isinstance(loss, MeanSquaredError) else "logits"
    if is_tensor and output.dtype == torch.float32 and len(output) == len(y):
        found = tuple(output.shape[1:])
        if found == shape or (isinstance(loss, MeanSquaredError | BinaryCrossEntropy) and (found or (1,)) == shape):
            return ""
    hint = ""
    if isinstance(loss, CrossEntropy) and target and is_tensor and tuple(output.shape[1:]) == (classes, *target):
        hint = "; put the classes last, such as by x.movedim(1, -1)"
    return f"{kind}, torch.float32 {(len(y), *shape)}{hint}"


def check_own(loss: AnyLoss, losses: Any, output: Any) -> None:
    """Raise ConfigError if a user's own loss of the initial outputs has no gradient, or is not finite."""
    if not isinstance(loss, OwnLoss):
        return
    total = losses.sum()
    if not losses.requires_grad or torch.autograd.grad(total, output, allow_unused=True, retain_graph=True) == (None,):
        raise loss.refused("has no gradient by the outputs; compute it by PyTorch's functions of them, without detach")
    if bool(output.isfinite().all()) and not bool(losses.isfinite().all()):
        bad = int((~losses.isfinite()).nonzero()[0])
        raise loss.refused(f"is {losses[bad].item()} for sample {bad} of the first minibatch, whose outputs are finite")


def wrong_answers(loss: AnyLoss) -> Loss | None:
    """Return the loss that tells wrong answers; None if no answer is right or wrong."""
    return loss if isinstance(loss, Loss) and loss.measured_by == "error" else None
