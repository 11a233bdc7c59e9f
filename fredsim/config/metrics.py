"""The key `evaluation.metrics`: what else is measured of a network's outputs, each a column of metrics.csv."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from fredsim.config.document import Problems
from fredsim.config.losses import problems_of_function
from fredsim.config.sections import PluginChoice
from fredsim.errors import nearest, shown
from fredsim.hyper import Printable
from fredsim.native.own_loss import find_function

if TYPE_CHECKING:
    from fredsim.compute.metrics import Metric

__all__ = [
    "RESERVED", "MetricChoice", "OneMetric", "columns_of", "is_column", "is_of_class", "is_taken", "larger_columns",
    "metric_problems",
]  # fmt: skip

TOP = re.compile(r"top([1-9][0-9]{0,3})")
PER_CLASS = re.compile(r"error_class_(0|[1-9][0-9]*)")
KNOWN = ("top5", "perplexity", "per_class")
COLUMN, LONGEST = "[A-Za-z_][A-Za-z_0-9]*", 100  # the name of a column
#: The names of other columns of metrics.csv and runs.csv, where an experiment's key may be one.
RESERVED = frozenset({
    "iteration", "timestamp", "time", "train_loss", "validation_loss", "validation_error", "potential_pushes", "pushes",
    "potential_fetches", "fetches", "bytes_pushed", "bytes_fetched", "staleness_mean", "staleness_p50", "staleness_p95",
    "staleness_max", "digest", "test_loss", "test_error", "gap", "gradient_norm", "run", "status", "iterations",
    "updates", "error", "seconds_to", "seconds", "bytes", "name", "seed", "epochs", "until", "data", "model", "loss",
    "clients", "dispatcher", "server", "compress", "average", "evaluation", "backend", "threads", "window", "path",
    "memory", "stages", "problem", "probe", "events", "published", "figures",
})  # fmt: skip


class OneMetric(PluginChoice):
    """A metric by its name; or a user's function of (output, y), package.module:function, with keyword arguments."""

    name: Annotated[Printable, Field(examples=["top5"])]
    """`top5`, `perplexity`, `per_class`, or a function of yours, as package.module:function."""
    column: Annotated[str | None, Field(pattern=f"^{COLUMN}$", max_length=LONGEST, examples=["r2"])] = None
    """The name of the column of your own function; null: that of the function."""
    larger_is_better: Annotated[bool, Field(examples=[True])] = False
    """Whether more is better in what your own function returns: `until` and `reach` then wait for at least their value,
    and `select` takes the largest mean."""

    @model_validator(mode="after")
    def check(self) -> OneMetric:
        """Refuse unknown names, options of a metric that has none, and columns that there are already."""
        if ":" not in self.name:
            if not (TOP.fullmatch(self.name) or self.name in KNOWN):
                known = f"{', '.join(KNOWN)}, or your own as package.module:function"
                raise ValueError(f"is {shown(self.name)}{nearest(self.name, KNOWN)} (known: {known})")
            if options := [*self.hyper, *(key for key in ("column", "larger_is_better") if getattr(self, key))]:
                raise ValueError(f"{self.name} has the option {options[0]!r}; it takes none")
        elif fault := _fault_of_column(self.own_column):
            remedy = f"give the metric another, as {{name: {self.name}, column: …}}"
            raise ValueError(f"{self.name} would have the column {self.own_column!r}, which {fault}: {remedy}")
        return self

    @property
    def own_column(self) -> str:
        """The column of a user's function."""
        return self.column or self.name.partition(":")[2]

    @property
    def of_classes(self) -> bool:
        """Whether outputs must be logits of classes."""
        return ":" not in self.name

    @property
    def columns(self) -> list[str]:
        """The columns that are known without the data."""
        return [] if self.name == "per_class" else [self.own_column if ":" in self.name else self.name]

    def metric(self) -> Metric:
        """Return the metric. Raises ConfigError if a user's function cannot be imported."""
        from fredsim.compute.metrics import OwnMetric, PerClass, Perplexity, TopK

        if top := TOP.fullmatch(self.name):
            return TopK(int(top[1]))
        if self.name in KNOWN:
            return Perplexity() if self.name == "perplexity" else PerClass()
        return OwnMetric(self.name, self.own_column, find_function(self.name, "evaluation.metrics"), self.hyper)

    @model_serializer(mode="wrap")
    def plain(self, serialize: SerializerFunctionWrapHandler) -> Any:
        """Return the metric as it is written: its name, if that is all."""
        data = serialize(self)
        data = {key: data[key] for key in data if key in self.hyper or data[key] not in (None, False)}
        return self.name if len(data) == 1 else data


