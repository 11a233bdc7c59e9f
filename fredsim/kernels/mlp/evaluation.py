"""Kernel of evaluation: the loss of each sample, and whether its answer is wrong, all at the same parameters."""

from __future__ import annotations

import numpy as np

from fredsim.jit.kernel import kernel
from fredsim.jit.pointers import floats, int64s, item, put, shift, uint8s
from fredsim.kernels.mlp.dense import argmax, first_layer, padded, sample_floats, softmax_cross_entropy
from fredsim.kernels.mlp.sparse_rows import DATA
from fredsim.kernels.mlp.trees import LEAVES
from fredsim.kernels.mlp.upper import upper_layers
from fredsim.kernels.mlp.workspace import NETWORK

__all__ = ["SAMPLES_AT_ONCE", "evaluate"]

SAMPLES_AT_ONCE = 32  # samples that use a chunk of the weights' rows while it is in the L1 cache


@kernel(
    net=NETWORK, data=DATA, count=int, weights=floats, order=int64s, losses=floats, wrong=uint8s, activations=floats,
    activations_stride=int, z=floats, z_stride=int,
)  # fmt: skip
def evaluate(rank, size, barrier, a):
    """Write each sample's loss to `losses` (count,), and to `wrong` (count,) whether its argmax differs from the label.

    Same bits as fredsim.networks.graph.Graph.forward and its loss; NumbaEngine.outcomes calls it. The rows of `weights`
    are padded; `order` is 0 … count − 1. Each thread has its workspace, `…_stride` floats apart: in `activations` the
    upper layers' inputs in blocks; in `z` the activations of SAMPLES_AT_ONCE samples, and one error.
    """
    net, data = a.net, a.data
    activations, z = shift(a.activations, rank * a.activations_stride), shift(a.z, rank * a.z_stride)
    classes, sample_stride = item(net.sizes, net.layers), sample_floats(net)
    end = a.count * (rank + 1) // size
    for begin in range(a.count * rank // size, end, SAMPLES_AT_ONCE):
        count = min(SAMPLES_AT_ONCE, end - begin)
        first_layer(net, data, shift(a.order, begin), 0, count, a.weights, z, sample_stride)
        for b in range((count + LEAVES - 1) // LEAVES):
            samples, here = min(LEAVES, count - b * LEAVES), shift(z, b * LEAVES * sample_stride)
            upper_layers(net, a.weights, here, sample_stride, samples, activations, b)
        for m in range(count):
            last, label = (m + 1) * sample_stride - padded(classes), item(data.labels, begin + m)
            put(a.losses, begin + m, softmax_cross_entropy(z, last, classes, label, z, SAMPLES_AT_ONCE * sample_stride))
            put(a.wrong, begin + m, np.uint8(argmax(z, last, classes) != label))
