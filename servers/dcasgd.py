"""Delay-compensated asynchronous SGD: a first-order estimate of what the gradient would be at the server's parameters.

    θ ← θ − α (g + ((Λ g) g) (θ − θ_bak(m)))
    constant: Λ = λ₀        adaptive: MS ← m MS + (1−m) g²,  Λ = λ₀ / √(MS + ε)

Zheng et al. 2017, "Asynchronous stochastic gradient descent with delay compensation", arXiv:1609.08326. θ_bak(m) are
the parameters that client m's gradient was computed from (`backup: pull`, the paper), or those after its last push
(`push`: Multiverso and TensorFlow).

Departures. Before a client's first push, its backup is the initial parameters; `initial_backup: zero` repeats
Multiverso and one TensorFlow variant, in which each client's first push gets a spurious Λ g² θ. MS is stored flushed:
below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fredsim.errors import ConfigError
from fredsim.hyper import Epsilon, Fraction, NonNegative
from fredsim.numerics.rules import Rule, flush, sqrt
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["DCASGD"]


def constant(theta: Any, backup: Any, g: Any, alpha: Any, lambda0: Any) -> Any:
    """Λ = λ₀."""
    return theta - alpha * (g + ((lambda0 * g) * g) * (theta - backup)), backup


def adaptive(theta: Any, ms: Any, backup: Any, g: Any, alpha: Any, lambda0: Any, m: Any, fresh: Any, eps: Any) -> Any:
    """Λ = λ₀/√(MS + ε)."""
    ms = m * ms + fresh * (g * g)
    scale = lambda0 / sqrt(ms + eps)
    return theta - alpha * (g + ((scale * g) * g) * (theta - backup)), flush(ms), backup


class DCASGD(ElementwiseServer):
    """Delay-compensated asynchronous SGD, constant (-c) or adaptive (-a)."""

    idea = "correct the gradient for the distance its client's parameters have fallen behind"
    citation = "Zheng et al. 2017, Asynchronous stochastic gradient descent with delay compensation, arXiv:1609.08326"

    class Hyper(Rated):
        """Hyper-parameters of DCASGD; `lambda0` null is 2, or 0.04 if not adaptive; `momentum` is m."""

        adaptive: bool = True
        """Whether Λ is λ₀/√(MS + ε), or λ₀ itself."""
        lambda0: NonNegative | None = None
        """λ₀, how much is compensated; null is 2.0, or 0.04 if not adaptive."""
        momentum: Fraction = 0.95
        """m, the decay rate of MS."""
        eps: Epsilon = 1e-7
        """ε, added to MS under the root."""
        backup: Literal["pull", "push"] = "pull"
        """What a client's backup is: `pull`, what it fetched; `push`, the parameters after its last push."""
        initial_backup: Literal["params", "zero"] = "params"
        """What backups are at a client's first push, also with `backup: pull`: `params`, the initial parameters;
        `zero`, zeros."""
        mean_square: Literal["shared", "client"] = "shared"
        """Whether there is one MS for all clients, `shared`, or one for each, `client`; only if adaptive."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Return the λ₀ that null stands for."""
            return {"lambda0": 2.0 if self.adaptive else 0.04}

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        h = self.hyper
        self.rule = Rule(adaptive, state=("ms", "backup")) if h.adaptive else Rule(constant, state=("backup",))
        self.corrects = h.backup == "pull"
        self.per_client = ("backup", "ms") if h.adaptive and h.mean_square == "client" else ("backup",)
        lambda0 = h.resolve_defaults(0)["lambda0"] if h.lambda0 is None else h.lambda0
        values = (lambda0, h.momentum, 1 - h.momentum, h.eps) if h.adaptive else (lambda0,)
        self._fixed = tuple(np.float32(x) for x in values)

    def initial_state(self) -> dict[str, float | Array]:
        """Return the initial backups."""
        return {"backup": self.params.copy() if self.hyper.initial_backup == "params" else 0.0}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return α and the fixed coefficients."""
        return (np.float32(self.rate(t)), *self._fixed)

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Apply the rule; with `backup: push`, keep the new parameters. Raises ConfigError for an unknown client."""
        if not 0 <= client_id < self.clients:
            raise ConfigError(f"client_id is {client_id}; it must lie in 0 … {self.clients - 1}")
        super().apply_update(grad, client_id, timestamp)
        if self.hyper.backup == "push":
            self.own["backup"].put(client_id, self.params)

    def begins(self, client_id: int, params: Array, timestamp: int) -> None:
        """Remember the parameters that the client computes from as its backup, with `backup: pull`."""
        if self.hyper.backup == "pull":
            self.own["backup"].put(client_id, params)
