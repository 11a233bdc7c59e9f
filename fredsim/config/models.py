"""`model`: those that fredsim computes itself. A user's PyTorch module is a TorchChoice (fredsim.config.experiment)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fredsim.config.choices import Init
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt

__all__ = ["First", "LinearChoice", "MlpChoice", "Normal"]


class Normal(HyperParameters):
    """N(0, std²)."""

    name: Literal["normal"]
    std: Annotated[NonNegative, Field(examples=[0.1])] = 1.0
    """The standard deviation."""


class MlpChoice(HyperParameters):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    name: Literal["mlp"] = "mlp"
    hidden: list[PositiveInt] = Field(default_factory=lambda: [200], examples=[[64, 32]])
    """The widths of the hidden layers; [] is softmax regression."""
    init: Annotated[Init | Normal, Field(examples=[{"name": "normal", "std": 0.1}])] = "he"
    """How weights begin: `he`, `glorot`, `zeros`, `normal`, or `{name: normal, std: 0.1}`; biases begin at 0. `torch`:
    both as PyTorch's Linear, between ±1/√inputs."""

    @field_validator("name", mode="before")
    @classmethod
    def check(cls, name: Any) -> Any:
        """Refuse another name, naming what there is."""
        if name != "mlp":
            known = "mlp, linear, or a PyTorch module as torch:package.module:factory"
            raise ValueError(f"is {name!r}; it must be {known}")
        return name


class First(HyperParameters):
    """The first weight alone is not 0."""

    name: Literal["first"]
    value: Annotated[Finite | None, Field(examples=[1.0])] = None
    """The first weight; null: √P of P weights."""


class LinearChoice(HyperParameters):
    """A linear model without a bias, for least squares and quadratics."""

    name: Literal["linear"]
    loss: Literal["squared"] = "squared"
    """Half the squared error."""
    init: Literal["zeros", "normal", "first"] | Normal | First = "zeros"
    """How weights begin: `zeros`, `normal`, `{name: normal, std: 0.1}`, `first` or `{name: first, value: 1.0}`: the
    first weight is √P of P, or the value, and the others are 0."""
