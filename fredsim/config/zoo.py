"""The key `model`: networks that come with fredsim as graphs (fredsim.networks.zoo)."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from fredsim.config.choices import Init, InitialFile, Trainable
from fredsim.config.models import NetworkChoice, Normal, check_numbers, how_drawn, loss_for
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.hyper import Fraction, PositiveInt
from fredsim.native.own_loss import AnyLoss
from fredsim.networks.network import Network
from fredsim.numerics.ops.losses.loss import Loss

if TYPE_CHECKING:  # operators, which are imported where a network is made
    from fredsim.networks.graph import Graph

__all__ = ["GptChoice", "LenetChoice", "ResnetChoice", "VggChoice", "ZooChoice"]

REMEDY = "give other data, or another model"


class ZooChoice(NetworkChoice):
    """A network that comes with fredsim; it is for images, unless it is for sequences of tokens."""

    citation: ClassVar[str] = ""
    of_sequences: ClassVar[bool] = False
    later: ClassVar[tuple[str, ...]] = ("initial", "trainable")

    name: str
    init: Annotated[Init | Normal, Field(examples=[{"name": "normal", "std": 0.1}])] = "he"
    """The initial weights: `he`, `glorot`, `zeros`, `normal`, or `{name: normal, std: 0.1}`, with biases of 0; or
    `torch`: weights and biases uniform between ±1/√inputs. Norms start from γ = 1 and β = 0."""
    initial: InitialFile | None = None
    """A file of weights, .safetensors, to start from in place of `init`: all tensors by their names; its SHA-256 is
    recorded."""
    trainable: Trainable | None = None
    """The tensors that are trained, by patterns of their names such as "head.*", or a list of these; null: all. The
    others stay as they are, and are neither pushed nor fetched."""

    @abstractmethod
    def of(self, classes: int, shape: tuple[int, ...], loss: Loss) -> Graph:
        """Return the graph. Raises ValueError for samples that it does not take."""

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> Network:
        """Return it, for the data set's samples and classes, or as many outputs as a target has numbers."""
        from fredsim.networks.given import given_network
        from fredsim.networks.initial import DrawnNetwork

        shape = dataset.sample
        check_numbers(dataset, self.name)
        if self.of_sequences != dataset.sequences:
            kinds = f"samples of shape {shape}, with one label each", "sequences, with a label for each token"
            wants, has = kinds[1] if self.of_sequences else "images", kinds[dataset.sequences]
            raise ConfigError(f"model.name is {self.name}, which takes {wants}; the data are {has}: {REMEDY}")
        used = loss_for(dataset, loss)
        wanted = used.output(dataset.target, dataset.classes)
        try:
            graph = self.of(dataset.outputs, shape, used)
        except ValueError as error:
            raise ConfigError(f"model.name: {error}; {REMEDY}") from None
        if graph.shapes[-1] != wanted:
            what = f"gives outputs {graph.shapes[-1]}; for targets of shape {dataset.target} they must be {wanted}"
            raise ConfigError(f"model.name is {self.name}, which {what}: {REMEDY}")
        return given_network(DrawnNetwork(graph, *how_drawn(self.init)), seed, self.initial, self.trainable)


class LenetChoice(ZooChoice):
    """Caffe's LeNet: two convolutions 5×5, each followed by max pooling, then 500 units; for images from 16×16 on."""

    citation = "Wen et al. 2017, TernGrad, arXiv:1705.07878"

    name: Literal["lenet"]

    def of(self, classes: int, shape: tuple[int, ...], loss: Loss) -> Graph:
        """Return the graph."""
        from fredsim.networks.zoo.lenet import lenet

        return lenet(classes, shape, loss)


class ResnetChoice(ZooChoice):
    """A residual network for small images, with GroupNorm for BatchNorm."""

    citation = "He et al. 2016, arXiv:1512.03385; Wu and He 2018, arXiv:1803.08494"
    sized_by = "width"

    name: Literal["resnet"]
    depth: PositiveInt = 8
    """The number of layers, 6n + 2: three stages of n blocks, each of two convolutions 3×3."""
    width: Annotated[PositiveInt, Field(multiple_of=8)] = 16
    """The channels of the first stage, a multiple of 8; each of the others has twice as many as the one before."""

    @field_validator("depth")
    @classmethod
    def check(cls, depth: int) -> int:
        """Refuse another depth."""
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"is {depth}; it must be 6n + 2, such as 8, 14 or 20")
        return depth

    def of(self, classes: int, shape: tuple[int, ...], loss: Loss) -> Graph:
        """Return the graph."""
        from fredsim.networks.zoo.resnet import resnet

        return resnet(classes, shape, self.depth, self.width, loss)


class VggChoice(ZooChoice):
    """A small VGG: at each width two convolutions 3×3 with batch norm, then max pooling; last a dense layer."""

    citation = "Simonyan and Zisserman 2015, arXiv:1409.1556; Ioffe and Szegedy 2015, arXiv:1502.03167"
    sized_by = "widths"
    later = ("initial", "trainable", "dropout", "buffers")

    name: Literal["vgg"]
    widths: Annotated[list[PositiveInt], Field(min_length=1, examples=[[32, 64]])] = Field(
        default_factory=lambda: [16, 32, 64]
    )
    """The channels of each stage, after which the image is halved."""
    dropout: Annotated[Fraction, Field(examples=[0.5])] = 0.0
    """The share of the dense layer's inputs that is dropped in training."""
    buffers: Literal["local", "averaged", "last"] | None = None
    """What evaluation does with batch norm's running statistics, of which each client has its own: `averaged`: their
    mean over the clients that have pushed; `last`: those of the last push; `local`, as null: none, it goes by the
    statistics of the rows that are evaluated at once."""

    def of(self, classes: int, shape: tuple[int, ...], loss: Loss) -> Graph:
        """Return the graph."""
        from fredsim.networks.zoo.vgg import vgg

        served = None if self.buffers == "local" else self.buffers
        return vgg(classes, shape, self.widths, loss, self.dropout, served)


class GptChoice(ZooChoice):
    """A decoder-only transformer for sequences of tokens, with layer norm before each part, GELU, and a tied head."""

    citation = "Radford et al. 2019, Language models are unsupervised multitask learners (GPT-2)"
    of_sequences = True
    sized_by = "width"
    later = ("initial", "trainable", "dropout")

    name: Literal["gpt"]
    init: Annotated[Init | Normal, Field(examples=[{"name": "normal", "std": 0.1}])] = Normal(name="normal", std=0.02)
    """The initial weights and tables: as of the other networks; by default N(0, 0.02²), as of GPT-2."""
    width: PositiveInt = 64
    """The numbers by which a token is represented; a multiple of `heads`."""
    layers: PositiveInt = 2
    """The number of layers, each of attention and a dense part of four times the width."""
    heads: PositiveInt = 4
    """The number of heads of each layer's attention."""
    dropout: Annotated[Fraction, Field(examples=[0.1])] = 0.0
    """The share that is dropped in training, as in GPT-2: of the embedded tokens, of the weights of attention, and of
    what each part adds."""

    @model_validator(mode="after")
    def check_heads(self) -> Self:
        """Refuse heads that do not divide the width."""
        if self.width % self.heads:
            raise ValueError(f"width is {self.width} and heads {self.heads}; the width must be a multiple of the heads")
        return self

    def of(self, classes: int, shape: tuple[int, ...], loss: Loss) -> Graph:
        """Return the graph."""
        from fredsim.networks.zoo.gpt import gpt

        return gpt(classes, shape, self.width, self.layers, self.heads, loss, self.dropout)