def _fault_of_column(name: str) -> str:
    """Return what is wrong with the name of a column, which may be that of a function; "" if nothing is."""
    if not re.fullmatch(COLUMN, name) or len(name) > LONGEST:
        return f"has not the letters, digits and _ of a column, {LONGEST} at most"
    return "is taken" if is_taken(name) else ""


Name = Literal["top5", "perplexity", "per_class"] | Annotated[str, Field(pattern="^top[1-9][0-9]*$|:")]
MetricChoice = Annotated[
    OneMetric,
    BeforeValidator(
        lambda value: {"name": value} if isinstance(value, str) else value, json_schema_input_type=OneMetric | Name
    ),
]


def metric_problems(metrics: Sequence[OneMetric]) -> Problems:
    """Return what is wrong with metrics that their keys alone do not say. Raises ConfigError."""
    found: Problems = []
    for number, one in enumerate(metrics):
        if not one.of_classes:
            function = find_function(one.name, "evaluation.metrics")
            found += [((number, *at), text) for at, text in problems_of_function(function, one.hyper)]
    return found


def columns_of(evaluation: Any) -> Iterator[str]:
    """Yield the columns of the metrics of an experiment's plain `evaluation`, but those of single classes."""
    metrics = evaluation.get("metrics") if isinstance(evaluation, Mapping) else None
    names: list[str] = []
    for one in metrics if isinstance(metrics, list) else ():
        name = one.get("name") if isinstance(one, Mapping) else one
        column = one.get("column") if isinstance(one, Mapping) else None
        if isinstance(name, str) and name != "per_class":
            names.append(column if isinstance(column, str) else name.partition(":")[2] or name)
    yield from names
    if isinstance(evaluation, Mapping) and evaluation.get("test") is True:
        yield from (f"test_{name}" for name in names)


def larger_columns(evaluation: Any) -> list[str]:
    """Return those columns of the metrics of an experiment's plain `evaluation` of which more is better."""
    if not isinstance(evaluation, Mapping) or not isinstance(evaluation.get("metrics"), list):
        return []
    larger = [one for one in evaluation["metrics"] if isinstance(one, Mapping) and one.get("larger_is_better") is True]
    return [*columns_of({**evaluation, "metrics": larger})]


def is_column(name: str, evaluation: Any) -> bool:
    """Return whether a name may be a column of the metrics of an experiment's plain `evaluation`."""
    if name in columns_of(evaluation):
        return True
    metrics = evaluation.get("metrics") if isinstance(evaluation, Mapping) else None
    known = metrics if isinstance(metrics, list) else []
    if "per_class" not in [one.get("name") if isinstance(one, Mapping) else one for one in known]:
        return False
    return is_of_class(name) and (evaluation.get("test") is True or not name.startswith("test_"))


def is_taken(name: str) -> bool:
    """Return whether a column of this name is, or may be, something else than a user's own number."""
    return name in RESERVED or PER_CLASS.fullmatch(name) is not None or name.startswith("test_")


def is_of_class(name: str) -> bool:
    """Return whether a name is that of a column of `per_class`."""
    return PER_CLASS.fullmatch(name.removeprefix("test_")) is not None
