"""Group and batch normalisation of images, and what may follow it: fredsim.numerics.ops.norms.

A sum over positions is by bands of rows, then by the tree; then come a group's channels, or the samples, by the tree.
A sum of two values and a ReLU that directly follow (a residual block's end) are computed in the same pass over memory:
out = relu(norm(x) + other). Then the error is first masked, and so it goes to `other`, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fredsim.compute.buffers import Buffer
from fredsim.jit.kernel import Fields, Kernel, kernel, with_functions
from fredsim.jit.pointers import floats, int64s, item, put, shift
from fredsim.jit.subroutine import subroutine
from fredsim.jit.team import barrier_wait
from fredsim.jit.vector import broadcast, load, store, zeros
from fredsim.kernels.ops.operator import OperatorKernels
from fredsim.kernels.ops.program import BATCH, PARAMS, Batch, Steps
from fredsim.kernels.ops.rows import clear_halo, part_of, put_lanes
from fredsim.kernels.ops.sums import BAND, gradient_of_samples, tree_of_vectors
from fredsim.kernels.ops.values import Value
from fredsim.networks.running import Found
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.rules import where

__all__ = ["NormKernels"]

ONE = np.float32(1)

#: Of forward and backward steps. `statistics` has, for each sample (of a batch norm only once), the means and then the
#: r = 1/√(v + ε) of `lanes` channels, of a batch norm also the variances v; `count` is N. `leaves` has `kinds` sums of
#: each sample and channel.
COMMON = {
    "batch": int64s, "x": floats, "x_sample": int, "x_row": int, "channels": int, "lanes": int, "samples": int,
    "rows": int, "columns": int, "groups": int, "affine": int, "gamma": int, "beta": int, "eps": floats,
    "count": floats, "statistics": floats, "leaves": floats, "stack": floats, "stack_stride": int, "relu": int,
    "residual": int, "mean": int, "variance": int,
}  # fmt: skip
FORWARD = Fields(**COMMON, other=floats, other_sample=int, other_row=int, sample=int, row=int, gap=int, out=floats)
BACKWARD = Fields(
    **COMMON, e=floats, e_sample=int, e_row=int, y=floats, y_sample=int, y_row=int, wanted=int, passed=floats,
    passed_sample=int, passed_row=int, passed_gap=int, sample=int, row=int, gap=int, out=floats,
)  # fmt: skip


@subroutine(forceinline=True)
def itself(x, mean):
    """Return x."""
    return x


@subroutine(forceinline=True)
def squared_difference(x, mean):
    """Return (x − mean)·(x − mean)."""
    d = x - mean
    return d * d


term: Any = None  # a placeholder: sum_values and sum_squares have their own


def sum_over_positions(a, i, c0, mean, stack):
    """Return the sums over positions of term(x, mean), of 16 channels of sample i; two bands at a time."""
    like = zeros(16)
    bands = (a.rows + BAND - 1) // BAND
    x = shift(a.x, i * a.x_sample + c0)
    band = 0
    while band < bands:
        begin, end = band * BAND, min(band * BAND + BAND, a.rows)
        one, other = like, like
        if (band + 2) * BAND <= a.rows:
            for y in range(begin, end):
                p, q = shift(x, y * a.x_row), shift(x, (y + BAND) * a.x_row)
                for k in range(a.columns):
                    one = one + term(load(like, p, k * a.channels), mean)
                    other = other + term(load(like, q, k * a.channels), mean)
            store(stack, band * 16, one)
            store(stack, band * 16 + 16, other)
            band += 2
        else:
            for y in range(begin, end):
                p = shift(x, y * a.x_row)
                for k in range(a.columns):
                    one = one + term(load(like, p, k * a.channels), mean)
            store(stack, band * 16, one)
            band += 1
    return tree_of_vectors(like, stack, 16, bands)


sum_values = subroutine(with_functions(sum_over_positions, term=itself))
sum_squares = subroutine(with_functions(sum_over_positions, term=squared_difference))


@subroutine
def spread_over_group(a, sums, scratch):
    """Replace the sums of `channels` channels by the tree sum over each group's, divided by N."""
    each = a.channels // a.groups
    count = item(a.count, 0)
    for g in range(a.groups):
        left = each
        for c in range(each):
            put(scratch, c, item(sums, g * each + c))
        while left > 1:
            half = left // 2
            for c in range(half):
                put(scratch, c, item(scratch, 2 * c) + item(scratch, 2 * c + 1))
            if left % 2:
                put(scratch, half, item(scratch, left - 1))
            left = half + left % 2
        mean = (item(scratch, 0) + np.float32(0)) / count
        for c in range(each):
            put(sums, g * each + c, mean)


