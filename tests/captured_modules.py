"""PyTorch modules for the tests of capturing: each is a function of its parameters, written as users write them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional

Forward = Callable[[Any, Any], Any]


class Own(nn.Module):
    """A module whose forward is a function of it and of the samples."""

    def __init__(self, forward: Forward, width: int = 4) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.by = nn.Parameter(torch.tensor(0.5))
        self.matrix = nn.Parameter(torch.randn(width, 3))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.joint = nn.LayerNorm((5, width))
        self.without_bias = nn.LayerNorm(width, bias=False)
        self.register_buffer("ones", torch.ones(width))
        self.register_buffer("mask", torch.triu(torch.full((5, 5), -math.inf), 1))
        self.call = forward

    def forward(self, x: Any) -> Any:
        """Call the function."""
        return self.call(self, x)


class Plain(nn.Module):
    """Attention written out, between embeddings and a tied head, as in many tutorials."""

    def __init__(self, tokens: int = 11, block: int = 6, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(block, width)
        self.norm, self.joint = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight
        self.heads, self.dropout = heads, nn.Dropout(0.1)
        self.register_buffer("seen", torch.tril(torch.ones(block, block)))

    def forward(self, x: Any) -> Any:
        """Map tokens (n, block), integers or floats, to logits (n, block, tokens)."""
        n, block = x.shape
        h = self.dropout(self.tokens(x.long()) + self.places(torch.arange(block, device=x.device)))
        width = h.shape[-1]
        q, k, v = (
            part.view(n, block, self.heads, width // self.heads).transpose(1, 2)
            for part in self.joint(self.norm(h)).split(width, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.shape[-1])
        scores = scores.masked_fill(self.seen[:block, :block] == 0, -math.inf)
        y = self.dropout(functional.softmax(scores, dim=-1)) @ v
        h = h + self.out(y.transpose(1, 2).contiguous().view(n, block, width))
        return self.head(h)


class Frozen(nn.Module):
    """Batch normalisation whose statistics stay."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def train(self, mode: bool = True) -> Any:
        """Keep the norm in evaluation mode."""
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Any) -> Any:
        """Normalize the units."""
        return self.norm(self.dense(x))


class Silent(Frozen):
    """Has a train() that returns nothing."""

    def train(self, mode: bool = True) -> Any:
        """Set the mode alone."""
        super().train(mode)


class Spare(nn.Module):
    """Has a parameter without elements, as one that says the device; nothing is computed with it."""

    def __init__(self) -> None:
        super().__init__()
        self.dummy, self.dense = nn.Parameter(torch.empty(0)), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        """Map (n, 4) to (n, 3)."""
        return self.dense(x.to(self.dummy.device))


class TwoNames(nn.Module):
    """Has a norm, with its buffers, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
        self.norm, self.head = self.features[1], nn.Linear(72, 3)

    def forward(self, x: Any) -> Any:
        """Map images to (n, 3)."""
        return self.head(self.norm(self.features[0](x)).flatten(1))


class Straight(torch.autograd.Function):
    """ReLU whose gradient passes everywhere."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Return max(x, 0)."""
        del ctx
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, *errors: Any) -> Any:
        """Return δ."""
        del ctx
        return errors[0]


class Encoder(nn.Module):
    """PyTorch's own transformer layer, with the mean of places and a head."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        """Map (n, places, 8) to (n, 3)."""
        return self.head(self.layer(x).mean(1))


class Recurrent(nn.Module):
    """A recurrent layer, and a head that takes its last output and its last state."""

    def __init__(self, kind: str, hidden_size: int = 3, batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        self.body = getattr(nn, kind)(4, hidden_size, batch_first=batch_first, **options)
        both = 1 + self.body.bidirectional
        self.head, self.time = nn.Linear((options.get("proj_size") or hidden_size) * (both + 1), 2), int(batch_first)

    def forward(self, x: Any) -> Any:
        """Map (n, places, 4) to (n, 2)."""
        outputs, states = self.body(x if self.time else x.transpose(0, 1))
        last = states[0] if isinstance(states, tuple) else states
        return self.head(torch.cat([outputs.select(self.time, -1), last[-1]], 1))


class Cells(nn.Module):
    """Recurrent layers step by step, as tutorials write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.LSTMCell(4, 3), nn.GRUCell(3, 3), nn.RNNCell(3, 2, bias=False)

    def forward(self, x: Any) -> Any:
        """Map (n, places, 4) to (n, 2)."""
        h, c, g = (torch.zeros(x.shape[0], 3, dtype=x.dtype) for _ in range(3))
        last = torch.zeros(x.shape[0], 2, dtype=x.dtype)
        for place in range(x.shape[1]):
            h, c = self.first(x[:, place], (h, c))
            g = self.second(h, g)
            last = self.third(g, last)
        return last


