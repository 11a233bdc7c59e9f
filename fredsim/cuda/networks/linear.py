"""Dense layers on a device: sources/networks/linear.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fredsim.cuda.networks.operator import MOST_BANDS, OperatorKernels
from fredsim.cuda.networks.steps import Choice, Given, Steps, Value
from fredsim.numerics.ops.operator import Operator, Shape
from fredsim.numerics.ops.sums import BAND

__all__ = ["LinearKernels"]

#: The tiles, the largest first: rows and columns, by which they are named.
TILES = ((64, 64), (32, 32), (32, 16))
#: The samples of a group whose gradients one block sums, if they have one position.
LEAVES = 128


class LinearKernels(OperatorKernels):
    """fredsim.numerics.ops.linear.Linear."""

    @classmethod
    def why_not(cls, operator: Operator, shapes: Sequence[Shape]) -> str:
        """Return that there are too many positions, if so: the sums of their bands would have no room."""
        del operator
        return f"more than {MOST_BANDS * BAND} positions" if math.prod(shapes[0][:-1]) > MOST_BANDS * BAND else ""

    @property
    def _positions(self) -> int:
        return math.prod(self.shapes[0][:-1])

    def _add(self, plan: Steps, turned: bool, x: Value, out: Value, columns: int, bias: int) -> None:
        """Add the rows of x times the weight as it is in memory, or turned."""
        rows, name = plan.mu * self._positions, f"multiply{'_turned' if turned else ''}"
        choices = []
        for tile in TILES:
            if tile == TILES[-1] or (tile[0] < 2 * rows and tile[1] < 2 * columns):
                blocks = -(-rows // tile[0]), -(-columns // tile[1])
                choices.append(Choice("networks/linear", f"{name}_{tile[1]}", blocks))
        plan.choose(
            choices, held=Given.HELD, x=x, out=out, weight=self.tensors["weight"].begin, bias=bias, rows=rows,
            length=x.shape[-1], columns=columns,
        )  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        bias = self.tensors["bias"].begin if self.operator.bias else -1
        self._add(plan, self.operator.layout == "out_in", inputs[0], out, self.operator.outputs, bias)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        x, outputs = self.inputs[0], self.operator.outputs
        inputs, tensors = x.shape[-1], list(self.tensors.values())
        biased, positions = len(tensors) - 1, self._positions
        fields: dict[str, Any] = {
            "x": x, "errors": error, "positions": positions, "band": BAND, "inputs": inputs, "outputs": outputs,
            "biased": biased, "turned": int(self.operator.layout == "out_in"),
        }  # fmt: skip
        blocks = -(-(inputs + biased) // 64) * -(-outputs // 32)
        name, each = ("matrix_leaves", LEAVES) if positions == 1 else ("matrix_weights", 0)
        plan.sum_samples("networks/linear", name, blocks, tensors, each, **fields)
        if not wanted[0]:
            return [None]
        sent = x.like()
        self._add(plan, self.operator.layout == "in_out", error, sent, inputs, -1)
        return [sent]
