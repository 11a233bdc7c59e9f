"""Normalisation on a device: sources/networks/norms.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fredsim.compute.buffers import Buffer
from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Given, Steps, Value
from fredsim.errors import ConfigError
from fredsim.numerics.ops.norms import BatchNorm, FrozenBatchNorm, GroupNorm, LayerNorm, RmsNorm
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.sums import BAND

__all__ = ["NormKernels"]

#: The most units of a set, and bands of a sample, whose sums have room in the shared memory of a block.
MOST_UNITS, SHARED_BANDS = 2048, 1024
WHOLE, WITHOUT_MEAN, FROZEN = range(3)
#: The bands whose sums of samples' own gradients a block forms at a time.
BANDS = 64


class NormKernels(OperatorKernels):
    """The norms of fredsim.numerics.ops.norms."""

    operator: GroupNorm | LayerNorm | BatchNorm | FrozenBatchNorm
    _kept: Buffer | None = None

    @classmethod
    def why_not(cls, operator: Operator, shapes: Sequence[Shape]) -> str:
        """Return that there are too many channels, or positions, if so."""
        (x,) = shapes
        last = isinstance(operator, LayerNorm)
        channels, rows = (x[-1], math.prod(x[:-1])) if last else (x[0], x[1] if len(x) == 3 else math.prod(x[1:]))
        if channels > MOST_UNITS:
            return f"more than {MOST_UNITS} channels"
        return f"more than {SHARED_BANDS * BAND} positions" if rows > SHARED_BANDS * BAND else ""

    def _places(self, plan: Steps) -> dict[str, Any]:
        """Return where sets, units and positions are, and the channels of units."""
        operator, shape = self.operator, self.shapes[0]
        if isinstance(operator, LayerNorm):
            channels, rows = shape[-1], plan.mu * math.prod(shape[:-1])
            return {
                "sets": rows, "set_stride": channels, "units": channels, "unit_stride": 1, "positions": 1, "band": BAND,
                "position_stride": 1, "every": 1, "of_set": 0, "of_unit": 1,
            }  # fmt: skip
        channels, area = shape[0], math.prod(shape[1:])
        found = {"positions": area, "position_stride": 1, "band": BAND * (shape[2] if len(shape) == 3 else 1)}
        if isinstance(operator, BatchNorm):
            return found | {
                "sets": channels, "set_stride": area, "units": plan.mu, "unit_stride": channels * area,
                "every": channels, "of_set": 1, "of_unit": 0,
            }  # fmt: skip
        groups = operator.groups if isinstance(operator, GroupNorm) else channels
        each = channels // groups
        return found | {
            "sets": plan.mu * groups, "set_stride": each * area, "units": each, "unit_stride": area, "every": groups,
            "of_set": each, "of_unit": 1,
        }  # fmt: skip

    def _fields(self, plan: Steps) -> dict[str, Any]:
        kinds = {RmsNorm: WITHOUT_MEAN, FrozenBatchNorm: FROZEN}
        begins = {role: tensor.begin for role, tensor in self.tensors.items()}
        return self._places(plan) | {
            "held": Given.HELD, "x": self.inputs[0], "kept": self._kept, "size": self.inputs[0].size,
            "eps": self.operator.eps, "kind": kinds.get(type(self.operator), WHOLE),
            **{role: begins.get(role, -1) for role in ("weight", "bias", "mean", "variance")},
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add a launch with a set a block; keep means and deviations."""
        places = self._places(plan)
        if places["units"] > MOST_UNITS:
            raise ConfigError(
                f"backend is cuda, which has no kernels for the operator {type(self.operator).__name__} of more than "
                f"{MOST_UNITS} samples: give backend numba"
            )
        sets = places["sets"]
        self._kept = Buffer(2 * sets)
        plan.step("networks/norms", "normalize", (sets, 1), out=out, **self._fields(plan))
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the samples' own gradients of γ and β, then the error of the input."""
        fields = self._fields(plan) | {"errors": error}
        if "weight" in self.tensors:
            self._add_weights(plan, fields)
        if not wanted[0]:
            return [None]
        sent = self.inputs[0].like()
        plan.step("networks/norms", "normalize_back", (fields["sets"], 1), out=sent, **fields)
        return [sent]

    def _add_weights(self, plan: Steps, fields: dict[str, Any]) -> None:
        shape, operator = self.shapes[0], self.operator
        if isinstance(operator, LayerNorm):
            channels, positions = shape[-1], math.prod(shape[:-1])
            places = {"channel_stride": 1, "position_stride": channels, "band": BAND, "group": channels, "moves": 1}
            places["sample_sets"] = positions
        else:
            channels, positions = shape[0], math.prod(shape[1:])
            places = {"channel_stride": positions, "position_stride": 1, "band": fields["band"], "moves": 0}
            each = channels // operator.groups if isinstance(operator, GroupNorm) else 1
            places |= {"group": each, "sample_sets": 0 if isinstance(operator, BatchNorm) else channels // each}
        tensors = [self.tensors[role] for role in ("weight", "bias") if role in self.tensors]
        sums, of_block = Buffer(plan.mu * 2 * channels), max(1, BANDS // -(-positions // places["band"]))
        plan.step(
            "networks/norms", "norm_weights", (-(-channels // of_block), plan.mu), of=fields, sums=sums, mu=plan.mu,
            channels=channels, positions=positions, sample_stride=channels * positions, **places,
        )  # fmt: skip
        plan.mean_samples(sums, tensors, plan.mu, 2 * channels)
