"""A user's own loss of a network that fredsim computes: a NumPy function, imported by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError, FredsimError
from fredsim.numerics.given_arrays import copied_targets, readable
from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.operator import Array, Shape, quiet
from fredsim.plugins.failures import briefly, failing, message_of
from fredsim.plugins.modules import import_callable

__all__ = ["ArrayLoss"]

FORM = "package.module:function"
CONTRACT = "each sample's loss, (n,), and the derivative of it by the sample's outputs, in their shape (docs/losses.md)"
STEP = np.float32(2.0**-7)  # of the outputs, for differences of losses
TOLERANCE = 0.2  # by how much these may differ from the gradient: float32 and kinks


@dataclass(frozen=True)
class ArrayLoss(Loss):
    """A function of outputs, float32 (n, …), and targets, that returns losses (n,) and their derivatives (n, …).

    `function` is its name, and `arguments` are its keyword arguments as a text of JSON, so that equal losses have equal
    files. It is imported when it is first called, by who has an experiment that names it.
    """

    targets: ClassVar[Literal["classes", "numbers", "shares", "any"]] = "any"

    function: str
    arguments: str = "{}"

    @classmethod
    def of(cls, name: str, arguments: Mapping[str, Any]) -> ArrayLoss:
        """Return the loss of a function's name and keyword arguments."""
        return cls(name, json.dumps(dict(arguments), sort_keys=True))

    def check(self, output: Shape, target: Shape) -> None:
        """Take whatever the function takes."""

    def output(self, target: Shape, classes: int) -> Shape:
        """Return (…, classes) for targets that are classes, else the targets' shape."""
        return (*target, classes) if classes else target or (1,)

    @cached_property
    def called(self) -> Callable[..., Any]:
        """The function. Raises ConfigError if it cannot be imported."""
        return import_callable(self.function, FORM, "loss.name", "a function")

    def losses(self, output: Array, target: Array) -> Losses:
        """Call the function, with copies; all is NaN if it fails on outputs that are not finite.

        Raises ConfigError if it fails on finite ones, or returns something else than CONTRACT.
        """
        given, y = output.copy(), copied_targets(target)

        def failed(error: BaseException) -> ConfigError:
            shapes = f"outputs {output.shape} and targets {target.shape}, arrays of NumPy"
            in_torch = isinstance(error, TypeError | AttributeError)  # perhaps it takes tensors
            hint = "; a loss in PyTorch needs a PyTorch module with numerics: native" * in_torch
            return self.refused(f"failed on {shapes}: {briefly(error)}{hint}")

        try:
            with failing(failed, FredsimError), np.errstate(all="ignore"):
                found = self.called(given, y, **json.loads(self.arguments))
        except ConfigError:
            if np.isfinite(output).all():
                raise
            return Losses(*(np.full(shape, np.nan, np.float32) for shape in (output.shape[:1], output.shape)))
        if not isinstance(found, tuple | list) or len(found) != 2:
            what = "one result" if not isinstance(found, tuple | list) else f"{len(found)} results"
            raise self.refused(f"returned {what}; of a network that fredsim computes it must return {CONTRACT}")
        each = self._array(found[0], "losses", output.shape[:1])
        return Losses(each, self._array(found[1], "derivatives", output.shape))

    def _array(self, value: Any, what: str, shape: Shape) -> NDArray[np.float32]:
        with failing(lambda error: self.refused(f"returned what is no array of numbers: {message_of(error)}")):
            array = readable(value, what=f"the array of its {what}")
        if array.shape != shape:
            raise self.refused(f"returned {what} of the shape {array.shape}, not {shape}; it must return {CONTRACT}")
        return np.array(array)

    def refused(self, what: str) -> ConfigError:
        """Return the error that says what is wrong with it: `what` follows its name."""
        return ConfigError(f"loss: {self.function} {what}")

    def try_out(self, output: Array, target: Array) -> None:
        """Raise ConfigError if the function cannot be used for outputs (n, …), or is not finite where these are."""
        each, error = self.losses(output, target)
        if not np.isfinite(output).all():
            return
        for what, array in (("is", each), ("has a gradient that is", error)):
            if len(places := np.argwhere(~np.isfinite(array))):
                value, sample = array[tuple(places[0])], int(places[0, 0])
                raise self.refused(f"{what} {value} for sample {sample} of the first ones, whose outputs are finite")
        again = self.losses(output, target)
        if again.each.tobytes() != each.tobytes() or again.error.tobytes() != error.tobytes():
            raise self.refused("returns other numbers for the same outputs; it must depend on what it is given alone")

    def remarks(self, output: Array, target: Array) -> Iterator[str]:
        """Yield what is perhaps wrong with the gradient: losses change otherwise along it, or where it is 0."""
        each, error = self.losses(output, target)
        with quiet():
            length = np.sqrt((error.astype(np.float64) ** 2).reshape(len(error), -1).sum(axis=1))
            apart = error / np.where(length > 0, length, 1).reshape(-1, *[1] * (error.ndim - 1))
            signs = np.where(np.arange(error[0].size) % 2, -1, 1).reshape(error.shape[1:]) / np.sqrt(error[0].size)
            apart = np.where((length > 0).reshape(-1, *[1] * (error.ndim - 1)), apart, signs)
            step = STEP * np.maximum(np.abs(output).max(initial=1), 1)
            ahead, behind = (self.losses((output + s * apart).astype(np.float32), target).each for s in (step, -step))
            change = (ahead.astype(np.float64) - behind) / (2 * np.float64(step))
            changes, says, flat = change[length > 0].sum(), length.sum(), np.abs(change[length == 0])
        if flat.sum() > TOLERANCE * max(says, flat.size * np.abs(each).max() / 100):
            yield f"loss: {self.function}: losses change by {flat.max():.3g} where its gradient is 0"
        if not np.isfinite(changes) or abs(changes - says) <= TOLERANCE * max(abs(changes), says):
            return
        what = f"losses change by {changes:.3g} along its gradient, which says {says:.3g}"
        hint = "" if each.size < 2 or abs(changes / max(says, 1e-30) - each.size) > 1 else (
            "; it is that of each sample's own loss, not of their mean"
        )  # fmt: skip
        yield f"loss: {self.function}: {what}{hint}"
