"""An experiment: every key with its default, its meaning, and what it affects.

fredsim.config.resolution makes an Experiment from plain data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ByteSize,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)  # fmt: skip
from pydantic_core import PydanticCustomError

from fredsim.config.choices import Backend, PathName, Unit
from fredsim.config.clients import Clients
from fredsim.config.data import Data, DataChoice, OfProblem
from fredsim.config.figures.choice import FigureChoice
from fredsim.config.losses import LossChoice
from fredsim.config.metrics import MetricChoice, larger_columns
from fredsim.config.models import LinearChoice, MlpChoice, TorchChoice
from fredsim.config.problem import ProblemChoice
from fredsim.config.sections import (
    WHOLE,
    Affects,
    DispatcherChoice,
    PluginChoice,
    ProbeChoice,
    Section,
    Series,
    Until,
    exchange_keys,
)
from fredsim.config.stages import Stages
from fredsim.config.zoo import GptChoice, LenetChoice, ResnetChoice, VggChoice
from fredsim.data.datasets import Dataset
from fredsim.data.targets import Targets, fitted
from fredsim.errors import SimulationError
from fredsim.hyper import FileName, HyperParameters, Positive, PositiveInt, Printable
from fredsim.networks.network import MeasuredBy, Network
from fredsim.system.repeated import first_repeated

__all__ = [
    "FIGURE_KEYS",
    "Affects",
    "Data",
    "Experiment",
    "LinearChoice",
    "MlpChoice",
    "PluginChoice",
    "Published",
    "Series",
    "TorchChoice",
    "config_digest",
    "exchange_keys",
    "irrelevant_to",
    "with_defaults",
]  # fmt: skip

Threads = Annotated[int, Field(gt=0, le=1024)]


def _in_ascii(value: Any) -> Any:
    """Refuse a text with digits of other scripts, which pydantic takes for a number of bytes, too."""
    if isinstance(value, str) and not value.isascii():
        raise PydanticCustomError("byte_size", "it is no number of bytes")
    return value


Memory = Annotated[ByteSize, BeforeValidator(_in_ascii), Field(gt=0)]


def _kind_of_model(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):  # it may be of any type, also of one that no set can have
        return "MlpChoice"
    if name in {"linear", "lenet", "resnet", "vgg", "gpt"}:
        return f"{name.capitalize()}Choice"
    return "TorchChoice" if name.startswith("torch:") else "MlpChoice"


ModelChoice = Annotated[
    Annotated[MlpChoice, Tag("MlpChoice")]
    | Annotated[LinearChoice, Tag("LinearChoice")]
    | Annotated[LenetChoice, Tag("LenetChoice")]
    | Annotated[ResnetChoice, Tag("ResnetChoice")]
    | Annotated[VggChoice, Tag("VggChoice")]
    | Annotated[GptChoice, Tag("GptChoice")]
    | Annotated[TorchChoice, Tag("TorchChoice")],
    Discriminator(_kind_of_model),
]


def _unless_problem(value: Any, usual: ValidatorFunctionWrapHandler) -> Any:
    """Take what stands for data and model beside a problem as it is; nobody can write it."""
    return value if isinstance(value, OfProblem | ProblemChoice) else usual(value)


Every = Annotated[
    Annotated[PositiveInt, Tag("Whole")] | Annotated[Positive, Tag("Number")],
    Discriminator(lambda value: "Number" if isinstance(value, float) else "Whole"),
]


class Evaluation(Section):
    """When rows of metrics.csv are recorded, and which optional columns and files there are."""

    later = ("test", "per_client", "gradient_norm", "metrics")

    every: Annotated[Every, Field(examples=[100])] = 1000
    """A row is recorded each time this many of `unit` have passed, and also at 0 and at the end."""
    unit: Unit = "iterations"
    """The unit of `every`: iterations, updates, epochs (as the key `epochs` counts them; a row is due at the iteration
    that completes a pass), or seconds of a clock; a row has all events up to its time."""
    test: bool = False
    """Whether rows also have the columns `test_loss` and `test_error`."""
    per_client: bool = False
    """Whether `clients.csv` is written at the end: what each client did, and the loss and error on its shard; changes
    no bit of the run."""
    gradient_norm: bool = False
    """Whether rows have the column `gradient_norm`, the norm of the gradient over all training rows; it changes no bit
    of the run, and takes a pass over these rows for each row of metrics.csv."""
    metrics: list[MetricChoice] = Field(default_factory=list, examples=[["top5", "perplexity"]])
    """What else is measured of the outputs for the validation rows, each a column: `top5`, `perplexity`, `per_class`
    or a function of yours, `my_module:function` (docs/losses.md); with `test` of the test rows, too. Less is better
    unless your own says `larger_is_better: true`."""

    @model_validator(mode="after")
    def check(self) -> Evaluation:
        """Refuse a fractional `every`, except of seconds, and metrics that would have the same column."""
        names = [one.own_column if ":" in one.name else one.name for one in self.metrics]
        if twice := first_repeated(names):
            raise ValueError(f"metrics has {twice!r} twice; leave one out, or give it another column: …")
        if isinstance(self.every, float) and self.unit != "seconds":
            raise ValueError(f"every is {self.every}; it must be a whole number of {self.unit}")
        return self

    @property
    def larger_is_better(self) -> list[str]:
        """The columns of own metrics of which more is better."""
        return larger_columns(self.model_dump())


class Published(HyperParameters):
    """What a paper reports, to be drawn beside the results; it changes no run."""

    source: Annotated[str, Field(examples=["Odena 2016, Figure 1, read off to ±0.005"])]
    """Where the numbers were published."""
    x: Literal["iterations", "updates", "seconds"] = "iterations"
    """The unit of the first number of a point."""
    y: Printable = "validation_error"
    """The meaning of the second number of a point: `validation_error`, `validation_loss`, `train_loss`, `gap`,
    `gradient_norm`, or a column of `evaluation.metrics`."""
    series: Annotated[list[Series], Field(examples=[[{"where": {"seed": 0}, "points": [[10000, 0.279]]}]])]
    """Series of points, each with the runs that it belongs to."""


class Experiment(Section):
    """A resolved experiment. Exactly one of `iterations`, `updates`, `epochs` and `seconds` is given."""

    later = (
        "iterations", "updates", "epochs", "seconds", "until", "loss", "problem", "stages", "compress", "average",
        "probe", "events", "published", "figures",
    )  # fmt: skip

    name: Annotated[FileName, Affects.RECORD, Field(examples=["fig1"])] = "experiment"
    """The name of the folder in `results/`; by default the name of the file."""
    seed: Annotated[int, Field(ge=0, lt=2**32, examples=[7]), Affects.BITS] = 0
    """The seed of all random draws: 0 … 2³²−1."""
    iterations: Annotated[PositiveInt | None, Affects.BITS, Field(examples=[10000])] = None
    """The length of the run. In each iteration one client has computed its gradient and arrives to push it, even if a
    gate drops the push or the server discards it. What a server has collected for its next step when the run ends is
    dropped. Give either this, or `updates`, `epochs` or `seconds`."""
    updates: Annotated[PositiveInt | None, Affects.BITS, Field(examples=[10000])] = None
    """The length of the run, in updates that the server makes."""
    epochs: Annotated[PositiveInt | None, Affects.BITS, Field(examples=[10])] = None
    """The length of the run, in passes over the data, of n ÷ µ minibatches each: n ÷ (k µ) iterations, if clients take
    k local steps; the run ends with the iteration that completes the last pass."""
    seconds: Annotated[Positive | None, Affects.BITS, Field(examples=[120.0])] = None
    """The length of the run, in simulated seconds: it has the events up to then. This needs a clock (docs/time.md)."""
    until: Annotated[Until | None, Affects.BITS, Field(examples=[{"validation_error": 0.05}])] = None
    """The run ends early, at the first row of metrics.csv with `{validation_error: 0.05}` or less, or
    `{validation_loss: …}`, `{gap: …}` of a linear model, with `evaluation.test` `{test_error: …}` or
    `{test_loss: …}`, or a column of `evaluation.metrics` or of a problem, which may say that more is better; it is
    checked only when a row is due (`evaluation`)."""
    data: Annotated[DataChoice, WrapValidator(_unless_problem), Field(examples=[{"name": "mnist"}])]
    """A data set that is read (docs/own_data.md), or drawn: `modular`, sums modulo p, for `model: {name: gpt}`;
    `glyphs`, images; least squares and quadratics, which need `model: {name: linear}` (docs/models.md)."""
    model: Annotated[
        ModelChoice, WrapValidator(_unless_problem), Field(examples=[{"name": "mlp", "hidden": [100]}])
    ] = MlpChoice()
    """`{name: mlp, …}`, a multilayer perceptron: ReLU, softmax cross-entropy; `{name: linear, …}`; `lenet`, `resnet`,
    `vgg` or `gpt`; or a PyTorch module `{name: "torch:package.module:factory", …}` (docs/models.md)."""
    loss: Annotated[LossChoice | None, Field(examples=[{"name": "cross_entropy", "label_smoothing": 0.1}])] = None
    """What training makes small: `cross_entropy`, `mse` or `bce`, with its options as `{name: cross_entropy,
    label_smoothing: 0.1, ignore_index: 0}`; or a function of yours, `my_module:function`; null:
    cross_entropy, and of linear models half the squared error (docs/losses.md)."""
    problem: Annotated[ProblemChoice | None, Field(examples=[{"name": "my_problem:Valley"}])] = None
    """In place of data and model: a class of yours with initial parameters, gradients and an evaluation, `{name:
    "my_module:Class"}` with its arguments, in any framework (docs/problems.md)."""
    clients: Annotated[Clients, Field(examples=[{"count": 32, "batch_size": 4}])]
    """The clients, which compute gradients: how many there are, and which rows they use."""
    stages: Annotated[Stages | None, Field(examples=[{"cuts": ["W2", "W3"], "delay": "pipedream"}])] = None
    """The stages of a pipeline, whose parameters are of different ages: each client is a pipeline then; null: none
    (docs/pipelines.md)."""
    dispatcher: Annotated[DispatcherChoice, Field(examples=[{"name": "round_robin"}])] = DispatcherChoice()
    """Which client arrives next, and how pushes and fetches are exchanged."""
    server: Annotated[PluginChoice, Field(examples=[{"name": "fasgd", "lr": 0.005}])]
    """The update rule, `{name: …}` with its hyper-parameters; `lr` may be a schedule."""
    compress: Annotated[PluginChoice | None, Field(examples=[{"name": "top_k", "k": 0.01}])] = None
    """The compressor of pushes; null: none."""
    average: Annotated[PluginChoice | None, Field(examples=[{"name": "window"}])] = None
    """`{name: window, …}`: a windowed average of the server's iterates, which evaluation then uses; null: none."""
    evaluation: Annotated[Evaluation, Affects.BITS, Field(examples=[{"every": 100}])] = Evaluation()
    """When rows of metrics.csv are recorded, and what they contain."""
    backend: Annotated[Backend, Affects.TIME, Field(examples=["numpy"])] = "numba"
    """What computes; `auto` is cuda where a device is faster, else numba (docs/devices.md)."""
    threads: Annotated[Threads | None, Affects.TIME | Affects.BITS_OF_MODULES, Field(examples=[4])] = None
    """How many threads compute; null: one per processor."""
    window: Annotated[PositiveInt | None, Affects.TIME | Affects.BITS_OF_MODULES, Field(examples=[16])] = None
    """How many arrivals are computed together; null: as many as is efficient."""
    path: Annotated[PathName, Affects.TIME, Field(examples=["snapshots"])] = "auto"
    """How the run is computed (docs/performance.md)."""
    memory: Annotated[Memory | None, Affects.TIME, Field(examples=["2GB"])] = None
    """The most bytes of memory for the data, what clients hold, and what the server keeps for each client; the rest is
    kept in a file; null: no limit (docs/performance.md)."""
    probe: Annotated[ProbeChoice | None, Affects.TIME, Field(examples=[{"every": 100}])] = None
    """`{every: n}`: the true B-staleness of every n-th arrival is written to `probe.csv`, with `per_tensor: true` also
    that of each tensor (docs/staleness.md); changes no digest."""
    events: Annotated[bool, Affects.RECORD | Affects.TIME] = False
    """Whether every event is recorded in `events.parquet` (docs/results.md); changes no digest."""
    published: Annotated[
        Published | None,
        Affects.NOTHING,
        Field(examples=[{"source": "Figure 1", "series": [{"where": {"seed": 0}, "points": [[10000, 0.279]]}]}]),
    ] = None
    """What a paper reports about these runs, drawn beside them (docs/plots.md)."""
    figures: Annotated[
        list[FigureChoice] | None, Affects.NOTHING, Field(examples=[[{"name": "error", "log": True}]])
    ] = None
    """The figures that are drawn when the runs have ended (docs/plots.md); null: the error; []: none; changes
    no digest."""

    @model_validator(mode="before")
    @classmethod
    def take_problem(cls, given: Any) -> Any:
        """Let a problem be data and model; a gradient of it is that of one row, the problem itself."""
        if not isinstance(given, dict) or given.get("problem") is None:
            return given
        clients = given.get("clients")
        try:
            model = ProblemChoice.model_validate(given["problem"])
        except ValidationError:  # which the field will report, too
            model = ProblemChoice(name="no:problem")
        if isinstance(clients, dict):
            clients = {"batch_size": 1, "sampling": "iid"} | clients
        return given | {"data": OfProblem(), "model": model, "clients": clients}

    @property
    def measured_by(self) -> MeasuredBy:
        """What tells how good its parameters are: fredsim.networks.network.Network."""
        return self.model.measured_by if self.loss is None else self.loss.made.measured_by

    def larger_is_better(self, column: str) -> bool | None:
        """Return whether an own metric or problem says that more is better in a column; None if the problem fails."""
        if self.problem is None:
            return column in self.evaluation.larger_is_better
        try:
            return column in self.problem.larger_is_better(self.seed)
        except SimulationError:
            return None

    def load(self, root: Path) -> Dataset:
        """Return the data set, with targets that are fit for the loss. Raises ConfigError, DataError."""
        targets = self.targets
        found = self.data.load(root, self.seed, targets)
        return found if self.measured_by in {"gap", "own"} else fitted(found, targets, self.data.name)

    @property
    def targets(self) -> Targets:
        """What the loss takes."""
        return Targets() if self.loss is None else self.loss.wanted()

    def network(self, dataset: Dataset) -> Network:
        """Return the network for a data set that `load` has returned. Raises ConfigError."""
        return self.model.network(dataset, self.seed, None if self.loss is None else self.loss.loss(dataset))

    def plain(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the experiment as plain data: the content of config.yaml, which can be run as it is.

        `whole`: with the keys that are left out of it because they have their defaults.
        """
        left_out = set() if self.problem is None else {"data", "model"}
        data = self.model_dump(exclude=left_out, context=WHOLE if whole else None)
        if self.until is not None:
            data["until"] = dict([self.until.goal])
        if self.loss is not None and self.model.name == "linear":
            del data["model"]["loss"]
        return data

    @property
    def digest(self) -> str:
        """The SHA-256 of everything in the experiment that determines the bits of its results."""
        of_module = Affects.BITS_OF_MODULES if self.model.native else Affects.NOTHING
        data = {key: value for key, value in self.plain().items() if key not in irrelevant_to(Affects.BITS | of_module)}
        if "average" in data:
            data["average"] = {key: value for key, value in data["average"].items() if key != "device"}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's configuration with the keys that are left out of it because they have their defaults.

    That of a run that has ended may have names and texts that none has here: it is returned as it is.
    """
    try:
        return Experiment.model_validate(config).plain(whole=True)
    except ValidationError:
        return dict(config)


@cache
def irrelevant_to(effects: Affects) -> frozenset[str]:
    """Return the keys of an experiment that have none of these effects."""
    found = set()
    for key, field in Experiment.model_fields.items():
        mark = next((one for one in field.metadata if isinstance(one, Affects)), Affects.BITS | Affects.TIME)
        if not mark & effects:
            found.add(key)
    return frozenset(found)


FIGURE_KEYS = irrelevant_to(Affects.RECORD | Affects.TIME | Affects.BITS_OF_MODULES | Affects.BITS)
"""The keys that only affect figures: they may be changed before a sweep is resumed, and are not compared."""


def config_digest(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of config.yaml without its figures, which shows whether the file was edited."""
    compared = {key: value for key, value in config.items() if key not in FIGURE_KEYS}
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()
