"""What one would write in JAX: the whole simulation as one compiled function, a scan over the arrivals.

The clients' snapshots are carried as one array (λ, …) per parameter, updated in place: their buffers are donated and
the whole carry is returned, because otherwise XLA copies them at the start. One flat array (λ, P) takes up to four
times as long, since its slices are copied before they are multiplied; the loss by one-hot labels or by an unrolled scan
is as fast. XLA flushes subnormal numbers to zero; PyTorch does not.

Only the scan is timed: compilation, the order of clients, the data and the snapshots are ready before.

XLA has no option for its number of threads. Its pool is as large as the set of processors that the process may run on
when the first array is made, so `open_pool` narrows that set (by sched_setaffinity; without it, as on macOS, XLA
uses all processors).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from benchmarks.cells import Cell, plan
from fredsim.data.datasets import Dataset

__all__ = ["Compiled", "open_pool"]

jax.config.update("jax_platforms", "cpu")

Parts = tuple[Array, ...]  # W1, b1, W2, b2, or something of the same shapes
State = tuple[Array, ...]
Rule = Callable[[Array, State, Array, Array], tuple[Array, State]]  # (θ, state, g, τ), elementwise
Carry = tuple[Parts, tuple[State, ...], Parts, Array]  # θ, the rule's state, snapshots (λ, …), timestamps (λ,)


def open_pool(threads: int) -> None:
    """Start XLA with at most this many threads. Call it before any other use of JAX."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        jax.devices()
    finally:
        os.sched_setaffinity(0, allowed)


class Compiled:
    """The simulation of a cell, compiled for this many iterations."""

    def __init__(self, cell: Cell, iterations: int) -> None:
        self._cell = cell
        self._inputs = (*on_device(cell.dataset()), jnp.array(plan(cell.clients, iterations), jnp.int32))
        run = jax.jit(simulation(cell, iterations), donate_argnums=0)
        self._run = run.lower(jax.eval_shape(self._start), *self._inputs).compile()

    def __call__(self) -> tuple[float, NDArray[np.float32]]:
        """Return the seconds of the iterations and the final parameters (P,)."""
        carry = jax.block_until_ready(self._start())
        begin = time.perf_counter()
        carry = jax.block_until_ready(self._run(carry, *self._inputs))
        seconds = time.perf_counter() - begin
        return seconds, np.concatenate([np.asarray(part).reshape(-1) for part in carry[0]])

    def _start(self) -> Carry:
        theta = tuple(jnp.array(part) for part in self._cell.start().values())
        state = tuple(tuple(jnp.full_like(part, s) for s in INITIAL[self._cell.server]) for part in theta)
        held = tuple(jnp.repeat(part[None], self._cell.clients, axis=0) for part in theta)
        return theta, state, held, jnp.zeros(self._cell.clients, jnp.int32)


@lru_cache(maxsize=1)
def on_device(dataset: Dataset) -> tuple[Array, Array]:
    """Return the training samples and their labels."""
    return jnp.array(dataset.train.x), jnp.array(dataset.train.y, jnp.int32)


def loss(theta: Parts, x: Array, y: Array) -> Array:
    """Return the mean cross-entropy of a minibatch."""
    W1, b1, W2, b2 = theta
    logits = jax.nn.relu(x @ W1 + b1) @ W2 + b2
    of_label = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - of_label).mean()


def simulation(cell: Cell, iterations: int) -> Callable[[Carry, Array, Array, Array], Carry]:
    """Return the function to compile: (carry, x, y, order of clients) to the carry at the end."""
    mu = cell.batch_size
    rule = RULES[cell.server](cell.hyper)

    def run(carry: Carry, x: Array, y: Array, order: Array) -> Carry:
        batches = len(y) // mu

        def arrive(carry: Carry, event: tuple[Array, Array]) -> tuple[Carry, None]:
            theta, state, held, fetched = carry
            timestamp, client = event
            at = timestamp % batches * mu
            own = tuple(lax.dynamic_index_in_dim(part, client, keepdims=False) for part in held)
            minibatch = lax.dynamic_slice_in_dim(x, at, mu), lax.dynamic_slice_in_dim(y, at, mu)
            grads = jax.grad(loss)(own, *minibatch)
            staleness = timestamp - fetched[client]
            moved = [rule(*part, staleness) for part in zip(theta, state, grads, strict=True)]
            theta, state = tuple(part for part, _ in moved), tuple(own for _, own in moved)
            held = tuple(
                lax.dynamic_update_index_in_dim(part, new, client, 0) for part, new in zip(held, theta, strict=True)
            )
            return (theta, state, held, fetched.at[client].set(timestamp + 1)), None

        carry, _ = lax.scan(arrive, carry, (jnp.arange(iterations, dtype=jnp.int32), order))
        return carry

    return run


def asgd(hyper: dict[str, Any]) -> Rule:
    """θ ← θ − α g."""
    lr = hyper["lr"]

    def rule(theta: Array, state: State, g: Array, staleness: Array) -> tuple[Array, State]:
        del staleness
        return theta - lr * g, state

    return rule


def sasgd(hyper: dict[str, Any]) -> Rule:
    """θ ← θ − α g / (τ + 1)."""
    lr = hyper["lr"]

    def rule(theta: Array, state: State, g: Array, staleness: Array) -> tuple[Array, State]:
        return theta - lr / (staleness + 1) * g, state

    return rule


def fasgd(hyper: dict[str, Any]) -> Rule:
    """n ← γ n + (1−γ) g²; b ← γ b + (1−γ) g; v ← β v + (1−β) √(n − b² + ε); θ ← θ − α g / (v max(τ, 1))."""
    lr, gamma, beta, eps = (hyper[key] for key in ("lr", "gamma", "beta", "eps"))

    def rule(theta: Array, state: State, g: Array, staleness: Array) -> tuple[Array, State]:
        n, b, v = state
        n = gamma * n + (1 - gamma) * (g * g)
        b = gamma * b + (1 - gamma) * g
        v = beta * v + (1 - beta) * jnp.sqrt(jnp.maximum(n - b * b, 0) + eps)  # n − b² may round below zero
        return theta - lr / jnp.maximum(staleness, 1) * g / v, (n, b, v)

    return rule


RULES: dict[str, Callable[[dict[str, Any]], Rule]] = {"asgd": asgd, "sasgd": sasgd, "fasgd": fasgd}
INITIAL: dict[str, tuple[float, ...]] = {"asgd": (), "sasgd": (), "fasgd": (0, 0, 1)}
