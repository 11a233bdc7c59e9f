"""Evaluation: the loss of each sample, and whether its answer is wrong, for many samples at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, octets, put, shift
from fredsim.kernels.data import DATA
from fredsim.kernels.dense import first_layer, largest, padded, sample_floats, softmax_cross_entropy
from fredsim.kernels.trees import LEAVES
from fredsim.kernels.upper import upper_layers
from fredsim.kernels.workspace import NETWORK

__all__ = ["TOGETHER", "evaluate"]

TOGETHER = 32  # samples that use a chunk of the weights' rows while it is in the L1 cache


@kernel(
    net=NETWORK, data=DATA, count=int, weights=floats, order=int64s, losses=floats, wrong=octets, activations=floats,
    activations_stride=int, z=floats, z_stride=int,
)  # fmt: skip
def evaluate(rank, size, barrier, a):
    """Write each sample's loss to `losses`, and to `wrong` whether its argmax differs from the label.

    The weights' rows are padded; `order` is 0 … count − 1. Work space of each thread, `…_stride` floats apart:
    `activations`, the upper layers' inputs in blocks, and `z`, the activations of TOGETHER samples and one error.
    """
    net, data = a.net, a.data
    activations, z = shift(a.activations, rank * a.activations_stride), shift(a.z, rank * a.z_stride)
    classes, sample_stride = item(net.sizes, net.layers), sample_floats(net)
    end = a.count * (rank + 1) // size
    for begin in range(a.count * rank // size, end, TOGETHER):
        count = min(TOGETHER, end - begin)
        first_layer(net, data, shift(a.order, begin), 0, count, a.weights, z, sample_stride)
        for b in range((count + LEAVES - 1) // LEAVES):
            samples, here = min(LEAVES, count - b * LEAVES), shift(z, b * LEAVES * sample_stride)
            upper_layers(net, a.weights, here, sample_stride, samples, activations, b)
        for m in range(count):
            last, label = (m + 1) * sample_stride - padded(classes), item(data.labels, begin + m)
            put(a.losses, begin + m, softmax_cross_entropy(z, last, classes, label, z, TOGETHER * sample_stride))
            put(a.wrong, begin + m, np.uint8(largest(z, last, classes) != label))
