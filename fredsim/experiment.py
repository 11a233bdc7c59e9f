"""An experiment: everything that determines a run's bits, validated once and frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ByteSize, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator

from fredsim.adapters import AdaptedServer
from fredsim.backends import Backend
from fredsim.datasets import USUAL, check_dataset, file_digest
from fredsim.dispatchers.gates import spelled_out
from fredsim.document import Document, flatten
from fredsim.errors import ConfigError
from fredsim.figures import FigureChoice
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt, explain
from fredsim.layout import Layout
from fredsim.numerics.operations import NumpyOperations
from fredsim.outbox import DroppedPush
from fredsim.paths import Path
from fredsim.protocol import check, make_protocol
from fredsim.registry import Kind, build, misfits, resolve_hyper
from fredsim.sampling import Sampling
from fredsim.servers import Server
from fredsim.streams import Streams

__all__ = ["Experiment", "Origin", "TorchChoice", "check_batch", "located", "problems_at", "resolve"]


class Origin(Protocol):
    """Knows where the parts of an experiment come from."""

    def place(self, key: tuple[int | str, ...]) -> str:
        """Return the place of a key, such as `file.yaml:12`."""
        ...


class Data(HyperParameters):
    """`name` with the first `train` and last `validation` rows of the training part; null: the usual number.

    `sha256` is of an NPZ file's bytes: filled in where it is null, checked where it is not.
    """

    name: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    train: PositiveInt | None = None
    validation: Annotated[int, Field(ge=0)] | None = None


class Normal(HyperParameters):
    """N(0, std²)."""

    name: Literal["normal"]
    std: NonNegative = 1.0


class MlpChoice(HyperParameters):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    name: Literal["mlp"] = "mlp"
    hidden: list[PositiveInt] = Field(default_factory=lambda: [200])
    init: Literal["he", "glorot", "zeros", "normal"] | Normal = "he"

    @field_validator("name", mode="before")
    @classmethod
    def check(cls, name: Any) -> Any:
        """Refuse another name, naming what there is."""
        if name != "mlp":
            raise ValueError(f"is {name!r}; it must be mlp, or a PyTorch module as torch:package.module:factory")
        return name


class Plugin(BaseModel):
    """A named class and its hyper-parameters."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: str

    @property
    def hyper(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class TorchChoice(Plugin):
    """A user's PyTorch module, torch:package.module:factory; the rest are the factory's keyword arguments."""

    device: Literal["cpu", "cuda"] = "cpu"


def _kind_of_model(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "Torch" if isinstance(name, str) and name.startswith("torch:") else "Mlp"


ModelChoice = Annotated[
    Annotated[MlpChoice, Tag("Mlp")] | Annotated[TorchChoice, Tag("Torch")], Discriminator(_kind_of_model)
]


class Clients(HyperParameters):
    """λ clients, minibatches of µ samples."""

    count: PositiveInt
    batch_size: PositiveInt
    sampling: Sampling = "sequential"
    local_steps: PositiveInt = 1


class DispatcherChoice(Plugin):
    """Who finishes next, and how copies are exchanged.

    `wait`: after a push a client waits for the reply; false: it computes on with what it holds. `push` and `fetch` are
    gates: always, or {name: hyper-parameters}. `replica`: a client that did not fetch steps its own parameters.
    `fred_timestamps`: a dropped fetch refreshes the client's timestamp all the same, as FRED's code did by mistake.
    """

    name: str = "uniform"
    wait: bool = True
    push: str | dict[str, Any] = "always"
    fetch: str | dict[str, Any] = "always"
    dropped_push: DroppedPush = "reapply"
    replica: bool = False
    fred_timestamps: bool = False


class Evaluation(HyperParameters):
    """A row every so many iterations, updates or epochs; rows at 0 and at the end always."""

    every: PositiveInt = 1000
    unit: Literal["iterations", "updates", "epochs"] = "iterations"


class Series(HyperParameters):
    """Published points [x, y] of the runs whose resolved values are those of `where`, under dotted keys."""

    where: dict[str, Any]
    points: Annotated[list[Annotated[list[Finite], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class Published(HyperParameters):
    """What a paper reports, to be drawn beside what comes out; it changes no run. `source` says where it stands."""

    source: str
    x: Literal["iterations", "updates"] = "iterations"
    y: Literal["validation_error", "validation_loss", "train_loss"] = "validation_error"
    series: list[Series]


class ProbeChoice(HyperParameters):
    """Measure the true B-staleness every so many iterations (fredsim.probe)."""

    every: PositiveInt


class Experiment(HyperParameters):
    """A resolved experiment. Exactly one of `iterations`, `updates` and `epochs` is given."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")] = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    iterations: PositiveInt | None = None
    updates: PositiveInt | None = None
    epochs: PositiveInt | None = None
    data: Data
    model: ModelChoice = MlpChoice()
    clients: Clients
    dispatcher: DispatcherChoice = DispatcherChoice()
    server: Plugin
    compress: Plugin | None = None
    average: Plugin | None = None
    evaluation: Evaluation = Evaluation()
    backend: Backend = "numba"
    threads: PositiveInt | None = None
    window: PositiveInt | None = None
    path: Path = "auto"
    memory: Annotated[ByteSize, Field(gt=0)] | None = None
    probe: ProbeChoice | None = None
    published: Published | None = None
    figures: list[FigureChoice] | None = None

    def plain(self) -> dict[str, Any]:
        """Return the experiment as plain data: what config.yaml holds, runnable as it is."""
        data = self.model_dump()
        for key in ("iterations", "updates", "epochs", "compress", "average", "probe", "published", "figures"):
            if data[key] is None:
                del data[key]
        return data

    @property
    def digest(self) -> str:
        """The SHA-256 of what determines the bits: all but the name, how the run is computed and what is beside it.

        A PyTorch module's bits depend on threads and window, too.
        """
        beside = {"name", "backend", "threads", "window", "path", "memory", "probe", "published", "figures"}
        if isinstance(self.model, TorchChoice):
            beside -= {"threads", "window"}
        data = {key: value for key, value in self.plain().items() if key not in beside}
        if "average" in data:
            data["average"] = {key: value for key, value in data["average"].items() if key != "device"}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def resolve(data: Mapping[str, Any], origin: Origin | None = None) -> Experiment:
    """Return the frozen experiment of plain data, every default filled in.

    Raises ConfigError naming file, line, key, value and remedy; all problems of one pass together.
    """
    origin = origin or Document(dict(data))
    try:
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        raise problems_at(explain(error, Experiment), origin) from None
    given = [key for key in ("iterations", "updates", "epochs") if getattr(experiment, key) is not None]
    if len(given) != 1:
        found = f"both {' and '.join(given)} are given" if given else "none is given"
        raise problems_at(
            [((given[0] if given else "",), f"{found}; give one of iterations, updates and epochs")], origin
        )
    update: dict[str, Any] = {
        key: _resolve_plugin(key, plugin, origin)
        for key in ("server", "dispatcher", "compress", "average")
        if (plugin := getattr(experiment, key)) is not None
    }
    gates = {key: _resolve_gate(key, getattr(experiment.dispatcher, key), origin) for key in ("push", "fetch")}
    update["dispatcher"] = update["dispatcher"].model_copy(update=gates)
    if isinstance(experiment.model, TorchChoice):
        _check_factory(experiment.model, origin)
    usual = dict(zip(("train", "validation"), USUAL.get(experiment.data.name, ()), strict=False))
    known = usual | {"sha256": file_digest(experiment.data.name)}
    update["data"] = Data(**known | experiment.data.model_dump(exclude_none=True))
    experiment = experiment.model_copy(update=update)
    experiment = experiment.model_copy(update={"published": _of_this_run(experiment)})
    try:
        _try_out(experiment)
    except ConfigError as error:
        raise located(error, origin) from None
    return experiment


KINDS: dict[str, Kind] = {
    "server": "server",
    "dispatcher": "dispatcher",
    "compress": "compressor",
    "average": "average",
}


def _resolve_plugin(key: str, plugin: Plugin, origin: Origin) -> Plugin:
    """Return the plugin with every default of its hyper-parameters filled in."""
    try:
        hyper, problems = resolve_hyper(KINDS[key], plugin.name, plugin.hyper)
    except ConfigError as error:
        raise ConfigError(f"{origin.place((key, 'name'))}: {key}.name: {error}") from None
    if problems:
        raise problems_at([((key, *at), text) for at, text in problems], origin)
    fixed = {name: getattr(plugin, name) for name in type(plugin).model_fields}
    return type(plugin)(**fixed, **hyper)


def _check_factory(choice: TorchChoice, origin: Origin) -> None:
    from fredsim.native.model import find_factory, given

    try:
        found = find_factory(choice.name)
    except ConfigError as error:
        raise located(error, origin) from None
    problems = misfits(found, choice.hyper, given(found))
    if problems:
        raise problems_at([(("model", *at), text) for at, text in problems], origin)


def _resolve_gate(key: str, spec: str | dict[str, Any], origin: Origin) -> str | dict[str, Any]:
    """Return a gate's name, or {name: hyper-parameters} with every default filled in."""
    at = ("dispatcher", key)
    try:
        name, hyper = spelled_out(spec)
        found, problems = resolve_hyper("gate", name, hyper)
    except ValueError as error:
        raise problems_at([(at, str(error))], origin) from None
    if problems:
        raise problems_at([((*at, name, *inner), text) for inner, text in problems], origin)
    return {name: found} if found else name


def located(error: ConfigError, origin: Origin) -> ConfigError:
    """Return the error, whose message begins with its key, with that key's place in front."""
    key = str(error).partition(" ")[0].rstrip(":")
    return ConfigError(f"{origin.place(tuple(key.split('.')))}: {error}")


def problems_at(problems: Sequence[tuple[tuple[int | str, ...], str]], origin: Origin) -> ConfigError:
    """Return one error of many problems, each with its place in front."""
    lines = []
    for at, text in problems:
        key = ".".join(str(part) for part in at if part != "")
        lines.append(f"{origin.place(at)}: {key}{': ' if key else ''}{text}")
    return ConfigError("\n".join(lines))


def _of_this_run(experiment: Experiment) -> Published | None:
    """Return what is published of an experiment with these values, None where nothing is."""
    published, flat = experiment.published, flatten(experiment.plain())
    if published is None:
        return None
    series = [one for one in published.series if all(flat.get(key) == value for key, value in one.where.items())]
    return published.model_copy(update={"series": series}) if series else None


def _try_out(experiment: Experiment) -> None:
    """Let the classes themselves refuse what does not fit, before any data is loaded."""
    check_dataset(experiment.data.name)
    check_batch(experiment, experiment.data.train)
    server = build("server", experiment.server.name, experiment.server.hyper)
    if isinstance(server, Server):
        layout, streams = Layout((("params", (1,)),)), Streams(experiment.seed)
        protocol = make_protocol(experiment, server, layout, streams, tried_out=True)
        start = np.zeros(1, np.float32)
        check(protocol, AdaptedServer(server, start, experiment.clients.count, layout, NumpyOperations(), streams))
    dispatcher = build("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
    dispatcher.init(experiment.clients.count, Streams(experiment.seed))


def check_batch(experiment: Experiment, rows: int | None) -> None:
    """Raise ConfigError where a minibatch is larger than the training set."""
    size = experiment.clients.batch_size
    if rows is not None and size > rows:
        raise ConfigError(f"clients.batch_size is {size}; it must not exceed the {rows} training rows (data.train)")
