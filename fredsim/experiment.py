"""An experiment: everything that determines a run's bits, validated once and frozen."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fredsim.backends import Backend
from fredsim.datasets import USUAL, check_dataset
from fredsim.document import Document, assign, parse_override
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, NonNegative, PositiveInt, explain
from fredsim.registry import build, resolve_hyper
from fredsim.sampling import Sampling
from fredsim.servers import Server
from fredsim.streams import Streams

__all__ = ["Experiment", "Plan", "check_batch", "expand", "resolve"]


class Data(HyperParameters):
    """`name` with the first `train` and last `validation` rows of the training part; null: the usual number."""

    name: str
    train: PositiveInt | None = None
    validation: Annotated[int, Field(ge=0)] | None = None


class Normal(HyperParameters):
    """N(0, std²)."""

    name: Literal["normal"]
    std: NonNegative = 1.0


class ModelChoice(HyperParameters):
    """A multilayer perceptron; `hidden: []` is softmax regression."""

    name: Literal["mlp"] = "mlp"
    hidden: list[PositiveInt] = Field(default_factory=lambda: [200])
    init: Literal["he", "glorot", "zeros", "normal"] | Normal = "he"


class Clients(HyperParameters):
    """λ clients, minibatches of µ samples."""

    count: PositiveInt
    batch_size: PositiveInt
    sampling: Sampling = "sequential"


class Plugin(BaseModel):
    """A named class and its hyper-parameters."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: str

    @property
    def hyper(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class DispatcherChoice(Plugin):
    """`wait`: after a push a client waits for the reply; false: it computes on with what it holds."""

    name: str = "uniform"
    wait: bool = True


class Evaluation(HyperParameters):
    """A row every so many iterations, updates or epochs; rows at 0 and at the end always."""

    every: PositiveInt = 1000
    unit: Literal["iterations", "updates", "epochs"] = "iterations"


class Experiment(HyperParameters):
    """A resolved experiment. Exactly one of `iterations`, `updates` and `epochs` is given."""

    name: Annotated[str, Field(pattern=r"^[\w.+-]+$")] = "experiment"
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    iterations: PositiveInt | None = None
    updates: PositiveInt | None = None
    epochs: PositiveInt | None = None
    data: Data
    model: ModelChoice = ModelChoice()
    clients: Clients
    dispatcher: DispatcherChoice = DispatcherChoice()
    server: Plugin
    evaluation: Evaluation = Evaluation()
    backend: Backend = "numba"
    threads: PositiveInt | None = None
    window: PositiveInt | None = None

    def plain(self) -> dict[str, Any]:
        """Return the experiment as plain data: what config.yaml holds, runnable as it is."""
        data = self.model_dump()
        for length in ("iterations", "updates", "epochs"):
            if data[length] is None:
                del data[length]
        return data

    @property
    def digest(self) -> str:
        """The SHA-256 of what determines the bits: all but the name and how the run is computed."""
        data = {k: v for k, v in self.plain().items() if k not in {"name", "backend", "threads", "window"}}
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


class Plan:
    """The runs of a document: one, or those of a sweep, each with the values that tell it from the others."""

    def __init__(
        self, name: str, experiments: list[Experiment], axes: list[dict[str, Any]], source: dict[str, Any]
    ) -> None:
        self.name = name
        self.experiments = experiments
        self.axes = axes
        self.source = source

    @property
    def is_sweep(self) -> bool:
        """Whether the document has cases or a sweep, be it of one run."""
        return "cases" in self.source or "sweep" in self.source

    @property
    def labels(self) -> list[str]:
        """A readable name a run, made of the values in which it differs."""
        return [
            ",".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in axes.items()) for axes in self.axes
        ]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        rest = "".join(f"-{key}{_short(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}{rest}" if "name" in value else rest.removeprefix("-")
    if isinstance(value, list):
        return "x".join(map(_short, value)) or "none"
    return "null" if value is None else str(value).replace("/", "_")


def expand(document: Document, overrides: Sequence[str] = ()) -> Plan:
    """Return every experiment of a document, `cases` outside, the axes of `sweep` inside, the last axis fastest.

    Raises ConfigError, naming file, line and key, for the first run that is not valid.
    """
    data, places = copy.deepcopy(document.data), dict(document.places)
    document = Document(data, document.source, places)
    last: list[tuple[str, Any]] = []
    overridden: set[tuple[int | str, ...]] = set()
    sweep, cases = _grid(document)
    for text in overrides:
        key, value = parse_override(text)
        at = tuple(key.split("."))
        for inner in [k for k in places if k[: len(at)] == at]:
            del places[inner]
        places[at] = f"override '{text}'"
        overridden.add(at)
        if at[0] in {"sweep", "cases"} and len(at) > 1:
            raise ConfigError(f"{places[at]}: to replace an axis write its key alone, such as seed=[0,1]")
        if key in sweep:
            sweep[key] = value if isinstance(value, list) else [value]
        elif key in {"sweep", "cases"} or not (sweep or cases):
            _assign(data, key, value, places[at])
        else:
            last.append((key, value))
        sweep, cases = _grid(document)
    _refuse_clashes(document, sweep, cases)
    base = {key: value for key, value in data.items() if key not in {"cases", "sweep"}}
    experiments, axes = [], []
    for number, case in enumerate(cases or [{}]):
        for values in product(*sweep.values()):
            chosen = {**case, **dict(zip(sweep, values, strict=True))}
            run = copy.deepcopy(base)
            origin = _Origin(document, number, case, sweep, values, overridden)
            for key, value in (*chosen.items(), *last):
                _assign(run, key, copy.deepcopy(value), origin.place(tuple(key.split("."))))
            experiments.append(resolve(run, origin))
            axes.append(chosen)
    source = dict(data)
    if last:
        source["overrides"] = dict(last)
    return Plan(experiments[0].name, experiments, axes, source)


def _assign(data: dict[str, Any], key: str, value: Any, place: str) -> None:
    try:
        assign(data, key, value)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


def _grid(document: Document) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """Return the document's own sweep and cases, empty where it has none. Raises ConfigError for another shape."""
    for key in ("sweep", "cases"):
        if key in document.data and document.data[key] is None:  # `sweep=null` on the command line takes it away
            del document.data[key]
    sweep, cases = document.data.get("sweep", {}), document.data.get("cases", [])
    if not isinstance(sweep, dict) or not all(isinstance(values, list) for values in sweep.values()):
        place = document.place(("sweep",))
        raise ConfigError(f"{place}: sweep: must map each key to a list of values, such as seed: [0, 1]")
    for key, values in sweep.items():
        if not values:
            place = document.place((key,)) if (key,) in document.places else document.place(("sweep", key))
            raise ConfigError(f"{place}: {key}: is swept over an empty list; give it a value at least")
    empty = "cases" in document.data and not cases
    if empty or not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        place = document.place(("cases",))
        raise ConfigError(f"{place}: cases: must be a list of mappings of keys to values, such as - {{seed: 1}}")
    return sweep, cases


def _refuse_clashes(document: Document, sweep: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> None:
    keys = {key for case in cases for key in case}
    for axis in sweep:
        for key in keys:
            if f"{axis}.".startswith(f"{key}.") or f"{key}.".startswith(f"{axis}."):
                place = document.place(("sweep", axis))
                raise ConfigError(f"{place}: '{axis}' is swept, and '{key}' stands in cases; keep one of them")


class _Origin:
    """Where the parts of one run of a sweep come from."""

    def __init__(
        self,
        document: Document,
        number: int,
        case: Mapping[str, Any],
        sweep: Mapping[str, Any],
        values: Sequence[Any],
        overridden: Set[tuple[int | str, ...]],
    ) -> None:
        self._document = document
        self._overridden = overridden
        self._roots: dict[tuple[int | str, ...], tuple[int | str, ...]] = {}
        for key in case:
            self._roots[tuple(key.split("."))] = ("cases", number, key)
        for key, value in zip(sweep, values, strict=True):
            self._roots[tuple(key.split("."))] = ("sweep", key, sweep[key].index(value))

    def place(self, key: tuple[int | str, ...]) -> str:
        for length in range(len(key), 0, -1):
            if key[:length] in self._overridden:  # an override has the last word
                break
            root = self._roots.get(key[:length])
            if root is not None:
                return self._document.place((*root, *key[length:]))
        return self._document.place(key)


def resolve(data: Mapping[str, Any], origin: Document | _Origin | None = None) -> Experiment:
    """Return the frozen experiment of plain data, every default filled in.

    Raises ConfigError naming file, line, key, value and remedy; all problems of one pass together.
    """
    origin = origin or Document(dict(data))
    try:
        experiment = Experiment.model_validate(data)
    except ValidationError as error:
        raise _problems(explain(error, Experiment), origin) from None
    given = [key for key in ("iterations", "updates", "epochs") if getattr(experiment, key) is not None]
    if len(given) != 1:
        found = f"both {' and '.join(given)} are given" if given else "none is given"
        raise _problems(
            [((given[0] if given else "",), f"{found}; give one of iterations, updates and epochs")], origin
        )
    update: dict[str, Any] = {}
    for kind in ("server", "dispatcher"):
        plugin: Plugin = getattr(experiment, kind)
        try:
            hyper, problems = resolve_hyper(kind, plugin.name, plugin.hyper)
        except ConfigError as error:
            raise ConfigError(f"{origin.place((kind, 'name'))}: {error}") from None
        if problems:
            raise _problems([((kind, *at), text) for at, text in problems], origin)
        fixed = {key: getattr(plugin, key) for key in type(plugin).model_fields}
        update[kind] = type(plugin)(**fixed, **hyper)
    usual = dict(zip(("train", "validation"), USUAL.get(experiment.data.name, ()), strict=False))
    given_rows = {k: v for k, v in experiment.data.model_dump().items() if v is not None}
    update["data"] = Data(**{**usual, **given_rows})
    experiment = experiment.model_copy(update=update)
    try:
        _try_out(experiment)
    except ConfigError as error:
        key = str(error).partition(" ")[0].rstrip(":")
        raise ConfigError(f"{origin.place(tuple(key.split('.')))}: {error}") from None
    return experiment


def _problems(problems: Sequence[tuple[tuple[int | str, ...], str]], origin: Document | _Origin) -> ConfigError:
    lines = []
    for at, text in problems:
        key = ".".join(str(part) for part in at if part != "")
        lines.append(f"{origin.place(at)}: {key}{': ' if key else ''}{text}")
    return ConfigError("\n".join(lines))


def _try_out(experiment: Experiment) -> None:
    """Let the classes themselves refuse what does not fit, before any data is loaded."""
    check_dataset(experiment.data.name)
    check_batch(experiment, experiment.data.train)
    server = build("server", experiment.server.name, experiment.server.hyper)
    if isinstance(server, Server):
        server.init(np.zeros(1, np.float32), experiment.clients.count)
    if getattr(server, "holds", False) and not experiment.dispatcher.wait:
        raise ConfigError(
            f"dispatcher.wait is false; the server {experiment.server.name} holds its clients, so they must wait"
        )
    dispatcher = build("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
    dispatcher.init(experiment.clients.count, Streams(experiment.seed))


def check_batch(experiment: Experiment, rows: int | None) -> None:
    """Raise ConfigError where a minibatch is larger than the training set."""
    size = experiment.clients.batch_size
    if rows is not None and size > rows:
        raise ConfigError(f"clients.batch_size is {size}; it must not exceed the {rows} training rows (data.train)")
