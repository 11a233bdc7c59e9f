"""The key `model`: the choice of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from fredsim.config.choices import Init, InitialFile, Trainable
from fredsim.config.document import Problems
from fredsim.config.registry import argument_problems
from fredsim.config.sections import PluginChoice, Section
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError, OutputError, nearest
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt
from fredsim.native.own_loss import AnyLoss, OwnLoss
from fredsim.networks.network import MeasuredBy, Network, Numerics
from fredsim.networks.own_loss import ArrayLoss
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.streams import Streams
from fredsim.plugins.modules import parameters_of
from fredsim.system.files import read_bytes

if TYPE_CHECKING:  # operators, which are imported where a network is made
    from fredsim.networks.captured import CapturedNetwork
    from fredsim.networks.linear import Linear

__all__ = [
    "First",
    "LinearChoice",
    "MlpChoice",
    "NetworkChoice",
    "Normal",
    "Recorded",
    "TorchChoice",
    "check_numbers",
    "how_drawn",
    "loss_for",
    "recorded",
]

#: What follows the message of a factory's argument that is missing.
FROM_DATA = "; give it a value, or call that argument of the factory classes or shape, whose values the data set gives"


@dataclass(frozen=True)
class Recorded:
    """What a folder of results says about a PyTorch module: what computed it, and which code and files it was of."""

    folder: Path
    numerics: str
    code: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def network(self) -> CapturedNetwork:
        """Return the network of a portable run, from its folder. Raises OutputError if a file is gone or damaged."""
        from fredsim.networks.captured import GRAPH_FILE, INITIAL_FILE, CapturedNetwork
        from fredsim.networks.saved import MOST_BYTES

        try:
            graph = read_bytes(self.folder / GRAPH_FILE, most=MOST_BYTES)
            initial = read_bytes(self.folder / INITIAL_FILE)
            return CapturedNetwork.of_files(graph, initial, self.files, self.code)
        except OSError as error:
            name = Path(error.filename or self.folder).name
            raise OutputError(f"{self.folder}/{name}: cannot be read ({error.strerror}); run it again") from None
        except ValueError as error:
            raise OutputError(f"{self.folder}/{error}; run the experiment again") from None


_recorded: ContextVar[Recorded | None] = ContextVar("recorded", default=None)


@contextmanager
def recorded(found: Recorded | None) -> Iterator[None]:
    """Let PyTorch modules of experiments that are opened in a `with` block be those that a folder of results has."""
    before = _recorded.set(found)
    try:
        yield
    finally:
        _recorded.reset(before)


def loss_for(dataset: Dataset, loss: AnyLoss | None) -> Loss:
    """Return the loss that fredsim computes for a data set: the one that is given, or cross-entropy."""
    if isinstance(loss, OwnLoss):
        return ArrayLoss.of(loss.name, loss.arguments)
    return CrossEntropy(ignored=dataset.ignored) if loss is None else loss


class NetworkChoice(Section):
    """What every choice of a network says."""

    #: What tells how good its parameters are: fredsim.networks.network.Network.
    measured_by: ClassVar[MeasuredBy] = "error"
    #: Whether it comes from a user's code, of which fredsim knows only what it builds.
    user_code: ClassVar[bool] = False
    #: Whether samples are best of about the size of 1.
    wants_small_samples: ClassVar[bool] = False
    #: The key to lower if the network is larger than the machine's memory; '' if none of its own.
    sized_by: ClassVar[str] = ""

    @property
    def has_files(self) -> bool:
        """Whether its network may be made from files."""
        return self.user_code or getattr(self, "initial", None) is not None

    @property
    def keeps_statistics(self) -> bool:
        """Whether each client has running statistics of its own, by which the server evaluates."""
        return getattr(self, "buffers", None) in {"averaged", "last"}

    @property
    def native(self) -> bool:
        """Whether the bits may be those of a library, which depend on the machine, on `threads` and on `window`."""
        return False

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> Network:
        """Return the network for a data set, a run's seed, and a loss; None: the usual one. Raises ConfigError."""
        raise NotImplementedError

    def problems(self) -> Problems:
        """Return what is wrong with the choice that its keys alone do not say. Raises ConfigError."""
        return []


