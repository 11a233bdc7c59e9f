"""Small PyTorch modules of the kinds that people train, captured, in the form of benchmarks.networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks import CLASSES, SAMPLES, Case
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError
from fredsim.networks.capture.module import capture

__all__ = ["KINDS"]

IMAGE = (3, 32, 32)


def inverted(inputs: int, outputs: int, stride: int, wider: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """Return MobileNetV2's block without the residual sum: wider, each channel by itself, narrower."""
    hidden = inputs * wider
    return nn.Sequential(
        nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation(),
        nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), activation(),
        nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
    )  # fmt: skip


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        """Add."""
        return x + self.inner(x)


class ChannelsLast(nn.Module):
    """ConvNeXt's block without the residual sum: 7×7 of each channel, then dense layers over channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.01))

    def forward(self, x: Any) -> Any:
        """Scale what the dense layers give."""
        return self.scale * self.dense(self.norm(self.spatial(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


class Excited(nn.Module):
    """Two convolutions, whose channels are scaled by a gate of their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width // 4, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Scale, and add."""
        y = self.body(x)
        return functional.relu(x + y * self.gate(y))


class Repeated(nn.Module):
    """A block that is used three times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())

    def forward(self, x: Any) -> Any:
        """Use it."""
        return self.block(self.block(self.block(x)))


def classifier(*layers: nn.Module, width: int) -> nn.Module:
    """Return layers of images, and classes of the means of their channels."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def mobile(activation: Callable[[], nn.Module]) -> nn.Module:
    """Return a small MobileNetV2."""
    blocks = [
        inverted(16, 24, 2, 4, activation), Residual(inverted(24, 24, 1, 4, activation)),
        inverted(24, 32, 2, 4, activation), Residual(inverted(32, 32, 1, 4, activation)),
    ]  # fmt: skip
    return classifier(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), activation(), *blocks, width=32)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "MobileNetV2-like, ReLU6": partial(mobile, nn.ReLU6),
    "MobileNetV2-like, hardswish": partial(mobile, nn.Hardswish),
    "ConvNeXt-like": lambda: classifier(
        nn.Conv2d(3, 32, 2, 2), Residual(ChannelsLast(32)), Residual(ChannelsLast(32)), nn.Conv2d(32, 64, 2, 2),
        Residual(ChannelsLast(64)), width=64,
    ),
    "squeeze and excitation": lambda: classifier(nn.Conv2d(3, 32, 3, padding=1), Excited(32), Excited(32), width=32),
    "one block three times": lambda: classifier(nn.Conv2d(3, 32, 3, padding=1), Repeated(32), width=32),
    "repeated pixels": lambda: classifier(
        nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Upsample(scale_factor=2), nn.Conv2d(32, 32, 3, padding=1), width=32
    ),
}  # fmt: skip


def case(name: str, mu: int) -> Case:
    """Return a module and its graph, and drawn samples. Raises ConfigError if it cannot be captured."""
    rng, make = np.random.default_rng(0), MODULES[name]
    split = Split(rng.normal(size=(SAMPLES, *IMAGE)).astype(np.float32), rng.integers(0, CLASSES, SAMPLES))
    graph = capture(make(), split.x[:4], (), ConfigError).graph
    return Case(name, mu, graph, make, Dataset(split, split, split, CLASSES))


KINDS: tuple[Callable[[], Case], ...] = tuple(partial(case, name, mu) for name in MODULES for mu in (8, 32))
