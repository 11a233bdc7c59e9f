"""The key `model`: the choice of a network."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from fredsim.config.choices import Init
from fredsim.config.document import Problems
from fredsim.config.registry import argument_problems
from fredsim.config.sections import PluginChoice
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt
from fredsim.native.model import TorchModel, data_arguments, find_factory
from fredsim.networks.linear import Linear
from fredsim.networks.mlp import Mlp
from fredsim.networks.network import MeasuredBy, Network

__all__ = ["First", "LinearChoice", "MlpChoice", "NetworkChoice", "Normal", "TorchChoice"]


class NetworkChoice(HyperParameters):
    """What every choice of a network says."""

    #: What tells how good its parameters are: fredsim.networks.network.Network.
    measured_by: ClassVar[MeasuredBy] = "error"
    #: Whether the bits are those of a library, so that they depend on the machine, on `threads` and on `window`.
    native: ClassVar[bool] = False
    #: Whether it comes from a user's code, of which fredsim knows only what it builds.
    user_code: ClassVar[bool] = False
    #: Whether samples are best of about the size of 1.
    wants_small_samples: ClassVar[bool] = False
    #: The key to lower if the network is larger than the machine's memory; '' if none of its own.
    sized_by: ClassVar[str] = ""

    def network(self, dataset: Dataset, seed: int) -> Network:
        """Return the network for a data set and a run's seed. Raises ConfigError."""
        raise NotImplementedError

    def problems(self) -> Problems:
        """Return what is wrong with the choice that its keys alone do not say. Raises ConfigError."""
        return []


class Normal(HyperParameters):
    """Initial weights from N(0, std²)."""

    name: Literal["normal"]
    std: Annotated[NonNegative, Field(examples=[0.1])] = 1.0
    """The standard deviation."""


class MlpChoice(NetworkChoice):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    wants_small_samples = True
    sized_by = "hidden"

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
            known = "mlp, linear, lenet, resnet, vgg, gpt, or a PyTorch module as torch:package.module:factory"
            raise ValueError(f"is {name!r}; it must be {known}")
        return name

    def network(self, dataset: Dataset, seed: int) -> Mlp:
        """Return it, of the data set's inputs and classes."""
        if dataset.sequences:
            remedy = "give model: {name: gpt}, or a PyTorch module"
            raise ConfigError(f"model.name is mlp; the data are sequences, with a label a token: {remedy}")
        init, std = (self.init, 1.0) if isinstance(self.init, str) else (self.init.name, self.init.std)
        return Mlp((dataset.inputs, *self.hidden, dataset.classes), init, std)


class First(HyperParameters):
    """Initial weights of which only the first is not 0."""

    name: Literal["first"]
    value: Annotated[Finite | None, Field(examples=[1.0])] = None
    """The first weight; null: √P of P weights."""


class LinearChoice(NetworkChoice):
    """A linear model without a bias, for least squares and quadratics."""

    measured_by = "gap"

    name: Literal["linear"]
    loss: Literal["squared"] = "squared"
    """The loss: half the squared error."""
    init: Literal["zeros", "normal", "first"] | Normal | First = "zeros"
    """The initial weights: `zeros`, `normal`, `{name: normal, std: 0.1}`, `first` or `{name: first, value: 1.0}`; with
    `first` the first of P weights is √P, or the value, and the others are 0."""

    def network(self, dataset: Dataset, seed: int) -> Linear:
        """Return it, of the data set's inputs."""
        options = {} if isinstance(self.init, str) else self.init.model_dump()
        return Linear(dataset.inputs, options.pop("name", self.init), **options)


class TorchChoice(NetworkChoice, PluginChoice):  # the last says that it may have keys of any name
    """A user's PyTorch module, torch:package.module:factory; other keys are keyword arguments of the factory."""

    native = True
    user_code = True

    device: Literal["cpu", "cuda"] = "cpu"
    """The device that PyTorch computes on."""

    def network(self, dataset: Dataset, seed: int) -> TorchModel:
        """Build the module."""
        shape = dataset.shape or (dataset.inputs,)
        return TorchModel(self.name, self.hyper, self.device, shape, dataset.classes, seed)

    def problems(self) -> Problems:
        """Import the factory; return what is wrong with its arguments."""
        found = find_factory(self.name)
        return argument_problems(found, self.hyper, data_arguments(found))
