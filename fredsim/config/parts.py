"""Parts of an experiment (fredsim.config.experiment): a class by its name, clients, dispatcher, what ends a run."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fredsim.config.choices import DroppedPush, Sampling
from fredsim.config.partition import Iid, PartitionChoice
from fredsim.hyper import Finite, HyperParameters, NonNegative, PositiveInt, Printable

__all__ = [
    "Affects", "Clients", "DispatcherChoice", "PluginChoice", "ProbeChoice", "Series", "Until", "exchange_keys",
]  # fmt: skip


class PluginChoice(BaseModel):
    """A class by its name (fredsim.config.registry), and its hyper-parameters."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", use_attribute_docstrings=True)

    name: Printable

    @property
    def hyper(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


class Clients(HyperParameters):
    """λ clients, minibatches of µ samples; `partition`: who has which training rows (fredsim.config.partition)."""

    # More than ten million take gigabytes for lists of them alone.
    count: Annotated[int, Field(gt=0, le=10_000_000, examples=[32])]
    """λ, how many there are."""
    batch_size: Annotated[PositiveInt, Field(examples=[4])]
    """µ, the samples of a minibatch."""
    sampling: Sampling = "sequential"
    """`sequential`: the minibatch of an iteration is the next µ rows, whoever arrives; `iid`: each client draws with
    replacement; `shuffled`: sequential in a new order each pass."""
    local_steps: Annotated[PositiveInt, Field(examples=[5])] = 1
    """So many steps, each by a minibatch of its own at the server's learning rate, between two pushes."""
    partition: Annotated[PartitionChoice, Field(examples=[{"name": "dirichlet", "alpha": 0.3}])] = Iid()
    """Which training rows each client has: `iid` (all share all), `{name: iid, shards: true}`, `dirichlet`,
    `pathological`, `shards`, `lists` (docs/shards.md); `sampling` is then within the client's own."""


class DispatcherChoice(PluginChoice):
    """Who finishes next, and how copies are exchanged."""

    name: Annotated[Printable, Field(examples=["round_robin"])] = "uniform"
    """Who finishes next; `clock`: by simulated time; `trace`: as it was recorded (docs/traces.md)."""
    wait: bool = True
    """True: a client waits for the reply to its push; false: it begins its next minibatch at once, from the parameters
    that it has."""
    push: Annotated[str | dict[str, Any], Field(examples=[{"bandwidth_aware": {"c": 0.01}}])] = "always"
    """The gate of pushes: `always`, or another with its hyper-parameters, `{NAME: …}`."""
    fetch: Annotated[str | dict[str, Any], Field(examples=[{"every": {"k": 4}}])] = "always"
    """The gate of fetches, likewise."""
    dropped_push: Annotated[DroppedPush, Field(examples=["accumulate"])] = "reapply"
    """What becomes of a push that its gate drops. `reapply`: the server applies the client's last sent gradient again;
    `skip`: there is no update; `accumulate`, `average`: the client sends the sum, or the mean, with its next push."""
    replica: bool = False
    """A client that did not fetch steps its own parameters by its gradient."""
    fred_timestamps: bool = False
    """A dropped fetch refreshes the timestamp all the same, as FRED's code does: staleness is under-reported."""


def exchange_keys(dispatcher: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a dispatcher's block that says how copies are exchanged, whoever arrives."""
    return {key: value for key, value in dispatcher.items() if key in DispatcherChoice.model_fields and key != "name"}


class Until(HyperParameters):
    """What ends a run before its length does: the first row with so small an error or loss of validation, or gap."""

    validation_error: Annotated[Annotated[float, Field(ge=0, lt=1)] | None, Field(examples=[0.05])] = None
    """The validation error, or less, at which the run ends; it is this, or `validation_loss` or `gap`."""
    validation_loss: Annotated[Finite | None, Field(examples=[0.5])] = None
    """The validation loss, or less, at which the run ends."""
    gap: Annotated[NonNegative | None, Field(examples=[0.001])] = None
    """The gap, or less, at which the run of a linear model ends."""

    @model_validator(mode="after")
    def check(self) -> Until:
        """Refuse none, and several."""
        if len(self.model_fields_set) != 1 or None in self.model_dump(include=self.model_fields_set).values():
            raise ValueError("must give one of validation_error and validation_loss, or gap of a linear model")
        return self

    @property
    def goal(self) -> tuple[str, float]:
        """The column of metrics.csv, and the value that ends the run."""
        ((column, value),) = self.model_dump(exclude_none=True).items()
        return column, value


class Series(HyperParameters):
    """Published points [x, y] of the runs whose resolved values are those of `where`, under dotted keys."""

    where: Annotated[dict[str, Any], Field(examples=[{"clients.count": 128, "server.name": "fasgd"}])]
    """Of which runs: those that have these values under these dotted keys."""
    points: Annotated[
        list[Annotated[list[Finite], Field(min_length=2, max_length=2)]],
        Field(min_length=1, examples=[[[10000, 0.279], [20000, 0.211]]]),
    ]
    """The points, [x, y] each."""


class ProbeChoice(HyperParameters):
    """Measure the true B-staleness every so many iterations (fredsim.simulation.probe)."""

    every: Annotated[PositiveInt, Field(examples=[100])]
    """The arrivals from one that is measured to the next."""


class Affects(Flag):
    """What a change of a key may change; of a key without this mark, BITS and TIME."""

    NOTHING = 0
    """At most the figures of the run."""
    RECORD = auto()
    """What its files say, but no number."""
    TIME = auto()
    """How it is computed, and so how long an iteration takes."""
    BITS_OF_MODULES = auto()
    """The bits of its results where the model is a PyTorch module."""
    BITS = auto()
    """The bits of its results."""
