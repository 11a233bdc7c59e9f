"""Networks to start from, as models: torch:fredsim.zoo:lenet and torch:fredsim.zoo:resnet."""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["lenet", "resnet"]


def lenet(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return the LeNet of Wen et al. 2017 (TernGrad): Caffe's, which has ReLU only between its dense layers.

    Convolutions of 20 and 50 filters 5×5, each followed by max pooling 2×2, then 500 units; 431,080 parameters for
    images of 1×28×28. Weights U(±√(3/fan_in)), biases 0, as Caffe's "xavier" filler gives them. Raises ValueError for
    images smaller than 16×16.
    """
    channels, height, width = shape
    if min(height, width) < 16:
        raise ValueError(f"an image is {height}×{width}; two convolutions 5×5 and two poolings need 16×16 at least")
    inside = 50 * ((height - 4) // 2 - 4 >> 1) * ((width - 4) // 2 - 4 >> 1)
    module = nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(inside, 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )
    for name, tensor in module.named_parameters():
        limit = math.sqrt(3 / tensor[0].numel()) if name.endswith("weight") else 0.0
        nn.init.uniform_(tensor, -limit, limit)
    return module


def resnet(classes: int, shape: tuple[int, ...], depth: int = 8, width: int = 16) -> nn.Module:
    """Return a residual network for small images (He et al. 2016, section 4.2), with GroupNorm for BatchNorm.

    `depth` is 6n + 2, with n blocks of two convolutions 3×3 at each of the widths `width`, 2·`width`, 4·`width`;
    `width` is a multiple of 8. GroupNorm is of Wu and He 2018, here in groups of 8 channels. Raises ValueError for
    another depth or width.
    """
    blocks, rest = divmod(depth - 2, 6)
    if blocks < 1 or rest:
        raise ValueError(f"depth is {depth}; it must be 6n + 2, such as 8, 14 or 20")
    if width < 8 or width % 8:
        raise ValueError(f"width is {width}; it must be a multiple of 8, the channels that are normalized together")
    layers = [nn.Conv2d(shape[0], width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    inputs = width
    for stage in range(3):
        for block in range(blocks):
            outputs = width * 2**stage
            layers.append(Block(inputs, outputs, stride=2 if stage and not block else 1))
            inputs = outputs
    return nn.Sequential(*layers, Mean(), nn.Linear(inputs, classes))


def norm(channels: int) -> nn.Module:
    """Return a GroupNorm in groups of 8 channels."""
    return nn.GroupNorm(channels // 8, channels)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which is a convolution 1×1 where the shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = norm(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, height, width) to (n, outputs, height ÷ stride, width ÷ stride)."""
        y = torch.relu(self.first_norm(self.first(x)))
        result: torch.Tensor = torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))
        return result


class Mean(nn.Module):
    """The mean over the image, in place of adaptive pooling, whose gradient is not deterministic on CUDA."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, channels, height, width) to (n, channels)."""
        return x.mean(dim=(2, 3))
