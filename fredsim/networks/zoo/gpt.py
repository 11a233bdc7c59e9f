"""A decoder-only transformer (Vaswani et al. 2017; Radford et al. 2019, GPT-2): layer norm before, GELU, tied head."""

from __future__ import annotations

from fredsim.networks.graph import Graph
from fredsim.networks.zoo.builder import Builder
from fredsim.numerics.ops.arithmetic import Add
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.embedding import Embedding
from fredsim.numerics.ops.linear import Linear
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import LayerNorm
from fredsim.numerics.ops.operator import Shape
from fredsim.numerics.ops.pointwise import Gelu
from fredsim.numerics.ops.positions import Positions
from fredsim.numerics.ops.views import Permute, Reshape, Slice

__all__ = ["gpt"]


def gpt(
    classes: int,
    shape: Shape,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    loss: Loss | None = None,
    dropout: float = 0.0,
) -> Graph:
    """Return a transformer that predicts at each of `shape` = (block,) positions the token that comes next.

    `classes` is the number of tokens. Each layer has causal attention with `heads` heads and a dense part of 4·`width`
    units. The table of tokens is the output layer, too. A share `dropout` of the embedded tokens, of the weights of
    attention and of what each part adds is dropped in training. Raises ValueError if `width` is no multiple of
    `heads`, or for samples that are no sequences.
    """
    if len(shape) != 1:
        raise ValueError(f"gpt takes sequences of tokens; a sample has the shape {shape}")
    if heads < 1 or width < 1 or width % heads:
        raise ValueError(f"width is {width} and heads {heads}; the width must be a multiple of the heads")
    if layers < 1:
        raise ValueError(f"layers is {layers}; it must be 1 at least")
    network = Builder(shape)
    tokens = network.add(Embedding(classes, width), 0, name="tokens")
    network.add(Positions(shape[0]), 0)
    positions = network.add(Embedding(shape[0], width), name="positions")
    network.add(Add(), tokens, positions)
    network.dropout(dropout)
    for number in range(layers):
        _add_attention(network, f"layers.{number}", heads, dropout)
        _add_dense_part(network, f"layers.{number}", dropout)
    network.add(LayerNorm(), name="norm")
    network.add(Linear(classes, bias=False, layout="out_in"), tied={"weight": "tokens.weight"})
    return network.graph(loss or CrossEntropy())


def _add_attention(network: Builder, name: str, heads: int, dropout: float) -> None:
    """Add causal attention among the positions, beside what it is added to."""
    x, (block, width) = network.last, network.shape
    network.add(LayerNorm(), name=f"{name}.attention_norm")
    whole = network.dense(3 * width, f"{name}.query_key_value")
    parts = [network.add(Slice(1, i * width, (i + 1) * width), whole) for i in range(3)]
    each = []
    for part in parts:
        network.add(Reshape((block, heads, width // heads)), part)
        each.append(network.add(Permute((1, 0, 2))))
    network.add(Attention(causal=True, dropout=dropout), *each)
    network.add(Permute((1, 0, 2)))
    network.add(Reshape((block, width)))
    network.dense(width, f"{name}.attended")
    y = network.dropout(dropout)
    network.add(Add(), x, y)


def _add_dense_part(network: Builder, name: str, dropout: float) -> None:
    """Add a hidden layer at each position, beside what it is added to."""
    x, width = network.last, network.shape[-1]
    network.add(LayerNorm(), name=f"{name}.dense_norm")
    network.dense(4 * width, f"{name}.hidden")
    network.add(Gelu())
    network.dense(width, f"{name}.output")
    y = network.dropout(dropout)
    network.add(Add(), x, y)
