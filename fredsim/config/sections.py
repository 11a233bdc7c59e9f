"""Sections of an experiment (.experiment): dispatcher, classes chosen by name, goals; what keys affect."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)  # fmt: skip

from fredsim.config.choices import DroppedPush
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt, Printable

__all__ = [
    "EXCHANGE_KEYS", "WHOLE", "Affects", "DispatcherChoice", "PluginChoice", "ProbeChoice", "Section", "Series",
    "Until", "exchange_keys",
]  # fmt: skip


WHOLE = "whole"  # the context in which the keys of a section are all written


class Section(HyperParameters):
    """A part of an experiment to which keys were added later.

    With their defaults these are left out of configurations, so that earlier ones keep their digests, unless the
    context of serialization is WHOLE.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def leave_out(self, serialize: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        """Return the keys as they are written."""
        data: dict[str, Any] = serialize(self)
        for key, default in _defaults(type(self)).items() if info.context != WHOLE else ():
            if getattr(self, key) == default:
                data.pop(key, None)
        return data


@cache
def _defaults(section: type[Section]) -> dict[str, Any]:
    """Return the defaults of a section's later keys: finding one takes longer than to write the section."""
    return {key: section.model_fields[key].get_default(call_default_factory=True) for key in section.later}


class PluginChoice(BaseModel):
    """A class chosen by its name (fredsim.config.registry), with its hyper-parameters."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    name: Printable

    @property
    def hyper(self) -> dict[str, Any]:
        """The hyper-parameters: all keys except the declared ones."""
        return dict(self.model_extra or {})


class DispatcherChoice(PluginChoice):
    """Which client arrives next, and how pushes and fetches are exchanged."""

    name: Annotated[Printable, Field(examples=["round_robin"])] = "uniform"
    """How the next client is chosen; `clock`: by simulated time; `trace`: as it was recorded (docs/traces.md)."""
    wait: bool = True
    """True: a client waits for the reply to its push; false: it begins its next minibatch at once, from the parameters
    that it has."""
    push: Annotated[str | dict[str, Any], Field(examples=[{"bandwidth_aware": {"c": 0.01}}])] = "always"
    """The gate of pushes: `always`, or another with its hyper-parameters, `{NAME: …}`."""
    fetch: Annotated[str | dict[str, Any], Field(examples=[{"every": {"k": 4}}])] = "always"
    """The gate of fetches, given in the same way."""
    dropped_push: Annotated[DroppedPush, Field(examples=["accumulate"])] = "reapply"
    """What happens if the gate drops a push. `reapply`: the server applies the client's last sent gradient again;
    `skip`: there is no update; `accumulate`, `average`: the client adds it to its next push, as a sum or a mean."""
    replica: bool = False
    """Whether a client whose fetch was dropped takes a step with its own gradient."""
    fred_timestamps: bool = False
    """Whether even a dropped fetch refreshes the timestamp, as in FRED's code: staleness is then under-reported."""


#: The keys of a `dispatcher` block that say how pushes and fetches are exchanged, not who arrives.
EXCHANGE_KEYS = tuple(key for key in DispatcherChoice.model_fields if key != "name")


def exchange_keys(dispatcher: Mapping[str, Any]) -> dict[str, Any]:
    """Return those keys of a `dispatcher` block that are in EXCHANGE_KEYS, with their values."""
    return {key: value for key, value in dispatcher.items() if key in EXCHANGE_KEYS}


class Until(HyperParameters):
    """The goal at which a run ends early: a row whose error, loss, gap or other metric is small enough."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Finite]

    validation_error: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, Field(examples=[0.05])] = None
    """The run ends at this validation error or less; give either this, or `validation_loss` or `gap`."""
    validation_loss: Annotated[Finite | None, Field(examples=[0.5])] = None
    """The run ends at this validation loss or less."""
    gap: Annotated[NonNegative | None, Field(examples=[0.001])] = None
    """The run of a linear model ends at this gap or less."""
    test_error: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, Field(examples=[0.05])] = None
    """With `evaluation.test`, the run ends at this test error or less."""
    test_loss: Annotated[Finite | None, Field(examples=[0.5])] = None
    """With `evaluation.test`, the run ends at this test loss or less."""

    @model_validator(mode="after")
    def check(self) -> Until:
        """Refuse an experiment that gives none of them, or several."""
        if len(self.model_fields_set) != 1 or None in self.model_dump(include=self.model_fields_set).values():
            raise ValueError(
                "must give one of validation_error and validation_loss, gap of a linear model, test_error, test_loss, "
                "or a column of evaluation.metrics"
            )
        return self

    @property
    def goal(self) -> tuple[str, float]:
        """The column of metrics.csv, and the value at which the run ends."""
        ((column, value),) = self.model_dump(exclude_none=True).items()
        return column, value


class Series(HyperParameters):
    """Published points [x, y] of the runs whose resolved experiments have the values `where`, under dotted keys."""

    where: Annotated[dict[str, Any], Field(examples=[{"clients.count": 128, "server.name": "fasgd"}])]
    """The runs that the points belong to: those with these values under these dotted keys."""
    points: Annotated[
        list[Annotated[list[Finite], Field(min_length=2, max_length=2)]],
        Field(min_length=1, examples=[[[10000, 0.279], [20000, 0.211]]]),
    ]
    """The points, each [x, y]."""


class ProbeChoice(Section):
    """How often the true B-staleness is measured."""

    later = ("per_tensor",)

    every: Annotated[PositiveInt, Field(examples=[100])]
    """n: every n-th arrival is measured."""
    per_tensor: bool = False
    """Whether B-staleness, gradient and distance are measured for each tensor of the parameters, too."""


class Affects(Flag):
    """What a change of a key's value may affect; a key without this mark affects BITS and TIME."""

    NOTHING = 0
    """At most the figures of the run."""
    RECORD = auto()
    """What the run's files say, but no number."""
    TIME = auto()
    """How the run is computed, and so how long an iteration takes."""
    BITS_OF_MODULES = auto()
    """The bits of the results if the model is a PyTorch module."""
    BITS = auto()
    """The bits of the results."""
