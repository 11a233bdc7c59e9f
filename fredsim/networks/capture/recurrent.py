"""Recurrent layers, written out step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fredsim.networks.capture.elements import dropout, pointwise, scaled
from fredsim.networks.capture.products import linear
from fredsim.networks.capture.tensors import Result, Tensor, binary, named, traced
from fredsim.networks.capture.values import Builder, Traced, UnsupportedError
from fredsim.networks.capture.views import cat, select, stack
from fredsim.numerics.ops.arithmetic import Add, Mul
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.pointwise import Relu, Sigmoid, Tanh

__all__: list[str] = []

MOST = 512  # the most steps, of all layers and directions

State = tuple[Tensor, ...]  # h, of an LSTM also c
#: From the products of an input and of h, each with its bias, and the state to the next state.
Step = Callable[[Builder, Tensor, Tensor, State], State]


def _part(to: Builder, x: Tensor, number: int, count: int) -> Traced:
    """Return one of `count` equal parts of the last dimension."""
    found = traced(to, x)
    width = found.sizes[-1].count // count
    return to.sliced(found, len(found.dims) - 1, number * width, (number + 1) * width)


def _elman(activation: Operator) -> Step:
    def step(to: Builder, given: Tensor, own: Tensor, state: State) -> State:
        del state
        return (pointwise(to, binary(to, Add(), given, own), activation),)

    return step


def _lstm(to: Builder, given: Tensor, own: Tensor, state: State) -> State:
    """Return h and c; gates are in, forget, cell and out (Hochreiter and Schmidhuber 1997)."""
    gates = binary(to, Add(), given, own)
    enter, forget, cell, leave = (
        pointwise(to, _part(to, gates, i, 4), Tanh() if i == 2 else Sigmoid()) for i in range(4)
    )
    c = binary(to, Add(), binary(to, Mul(), forget, state[1]), binary(to, Mul(), enter, cell))
    return binary(to, Mul(), leave, pointwise(to, c, Tanh())), c


def _gru(to: Builder, given: Tensor, own: Tensor, state: State) -> State:
    """Return h; gates are reset, update and new (Cho et al. 2014), as in PyTorch."""
    reset, update = (
        pointwise(to, binary(to, Add(), _part(to, given, i, 3), _part(to, own, i, 3)), Sigmoid()) for i in range(2)
    )
    inner = binary(to, Add(), _part(to, given, 2, 3), binary(to, Mul(), reset, _part(to, own, 2, 3)))
    new = pointwise(to, inner, Tanh())
    apart = binary(to, Add(), state[0], scaled(to, new, -1.0))
    return (binary(to, Add(), new, binary(to, Mul(), update, apart)),)


@dataclass(frozen=True)
class Layers:
    """The arguments of a recurrent layer that all kinds have."""

    params: Sequence[Tensor]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool

    def of(self, number: int) -> list[Any]:
        """Return weights of the input and of h, and their biases, of a layer and direction."""
        each = 4 if self.has_biases else 2
        if len(self.params) != each * self.num_layers * (1 + self.bidirectional):
            raise UnsupportedError("has a projection of its output (proj_size)")
        own = list(self.params[number * each : (number + 1) * each])
        return own if self.has_biases else [*own, None, None]


def _unrolled(to: Builder, x: Tensor, first: Sequence[Tensor], layers: Layers, step: Step) -> tuple[Tensor, ...]:
    """Return the outputs of all steps, then the last states of all layers and directions; `first` are the states."""
    found = traced(to, x)
    if len(found.dims) != 3:
        raise UnsupportedError("is called with a sequence without samples")
    time, both = int(layers.batch_first), 1 + layers.bidirectional
    steps = found.sizes[time].count
    if steps * layers.num_layers * both > MOST:
        raise UnsupportedError(
            f"has {steps * layers.num_layers * both} steps, layers and directions counted; {MOST} at most",
            "scaled_dot_product_attention",
        )
    last: list[list[Tensor]] = [[] for _ in first]
    value: Tensor = found
    for layer in range(layers.num_layers):
        if layer:
            value = dropout(to, value, layers.dropout, layers.train)
        outputs = []
        for way in range(both):
            number = layer * both + way
            state: State = tuple(select(to, one, 0, number) for one in first)
            weight, own, bias, own_bias = layers.of(number)
            given = linear(to, value, weight, bias)
            order = range(steps)[::-1] if way else range(steps)
            seen: dict[int, Tensor] = {}
            for t in order:
                product = linear(to, state[0], own, own_bias)
                state = step(to, select(to, given, time, t), product, state)
                seen[t] = state[0]
            outputs.append(stack(to, [seen[t] for t in range(steps)], time))
            for kept, one in zip(last, state, strict=True):
                kept.append(one)
        value = cat(to, outputs, 2)
    return value, *(stack(to, each, 0) for each in last)


#: What a step does, by the kind of layer.
STEPS = {"gru": _gru, "lstm": _lstm, "rnn_relu": _elman(Relu()), "rnn_tanh": _elman(Tanh())}


@named(*STEPS)
def recurrent(
    to: Builder, x: Tensor | None = None, hx: Any = None, params: Any = None, *, kind: str, **given: Any
) -> tuple[Tensor, ...]:
    if x is None:  # but its elements and how many samples each step has
        raise UnsupportedError("is called with a packed sequence")
    known = {key: value for key, value in given.items() if key in Layers.__dataclass_fields__}
    return _unrolled(to, x, hx if kind == "lstm" else [hx], Layers(params, **known), STEPS[kind])


@named(*(f"{kind}_cell" for kind in STEPS))
def cell(
    to: Builder, x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None, kind: str
) -> Result:
    state = tuple(hx) if kind == "lstm_cell" else (hx,)
    given, own = linear(to, x, w_ih, b_ih), linear(to, state[0], w_hh, b_hh)
    found = STEPS[kind.removesuffix("_cell")](to, given, own, state)
    return found if len(found) > 1 else found[0]