@subroutine
def over_deviation(a, statistics):
    """Replace variances by r = 1/√(v + ε), for `lanes` channels."""
    eps = item(a.eps, 0)
    for c in range(a.lanes):
        put(statistics, c, ONE / np.sqrt(item(statistics, c) + eps))


@subroutine
def write_normal(a, i, c0, statistics):
    """Write 16 channels of sample i of the output."""
    like = zeros(16)
    mean, r = load(like, statistics, c0), load(like, statistics, a.lanes + c0)
    params, left = floats(item(a.batch, PARAMS)), a.channels - c0
    gamma, beta = like, like
    if a.affine:
        gamma, beta = load(like, params, a.gamma + c0), load(like, params, a.beta + c0)
    for y in range(a.rows):
        x = shift(a.x, i * a.x_sample + y * a.x_row + c0)
        other = shift(a.other, i * a.other_sample + y * a.other_row + c0)
        line = shift(a.out, i * a.sample + y * a.row)
        out = shift(line, c0)
        for k in range(0, a.columns * a.channels, a.channels):
            value = (load(like, x, k) - mean) * r
            if a.affine:
                value = value * gamma + beta
            if a.residual:
                value = value + load(like, other, k)
            if a.relu:
                value = where(value > 0.0, value, like)
            put_lanes(out, k, value, left)
        if c0 == 0:
            clear_halo(line, y == 0, a.columns * a.channels, a.gap)


@kernel(FORWARD)
def group_forward(rank, size, barrier, a):
    """Normalise each sample's groups of channels; `leaves` is not used."""
    stack = shift(a.stack, rank * a.stack_stride)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        means = shift(a.statistics, i * 2 * a.lanes)
        for c0 in range(0, a.lanes, 16):
            store(means, c0, sum_values(a, i, c0, zeros(16), stack))
        spread_over_group(a, means, stack)
        r = shift(means, a.lanes)
        for c0 in range(0, a.lanes, 16):
            store(r, c0, sum_squares(a, i, c0, load(zeros(16), means, c0), stack))
        spread_over_group(a, r, stack)
        over_deviation(a, r)
        for c0 in range(0, a.lanes, 16):
            write_normal(a, i, c0, means)


@subroutine
def mean_over_samples(a, rank, size, leaves, stride, out):
    """Write the trees over samples of sums, `stride` floats apart and overwritten, divided by N, to `out`."""
    count = broadcast(16, item(a.count, 0))
    for c0 in range(16 * rank, a.lanes, 16 * size):
        store(out, c0, tree_of_vectors(zeros(16), shift(leaves, c0), stride, a.samples) / count)


