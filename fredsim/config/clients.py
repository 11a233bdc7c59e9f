"""The section `clients` of an experiment: how many there are, and what each does between a fetch and a push."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from fredsim.config.choices import ClientPush, Sampling
from fredsim.config.partition import Iid, PartitionChoice
from fredsim.config.sections import PluginChoice, Section
from fredsim.hyper import HyperParameters, NonNegative, Positive, PositiveInt

__all__ = ["Clients", "StepsBySpeed", "StepsInSeconds"]


class StepsBySpeed(HyperParameters):
    """Local steps in proportion to the client's speed: ⌊fastest · shortest mean time ÷ its mean time⌋, 1 at least."""

    fastest: Annotated[PositiveInt, Field(examples=[50])]
    """The local steps of the fastest client; one that takes twice as long for a gradient takes half as many."""
    by: Literal["speed"] = "speed"
    """In proportion to the clients' speeds on the clock."""


class StepsInSeconds(HyperParameters):
    """As many local steps as fit into so many seconds of the clock, 1 at least."""

    seconds: Annotated[float, Field(gt=0, le=1e9, examples=[2.0])]  # the clock counts in nanoseconds
    """The seconds of a task; one whose single gradient takes longer has one step, and takes longer."""


def _kind_of_steps(value: Any) -> str:
    if isinstance(value, StepsInSeconds) or (isinstance(value, dict) and "seconds" in value):
        return "StepsInSeconds"
    return "StepsBySpeed" if isinstance(value, StepsBySpeed | dict) else "Whole"


LocalSteps = Annotated[
    Annotated[PositiveInt, Tag("Whole")]
    | Annotated[StepsBySpeed, Tag("StepsBySpeed")]
    | Annotated[StepsInSeconds, Tag("StepsInSeconds")],
    Discriminator(_kind_of_steps),
]


def _spelled_out(value: Any) -> Any:
    """Return an optimizer that is given by its name alone as a mapping."""
    return {"name": value} if isinstance(value, str) else value


OptimizerChoice = Annotated[
    PluginChoice, BeforeValidator(_spelled_out, json_schema_input_type=PluginChoice | str)
]  # fmt: skip


class Clients(Section):
    """The λ clients: how many there are, which training rows each of them has, and what they do with these."""

    later = (
        "partition", "fraction", "optimizer", "pushes", "current", "prox", "control_variates", "clip",
        "clip_each_sample", "noise",
    )  # fmt: skip

    # Above ten million clients, lists of them alone take gigabytes.
    count: Annotated[int, Field(gt=0, le=10_000_000, examples=[32])]
    """λ, the number of clients."""
    batch_size: Annotated[PositiveInt, Field(examples=[4])]
    """µ, the number of samples in a minibatch."""
    sampling: Sampling = "sequential"
    """`sequential`: the minibatch of an iteration is the next µ rows, whichever client arrives; `iid`: each client
    draws with replacement; `shuffled`: sequential, in a new order in each pass. A pass has whole minibatches: unless
    clients have rows of their own, the last n mod µ rows of its order are left out."""
    local_steps: Annotated[LocalSteps, Field(examples=[5])] = 1
    """The number of steps between two pushes, each with its own minibatch and the learning rate that the server had
    when the client fetched. The client pushes the sum of the gradients of these steps, or what else the server asks
    for (docs/reference/servers.md). On a clock also `{fastest: 50, by: speed}` or `{seconds: 2.0}`
    (docs/clients.md)."""
    partition: Annotated[PartitionChoice, Field(examples=[{"name": "dirichlet", "alpha": 0.3}])] = Iid()
    """Which training rows each client has: `iid` (all clients share all rows), `{name: iid, shards: true}`,
    `dirichlet`, `pathological`, `shards`, `lists` (docs/shards.md); `sampling` is then within the client's own rows."""
    fraction: Annotated[float, Field(gt=0, le=1, examples=[0.1])] = 1.0
    """The share of the clients that are at work at once. When some may continue, as many are drawn among all that are
    idle: of synchronous rounds, each has its own random clients."""
    optimizer: Annotated[OptimizerChoice | None, Field(examples=[{"name": "adamw", "lr": 0.001}])] = None
    """What takes the local steps, `{name: …}` with its hyper-parameters, or your own class; null: `sgd` by the server's
    learning rate."""
    pushes: Annotated[ClientPush | None, Field(examples=["difference"])] = None
    """What a client pushes to a server that asks for gradients. `gradients`: their sum over the local steps;
    `difference`: w_fetched − w_local; `difference_over_lr`: that, divided by the local steps' learning rate; null:
    `difference` if the optimizer has an `lr` of its own or is your own, else `gradients` of `sgd`,
    `difference_over_lr` of others."""
    current: bool = False
    """Whether gradients are computed at the server's parameters when a push arrives, and not at those that its client
    fetched: then only its minibatch, or what it drew under them, is stale (docs/pipelines.md)."""
    prox: Annotated[NonNegative, Field(examples=[0.01])] = 0.0
    """The proximal term of FedProx: prox · (w − w_fetched) is added to each local step's gradient."""
    control_variates: bool = False
    """Whether local steps are corrected by SCAFFOLD's control variates, which are pushed and fetched, too."""
    clip: Annotated[Positive | None, Field(examples=[1.0])] = None
    """The largest norm of a minibatch's gradient: a longer one is scaled to it; null: no limit."""
    clip_each_sample: Annotated[Positive | None, Field(examples=[1.0])] = None
    """The largest norm of the gradient of each sample, before the mean over the minibatch; null: no limit."""
    noise: Annotated[NonNegative, Field(examples=[0.001])] = 0.0
    """The standard deviation of Gaussian noise that is added to each element of a minibatch's gradient, after
    clipping."""

    @model_validator(mode="after")
    def check(self) -> Clients:
        """Refuse what does not fit together, whatever the server."""
        if not isinstance(self.local_steps, int) and self.sampling != "iid" and self.partition == Iid():
            what = "clients with different local steps have no minibatches in common turn"
            raise ValueError(f"local_steps differ, and sampling is {self.sampling}; {what}: give iid, or a partition")
        name = "sgd" if self.optimizer is None else self.optimizer.name
        if self.control_variates and name != "sgd":
            raise ValueError(f"control_variates is true, and optimizer is {name}; SCAFFOLD's steps are those of sgd")
        if self.control_variates and self.prox:
            raise ValueError(f"control_variates is true, and prox is {self.prox:g}; give one of them")
        if self.pushes == "gradients" and name != "sgd":
            raise ValueError(f"pushes is gradients, and optimizer is {name}; its steps are no sum of them: difference")
        return self
