"""Losses and errors of many samples at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, integers, item, octets, put, shift
from fredsim.kernels.data import DATA
from fredsim.kernels.dense import first_layer, largest, length, padded, softmax_cross_entropy
from fredsim.kernels.shape import NETWORK
from fredsim.kernels.trees import LEAVES, upper_layers

__all__ = ["TOGETHER", "evaluate"]

TOGETHER = 32  # samples that go through a chunk of rows while it is in the first level of cache


@kernel(
    net=NETWORK, data=DATA, count=int, weights=floats, order=integers, losses=floats, wrong=octets, activations=floats,
    activations_apart=int, z=floats, z_apart=int,
)  # fmt: skip
def evaluate(rank, size, barrier, a):
    """Write each sample's loss to `losses` and whether its argmax misses the label to `wrong`.

    The weights' rows are padded; `order` numbers the samples. Each thread has scratch: what enters the upper layers in
    blocks, and `z`, the activations of TOGETHER samples and one error.
    """
    net, data = a.net, a.data
    activations, z = shift(a.activations, rank * a.activations_apart), shift(a.z, rank * a.z_apart)
    classes, long = item(net.sizes, net.layers), length(net)
    end = a.count * (rank + 1) // size
    for begin in range(a.count * rank // size, end, TOGETHER):
        count = min(TOGETHER, end - begin)
        first_layer(net, data, shift(a.order, begin), 0, count, a.weights, z, long)
        for b in range((count + LEAVES - 1) // LEAVES):
            samples, here = min(LEAVES, count - b * LEAVES), shift(z, b * LEAVES * long)
            upper_layers(net, a.weights, here, long, samples, activations, b)
        for m in range(count):
            last, label = (m + 1) * long - padded(classes), item(data.labels, begin + m)
            put(a.losses, begin + m, softmax_cross_entropy(z, last, classes, label, z, TOGETHER * long))
            put(a.wrong, begin + m, np.uint8(largest(z, last, classes) != label))
