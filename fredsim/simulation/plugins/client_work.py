"""What a client does between a fetch and a push, as an experiment and its server say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fredsim.config.clients import Clients, StepsBySpeed, StepsInSeconds
from fredsim.config.registry import build
from fredsim.dispatchers.local_steps import VariedSteps
from fredsim.errors import ConfigError
from fredsim.optimizers import Optimizer
from fredsim.optimizers.sgd import SGD
from fredsim.servers.schedules import rate_at
from fredsim.simulation.plugins.contract import Contract, PushKind
from fredsim.simulation.plugins.guarded_plugins import GuardedOptimizer
from fredsim.simulation.plugins.guarded_server import GuardedServer

__all__ = ["ROW", "ClientWork", "Form", "clients_at_work", "make_work"]

ROW = 32  # temporary bytes for the choice of one sample

Form = Literal["gradients", "steps", "params", "moved", "difference", "difference_over_lr"]
"""What is made of a client's local steps: the sum of their gradients or of the steps −(α·g) themselves; the parameters
that they reach; how far these are from the fetched ones, or these from them, as it is or divided by α."""


@dataclass(frozen=True)
class ClientWork:
    """What a client does between a fetch and a push."""

    form: Form = "gradients"
    #: How many local steps it takes, unless `varied` says how many tasks have: then the most that are known of.
    steps: int = 1
    varied: VariedSteps | None = None
    optimizer: Optimizer | GuardedOptimizer | None = None
    """None: SGD by the server's learning rate."""
    prox: float = 0.0
    control_variates: bool = False
    clip: float | None = None
    clip_each_sample: float | None = None
    noise: float = 0.0

    @property
    def steps_of_tasks(self) -> int | VariedSteps:
        """How many local steps tasks have, as a clock is told."""
        return self.varied or self.steps

    @property
    def several(self) -> bool:
        """Whether a client may take several steps."""
        return self.steps > 1 or self.varied is not None

    @property
    def takes_steps(self) -> bool:
        """Whether clients take steps of their own, so that they need a learning rate."""
        return self.several or self.form != "gradients" or self.control_variates

    @property
    def changes_gradients(self) -> bool:
        """Whether a gradient is changed before a step is made of it."""
        return bool(self.prox or self.control_variates or self.clip or self.clip_each_sample or self.noise)

    @property
    def plain(self) -> bool:
        """Whether clients do nothing but SGD, as sums of gradients or steps, or as parameters."""
        return not self.changes_gradients and self.form in {"gradients", "steps", "params"} and not self.optimizer

    @property
    def own(self) -> bool:
        """Whether the optimizer is a user's class."""
        return isinstance(self.optimizer, GuardedOptimizer)

    @property
    def copied_arrays(self) -> int:
        """How many arrays (P,) a copy has: control variates travel with what is pushed and fetched."""
        return 2 if self.control_variates else 1

    @property
    def kept_arrays(self) -> int:
        """How many arrays (P,) are kept for each client from task to task; those of a user's class are not known."""
        kept = self.optimizer if isinstance(self.optimizer, Optimizer) and self.optimizer.keeps_state else None
        return (len(kept.rule.state) if kept else 0) + 2 * self.control_variates

    @property
    def keeps(self) -> bool:
        """Whether something of a client may be kept from task to task."""
        return bool(self.kept_arrays) or self.own

    def rate(self, server: GuardedServer) -> float:
        """Return the learning rate of local steps that start from the server's present parameters."""
        if isinstance(self.optimizer, GuardedOptimizer):
            return 0.0  # it has its own
        lr = None if self.optimizer is None else self.optimizer.hyper.lr
        return server.rate() if lr is None else float(rate_at(lr, server.timestamp))


def clients_at_work(clients: int, fraction: float) -> int:
    """Return how many of the clients are at work at once, if a share of them is: rounded half up, 1 at least."""
    return max(1, int(fraction * clients + 0.5))


def make_work(clients: Clients, contract: Contract, server: str) -> ClientWork:
    """Return what clients do, for a server of this contract and name. Raises ConfigError if they do not fit."""
    steps, sets = clients.local_steps, contract.local_steps
    if sets is not None and steps not in {1, int(sets)}:
        given = steps if isinstance(steps, int) else steps.model_dump()
        raise ConfigError(f"clients.local_steps is {given}; the server {server} sets {int(sets)}")
    steps = steps if sets is None else int(sets)
    optimizer = None
    if clients.optimizer is not None:
        optimizer = build("optimizer", clients.optimizer.name, clients.optimizer.hyper)
        if callable(getattr(optimizer, "step", None)):  # a user's class, which may be derived from one of fredsim's
            optimizer = GuardedOptimizer(optimizer)
    varied, most = None, 1
    if isinstance(steps, StepsBySpeed):
        varied, most = VariedSteps(fastest=steps.fastest), steps.fastest
    elif isinstance(steps, StepsInSeconds):
        varied = VariedSteps(seconds=steps.seconds)
    else:
        most = steps
    return ClientWork(
        _form(clients, contract.pushes, optimizer, server),
        most,
        varied,
        optimizer,
        clients.prox,
        clients.control_variates,
        clients.clip,
        clients.clip_each_sample,
        clients.noise,
    )


def _form(clients: Clients, asked: PushKind, optimizer: Optimizer | GuardedOptimizer | None, server: str) -> Form:
    """Return what clients push. Raises ConfigError if `clients.pushes` does not fit the server or the optimizer."""
    given = clients.pushes
    # With weight decay, the sum of the gradients is not all that moved the parameters.
    sums = optimizer is None or (isinstance(optimizer, SGD) and not optimizer.hyper.weight_decay)
    if asked != "gradient" and given is not None:
        raise ConfigError(f"clients.pushes is {given}; the server {server} asks for {asked}: leave it out")
    if given == "gradients" and not sums:
        raise ConfigError(
            "clients.pushes is gradients, and clients.optimizer has weight_decay, which their sum leaves out; give "
            "difference"
        )
    if given == "difference_over_lr" and isinstance(optimizer, GuardedOptimizer):
        raise ConfigError(f"clients.pushes is {given}; a class of your own has no known learning rate: difference")
    if asked == "params":
        return "params"
    if asked == "delta":
        return "steps" if sums else "moved"
    if given is not None:
        return given
    if optimizer is None:
        return "gradients"
    if isinstance(optimizer, GuardedOptimizer) or optimizer.hyper.lr is not None:
        return "difference"
    return "gradients" if sums else "difference_over_lr"