@kernel(FORWARD)
def batch_forward(rank, size, barrier, a):
    """Normalise each channel over the positions of all samples."""
    stack = shift(a.stack, rank * a.stack_stride)
    vectors = a.lanes // 16
    begin, end = part_of(rank, size, a.samples * vectors)
    for t in range(begin, end):
        store(a.leaves, 16 * t, sum_values(a, t // vectors, t % vectors * 16, zeros(16), stack))
    barrier_wait(size, barrier)
    mean_over_samples(a, rank, size, a.leaves, a.lanes, a.statistics)
    barrier_wait(size, barrier)
    for t in range(begin, end):
        c0 = t % vectors * 16
        mean = load(zeros(16), a.statistics, c0)
        store(a.leaves, 16 * t, sum_squares(a, t // vectors, c0, mean, stack))
    barrier_wait(size, barrier)
    r = shift(a.statistics, a.lanes)
    mean_over_samples(a, rank, size, a.leaves, a.lanes, r)
    barrier_wait(size, barrier)
    if rank == 0:
        variance = shift(r, a.lanes)
        for c0 in range(0, a.lanes, 16):
            store(variance, c0, load(zeros(16), r, c0))
        over_deviation(a, r)
    barrier_wait(size, barrier)
    for t in range(begin, end):
        write_normal(a, t // vectors, t % vectors * 16, a.statistics)


@kernel(FORWARD)
def frozen_forward(rank, size, barrier, a):
    """Normalise each channel by the mean and the variance that the parameters have; `leaves` is not used."""
    params, r = floats(item(a.batch, PARAMS)), shift(a.statistics, a.lanes)
    if rank == 0:
        for c in range(a.channels):
            put(a.statistics, c, item(params, a.mean + c))
            put(r, c, item(params, a.variance + c))
        over_deviation(a, r)
    barrier_wait(size, barrier)
    vectors = a.lanes // 16
    begin, end = part_of(rank, size, a.samples * vectors)
    for t in range(begin, end):
        write_normal(a, t // vectors, t % vectors * 16, a.statistics)


@subroutine
def masked(a, e, y, k):
    """Return 16 channels of the error, +0 where a ReLU's output is not above 0."""
    like = zeros(16)
    error = load(like, e, k)
    if a.relu:
        error = where(load(like, y, k) > 0.0, error, like)
    return error


@subroutine
def sum_errors(a, i, c0, statistics, leaves, stack):
    """Write the sums over positions of δ·x̂, δ, δ·γ and (δ·γ)·x̂, `lanes` floats apart, of 16 channels of sample i."""
    like = zeros(16)
    mean, r = load(like, statistics, c0), load(like, statistics, a.lanes + c0)
    params, gamma = floats(item(a.batch, PARAMS)), broadcast(16, 1.0)
    if a.affine:
        gamma = load(like, params, a.gamma + c0)
    bands, left = (a.rows + BAND - 1) // BAND, a.channels - c0
    room = 16 * bands
    for band in range(bands):
        s0, s1, s2, s3 = like, like, like, like
        for row in range(band * BAND, min(band * BAND + BAND, a.rows)):
            x = shift(a.x, i * a.x_sample + row * a.x_row + c0)
            e = shift(a.e, i * a.e_sample + row * a.e_row + c0)
            y = shift(a.y, i * a.y_sample + row * a.y_row + c0)
            line = shift(a.passed, i * a.passed_sample + row * a.passed_row)
            passed = shift(line, c0)
            for k in range(0, a.columns * a.channels, a.channels):
                error = masked(a, e, y, k)
                if a.residual:
                    put_lanes(passed, k, error, left)
                normal = (load(like, x, k) - mean) * r
                scaled = error * gamma
                s0 = s0 + error * normal
                s1 = s1 + error
                s2 = s2 + scaled
                s3 = s3 + scaled * normal
            if a.residual and c0 == 0:
                clear_halo(line, row == 0, a.columns * a.channels, a.passed_gap)
        store(stack, 16 * band, s0)
        store(stack, room + 16 * band, s1)
        store(stack, 2 * room + 16 * band, s2)
        store(stack, 3 * room + 16 * band, s3)
    for kind in range(4):
        store(leaves, kind * a.lanes + c0, tree_of_vectors(like, shift(stack, kind * room), 16, bands))


@subroutine(forceinline=True)
def less_means(d, normal, mean_d, mean_dx):
    """Return what the error is without its parts along the mean and the deviation."""
    return (d - mean_d) - normal * mean_dx


@subroutine(forceinline=True)
def as_it_is(d, normal, mean_d, mean_dx):
    """Return the error."""
    return d


centred: Any = None  # a placeholder: write_error and write_frozen_error have their own


def write_input_error(a, i, c0, statistics, sums):
    """Write 16 channels of sample i of the input's error; `sums` are S(d)/N and S(d·x̂)/N, `lanes` floats apart."""
    like = zeros(16)
    mean, r = load(like, statistics, c0), load(like, statistics, a.lanes + c0)
    mean_d, mean_dx = load(like, sums, c0), load(like, sums, a.lanes + c0)
    params, gamma, left = floats(item(a.batch, PARAMS)), broadcast(16, 1.0), a.channels - c0
    if a.affine:
        gamma = load(like, params, a.gamma + c0)
    for row in range(a.rows):
        x = shift(a.x, i * a.x_sample + row * a.x_row + c0)
        e = shift(a.e, i * a.e_sample + row * a.e_row + c0)
        y = shift(a.y, i * a.y_sample + row * a.y_row + c0)
        line = shift(a.out, i * a.sample + row * a.row)
        out = shift(line, c0)
        for k in range(0, a.columns * a.channels, a.channels):
            normal = (load(like, x, k) - mean) * r
            put_lanes(out, k, r * centred(masked(a, e, y, k) * gamma, normal, mean_d, mean_dx), left)
        if c0 == 0:
            clear_halo(line, row == 0, a.columns * a.channels, a.gap)


write_error = subroutine(with_functions(write_input_error, centred=less_means))
write_frozen_error = subroutine(with_functions(write_input_error, centred=as_it_is))


@kernel(BACKWARD)
def group_backward(rank, size, barrier, a):
    """Write the samples' own gradients of γ and β to `leaves`, and the input's error if it is wanted."""
    stack = shift(a.stack, rank * a.stack_stride)
    begin, end = part_of(rank, size, a.samples)
    for i in range(begin, end):
        statistics, leaves = shift(a.statistics, i * 2 * a.lanes), shift(a.leaves, i * 4 * a.lanes)
        for c0 in range(0, a.lanes, 16):
            sum_errors(a, i, c0, statistics, leaves, stack)
        if a.wanted:
            sums = shift(leaves, 2 * a.lanes)
            spread_over_group(a, sums, stack)
            spread_over_group(a, shift(sums, a.lanes), stack)
            for c0 in range(0, a.lanes, 16):
                write_error(a, i, c0, statistics, sums)


@kernel(BACKWARD)
def batch_backward(rank, size, barrier, a):
    """Do what group_backward does, for a batch norm; S(d)/N and S(d·x̂)/N overwrite those of the first sample."""
    stack = shift(a.stack, rank * a.stack_stride)
    vectors = a.lanes // 16
    begin, end = part_of(rank, size, a.samples * vectors)
    for t in range(begin, end):
        i = t // vectors
        sum_errors(a, i, t % vectors * 16, a.statistics, shift(a.leaves, i * 4 * a.lanes), stack)
    if a.wanted:
        barrier_wait(size, barrier)
        sums = shift(a.leaves, 2 * a.lanes)
        mean_over_samples(a, rank, size, sums, 4 * a.lanes, sums)
        mean_over_samples(a, rank, size, shift(sums, a.lanes), 4 * a.lanes, shift(sums, a.lanes))
        barrier_wait(size, barrier)
        for t in range(begin, end):
            write_error(a, t // vectors, t % vectors * 16, a.statistics, sums)


@kernel(BACKWARD)
def frozen_backward(rank, size, barrier, a):
    """Do what group_backward does, for a norm by given statistics."""
    stack, vectors = shift(a.stack, rank * a.stack_stride), a.lanes // 16
    begin, end = part_of(rank, size, a.samples * vectors)
    for t in range(begin, end):
        i, c0 = t // vectors, t % vectors * 16
        sum_errors(a, i, c0, a.statistics, shift(a.leaves, i * 4 * a.lanes), stack)
        if a.wanted:
            write_frozen_error(a, i, c0, a.statistics, a.statistics)


#: The kernels of the forward and of the backward pass.
PASSES: dict[type[Operator], tuple[Kernel, Kernel]] = {
    GroupNorm: (group_forward, group_backward),
    BatchNorm: (batch_forward, batch_backward),
    FrozenBatchNorm: (frozen_forward, frozen_backward),
}


class NormKernels(OperatorKernels):
    """A group or batch norm of images; then a second input is added if there is one, then there may be a ReLU.

    The statistics of a batch norm are those of the minibatch, or tensors.
    """

    image = True
    relu = False
    shares = True

    @classmethod
    def takes(cls, operator: Operator, shapes: Sequence[Shape]) -> bool:
        return len(shapes[0]) == 3

    def _common(self, plan: Steps, leaves: Buffer) -> dict[str, Any]:
        op, x = self.operator, self.inputs[0]
        channels, rows, columns = x.shape
        lanes = -(-channels // 16) * 16
        groups = op.groups if isinstance(op, GroupNorm) else channels
        count = rows * columns * (channels // groups if isinstance(op, GroupNorm) else x.samples)
        begins = {role: tensor.begin for role, tensor in self.tensors.items()}
        stack, stride = plan.each_thread(max(64 * -(-rows // BAND), channels))
        return {
            "batch": BATCH, **x.read("x"), "channels": channels, "lanes": lanes, "samples": x.samples, "rows": rows,
            "columns": columns, "groups": groups, "affine": op.affine, "gamma": begins.get("weight", 0),
            "beta": begins.get("bias", 0), "mean": begins.get("mean", 0), "variance": begins.get("variance", 0),
            "eps": np.array([op.eps], np.float32), "count": np.array([count], np.float32),
            "statistics": self.statistics, "leaves": leaves, "stack": stack, "stack_stride": stride,
            "relu": self.relu, "residual": len(self.inputs) > 1,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Keep means and deviations, and the output, which says where a ReLU passes errors."""
        x, other = inputs[0], inputs[-1]
        self.out, lanes = out, -(-x.shape[0] // 16) * 16
        of_samples = isinstance(self.operator, GroupNorm)
        self.statistics = plan.buffer(x.samples * 2 * lanes if of_samples else 3 * lanes)
        plan.step(
            PASSES[type(self.operator)][0], **self._common(plan, plan.buffer(x.samples * lanes)),
            **other.read("other"), **out.written(),
        )  # fmt: skip
        return out

    def found(self, batch: Batch) -> Found:
        """Return what a batch norm has found in the minibatch that is under way."""
        channels, rows, columns = self.inputs[0].shape
        lanes, begin = -(-channels // 16) * 16, self.statistics.offset
        flat = batch.arena[begin : begin + 4 * 3 * lanes].view(np.float32).reshape(3, lanes)[:, :channels]
        return Found(flat[0].copy(), flat[2].copy(), len(batch.rows) * rows * columns)

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Return the errors of the norm's input, and of what was added to its output."""
        sent, y = self.inputs[0].error(), self.out if self.relu else error
        residual = len(self.inputs) > 1
        passed = error
        if residual and self.relu:
            passed = self.inputs[1].error()
        lanes = -(-error.shape[0] // 16) * 16
        leaves = plan.buffer(error.samples * 4 * lanes)
        fields = self._common(plan, leaves) | {"residual": residual and self.relu}
        plan.step(
            PASSES[type(self.operator)][1], **fields, **error.read("e"), **y.read("y"), wanted=wanted[0],
            **passed.read("passed"), passed_gap=passed.halo * passed.shape[0], **sent.written(),
        )  # fmt: skip
        if self.operator.affine:
            gradient_of_samples(plan, leaves, 4 * lanes, self.tensors["weight"])
            gradient_of_samples(plan, leaves, 4 * lanes, self.tensors["bias"], lanes)
        return [sent if wanted[0] else None, *([passed] if residual else [])]
