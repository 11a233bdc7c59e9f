"""Problems of a user's own, for tests: in NumPy, on the cart-pole, in PyTorch, in JAX."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class Bowl:
    """½ Σ i·xᵢ², of which a gradient has noise; all is + − × ÷, in a fixed order, so that bits hold everywhere."""

    portable = True

    def __init__(self, size: int = 6, noise: float = 0.25, names: bool = False) -> None:
        self.weights = np.arange(1, size + 1, dtype=np.float32)
        self.noise = np.float32(noise)
        if names:
            self.parameters = {"first": (2, size // 2 - 1), "rest": size - 2 * (size // 2 - 1)}

    def initial(self, rng: np.random.Generator) -> Array:
        return (rng.random(len(self.weights), np.float32) - np.float32(0.5)) * np.float32(4)

    def gradient(self, params: Array, draw: np.random.Generator) -> tuple[Array, float]:
        noise = (draw.random(len(params), np.float32) - np.float32(0.5)) * self.noise
        return self.weights * params + noise, self.height(params)

    def height(self, params: Array) -> float:
        return math.fsum((self.weights * params * params).tolist()) / 2

    def evaluate(self, params: Array) -> dict[str, float]:
        return {"height": self.height(params), "farthest": float(abs(params).max()), "nearness": -self.height(params)}


class Hill(Bowl):
    """The same, of which more is better, and gradients without a loss."""

    measured_by = "nearness"
    larger_is_better = ("nearness",)

    def gradient(self, params: Array, draw: np.random.Generator) -> Any:
        return super().gradient(params, draw)[0]


class Mapped(dict[str, Any]):
    """A bowl of the arguments with which the dict is made, so that Python cannot tell what the class takes."""

    portable = True

    def initial(self, rng: np.random.Generator) -> Array:
        return Bowl(**self).initial(rng)

    def gradient(self, params: Array, draw: np.random.Generator) -> tuple[Array, float]:
        return Bowl(**self).gradient(params, draw)

    def evaluate(self, params: Array) -> dict[str, float]:
        return Bowl(**self).evaluate(params)


class Named(Bowl):
    """The same, with a loss and an error."""

    def evaluate(self, params: Array) -> dict[str, float]:
        return {"loss": self.height(params), "error": min(1.0, self.height(params) / 100)}


class Lagging(Bowl):
    """A gradient at the server's parameters, of noise that depends on what the client fetched."""

    def gradient(self, params: Array, draw: np.random.Generator, current: Array | None = None) -> tuple[Array, float]:
        assert current is not None
        return self.weights * current + np.float32(0.125) * params, self.height(current)


class Cliff:
    """An energy that falls by the learning rate, below 0, too; runs that begin lower have no gradient below `edge`."""

    measured_by = "energy"
    larger_is_better = ("profit",)

    def __init__(self, edge: float = -1e9) -> None:
        self.edge = edge

    def initial(self, rng: np.random.Generator) -> Array:
        self.breaks = rng.random() < 0.5
        return np.full(1, (3 if self.breaks else 5) + 0.25 * rng.random(), np.float32)

    def gradient(self, params: Array, draw: np.random.Generator) -> tuple[Array, float]:
        return np.full(1, math.nan if self.breaks and params[0] < self.edge else 1, np.float32), float(params[0])

    def evaluate(self, params: Array) -> dict[str, float]:
        energy = float(params[0])
        return {"energy": energy, "profit": 6 - energy, "debt": energy - 6}


class Everywhere(Bowl):
    """It draws from the generators that everybody in the process shares."""

    def gradient(self, params: Array, draw: np.random.Generator) -> tuple[Array, float]:
        noise = np.random.rand(len(params)) + random.random()  # noqa: NPY002
        return self.weights * params + np.float32(0.1) * noise.astype(np.float32), 0.0


class OfFiles(Bowl):
    """It reads a file, and names another."""

    def __init__(self, table: str, other: str = "") -> None:
        super().__init__()
        self.weights = np.loadtxt(table, dtype=np.float32)
        self.files = [other] if other else []


class ByTorch:
    """A tiny classifier in PyTorch, into whose module the parameters are copied."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))

    def initial(self, rng: np.random.Generator) -> Array:
        count = sum(parameter.numel() for parameter in self.net.parameters())
        found: Array = rng.standard_normal(count, np.float32)
        return found * np.float32(0.5)

    def loss(self, params: Array, generator: np.random.Generator) -> Any:
        self.torch.nn.utils.vector_to_parameters(self.torch.from_numpy(params), self.net.parameters())
        x = self.torch.from_numpy(generator.standard_normal((16, 3), np.float32))
        return self.torch.nn.functional.cross_entropy(self.net(x), (x.sum(dim=1) > 0).long())

    def gradient(self, params: Array, draw: np.random.Generator) -> Any:
        loss = self.loss(params, draw)
        found = self.torch.autograd.grad(loss, list(self.net.parameters()))
        return self.torch.cat([part.reshape(-1) for part in found]), loss.item()

    def evaluate(self, params: Array) -> dict[str, float]:
        return {"loss": self.loss(params, np.random.default_rng(0)).item()}


class ByJax:
    """The same loss in JAX."""

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        def loss(params: Any, x: Any) -> Any:
            hidden = jnp.tanh(x @ params[:12].reshape(3, 4) + params[12:16])
            logits = hidden @ params[16:24].reshape(4, 2) + params[24:]
            right = jnp.where(x.sum(axis=1) > 0, 1, 0)
            return -jax.nn.log_softmax(logits)[jnp.arange(16), right].mean()

        self.value, self.both = jax.jit(loss), jax.jit(jax.value_and_grad(loss))

    def initial(self, rng: np.random.Generator) -> Array:
        return rng.standard_normal(26, np.float32) * np.float32(0.5)

    def gradient(self, params: Array, draw: np.random.Generator) -> Any:
        loss, grad = self.both(params, draw.standard_normal((16, 3), np.float32))
        return grad, loss

    def evaluate(self, params: Array) -> dict[str, Any]:
        return {"loss": self.value(params, np.random.default_rng(0).standard_normal((16, 3), np.float32))}
