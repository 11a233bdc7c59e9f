"""The key `loss`: what training makes small, and which targets it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from fredsim.config.document import Problems
from fredsim.config.registry import argument_problems
from fredsim.config.sections import PluginChoice
from fredsim.data.datasets import Dataset
from fredsim.data.targets import Targets
from fredsim.hyper import HyperParameters, Printable, spelled_out
from fredsim.native.own_loss import AnyLoss, OwnLoss, find_function
from fredsim.numerics.ops.losses.bce import BinaryCrossEntropy
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.plugins.modules import parameters_of

__all__ = [
    "AnyLossChoice",
    "BceChoice",
    "CrossEntropyChoice",
    "LossChoice",
    "MseChoice",
    "OwnLossChoice",
    "problems_of_function",
]


class AnyLossChoice(HyperParameters):
    """What every choice of a loss says."""

    #: The class of the loss, which says what it is measured by, and which targets it takes.
    made: ClassVar[type[AnyLoss]]

    def wanted(self) -> Targets:
        """Return which targets it takes."""
        return Targets(self.made.targets)

    def loss(self, dataset: Dataset) -> AnyLoss:
        """Return the loss, for data whose targets are fit for it; this one is of a class that takes no arguments."""
        return self.made()  # type: ignore[call-arg]

    def problems(self) -> Problems:
        """Return what is wrong with the choice that its keys alone do not say. Raises ConfigError."""
        return []


class CrossEntropyChoice(AnyLossChoice):
    """Cross-entropy after a softmax, of one class a sample or one at each of its positions; the classes are last."""

    made = CrossEntropy

    name: Literal["cross_entropy"]
    label_smoothing: Annotated[float, Field(ge=0, lt=1, examples=[0.1])] = 0.0
    """ε: the target is 1 − ε + ε/classes for the sample's class, and ε/classes for each other class."""
    ignore_index: Annotated[int | None, Field(ge=-(2**31), lt=2**31, examples=[-100])] = None
    """The class that stands for a position that does not count; null: −1 of sequences of tokens, else none."""

    def wanted(self) -> Targets:
        """Return which targets it takes."""
        return Targets("classes", positions=True, ignored=self.ignore_index)

    def loss(self, dataset: Dataset) -> CrossEntropy:
        """Return the loss."""
        return CrossEntropy(self.label_smoothing, dataset.ignored)


class MseChoice(AnyLossChoice):
    """The mean squared error of outputs and targets, numbers of one shape."""

    made = MeanSquaredError

    name: Literal["mse"]


class BceChoice(AnyLossChoice):
    """Binary cross-entropy of logits and targets from 0 to 1, of one shape."""

    made = BinaryCrossEntropy

    name: Literal["bce"]


class OwnLossChoice(AnyLossChoice, PluginChoice):  # the last says that it may have keys of any name
    """A user's function of (output, y), package.module:function; other keys are keyword arguments of it."""

    made = OwnLoss

    name: Annotated[Printable, Field(examples=["cross_entropy"])]
    """`cross_entropy`, `mse`, `bce`, or a function of yours, as package.module:function."""

    def loss(self, dataset: Dataset) -> OwnLoss:
        """Return the loss."""
        return OwnLoss(self.name, self.hyper)

    def problems(self) -> Problems:
        """Import the function; return what is wrong with its arguments."""
        return problems_of_function(find_function(self.name, "loss.name"), self.hyper)


def problems_of_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Problems:
    """Return what is wrong with the keyword arguments of a function that takes the output and y before them."""
    known = parameters_of(function)
    if known is None:
        return []
    parameters = [*known.values()]
    given = {one.name for one in parameters[:2] if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}}
    if len(given) < 2 and not any(one.kind is one.VAR_POSITIONAL for one in parameters[:2]):
        return [(("name",), f"takes {tuple(one.name for one in parameters)}; it must take the output and y first")]
    twice = [((key,), "is what fredsim gives the function itself; leave it out") for key in arguments if key in given]
    return twice + argument_problems(function, arguments, given)


LOSSES: dict[str, type[AnyLossChoice]] = {"cross_entropy": CrossEntropyChoice, "mse": MseChoice, "bce": BceChoice}


def _spelled_out(value: Any) -> Any:
    own = "your own as package.module:function"
    return value if isinstance(value, AnyLossChoice) else spelled_out(value, LOSSES, own)


def _kind(value: Any) -> str:
    name = value["name"] if isinstance(value, dict) else value.name
    return LOSSES.get(name, OwnLossChoice).__name__


OneLoss = Annotated[
    Annotated[CrossEntropyChoice, Tag("CrossEntropyChoice")]
    | Annotated[MseChoice, Tag("MseChoice")]
    | Annotated[BceChoice, Tag("BceChoice")]
    | Annotated[OwnLossChoice, Tag("OwnLossChoice")],
    Discriminator(_kind),
]
Name = Literal["cross_entropy", "mse", "bce"] | Annotated[str, Field(pattern=":")]
LossChoice = Annotated[OneLoss, BeforeValidator(_spelled_out, json_schema_input_type=OneLoss | Name)]
