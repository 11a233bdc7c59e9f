"""The contract of an optimizer of local steps: an elementwise rule, and its coefficients.

A user's optimizer needs no base class: `begin(client, params)` is called when a client begins a task, and
`step(client, params, grad, k)` for each of its local steps; docs/clients.md says how.
"""

from __future__ import annotations

from typing import ClassVar

from fredsim.hyper import Configurable, HyperParameters, NonNegative
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Coefficients
from fredsim.servers.schedules import Rate

__all__ = ["Optimizer", "Remembering", "Stepping"]


class Stepping(HyperParameters):
    """Hyper-parameters of every optimizer: `lr` and decoupled weight decay."""

    lr: Rate | None = None
    """α of the local steps: a number, or a schedule of the server's timestamp at the fetch; null: the server's `lr`."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay: before each local step the client's parameters lose this share of themselves, times α."""


class Remembering(Stepping):
    """Hyper-parameters of an optimizer that keeps something from step to step."""

    keep_state: bool = False
    """Whether each client keeps the optimizer's state from task to task; false: it begins anew with every task."""


class Optimizer(Configurable):
    """Base of the optimizers that come with fredsim."""

    idea: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    #: How a step changes the client's parameters and the optimizer's state.
    rule: Rule

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep the state from task to task."""
        return bool(self.rule.state) and bool(getattr(self.hyper, "keep_state", False))

    def coefficients(self, alpha: float, k: int) -> Coefficients:
        """Return the rule's coefficients for the step that `k` steps of the same state came before, by the rate α."""
        raise NotImplementedError
