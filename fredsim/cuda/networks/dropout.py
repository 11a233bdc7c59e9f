"""Dropout on a device: sources/networks/dropout.cu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Given, Steps, Value, blocks_for
from fredsim.numerics.streams import Stream

__all__ = ["DropoutKernels", "drawn"]


def drawn(place: int, p: float, each: int) -> dict[str, Any]:
    """Return the fields of what the drawing operator number `place` draws for samples of so many elements."""
    return {
        "clients": Given.CLIENTS, "numbers": Given.NUMBERS, "seed": Given.SEED, "p": p, "scale": 1 / (1 - p),
        "each": each, "stream": int(Stream.DROPOUT), "place": place,
    }  # fmt: skip


class DropoutKernels(OperatorKernels):
    """fredsim.numerics.ops.dropout.Dropout."""

    def _add(self, plan: Steps, x: Value, out: Value) -> Value:
        fields = drawn(self.draws, self.operator.p, x.each)
        plan.step("networks/dropout", "drop", blocks_for(x.size), x=x, out=out, size=x.size, drawn=fields)
        return out

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add what stays; nothing is dropped while a network is evaluated."""
        return self._add(plan, inputs[0], out) if plan.learn and self.operator.draws else inputs[0]

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        return [self._add(plan, error, self.inputs[0].like()) if self.operator.draws else error]
