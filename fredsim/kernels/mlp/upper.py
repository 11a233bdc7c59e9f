"""The forward pass of one block of samples (fredsim.kernels.mlp.trees) through the layers above the first.

Same bits as fredsim.networks.graph.Graph.forward; used by fredsim.kernels.mlp.gradient, .window and .evaluation.
"""

from __future__ import annotations

import numpy as np

from fredsim.jit.pointers import item, put
from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import load, store, zeros
from fredsim.kernels.mlp.dense import ZERO, padded
from fredsim.kernels.mlp.trees import LEAVES
from fredsim.numerics.rules import where

__all__ = ["upper_layers"]


@subroutine
def rectify_block(z, at, sample_stride, width, samples, activations, keep):
    """Apply ReLU to a block's z in place; write it, in blocks, to activations[keep :], the inputs of the next layer."""
    for i in range(samples):
        for j in range(at + i * sample_stride, at + i * sample_stride + padded(width), 16):
            x = load(zeros(16), z, j)
            store(z, j, where(x > 0.0, x, 0.0))
        for k in range(width):
            put(activations, keep + k * LEAVES + i, item(z, at + i * sample_stride + k))
        put(activations, keep + width * LEAVES + i, np.float32(1.0))


@subroutine
def layer_columns(like, factors, factors_at, rows, weights, base, stride, out, at, sample_stride):
    """Write as many columns of a block's z as `like` has lanes: sums over rows in ascending order, the bias last."""
    s0, s1, s2, s3, s4, s5, s6, s7 = like, like, like, like, like, like, like, like
    for k in range(rows):
        w = load(like, weights, base + k * stride)
        p = factors_at + k * LEAVES
        s0 = s0 + item(factors, p) * w
        if LEAVES > 1:
            s1 = s1 + item(factors, p + 1) * w
            s2 = s2 + item(factors, p + 2) * w
            s3 = s3 + item(factors, p + 3) * w
        if LEAVES > 4:
            s4 = s4 + item(factors, p + 4) * w
            s5 = s5 + item(factors, p + 5) * w
            s6 = s6 + item(factors, p + 6) * w
            s7 = s7 + item(factors, p + 7) * w
    store(out, at, s0)
    if LEAVES > 1:
        store(out, at + sample_stride, s1)
        store(out, at + 2 * sample_stride, s2)
        store(out, at + 3 * sample_stride, s3)
    if LEAVES > 4:
        store(out, at + 4 * sample_stride, s4)
        store(out, at + 5 * sample_stride, s5)
        store(out, at + 6 * sample_stride, s6)
        store(out, at + 7 * sample_stride, s7)


@subroutine
def upper_layers(net, weights, z, sample_stride, samples, activations, b):
    """Run block b, of `samples` samples, through the layers above the first.

    Sample i's part of `z` begins at z[i·sample_stride] with the first layer's z; the other layers' z are written after
    it, each padded. ReLU is applied to all but the last. The inputs of layer l are also written, in blocks, to
    activations[activation_offsets[l − 1] :].
    """
    at = ZERO
    for layer in range(1, net.layers):
        inputs, width = item(net.sizes, layer), item(net.sizes, layer + 1)
        keep = item(net.activation_offsets, layer - 1) + b * (inputs + 1) * LEAVES
        rectify_block(z, at, sample_stride, inputs, samples, activations, keep)
        at += padded(inputs)
        base, stride = item(net.offsets, layer), item(net.strides, layer)
        for j in range(0, width, 16):
            layer_columns(zeros(16), activations, keep, inputs + 1, weights, base + j, stride, z, at + j, sample_stride)