def check_numbers(dataset: Dataset, name: str) -> None:
    """Raise ConfigError if samples are tokens but no sequences, which no network that comes with fredsim takes."""
    if dataset.train.x.dtype.kind in "iu" and not dataset.sequences:
        targets = f"targets of the shape {dataset.target}" if dataset.target else "one target each"
        what = f"samples are integers, which are tokens, with {targets}"
        raise ConfigError(f"model.name is {name}; {what}: give them as floats, or take a PyTorch module")


def check_one_label(dataset: Dataset, name: str) -> None:
    """Raise ConfigError if samples are sequences of tokens, which networks of dense layers alone do not take."""
    if dataset.sequences:
        remedy = "give model: {name: gpt}, or a PyTorch module"
        raise ConfigError(f"model.name is {name}; the data are sequences, with a label a token: {remedy}")


class Normal(HyperParameters):
    """Initial weights from N(0, std²)."""

    name: Literal["normal"]
    std: Annotated[NonNegative, Field(examples=[0.1])] = 1.0
    """The standard deviation."""


def how_drawn(init: Init | Normal) -> tuple[str, float]:
    """Return how initial weights are drawn, and the standard deviation of normal ones, which is 1 if none is given."""
    return (init.name, init.std) if isinstance(init, Normal) else (init, 1.0)


class MlpChoice(NetworkChoice):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    wants_small_samples = True
    sized_by = "hidden"
    later = ("initial", "trainable")

    name: Literal["mlp"] = "mlp"
    hidden: list[PositiveInt] = Field(default_factory=lambda: [200], examples=[[64, 32]])
    """The widths of the hidden layers; [] is softmax regression."""
    init: Annotated[Init | Normal, Field(examples=[{"name": "normal", "std": 0.1}])] = "he"
    """The initial weights: `he`, `glorot`, `zeros`, `normal`, or `{name: normal, std: 0.1}`, with biases of 0; or
    `torch`: weights and biases as in PyTorch's Linear, uniform between ±1/√inputs."""
    initial: InitialFile | None = None
    """A file of weights, .safetensors, to start from in place of `init`: all tensors by their names; its SHA-256 is
    recorded."""
    trainable: Trainable | None = None
    """The tensors that are trained, by patterns of their names such as "head.*", or a list of these; null: all. The
    others stay as they are, and are neither pushed nor fetched."""

    @field_validator("name", mode="before")
    @classmethod
    def check(cls, name: Any) -> Any:
        """Refuse any other name, with a message that says which names are known."""
        if name != "mlp":
            known = "mlp, linear, lenet, resnet, vgg, gpt, or a PyTorch module as torch:package.module:factory"
            near = nearest(str(name), known.split(", ")[:-1])
            raise ValueError(f"is {name!r}; it must be {known}{near}")
        return name

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> Network:
        """Return it, of the data set's inputs and classes, or as many outputs as the loss compares with a target."""
        from fredsim.networks.given import given_network
        from fredsim.networks.graph import Graph, Node
        from fredsim.networks.initial import DrawnNetwork
        from fredsim.networks.mlp import Mlp
        from fredsim.numerics.ops.views import Reshape

        check_numbers(dataset, self.name)
        check_one_label(dataset, self.name)
        usual = loss_for(dataset, loss)
        shape = usual.output(dataset.target, dataset.classes)
        drawn, widths = how_drawn(self.init), (dataset.inputs, *self.hidden, math.prod(shape))
        found: Mlp | DrawnNetwork = Mlp(widths, *drawn)
        if usual != CrossEntropy() or len(shape) > 1:
            nodes, layout = found.graph.nodes, found.layout
            if len(shape) > 1:
                nodes = (*nodes, Node(Reshape(shape), (len(nodes),)))
            found = DrawnNetwork(Graph((dataset.inputs,), dataset.target, nodes, usual, layout), *drawn)
        return given_network(found, seed, self.initial, self.trainable)


