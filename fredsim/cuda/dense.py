"""Kernels of the forward and backward passes of many minibatches, each at its own parameters.

The results have the same bits as those of the functions of the same names in fredsim.numerics.oracle (`propagate` is a
layer of oracle.backward). fredsim.cuda.engine launches these kernels.

`held` (B,) are the addresses of each minibatch's flat parameters; `rows` are the samples' indices, int32 (B, µ); a
layer's z (its output before the activation function) and errors are float32 (B, µ, width). `held` and `rows` may be
slices that begin anywhere, so no kernel is specialised on their alignment. Each program computes a tile of SAMPLES
samples and COLUMNS columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fredsim.cuda.elementary import exp32, log32

__all__ = ["forward", "propagate", "softmax_cross_entropy"]

FLUSH = tl.constexpr(2.0**-62)  # smaller errors become +0


@triton.jit(do_not_specialize_on_alignment=["held", "rows"])
def forward(
    held, at, x, rows, z, mu, inputs, width,
    FIRST: tl.constexpr, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a layer's z: Σ_k x_k w_k + b, k ascending from +0.

    The layer's parameters begin at element `at`. `x` is the data set (n, inputs) if the layer is the FIRST, else the z
    of the layer below, rectified as it is read.
    """
    b = tl.program_id(0)
    m = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_m, in_j = m < mu, j < width
    weights = tl.load(held + b).to(tl.pointer_type(tl.float32)) + at + j
    sample = b.to(tl.int64) * mu + m
    if FIRST:
        x += tl.load(rows + sample, mask=in_m, other=0).to(tl.int64) * inputs
    else:
        x += sample * inputs
    total = tl.zeros([SAMPLES, COLUMNS], tl.float32)
    for k in range(inputs):
        factor = tl.load(x + k, mask=in_m, other=0.0)
        if not FIRST:
            factor = tl.where(factor > 0.0, factor, 0.0)
        total = total + factor[:, None] * tl.load(weights + k * width, mask=in_j, other=0.0)[None, :]
    total = total + tl.load(weights + inputs * width, mask=in_j, other=0.0)[None, :]
    tl.store(z + sample[:, None] * width + j[None, :], total, mask=in_m[:, None] & in_j[None, :])


@triton.jit(do_not_specialize_on_alignment=["rows"])
def softmax_cross_entropy(
    z, labels, rows, n, classes, errors, losses, wrong, ERRORS: tl.constexpr, SAMPLES: tl.constexpr
):
    """Write the losses (n,) of n samples, and either their errors p − onehot(y) or whether their argmax is wrong.

    If ERRORS, `errors` (n, classes) is written, where values below FLUSH become +0; else `wrong` (n,).
    """
    i = tl.program_id(0) * SAMPLES + tl.arange(0, SAMPLES)
    mask = i < n
    z += i.to(tl.int64) * classes
    label = tl.load(labels + tl.load(rows + i, mask=mask, other=0), mask=mask, other=0)
    top = tl.load(z, mask=mask, other=0.0)
    best = tl.zeros([SAMPLES], tl.int32)
    for c in range(1, classes):
        value = tl.load(z + c, mask=mask, other=0.0)
        best = tl.where(value > top, c, best)
        top = tl.where(value > top, value, top)
    total = tl.zeros([SAMPLES], tl.float32)
    for c in range(classes):
        total = total + exp32(tl.load(z + c, mask=mask, other=0.0) - top)
    tl.store(losses + i, log32(total) - (tl.load(z + label, mask=mask, other=0.0) - top), mask=mask)
    if ERRORS:
        for c in range(classes):
            error = tl.div_rn(exp32(tl.load(z + c, mask=mask, other=0.0) - top), total)
            error = tl.where(label == c, error - 1.0, error)
            error = tl.where(tl.abs(error) < FLUSH, 0.0, error)
            tl.store(errors + i.to(tl.int64) * classes + c, error, mask=mask)
    else:
        tl.store(wrong + i, best != label, mask=mask)


@triton.jit(do_not_specialize_on_alignment=["held"])
def propagate(
    held, at, errors, z, out, mu, inputs, width, SAMPLES: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Write the errors of the layer below: Σ_j δ_j w[k, j], j ascending from +0, and +0 unless z_k > 0."""
    b = tl.program_id(0)
    m = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    k = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    in_m, in_k = m < mu, k < inputs
    weights = tl.load(held + b).to(tl.pointer_type(tl.float32)) + at + k * width
    sample = b.to(tl.int64) * mu + m
    errors += sample * width
    total = tl.zeros([SAMPLES, COLUMNS], tl.float32)
    for j in range(width):
        factor = tl.load(errors + j, mask=in_m, other=0.0)
        total = total + factor[:, None] * tl.load(weights + j, mask=in_k, other=0.0)[None, :]
    place, both = sample[:, None] * inputs + k[None, :], in_m[:, None] & in_k[None, :]
    positive = tl.load(z + place, mask=both, other=0.0) > 0.0
    tl.store(out + place, tl.where(positive, total, 0.0), mask=both)
