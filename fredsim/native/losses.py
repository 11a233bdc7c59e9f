"""Losses of PyTorch: each sample's loss, (n,), of a minibatch's outputs and targets, tensors (n, …)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fredsim.data.targets import brought_together
from fredsim.errors import ConfigError, FredsimError
from fredsim.native.building import same
from fredsim.native.own_loss import AnyLoss, OwnLoss, find_function
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.plugins.failures import briefly, failing
from fredsim.plugins.generators import generator_states
from fredsim.plugins.seeding import seeded

__all__ = ["Each", "check_broadcast", "check_own", "losses_of", "outputs_problem", "wrong_answers"]

Each = Callable[[Any, Any], Any]
#: Types in which losses may be that are summed up in float32.
SHORT = {torch.bfloat16, torch.float16}


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
        shapes = f"outputs {tuple(output.shape)} and targets {tuple(y.shape)}, tensors of PyTorch"
        try:
            with failing(lambda error: loss.refused(f"failed on {shapes}: {briefly(error)}"), FredsimError):
                found = function(output, y.clone(), **loss.arguments)  # perhaps they are the data set's own
        except ConfigError:
            if _all_finite(output):
                raise
            return output.reshape(len(y), -1).sum(dim=1) * math.nan  # so that the run diverges
        if not isinstance(found, torch.Tensor) or found.shape != (len(y),) or not found.is_floating_point():
            is_tensor = isinstance(found, torch.Tensor)
            what = f"{found.dtype} {tuple(found.shape)}" if is_tensor else type(found).__name__
            wanted = f"each sample's loss, a tensor of {len(y)} floats, such as by reduction='none'"
            raise loss.refused(f"returned {what} for {len(y)} samples; it must return {wanted}")
        found = found.resolve_neg()  # of an imaginary part it may be a view of negated numbers, which NumPy lacks
        return found.float() if found.dtype in SHORT else found

    return each


def _all_finite(output: Any) -> bool:
    """Return whether outputs are finite; True under vmap, where nobody can look at them."""
    try:
        return bool(output.isfinite().all())
    except RuntimeError:
        return True


def outputs_problem(loss: AnyLoss, output: Any, y: Any, classes: int) -> str:
    """Return what a module should give instead of its output for samples with targets y (n, …); "" if it fits."""
    target = tuple(y.shape[1:])
    is_tensor = isinstance(output, torch.Tensor)
    if isinstance(loss, OwnLoss):
        fits = is_tensor and output.dim() > 0 and len(output) == len(y) and output.is_floating_point()
        hint = "" if is_tensor else "; join what the loss needs, such as by torch.cat, and let it take that apart"
        return "" if fits else f"a tensor of floats whose first axis has the {len(y)} samples{hint}"
    shape = loss.output(target, classes)
    kind = "outputs of the targets' shape" if isinstance(loss, MeanSquaredError) else "logits"
    if is_tensor and output.dtype == torch.float32 and output.dim() > 0 and len(output) == len(y):
        found = tuple(output.shape[1:])
        if found == shape or (isinstance(loss, MeanSquaredError | BinaryCrossEntropy) and (found or (1,)) == shape):
            return ""
    hint = ""
    if isinstance(loss, CrossEntropy) and target and is_tensor and tuple(output.shape[1:]) == (classes, *target):
        hint = "; put the classes last, such as by x.movedim(1, -1)"
    return f"{kind}, torch.float32 {(len(y), *shape)}{hint}"


def check_own(loss: AnyLoss, output: Any, y: Any) -> None:
    """Raise ConfigError if a user's own loss of initial outputs draws, has no gradient, or is not finite."""
    if not isinstance(loss, OwnLoss):
        return
    each = losses_of(loss)
    with seeded(0):
        before, copy = generator_states(), output.detach().clone()  # the function may write into the outputs
        losses, again = each(output, y), each(copy, y)
        if before != generator_states():
            remedy = "it must depend on what it is given alone: let the module draw, in training"
            raise loss.refused(f"draws random numbers; {remedy}")
        if _leaves(again).keys() & _leaves(losses).keys():  # the copy's have none of the module's parameters
            remedy = "put them into the module, and let it return what the loss needs"
            raise loss.refused(f"has parameters of its own, which nobody trains; {remedy}")
    if not same(losses.detach(), again.detach()):
        raise loss.refused("returns other numbers for the same outputs; it must depend on what it is given alone")
    total = losses.sum()
    if not losses.requires_grad or torch.autograd.grad(total, output, allow_unused=True, retain_graph=True) == (None,):
        raise loss.refused("has no gradient by the outputs; compute it by PyTorch's functions of them, without detach")
    if bool(output.isfinite().all()) and not bool(losses.isfinite().all()):
        bad = int((~losses.isfinite()).nonzero()[0])
        raise loss.refused(f"is {losses[bad].item()} for sample {bad} of the first minibatch, whose outputs are finite")


def _leaves(of: Any) -> dict[int, Any]:
    """Return the tensors that a result has gradients by, by their ids. Those that a call makes are others each time."""
    found, seen, waiting = dict[int, Any](), set[Any](), [of.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        waiting += [following for following, _ in node.next_functions]
    return found


def check_broadcast(loss: AnyLoss, output: Any, y: Any) -> None:
    """Raise ConfigError if a user's own loss meets each output of a minibatch with each target.

    Then samples alone have other losses, which they also have together if outputs and targets have one shape.
    """
    if not isinstance(loss, OwnLoss) or not (remedy := brought_together(tuple(output.shape), tuple(y.shape))):
        return
    each = losses_of(loss)

    def alike(one: Any, other: Any) -> bool:
        return bool(torch.isclose(one, other, 1e-3, 1e-5, equal_nan=True).all())

    try:
        together, alone = (torch.cat([each(some.clone(), its_y) for some, its_y in parts]) for parts in (
            [(output, y)], [(output[i : i + 1], y[i : i + 1]) for i in range(len(y))]
        ))  # fmt: skip
    except ConfigError:
        return
    if alike(together, alone):
        return
    for given, target in ((output.reshape(y.shape), y), (output, y.reshape(output.shape))):
        try:
            found = each(given.clone(), target)
        except ConfigError:
            continue
        if alike(found, alone):
            i = int((~torch.isclose(together, alone, 1e-3, 1e-5)).nonzero()[0])
            shapes = f"outputs {tuple(output.shape)} and targets {tuple(y.shape)}, of which each meets each"
            what = f"is {together[i].item():g} for sample {i} of {shapes}, and {alone[i].item():g} for the sample alone"
            raise loss.refused(f"{what}; {remedy}")


def wrong_answers(loss: AnyLoss) -> Loss | None:
    """Return the loss that tells wrong answers; None if no answer is right or wrong."""
    return loss if isinstance(loss, Loss) and loss.measured_by == "error" else None
