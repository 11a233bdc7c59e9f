"""Elastic averaging SGD: clients explore on their own, tied to a centre by an elastic force.

    every p local steps of client i:   d = a (x_i − x̃),   x_i ← x_i − d,   x̃ ← x̃ + d

Zhang, Choromanska and LeCun 2015, "Deep learning with elastic averaging SGD", arXiv:1412.6651, the asynchronous
variant. The centre x̃ is what is evaluated.

Departures: the clients' steps have no momentum. The first gradient after an exchange is computed at x_i − d, the
client's new parameters; the paper's Algorithm 1 computes it at x_i, before the elastic move, and applies it after the
move. A client whose push a gate drops (`dropped_push: skip`), or whose task a clock gives up, fetches the centre; but
if no client has pushed since its own last push, it fetches the x_i − d of that push again. Its steps since then are
lost.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fredsim.hyper import PositiveInt
from fredsim.numerics.rules import Rule
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["EASGD"]


def elastic(theta: Any, answer: Any, x: Any, a: Any) -> Any:  # noqa: ARG001  `answer` is only written
    """x̃ + d and x − d."""
    d = a * (x - theta)
    return theta + d, x - d


class EASGD(ElementwiseServer):
    """The centre of elastic averaging SGD; `lr` is the learning rate of the clients' local steps."""

    idea = "pull each client's own parameters and the server's toward each other"
    citation = "Zhang et al. 2015, Deep learning with elastic averaging SGD, arXiv:1412.6651"
    pushes = "params"

    class Hyper(Rated):
        """Hyper-parameters of EASGD; `alpha` is a, `period` p, the local steps between two exchanges."""

        alpha: Annotated[float, Field(gt=0, lt=1)] = 0.1
        """a: client and centre each move toward the other by this share of their distance."""
        period: PositiveInt = 10
        """p, a client's local steps between two exchanges."""

    rule = Rule(elastic, state=("answer",))
    state_names = ("_answered",)
    _answered: int | None = None

    @property
    def local_steps(self) -> int:
        """The clients' local steps between two pushes."""
        return int(self.hyper.period)

    def initial_state(self) -> dict[str, float | Array]:
        """Return nothing to add to zeros; forget which client the answer x_i − d is for."""
        self._answered = None
        return {}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (a,)."""
        return (np.float32(self.hyper.alpha),)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Move the centre, and remember which client the answer x_i − d is for."""
        self._answered = client_id
        super().apply_update(grad, client_id, timestamp)

    def fetch(self, client_id: int) -> Array:
        """Return x_i − d to the client that has just pushed, the centre to any other."""
        return self.arrays["answer"] if client_id == self._answered else self.params
