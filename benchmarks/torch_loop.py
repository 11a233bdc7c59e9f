"""What one would write in PyTorch: a plain loop that simulates the same clients.

This is the fastest way that we found with autograd: lists of tensors, `torch._foreach` functions, snapshots copied in
place. A flat vector with views, a call for each tensor, a clone at every fetch, or nn.Linear's layout is no faster
over all cells.

If the loop cannot be timed like fredsim, it has the advantage: the order of clients is drawn, and the clients' copies
are allocated, before its time begins, and it records nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.cells import Cell, plan

__all__ = ["run"]

Tensors = list[Tensor]
Push = Callable[[tuple[Tensor, ...], int], None]  # (gradient, staleness), updating θ in place


def run(cell: Cell, iterations: int) -> tuple[float, NDArray[np.float32]]:
    """Return the seconds of the iterations and the final parameters (P,)."""
    train = cell.dataset().train
    x, y = torch.from_numpy(train.x), torch.from_numpy(train.y)
    theta = [torch.from_numpy(part) for part in cell.start().values()]
    push = PUSHES[cell.server](theta, cell.hyper)
    held = [[part.clone().requires_grad_() for part in theta] for _ in range(cell.clients)]
    fetched = [0] * cell.clients  # the timestamp of what each client holds
    order = plan(cell.clients, iterations)
    mu = cell.batch_size
    batches = len(y) // mu

    begin = time.perf_counter()
    for timestamp, client in enumerate(order):
        at = timestamp % batches * mu
        snapshot = held[client]
        W1, b1, W2, b2 = snapshot
        hidden = torch.addmm(b1, x[at : at + mu], W1).relu()
        loss = cross_entropy(torch.addmm(b2, hidden, W2), y[at : at + mu])
        grads = torch.autograd.grad(loss, snapshot)
        with torch.no_grad():
            push(grads, timestamp - fetched[client])
            torch._foreach_copy_(snapshot, theta)
        fetched[client] = timestamp + 1
    seconds = time.perf_counter() - begin
    return seconds, torch.cat([part.reshape(-1) for part in theta]).numpy()


def asgd(theta: Tensors, hyper: dict[str, Any]) -> Push:
    """θ ← θ − α g."""
    lr = hyper["lr"]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        del staleness
        torch._foreach_add_(theta, g, alpha=-lr)

    return push


def sasgd(theta: Tensors, hyper: dict[str, Any]) -> Push:
    """θ ← θ − α g / (τ + 1)."""
    lr = hyper["lr"]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        torch._foreach_add_(theta, g, alpha=-lr / (staleness + 1))

    return push


def fasgd(theta: Tensors, hyper: dict[str, Any]) -> Push:
    """n ← γ n + (1−γ) g²; b ← γ b + (1−γ) g; v ← β v + (1−β) √(n − b² + ε); θ ← θ − α g / (v max(τ, 1))."""
    lr, gamma, beta, eps = (hyper[key] for key in ("lr", "gamma", "beta", "eps"))
    n, b = [torch.zeros_like(part) for part in theta], [torch.zeros_like(part) for part in theta]
    v = [torch.ones_like(part) for part in theta]

    def push(g: tuple[Tensor, ...], staleness: int) -> None:
        torch._foreach_mul_(n, gamma)
        torch._foreach_addcmul_(n, g, g, value=1 - gamma)
        torch._foreach_lerp_(b, g, 1 - gamma)
        deviation = torch._foreach_addcmul(n, b, b, value=-1)
        torch._foreach_clamp_min_(deviation, 0)  # n − b² may round below zero
        torch._foreach_add_(deviation, eps)
        torch._foreach_sqrt_(deviation)
        torch._foreach_lerp_(v, deviation, 1 - beta)
        torch._foreach_addcdiv_(theta, g, v, value=-lr / max(staleness, 1))

    return push


PUSHES: dict[str, Callable[[Tensors, dict[str, Any]], Push]] = {"asgd": asgd, "sasgd": sasgd, "fasgd": fasgd}
