"""Gap-Aware asynchronous SGD: an element of a gradient counts less the farther its parameter has moved meanwhile.

    s ← ρ s + (1−ρ) g²,   C = α_max √(s / (1−ρᵗ)) + 1e-8
    θ ← θ − α g / (1 + |θ − θ_client| / C)

Barkai, Hakimi and Schuster 2020, "Gap-aware mitigation of gradient staleness", arXiv:1909.10802.

Departures: α_max is the largest α so far. The key `c` fixes C, for comparison; infinity gives plain ASGD. s is stored
flushed: below 2⁻⁶² it becomes +0.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fredsim.hyper import Fraction
from fredsim.numerics.rules import Rule, absolute, flush, sqrt
from fredsim.servers.adam import unbiased
from fredsim.servers.base import Array, Coefficients, Rated, Steps
from fredsim.servers.elementwise import ElementwiseServer

__all__ = ["GapAware"]


def penalised(
    theta: Any, s: Any, held: Any, g: Any, alpha: Any, rho: Any, fresh: Any, correction: Any, alpha_max: Any
) -> Any:
    """θ − α·g/(1 + |θ − θ_client|/C), C from the moving mean square."""
    s = rho * s + fresh * (g * g)
    c = alpha_max * sqrt(s / correction) + 1e-8
    return theta - alpha * (g / (1.0 + absolute(theta - held) / c)), flush(s), held


def penalised_by(theta: Any, held: Any, g: Any, alpha: Any, c: Any) -> Any:
    """θ − α·g/(1 + |θ − θ_client|/C), C given."""
    return theta - alpha * (g / (1.0 + absolute(theta - held) / c)), held


class GapAware(ElementwiseServer):
    """Asynchronous SGD with an elementwise penalty on how far the parameters have moved since a client fetched."""

    idea = "divide each element of the gradient by how far its parameter has moved meanwhile, in typical steps"
    citation = "Barkai et al. 2020, Gap-aware mitigation of gradient staleness, arXiv:1909.10802"

    class Hyper(Rated):
        """Hyper-parameters of GapAware; `decay` is ρ, `c` null means C from the moving mean square."""

        decay: Fraction = 0.999
        """ρ, the decay rate of the mean square."""
        c: Annotated[float, Field(gt=0)] | None = None
        """C, the distance that counts as a gap of 1; null computes it from the moving mean square."""

        def resolve_defaults(self, clients: int) -> dict[str, Any]:
            """Say what null stands for."""
            return {"c": "from the mean square"}

    per_client = ("held",)
    state_names = ("_largest",)
    corrects = True

    def __init__(self, /, **hyper: Any) -> None:
        super().__init__(**hyper)
        given = self.hyper.c is not None
        self.rule = Rule(penalised_by, state=("held",)) if given else Rule(penalised, state=("s", "held"))
        self._largest = 0.0

    def initial_state(self) -> dict[str, float | Array]:
        """Return what each client holds at first: the initial parameters."""
        self._largest = 0.0
        return {"held": self.params.copy()}

    def coefficients(self, t: Steps, staleness: Steps) -> Coefficients:
        """Return (α, C), or (α, ρ, 1−ρ, 1−ρᵗ, α_max)."""
        h, alpha = self.hyper, self.rate(t)
        if h.c is not None:
            return np.float32(alpha), np.float32(h.c)
        correction = unbiased(h.decay, t + 1)
        fixed = (np.float32(x) for x in (alpha, h.decay, 1 - h.decay))
        return (*fixed, correction, np.float32(max(self._largest, alpha)))

    def apply_update(self, grad: Array, client_id: int, timestamp: int) -> None:
        """Apply the rule; α_max takes α into account from then on."""
        alpha = self.rate()
        super().apply_update(grad, client_id, timestamp)
        self._largest = max(self._largest, alpha)

    def begins(self, client_id: int, params: Array, timestamp: int) -> None:
        """Remember the parameters that the client computes from."""
        self.own["held"].put(client_id, params)

    def proxies(self, client_id: int, timestamp: int) -> dict[str, float]:
        """Return the mean of |θ − θ_client| / C, with the C of the pushes so far: the gap, in typical steps."""
        h, distance = self.hyper, absolute(self.params - self.own["held"][client_id])
        if h.c is not None:
            return {"gap": self.operations.mean(distance / np.float32(h.c))}
        if self.timestamp == 0:
            return {"gap": 0.0}
        usual = np.float32(self._largest) * np.sqrt(self.arrays["s"] / unbiased(h.decay, self.timestamp))
        return {"gap": self.operations.mean(distance / (usual + np.float32(1e-8)))}
