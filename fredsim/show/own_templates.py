"""What `fredsim new --own KIND` writes beside an experiment: a module with a class or a function to start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["OWN"]


class Own(NamedTuple):
    """A module's text, what it has to offer, and the part of an experiment that names it.

    `keys` are the keys of that part, for a name as package.module:Name; `one_label`: samples must have one label each.
    """

    source: str
    name: str
    part: str
    keys: Callable[[str], dict[str, Any]]
    one_label: bool = False


SERVER = '''\
import numpy as np


class RootStaleness:
    """θ ← θ − α g / √(1 + τ): a step is the smaller, the more updates its gradient has missed."""

    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params = params.copy()  # float32 (P,): what clients fetch
        self.timestamp = 0  # how many updates were applied

    def apply_update(self, grad, client_id, timestamp):  # timestamp: that of the parameters of the gradient
        staleness = self.timestamp - timestamp
        self.params -= np.float32(self.lr / np.sqrt(1 + staleness)) * grad
        self.timestamp += 1
'''
LOSS = '''\
import numpy as np


def margin(output, y, gap=1.0):
    """Return each sample's hinge loss: by how much other classes' outputs come within `gap` of the right one's."""
    # output: float32 (n, classes); y: int64 (n,); both are NumPy's arrays
    own = np.take_along_axis(output, y[:, None], axis=1)
    over = np.maximum(output - own + np.float32(gap), 0)
    np.put_along_axis(over, y[:, None], 0, axis=1)
    gradient = (over > 0).astype(np.float32)  # of each sample's own loss by its outputs
    np.put_along_axis(gradient, y[:, None], -gradient.sum(axis=1, keepdims=True), axis=1)
    return over.sum(axis=1), gradient
'''
METRIC = '''\
import numpy as np


def unbalanced(output, y):
    """Return 1 − the mean over classes of the share of right answers: less is better."""
    # output: float32 (n, classes), of all rows; y: int64 (n,)
    right = output.argmax(axis=1) == y
    return 1 - np.mean([right[y == label].mean() for label in np.unique(y)])
'''
DATASET = '''\
import numpy as np


class Rings:
    """Points of the plane in three rings, which are their classes."""

    shape, dtype = (2,), np.float32  # of a sample

    def __init__(self, noise=0.1):
        self.noise = noise

    def len(self, part):
        return {"train": 600, "validation": 150, "test": 150}[part]

    def rows(self, part, numbers):  # the same rows for the same numbers, whenever it is asked
        seeds = np.asarray(numbers) + 1000 * ["train", "validation", "test"].index(part)
        draws = np.stack([np.random.default_rng(seed).random(3) for seed in seeds])
        y = (3 * draws[:, 0]).astype(np.int64)
        radius, angle = y + 1 + self.noise * draws[:, 1], 2 * np.pi * draws[:, 2]
        x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return x.astype(np.float32), y
'''
OPTIMIZER = '''\
import numpy as np


class SignMomentum:
    """A step along the signs of a mean of the client's gradients."""

    def __init__(self, lr, beta=0.9):
        self.lr, self.beta = np.float32(lr), np.float32(beta)
        self.means = {}  # by client: kept from task to task

    def begin(self, client, params):  # params: float32 (P,), what the client fetched
        if client not in self.means:
            self.means[client] = np.zeros_like(params)

    def step(self, client, params, grad, k):  # the k-th step of the task, from 0
        mean = self.means[client]
        mean += (np.float32(1) - self.beta) * (grad - mean)
        return params - self.lr * np.sign(mean)
'''
PROBLEM = '''\
import numpy as np


class Valley:
    """Rosenbrock's function of two numbers, whose gradients are noisy."""

    def __init__(self, noise=0.1):
        self.noise = np.float32(noise)

    def initial(self, rng):
        return np.array([-1.2, 1.0], np.float32)

    def gradient(self, params, draw):  # draw: a generator that depends on the client and the number of its gradient
        x, y = params
        grad = np.array([-2 * (1 - x) - 400 * x * (y - x * x), 200 * (y - x * x)], np.float32)
        return grad + self.noise * draw.standard_normal(2, np.float32)

    def evaluate(self, params):  # the first number tells how good parameters are: less is better
        x, y = params.astype(float)
        return {"height": (1 - x) ** 2 + 100 * (y - x * x) ** 2}
'''
NETWORK = '''\
from torch import nn


def small(classes, shape, width=8):
    """Return a network for images of `shape` (channels, rows, columns), which gives `classes` logits."""
    channels, rows, columns = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * rows * columns, classes),
    )
'''
#: By kind. Pages of the manual say more of each: own_server.md, losses.md, data.md, clients.md, problems.md, models.md.
OWN = {
    "server": Own(SERVER, "RootStaleness", "server", lambda name: {"name": name, "lr": 0.1}),
    "loss": Own(LOSS, "margin", "loss", lambda name: {"name": name, "gap": 1.0}, one_label=True),
    "metric": Own(METRIC, "unbalanced", "evaluation", lambda name: {"metrics": [name]}, one_label=True),
    "dataset": Own(DATASET, "Rings", "data", lambda name: {"name": f"python:{name}", "noise": 0.1}),
    "optimizer": Own(
        OPTIMIZER, "SignMomentum", "clients", lambda name: {"optimizer": {"name": name, "lr": 0.003}, "local_steps": 4}
    ),
    "problem": Own(PROBLEM, "Valley", "problem", lambda name: {"name": name, "noise": 0.1}),
    "network": Own(NETWORK, "small", "model", lambda name: {"name": f"torch:{name}", "width": 8}, one_label=True),
}