class First(HyperParameters):
    """Initial weights of which only the first is not 0."""

    name: Literal["first"]
    value: Annotated[Finite | None, Field(examples=[1.0])] = None
    """The first weight; null: √P of P weights."""


class LinearChoice(NetworkChoice):
    """A linear model without a bias, for least squares and quadratics; with the key `loss`, for any data."""

    measured_by = "gap"

    name: Literal["linear"]
    loss: Literal["squared"] = "squared"
    """The loss if the experiment's key `loss` names no other: half the squared error."""
    init: Literal["zeros", "normal", "first"] | Normal | First = "zeros"
    """The initial weights: `zeros`, `normal`, `{name: normal, std: 0.1}`, `first` or `{name: first, value: 1.0}`; with
    `first` the first of P weights is √P, or the value, and the others are 0."""

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> Linear:
        """Return it, of the data set's inputs and, with a loss, as many outputs as that compares with a target."""
        from fredsim.networks.linear import Linear

        options = {} if isinstance(self.init, str) else self.init.model_dump()
        name = options.pop("name", self.init)
        if loss is None:
            return Linear(dataset.inputs, name, **options)
        check_numbers(dataset, self.name)
        check_one_label(dataset, self.name)
        used = loss_for(dataset, loss)
        outputs = used.output(dataset.target, dataset.classes)
        return Linear(dataset.inputs, name, **options, loss=used, outputs=outputs, target=dataset.target)


