"""Elastic averaging SGD: clients explore on their own, tied to a centre by an elastic force.

    every p local steps of client i:   d = a (x_i − x̃),   x_i ← x_i − d,   x̃ ← x̃ + d

Zhang, Choromanska and LeCun 2015, "Deep learning with elastic averaging SGD", arXiv:1412.6651, asynchronous. The
centre x̃ is evaluated.

Departures: without momentum in the clients' steps. The first gradient after an exchange is taken at x_i − d, where the
client is; the paper's Algorithm 1 takes it at x_i, before the elastic move, and applies it after. A client whose push a
gate drops fetches the centre; where nobody has pushed since its last push, the x_i − d of that again.
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


def elastic(theta: Any, answer: Any, x: Any, a: Any) -> Any:  # noqa: ARG001  the answer is written only
    """x̃ + d and x − d."""
    d = a * (x - theta)
    return theta + d, x - d


class EASGD(ElementwiseServer):
    """The centre of the elastic; `lr` is the clients'."""

    idea = "pull each client's own parameters and the server's toward each other"
    citation = "Zhang et al. 2015, Deep learning with elastic averaging SGD, arXiv:1412.6651"
    pushes = "params"

    class Hyper(Rated):
        """Hyper-parameters of EASGD; `alpha` is a, `period` p, the local steps between two exchanges."""

        alpha: Annotated[float, Field(gt=0, lt=1)] = 0.1
        """a, how much of their distance client and centre move toward each other."""
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
        """Start without an answer."""
        self._answered = None
        return {}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (a,)."""
        return (np.float32(self.hyper.alpha),)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Move the centre, and remember whom the answer is for."""
        self._answered = client_id
        super().apply_update(grad, client_id, timestamp)

    def fetch(self, client_id: int) -> Array:
        """Return x_i − d to the client that has just pushed, the centre to any other."""
        return self.arrays["answer"] if client_id == self._answered else self.params
