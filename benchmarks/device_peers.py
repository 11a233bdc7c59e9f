"""What one would write for a device in JAX and in PyTorch: benchmarks.device runs each in a process of its own.

    python -m benchmarks.device_peers jax|torch LAMBDA MU WIDTHS SECONDS      # WIDTHS: of hidden layers, by commas
    python -m benchmarks.device_peers torch LAMBDA MU lenet|resnet|resnet20 SECONDS

prints iterations a second of ASGD on data of MNIST's shape, or of CIFAR-10's for ResNets, without compilation, in
float32 (no TF32). JAX's is the whole simulation as one compiled scan over the arrivals. PyTorch's is a CUDA graph of 16
arrivals, replayed, without the order of clients and minibatches, which are tensors on the device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PEERS"]

INPUTS, CLASSES, ROWS, RATE = 784, 10, 6000, 0.005
GRAPHED = 16  # arrivals in one CUDA graph
CHUNK = 512  # arrivals that JAX's compiled scan takes at once
DEPTHS = {"resnet": 8, "resnet20": 20}

Arrays = list[NDArray[np.float32]]


def data() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return samples of which a fifth is not 0, as in MNIST, and labels."""
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, INPUTS), np.float32) * (rng.random((ROWS, INPUTS)) < 0.2)
    return x.astype(np.float32), rng.integers(0, CLASSES, ROWS)


def parameters(widths: list[int]) -> Arrays:
    """Return W1, b1, W2, b2, …"""
    rng, found = np.random.default_rng(1), []
    for inputs, width in pairwise([INPUTS, *widths, CLASSES]):
        found.append((rng.standard_normal((inputs, width)) * np.sqrt(2 / inputs)).astype(np.float32))
        found.append(np.zeros(width, np.float32))
    return found


def by_jax(clients: int, mu: int, widths: list[int], seconds: float) -> float:
    """Return iterations a second of a compiled scan."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    jax.config.update("jax_default_matmul_precision", "highest")
    samples, answers = data()
    x, y = jnp.array(samples), jnp.array(answers, jnp.int32)
    theta = [jnp.array(part) for part in parameters(widths)]
    held = [jnp.repeat(part[None], clients, axis=0) for part in theta]

    def loss(theta: Any, x: Any, y: Any) -> Any:
        for number in range(0, len(theta), 2):
            x = x @ theta[number] + theta[number + 1]
            x = jax.nn.relu(x) if number + 2 < len(theta) else x
        of_label = jnp.take_along_axis(x, y[:, None], axis=1)[:, 0]
        return (jax.nn.logsumexp(x, axis=1) - of_label).mean()

    def arrive(carry: Any, event: Any) -> Any:
        theta, held = carry
        client, rows = event
        own = [lax.dynamic_index_in_dim(part, client, keepdims=False) for part in held]
        grads = jax.grad(loss)(own, x[rows], y[rows])
        theta = [part - RATE * grad for part, grad in zip(theta, grads, strict=True)]
        held = [lax.dynamic_update_index_in_dim(part, new, client, 0) for part, new in zip(held, theta, strict=True)]
        return (theta, held), None

    run = jax.jit(lambda carry, events: lax.scan(arrive, carry, events)[0], donate_argnums=0)
    rng = np.random.default_rng(2)

    def events() -> Any:
        order, rows = rng.integers(0, clients, CHUNK), rng.integers(0, ROWS, (CHUNK, mu))
        return jnp.array(order, jnp.int32), jnp.array(rows, jnp.int32)

    given = [events() for _ in range(8)]
    carry = jax.block_until_ready(run((theta, held), given[0]))

    def advance() -> int:
        nonlocal carry
        for some in given:
            carry = run(carry, some)
        jax.block_until_ready(carry)
        return CHUNK * len(given)

    return rate(advance, seconds)


def dense_of_torch(widths: list[int]) -> tuple[Any, Any, Any]:
    """Return samples, parameters, and the outputs as a function of parameters and samples."""
    import torch

    def outputs(own: Any, value: Any) -> Any:
        for number in range(0, len(own), 2):
            value = torch.addmm(own[number + 1], value, own[number])
            value = value.relu() if number + 2 < len(own) else value
        return value

    return torch.from_numpy(data()[0]), [torch.from_numpy(part) for part in parameters(widths)], outputs


def network_of_torch(name: str) -> tuple[Any, Any, Any]:
    """Return samples, parameters, and the outputs as a function of parameters and samples, of fredsim.zoo."""
    import torch

    from fredsim import zoo

    torch.manual_seed(0)
    shape = (1, 28, 28) if name == "lenet" else (3, 32, 32)
    made = zoo.lenet(CLASSES, shape) if name == "lenet" else zoo.resnet(CLASSES, shape, depth=DEPTHS[name])
    module = made.to("cuda")
    names = [one for one, _ in module.named_parameters()]

    def outputs(own: Any, value: Any) -> Any:
        return torch.func.functional_call(module, dict(zip(names, own, strict=True)), (value,))

    x = torch.randn(len(data()[1]), *shape)
    return x, [part.detach().clone() for part in module.parameters()], outputs


def by_torch(clients: int, mu: int, network: list[int] | str, seconds: float) -> float:
    """Return iterations a second of a replayed CUDA graph."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = False, True
    answers, device = data()[1], torch.device("cuda")
    samples, theta, outputs = network_of_torch(network) if isinstance(network, str) else dense_of_torch(network)
    x, y = samples.to(device), torch.from_numpy(answers).to(device)
    theta = [part.to(device) for part in theta]
    held = [part[None].repeat(clients, *[1] * part.dim()) for part in theta]
    order = torch.zeros(GRAPHED, 1, dtype=torch.int64, device=device)
    rows = torch.zeros(GRAPHED, mu, dtype=torch.int64, device=device)

    def arrive(event: int) -> None:
        client = order[event]
        own = [part.index_select(0, client)[0].requires_grad_() for part in held]
        value = outputs(own, x.index_select(0, rows[event]))
        grads = torch.autograd.grad(cross_entropy(value, y.index_select(0, rows[event])), own)
        with torch.no_grad():
            torch._foreach_add_(theta, grads, alpha=-RATE)
            for part, new in zip(held, theta, strict=True):
                part.index_copy_(0, client, new[None])

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for event in range(3):
            arrive(event)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for event in range(GRAPHED):
            arrive(event)
    rng = np.random.default_rng(2)
    orders = torch.from_numpy(rng.integers(0, clients, (64, GRAPHED, 1))).to(device)
    choices = torch.from_numpy(rng.integers(0, ROWS, (64, GRAPHED, mu))).to(device)

    def advance() -> int:
        for number in range(64):
            order.copy_(orders[number])
            rows.copy_(choices[number])
            graph.replay()
        torch.cuda.synchronize()
        return 64 * GRAPHED

    return rate(advance, seconds)


def rate(advance: Callable[[], int], seconds: float) -> float:
    """Return iterations a second, of two times the better: of as many calls as take so many seconds, after one more."""
    advance()
    best = 0.0
    for _ in range(2):
        begin, done = time.perf_counter(), 0
        while (took := time.perf_counter() - begin) < seconds:
            done += advance()
        best = max(best, done / took)
    return best


PEERS: dict[str, Callable[[int, int, Any, float], float]] = {"jax": by_jax, "torch": by_torch}


if __name__ == "__main__":
    name, clients, mu, network, seconds = sys.argv[1:]
    widths = network if network.isalnum() and not network.isdigit() else [int(width) for width in network.split(",")]
    print(PEERS[name](int(clients), int(mu), widths, float(seconds)))
