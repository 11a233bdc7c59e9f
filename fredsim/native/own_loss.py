"""A user's own loss, a function of PyTorch tensors that is imported by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from fredsim.errors import ConfigError
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.plugins.modules import import_callable

__all__ = ["AnyLoss", "OwnLoss", "find_function"]

FORM = "package.module:function"
#: The module of a function is looked at as a user's code is, which takes minutes and all memory for the whole of these.
LIBRARIES = ("numpy", "scipy", "sklearn", "torch")


def find_function(name: str, key: str) -> Callable[..., Any]:
    """Return the function of a name, which an experiment's `key` gives. Raises ConfigError if there is none."""
    if name.partition(".")[0].partition(":")[0] in LIBRARIES:
        raise ConfigError(f"{key}: {name} is a library's; name a function of a module of your own, which may call it")
    return import_callable(name, FORM, key, "a function")


@dataclass(frozen=True)
class OwnLoss:
    """A function of a minibatch's outputs and targets that returns each sample's loss, by its name and arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    measured_by: ClassVar[Literal["error", "loss"]] = "loss"
    targets: ClassVar[Literal["any"]] = "any"

    def __hash__(self) -> int:
        return hash((self.name, repr(self.arguments)))

    def refused(self, what: str) -> ConfigError:
        """Return the error that says what is wrong with it: `what` follows its name."""
        return ConfigError(f"loss: {self.name} {what}")


AnyLoss = Loss | OwnLoss
