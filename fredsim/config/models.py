"""The key `model`: models that fredsim computes itself; a user's PyTorch module is a TorchChoice (.experiment)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fredsim.config.choices import Init
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt

__all__ = ["First", "LinearChoice", "MlpChoice", "Normal"]


class Normal(HyperParameters):
    """Initial weights from N(0, std²)."""

    name: Literal["normal"]
    std: Annotated[NonNegative, Field(examples=[0.1])] = 1.0
    """The standard deviation."""


class MlpChoice(HyperParameters):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    name: Literal["mlp"] = "mlp"
    hidden: list[PositiveInt] = Field(default_factory=lambda: [200], examples=[[64, 32]])
    """The widths of the hidden layers; [] is softmax regression."""
    init: Annotated[Init | Normal, Field(examples=[{"name": "normal", "std": 0.1}])] = "he"
    """The initial weights: `he`, `glorot`, `zeros`, `normal`, or `{name: normal, std: 0.1}`, with biases of 0; or
    `torch`: weights and biases as in PyTorch's Linear, uniform between ±1/√inputs."""

    @field_validator("name", mode="before")
    @classmethod
    def check(cls, name: Any) -> Any:
        """Refuse any other name, with a message that says which names are known."""
        if name != "mlp":
            known = "mlp, linear, or a PyTorch module as torch:package.module:factory"
            raise ValueError(f"is {name!r}; it must be {known}")
        return name


class First(HyperParameters):
    """Initial weights of which only the first is not 0."""

    name: Literal["first"]
    value: Annotated[Finite | None, Field(examples=[1.0])] = None
    """The first weight; null: √P of P weights."""


class LinearChoice(HyperParameters):
    """A linear model without a bias, for least squares and quadratics."""

    name: Literal["linear"]
    loss: Literal["squared"] = "squared"
    """The loss: half the squared error."""
    init: Literal["zeros", "normal", "first"] | Normal | First = "zeros"
    """The initial weights: `zeros`, `normal`, `{name: normal, std: 0.1}`, `first` or `{name: first, value: 1.0}`; with
    `first` the first of P weights is √P, or the value, and the others are 0."""
