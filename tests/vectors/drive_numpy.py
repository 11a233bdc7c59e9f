"""Calls the NumPy oracle for the records: one method per kernel, from a record's inputs to its expected answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.graph_engine import GraphEngine
from fredsim.data.datasets import Dataset, Split
from fredsim.networks.mlp import Mlp
from fredsim.numerics import elementary
from fredsim.numerics.arrays import MARGIN
from fredsim.numerics.distributions import Distribution
from fredsim.numerics.operations import NumpyOperations, Operations
from fredsim.numerics.oracle import softmax_cross_entropy
from fredsim.numerics.streams import Stream, Streams, philox4x32
from fredsim.numerics.ternary import Draws
from tests.dense_networks import backward, forward
from tests.vectors.rules import RULES

__all__ = ["NumpyDriver"]

Array = NDArray[Any]
Answers = dict[str, Any]


class NumpyDriver:
    """A method for each kernel, with NumPy arrays as arguments and results."""

    operations: Operations = NumpyOperations()

    def engine(self, model: Mlp, dataset: Dataset, mu: int) -> Any:
        del mu
        return GraphEngine(model.graph, dataset)

    def exp32(self, x: Array) -> Answers:
        return {"y": elementary.exp32(x)}

    def log32(self, x: Array) -> Answers:
        return {"y": elementary.log32(x)}

    def philox(self, counter: Array, key: Array) -> Answers:
        c0, c1, c2, c3 = counter
        return {"words": np.array(philox4x32((c0, c1, c2, c3), (int(key[0]), int(key[1]))))}

    def update(self, rule: str, theta: Array, g: Array, numbers: Array | None = None) -> Answers:
        names = ("theta", *RULES[rule].state)
        arrays = [theta.copy(), *(np.full_like(theta, 0.25) for _ in RULES[rule].state)]
        finite = self.operations.compile_rule(RULES[rule])(*arrays, g, 0, len(g), *(() if numbers is None else numbers))
        assert finite == self.operations.finite(arrays[0])
        return {**dict(zip(names, arrays, strict=True)), "finite": int(finite)}

    def mean(self, x: Array) -> Answers:
        return {"y": np.float64(self.operations.mean(x))}

    def gradients(self, sizes: Array, mu: int, params: Array, x: Array, labels: Array, rows: Array) -> Answers:
        model, split = Mlp(tuple(sizes.tolist())), Split(x.reshape(-1, sizes[0]), labels)
        engine = self.engine(model, Dataset(split, split, split, int(sizes[-1])), mu)
        held, rows = padded(params.reshape(-1, model.layout.size)), rows.reshape(-1, mu)
        try:
            grads, losses = engine.gradients(held, rows)
            return {"grads": np.asarray(grads), "losses": losses, **self.inside(engine, model, held, split, rows)}
        finally:
            engine.close()

    def inside(self, engine: Any, model: Mlp, held: list[Array], split: Split, rows: Array) -> Answers:
        """Return the logits, errors and activations of all layers, (B, µ, width) each."""
        del engine
        layers: dict[str, list[Array]] = {}
        for theta, samples in zip(held, rows, strict=True):
            views = list(model.layout.split(theta).values())
            weights = list(zip(views[::2], views[1::2], strict=True))
            passed = forward(weights, split.x[samples])
            errors = softmax_cross_entropy(passed.logits, split.y[samples])[1]
            deltas = backward(weights, passed.activations, errors)
            made = {"logits": passed.logits}
            made |= {f"errors{layer}": delta for layer, delta in enumerate(deltas, start=1)}
            made |= {f"activations{layer}": a for layer, a in enumerate(passed.activations) if layer}
            for name, value in made.items():
                layers.setdefault(name, []).append(value)
        return {name: np.stack(values) for name, values in layers.items()}

    def evaluate(self, sizes: Array, params: Array, x: Array, labels: Array) -> Answers:
        model, split = Mlp(tuple(sizes.tolist())), Split(x.reshape(-1, sizes[0]), labels)
        engine = self.engine(model, Dataset(split, split, split, int(sizes[-1])), 1)
        try:
            loss, error = engine.evaluate(padded(params[None])[0], "validation")
        finally:
            engine.close()
        return {"loss": np.float64(loss), "error": np.float64(error)}

    def draw(
        self, kind: Any, seed: int, element: int, steps: Array, clients: Array, parameters: Array | None = None
    ) -> Answers:
        distribution = Distribution(kind, () if parameters is None else tuple(parameters.tolist()))
        return {"draws": self.operations.draw(distribution, Streams(seed), Stream.TIME, steps, clients, element)}

    def scaler(self, g: Array) -> Answers:
        return {"s": self.operations.ternary.scaler(g)}

    def clip(self, g: Array, tenths: int) -> Answers:
        return {"y": np.asarray(self.operations.ternary.clip(g, tenths / 10))}

    def encode(self, g: Array, s: Array, seed: int, begin: int, step: int, client: int) -> Answers:
        return {
            "packed": self.operations.ternary.encode(
                g, s[0], Draws(Streams(seed), Stream.COMPRESSION, begin, step, client)
            )
        }

    def decode(self, packed: Array, count: int, s: Array) -> Answers:
        return {"g": np.asarray(self.operations.ternary.decode(packed, count, s[0]))}


def padded(params: Array) -> list[Array]:
    """Return rows followed by NaN in memory, which kernels may read but must not use."""
    buffer = np.full((len(params), params.shape[1] + MARGIN), np.nan, np.float32)
    buffer[:, : params.shape[1]] = params
    return [row[: params.shape[1]] for row in buffer]
