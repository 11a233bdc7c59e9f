"""Networks to start from, as PyTorch modules: torch:fredsim.zoo:lenet, resnet, vgg and gpt.

fredsim.networks.zoo has the same ones as graphs, which need no PyTorch (model: {name: resnet}).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

__all__ = ["gpt", "lenet", "resnet", "vgg"]


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


def vgg(classes: int, shape: tuple[int, ...], widths: Sequence[int] = (16, 32, 64), dropout: float = 0.0) -> nn.Module:
    """Return a small VGG (Simonyan and Zisserman 2015) with batch normalisation by the minibatch's own statistics.

    At each of `widths` it has two convolutions 3×3, each with BatchNorm and ReLU, and max pooling, which halves the
    image; then a dense layer, a share `dropout` of whose inputs is dropped in training. Raises ValueError for images
    that are too small to be halved so often.
    """
    inputs, height, width = shape
    if not widths or min(height, width) < 2 ** len(widths):
        raise ValueError(f"an image is halved for each of the {len(widths)} widths; these are {height}×{width}")
    layers: list[nn.Module] = []
    for outputs in widths:
        for _ in range(2):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(outputs, track_running_stats=False), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    inside = inputs * (height >> len(widths)) * (width >> len(widths))
    flatten = FlattenAndDrop(dropout) if dropout else nn.Flatten()
    return nn.Sequential(*layers, flatten, nn.Linear(inside, classes))


class FlattenAndDrop(nn.Module):
    """Flatten, then dropout: in one layer, so that those after it have the same numbers as without dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, …) to (n, elements)."""
        return functional.dropout(x.flatten(1), self.p, self.training)


def gpt(
    classes: int, shape: tuple[int, ...], width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.0
) -> nn.Module:
    """Return a transformer that predicts at each of `shape` = (block,) places the token that comes next.

    `classes` is the number of tokens. Each layer has causal attention with `heads` heads and a dense part of 4·`width`
    units, both after layer normalisation (Radford et al. 2019, GPT-2). The table of tokens is the output layer, too.
    A share `dropout` of the embedded tokens, of the weights of attention and of what each part adds is dropped in
    training. Weights N(0, 0.02²), biases 0. Raises ValueError if `width` is no multiple of `heads`.
    """
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width is {width} and heads {heads}; the width must be a multiple of the heads")
    module = Gpt(classes, shape[0], width, layers, heads, dropout)
    for name, tensor in module.named_parameters():
        if tensor.dim() == 2:
            nn.init.normal_(tensor, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(tensor)
    return module


class Gpt(nn.Module):
    """Tables of tokens and positions, layers, a norm, and the table of tokens once more."""

    def __init__(self, tokens: int, block: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(block, width)
        self.layers = nn.Sequential(*(Layer(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map tokens (n, block) to logits (n, block, tokens)."""
        places = torch.arange(x.shape[1], device=x.device)
        logits: torch.Tensor = self.head(self.norm(self.layers(self.dropout(self.tokens(x) + self.positions(places)))))
        return logits


class Layer(nn.Module):
    """Causal attention and a dense part, each added to what it is computed from."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.dense_norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, block, width) to the same shape."""
        n, block, width = x.shape
        parts = self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        q, k, v = (part.view(n, block, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        p = self.dropout.p if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.dropout(self.attended(y.transpose(1, 2).reshape(n, block, width)))
        result: torch.Tensor = self.dropout(self.output(functional.gelu(self.hidden(self.dense_norm(x)))))
        return x + result