class TorchChoice(NetworkChoice, PluginChoice):  # the last says that it may have keys of any name
    """A user's PyTorch module, torch:package.module:factory; other keys are keyword arguments of the factory."""

    user_code = True
    later = ("numerics", "init", "initial", "trainable", "precision", "buffers")

    device: Literal["cpu", "cuda"] = "cpu"
    """The device that PyTorch computes on, with `numerics: native`."""
    numerics: Numerics | None = None
    """`portable`: fredsim computes the module's operators itself, with the same bits everywhere, on any backend;
    `native`: PyTorch computes the module, with bits that hold on one machine; null: portable if all of its operators
    are known and `device` is cpu, else native, and a note says which (docs/models.md)."""
    init: Annotated[Init | Normal | None, Field(examples=["he"])] = None
    """With `numerics: portable`, the initial weights, drawn by fredsim: `he`, `glorot`, `torch`, `zeros`, `normal` or
    `{name: normal, std: 0.1}`; null: what PyTorch draws when the factory builds the module."""
    initial: InitialFile | None = None
    """A file of weights, .safetensors, that is loaded into the module: all parameters by their names, and buffers if it
    has them; its SHA-256 is recorded."""
    trainable: Trainable | None = None
    """The parameters that are trained, by patterns of their names such as "head.*", or a list of these; null: those
    with `requires_grad`. The others stay as they are, and are neither pushed nor fetched."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """`bfloat16`: PyTorch computes under `torch.autocast`, with parameters and gradients of float32 (native alone)."""
    buffers: Literal["local", "averaged", "last"] | None = None
    """What evaluation does with BatchNorm's running statistics, of which each client has its own: `averaged`: their
    mean over the clients that have pushed; `last`: those of the last push; `local`: none, it goes by the statistics of
    the rows that are evaluated at once. null: as `local` if portable; a native module that has some is refused."""

    _recorded: Recorded | None = PrivateAttr(None)

    def model_post_init(self, context: Any, /) -> None:
        """Note the folder of results that the choice is read from, if it is."""
        self._recorded = _recorded.get()

    @model_validator(mode="after")
    def check_device(self) -> Self:
        """Refuse a device of PyTorch's for what PyTorch does not compute."""
        if self.numerics == "portable" and self.device != "cpu":
            raise ValueError(
                f"device is {self.device}, on which PyTorch would compute; with numerics: portable leave it out, and "
                "give backend: cuda"
            )
        return self

    @model_validator(mode="after")
    def check_start(self) -> Self:
        """Refuse what contradicts: two beginnings, draws of fredsim's for PyTorch, and bfloat16 without it."""
        if self.init is not None and self.initial is not None:
            raise ValueError("init and initial are both given; a network starts from one of them: leave the other out")
        if self.init is not None and (self.device != "cpu" or self._by_pytorch):
            raise ValueError(
                "init is given, which needs numerics: portable; leave it out, and PyTorch draws the weights"
            )
        if self.precision != "float32" and self.numerics == "portable":
            raise ValueError(
                f"precision is {self.precision}; with numerics: portable all is float32: give numerics: native"
            )
        return self

    @property
    def _by_pytorch(self) -> bool:
        """Whether only PyTorch can compute what the keys say."""
        return self.numerics == "native" or self.precision != "float32"

    @property
    def native(self) -> bool:
        """Whether PyTorch may compute it: what `numerics: null` takes is known when the module is built."""
        return self.numerics != "portable"

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> Network:
        """Build the module and, unless it is native, capture it; or read what a folder of results has of it."""
        from fredsim.native.model import TorchModel, TorchOptions
        from fredsim.native.portable import captured, check_fit

        if self._recorded and self._recorded.numerics == "portable":
            found = self._drawn(self._as_asked(self._recorded), seed)
            return check_fit(found, dataset, loss_for(dataset, loss), self._refused)
        options = TorchOptions(self.initial, self.trainable, self.precision, self.buffers)
        model = TorchModel(self.name, self.hyper, self.device, dataset.sample, dataset.outputs, seed, loss, options)
        by_pytorch = self._by_pytorch or (isinstance(loss, OwnLoss) and self.numerics is None)
        if self.device != "cpu" or self._recorded or by_pytorch:
            return model
        used = loss_for(dataset, loss)
        try:
            found = captured(model, dataset, used, chosen=self.numerics is not None)
            return check_fit(self._drawn(found, seed), dataset, used, self._refused)
        except ConfigError as error:
            if self.numerics == "portable":
                raise
            if self.init is not None:
                raise ConfigError(f"model.init is given, which PyTorch's own modules do not take: {error}") from error
            model.check_calls()  # what it refuses, PyTorch cannot compute, either
            model.why_native = str(error)
            return model

    def _drawn(self, found: CapturedNetwork, seed: int) -> CapturedNetwork:
        """Return a network with the initial values that `init` asks for, also of one that says it had others."""
        if self.init is None:
            return found
        return found.drawn(Streams(seed), *how_drawn(self.init))

    def _as_asked(self, record: Recorded) -> CapturedNetwork:
        """Return the network of a portable run. Raises OutputError if its graph is not what the keys ask for."""
        from fredsim.networks.captured import GRAPH_FILE
        from fredsim.networks.given import frozen_names, listed

        found = record.network()
        graph, path = found.graph, record.folder / GRAPH_FILE
        if self.trainable is not None:
            frozen = frozen_names(dict(graph.layout.tensors), self.trainable)
            if set(frozen) != set(graph.frozen):
                says = [listed(names) or "none" for names in (graph.frozen, frozen)]
                what = f"frozen is {says[0]}, and by model.trainable {says[1]}"
                raise OutputError(f"{path}: is damaged ({what}); run the experiment again")
        served, wanted = graph.running and graph.running.served, None if self.buffers == "local" else self.buffers
        if served != wanted:
            what = f"running is {served or 'none'}, and by model.buffers {wanted or 'none'}"
            raise OutputError(f"{path}: is damaged ({what}); run the experiment again")
        return found

    def problems(self) -> Problems:
        """Import the factory; return what is wrong with its arguments; nothing if a folder of results has the graph."""
        from fredsim.native.model import data_arguments, find_factory

        if self._recorded and self._recorded.numerics == "portable":
            return []
        found = find_factory(self.name)
        problems = argument_problems(found, self.hyper, data_arguments(found), FROM_DATA)
        for key in set(self.later) - {"numerics"}:
            if key in self.model_fields_set and key in (parameters_of(found) or ()):
                what = f"is fredsim's own key, and also an argument of {self.name}; give that argument another name"
                problems.append(((key,), what))
        return problems

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f"model.name: {self.name} {what}")
