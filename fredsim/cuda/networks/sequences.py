"""Embeddings, attention, products of matrices and softmax on a device: sources/networks/embedding.cu, attention.cu."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fredsim.cuda.networks.dropout import drawn
from fredsim.cuda.networks.operator import OperatorKernels
from fredsim.cuda.networks.steps import Given, Steps, Value, blocks_for
from fredsim.errors import SimulationError
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.products import LogSoftmax

__all__ = ["AttentionKernels", "EmbeddingKernels", "MatMulKernels", "SoftmaxKernels"]

FAMILY, TILE, THREADS = "networks/attention", 32, 64
MaskOf = dict[str, Any]
ALL: MaskOf = {"pattern": 0, "causal": 0, "keys": 0}


class EmbeddingKernels(OperatorKernels):
    """fredsim.numerics.ops.embedding.Embedding, of integers."""

    whole = True

    def _fields(self, plan: Steps) -> dict[str, Any]:
        weight, x = self.tensors["weight"], self.inputs[0]
        return {
            "x": x, "weight": weight.begin, "mu": plan.mu, "places": x.each, "rows": self.operator.rows,
            "width": self.operator.width,
            "untrained": -1 if self.operator.untrained is None else self.operator.untrained,
        }  # fmt: skip

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add a copy of rows. Raises SimulationError for an integer that is no row's."""
        low, high = inputs[0].bounds
        if low < 0 or high >= self.operator.rows:
            raise SimulationError(f"embedding: {low} … {high} are no rows of 0 … {self.operator.rows - 1}")
        out = replace(out, whole=False)
        fields = self._fields(plan) | {"held": Given.HELD, "out": out}
        plan.step("networks/embedding", "look_up", blocks_for(out.size), **fields)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        """Add the sums of errors by row."""
        weight, fields = self.tensors["weight"], self._fields(plan) | {"errors": error}
        if not plan.shared(weight):
            plan.written.add(weight.name)
            fields |= {"out": Given.GRADS, "stride": plan.stride}
            plan.step("networks/embedding", "mean_of_rows", (self.operator.rows, 1), **fields)
            return [None]
        sums = error.like(shape=weight.shape)
        plan.step("networks/embedding", "sums_of_rows", (self.operator.rows, plan.mu), out=sums, **fields)
        plan.mean_samples(sums.buffer, [weight], plan.mu)
        return [None]


def _product(plan: Steps, a: Value, b: Value, out: Value, *, turned: str = "", **fields: Any) -> None:
    """Add Σ_k a[m, k]·b[k, n] over the last two axes of both; `turned`: one is given with its axes exchanged."""
    rows, columns = out.shape[-2:]
    length = a.shape[-2] if turned == "left" else a.shape[-1]
    name = f"product_{turned}_turned" if turned else "product"
    batches = plan.mu * math.prod(out.shape[:-2])
    plan.step(
        FAMILY, name, (-(-rows // TILE) * batches, -(-columns // TILE)), a=a, b=b, out=out,
        a_size=math.prod(a.shape[-2:]), b_size=math.prod(b.shape[-2:]), a_row=1 if turned == "left" else length,
        a_term=rows if turned == "left" else 1, b_term=1 if turned == "right" else columns,
        b_column=length if turned == "right" else 1, batches=batches, rows=rows, columns=columns, length=length,
        **fields,
    )  # fmt: skip


class MatMulKernels(OperatorKernels):
    """fredsim.numerics.ops.products.MatMul."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        a, b = inputs
        _product(plan, a, b, out)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        a, b = self.inputs
        sent = [value.like() if wants else None for value, wants in zip(self.inputs, wanted, strict=True)]
        if sent[0] is not None:
            _product(plan, error, b, sent[0], turned="right")
        if sent[1] is not None:
            _product(plan, a, error, sent[1], turned="left")
        return list(sent)


def _softmax(plan: Steps, name: str, out: Value, mask: MaskOf = ALL, **fields: Any) -> None:
    """Add a launch with a row a thread."""
    rows, columns = out.size // out.shape[-1], out.shape[-1]
    queries = out.shape[-2] if len(out.shape) > 1 else 1
    plan.step(
        FAMILY, name, (-(-rows // THREADS), 1), out=out, mask=mask, rows=rows, columns=columns, queries=queries,
        **fields,
    )  # fmt: skip


class SoftmaxKernels(OperatorKernels):
    """Softmax and LogSoftmax of fredsim.numerics.ops.products."""

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the shares, or their logarithms; keep the shares."""
        logs = isinstance(self.operator, LogSoftmax)
        self._name, self._shares = ("log_softmax", out.like()) if logs else ("softmax", out)
        _softmax(plan, self._name, out, x=inputs[0], left=self._shares if logs else 0)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        sent = self.inputs[0].like()
        _softmax(plan, f"{self._name}_back", sent, x=error, p=self._shares)
        return [sent]


class AttentionKernels(OperatorKernels):
    """fredsim.numerics.ops.attention.Attention: products, softmax of the scores, products."""

    operator: Attention

    def _mask(self, plan: Steps) -> MaskOf:
        masked = self.operator.masked
        pattern = 0 if masked is None else plan.table((~np.array(masked)).astype(np.int32))
        return {"pattern": pattern, "causal": int(self.operator.causal), "keys": self.shapes[1][-2]}

    def _drawn(self) -> dict[str, Any]:
        return drawn(self.draws, self.operator.dropout, math.prod(self._shares.shape))

    @property
    def _scale(self) -> float:
        return 1 / math.sqrt(self.shapes[0][-1]) if self.operator.scale is None else self.operator.scale

    def forward(self, plan: Steps, inputs: Sequence[Value], out: Value) -> Value:
        """Add the scores, their shares, and the sums of values; keep the shares."""
        q, k, v = inputs
        scores = q.like(shape=(*q.shape[:-1], k.shape[-2]))
        _product(plan, q, k, scores, turned="right", scaled=1, scale=self._scale)
        mask, self._shares = self._mask(plan), scores.like()
        self._left, fields = self._shares, {}
        if plan.learn and self.operator.draws:
            self._left = scores.like()
            fields = {"left": self._left, "drawn": self._drawn()}
        _softmax(plan, "softmax", self._shares, mask, x=scores, **fields)
        _product(plan, self._left, v, out, mask=mask, masked=1)
        return out

    def backward(self, plan: Steps, error: Value, wanted: Sequence[bool]) -> list[Value | None]:
        q, k, v = self.inputs
        mask = self._mask(plan)
        sent = [value.like() if wants else None for value, wants in zip(self.inputs, wanted, strict=True)]
        if sent[0] is not None or sent[1] is not None:
            e, t = self._shares.like(), self._shares.like()
            _product(plan, error, v, e, turned="right")
            fields = {"drawn": self._drawn(), "dropped": 1} if self.operator.draws else {}
            _softmax(plan, "softmax_back", t, mask, x=e, p=self._shares, scaled=1, scale=self._scale, **fields)
            if sent[0] is not None:
                _product(plan, t, k, sent[0], mask=mask, masked=1)
            if sent[1] is not None:
                _product(plan, t, q, sent[1], turned="left", mask=mask, masked=2)
        if sent[2] is not None:
            _product(plan, self._left, error, sent[2], turned="left", mask=mask, masked=2)
        return list(sent)