class Columns(nn.Module):
    """Tables of different sizes for the columns of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.few, self.many = nn.Embedding(3, 4), nn.Embedding(50, 4)

    def forward(self, x: Any) -> Any:
        """Map (n, columns) to (n, 4)."""
        return self.few(x[:, 0]) + self.many(x[:, 1:]).sum(1)


def images(*layers: nn.Module, outputs: int) -> nn.Module:
    """Return layers on images, and a dense one."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(outputs, 3))


def overwritten(own: Any, x: Any) -> Any:
    """Change a tensor by its view, and return the tensor."""
    y = own.dense(x)
    y.view(-1, 20).mul_(2)
    return y


def added_in_place(own: Any, x: Any) -> Any:
    """Change a tensor that has two names."""
    y = own.dense(x)
    other = y
    y += x
    return other * y


def without_gradient(own: Any, x: Any) -> Any:
    """Compute a part without gradients."""
    with torch.no_grad():
        y = own.dense(x)
    return y + own.dense(x)


def tables(own: Any, x: Any) -> Any:
    """Make a table and a target without gradients, one of which is used as it is, and one with a gradient, too."""
    with torch.no_grad():
        angles = torch.arange(4) * 0.3
        table = torch.stack([angles.cos(), angles.sin()])
        goal = own.dense(x).tanh()
    return (own.dense(x) - goal) * table[0] + goal * x * table[1]


def with_gradient_within(own: Any, x: Any) -> Any:
    """Compute a part with gradients within one without."""
    with torch.no_grad():
        y = own.dense(x)
        with torch.enable_grad():
            z = own.dense(y)
    return z + own.dense(x)


def changed_without_gradient(own: Any, x: Any) -> Any:
    """Change in place, of which the gradient knows nothing."""
    y = own.dense(x)
    with torch.no_grad():
        y.mul_(2)
    return y + own.dense(x)


def by_own_gradient(own: Any, x: Any) -> Any:
    """Return what a physics-informed network is compared by: its outputs beside their derivatives by the sample."""
    x = x.clone().requires_grad_(True)
    y = own.dense(x)
    return torch.cat([y, torch.autograd.grad(y.sum(), x, create_graph=True)[0]], 1)


def by_dual_numbers(own: Any, x: Any) -> Any:
    """Return the derivatives of outputs along the sample."""
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(own.dense(forward_ad.make_dual(x, x)))[1]


def with_assigned_data(own: Any, x: Any) -> Any:
    """Limit weights in place of an optimizer."""
    own.dense.weight.data = own.dense.weight.data.clamp(-1, 1)
    return own.dense(x)


def shortcut(own: Any, x: Any) -> Any:
    """Return a wider image with every second place, as some residual networks do."""
    y = own.dense(x)[:, :, ::2, ::2]
    return functional.pad(y, (0, 0, 0, 0, 1, 1))


def numbered(x: Any) -> Any:
    """Return the number of each place of samples (n, places, width)."""
    return torch.arange(x.shape[1])[:, None].expand(x.shape[0], -1, 1)


def limited(own: Any, x: Any) -> Any:
    """Keep weights within bounds in place, where torch.export does not see it."""
    if not torch.compiler.is_exporting():
        own.dense.weight.data.clamp_(-0.1, 0.1)
    return own.dense(x)
