"""Captured PyTorch modules: their graphs, outputs and gradients by PyTorch in float64, and what is refused."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError
from fredsim.kernels.ops.engine import NumbaGraphEngine
from fredsim.networks.graph import Graph
from fredsim.networks.initial import initial_parameters
from fredsim.networks.zoo.gpt import gpt
from fredsim.networks.zoo.lenet import lenet
from fredsim.networks.zoo.resnet import resnet
from fredsim.networks.zoo.vgg import vgg
from fredsim.numerics.arrays import near
from fredsim.numerics.ops.attention import Attention
from fredsim.numerics.ops.dropout import Dropout
from fredsim.numerics.ops.losses.loss import Loss, Losses
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.numerics.ops.operator import Array, Shape
from fredsim.numerics.ops.pointwise import LeakyRelu, Tanh
from fredsim.numerics.ops.products import MatMul
from fredsim.numerics.ops.views import Cat, Permute, Reshape, Slice
from fredsim.numerics.streams import Streams

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from torch import nn
from torch.nn import functional

from fredsim import zoo
from fredsim.networks.capture.elements import pointwise
from fredsim.networks.capture.module import Captured, capture
from fredsim.networks.capture.program import INSTEAD
from fredsim.networks.capture.tensors import OPERATORS
from tests import captured_modules as given
from tests import own_modules
from tests.captured_modules import Encoder, Own, images

attend = functional.scaled_dot_product_attention
ROWS, PLACES, IMAGE = (4,), (5, 4), (2, 8, 6)


class Along(Loss):
    """The inner product of outputs and targets, whose error is the target: for gradients of any output."""

    def check(self, output: Shape, target: Shape) -> None:
        """Take any."""

    def losses(self, output: Array, target: Array) -> Losses:
        """Return the products."""
        return Losses((output * target).reshape(len(output), -1).sum(axis=1), target)


def refused(text: str) -> ConfigError:
    return ConfigError(f"model.name: m {text}")


def captured(module: Any, x: Array, loss: Loss | None = None) -> Captured:
    return capture(module, x, (), refused, loss or Along())


def samples(shape: Shape, count: int = 4) -> Array:
    return np.random.default_rng(2).normal(size=(count, *shape)).astype(np.float32)


def seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        return make()


def compare(module: Any, graph: Graph, x: Array) -> None:
    """Compare the outputs and gradients of a graph with a module's in float64, without dropout."""
    params = np.concatenate([value.detach().numpy().reshape(-1) for value in module.parameters()])
    output = graph.forward(params, x).output
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if isinstance(part, nn.Dropout2d):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention | nn.RNNBase):
            part.dropout = 0.0
    module.train().double()
    wide = torch.from_numpy(x)
    expected = module(wide.double() if x.dtype == np.float32 else wide)
    assert output.shape == expected.shape
    weights = np.random.default_rng(3).normal(size=output.shape).astype(np.float32)
    np.testing.assert_allclose(output, expected.detach().numpy(), rtol=1e-5, atol=1e-5 * expected.abs().max().item())
    parameters = list(module.parameters())
    grads = torch.autograd.grad(
        (expected * torch.from_numpy(weights)).sum() / len(x), parameters, allow_unused=True, materialize_grads=True
    )
    top = max(grad.abs().max().item() for grad in grads if grad.numel())
    for (name, found), grad in zip(
        graph.layout.split(graph.gradient(params, x, weights)[0]).items(), grads, strict=True
    ):
        np.testing.assert_allclose(found, grad.numpy(), rtol=1e-4, atol=1e-5 * top, err_msg=name)


NETWORKS: dict[str, tuple[Callable[[], Any], Shape]] = {
    "mlp": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(96, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), IMAGE),
    "vgg with batch norm": (
        lambda: images(
            nn.Conv2d(2, 4, 3, padding="same", bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding="valid"), nn.BatchNorm2d(6, affine=False), nn.ReLU(),
            nn.Dropout(0.3), nn.AdaptiveAvgPool2d((2, 1)), outputs=12,
        ), IMAGE,
    ),
    "groups and pooling": (
        lambda: images(
            nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.GroupNorm(2, 4), nn.SiLU(), nn.InstanceNorm2d(4, affine=True),
            nn.LeakyReLU(0.2), nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False), nn.Tanh(), nn.Sigmoid(),
            nn.GELU("tanh"), outputs=16,
        ), (2, 8, 8),
    ),
    "activations": (
        lambda: images(
            nn.Conv2d(2, 4, 3), nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.Hardswish(), nn.Hardsigmoid(), nn.ELU(0.5),
            nn.Conv2d(4, 4, 1), nn.SELU(), nn.Hardtanh(-0.5, 0.5), outputs=96,
        ), IMAGE,
    ),
    "dilated": (
        lambda: images(
            nn.Conv2d(2, 4, 3, padding=2, dilation=2), nn.Conv2d(4, 4, (3, 2), (1, 2), (3, 0), (3, 1), groups=4),
            nn.Conv2d(4, 3, 3, padding="same", dilation=3), outputs=72,
        ), IMAGE,
    ),
    "convolutions of sequences": (
        lambda: nn.Sequential(
            nn.Conv1d(5, 6, 3, padding=1), nn.BatchNorm1d(6), nn.MaxPool1d(2, padding=1),
            nn.Conv1d(6, 6, 2, 2, 1, 1, 6), nn.Conv1d(6, 4, 3, padding="same", dilation=2), nn.AvgPool1d(2, 1, 1),
            nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(8, 3),
        ), PLACES,
    ),
    "repeated pixels": (
        lambda: images(nn.Conv2d(2, 4, 3), nn.Upsample(scale_factor=(2, 3)), nn.Conv2d(4, 2, 3, 2), outputs=50), IMAGE,
    ),
    "repeated elements": (
        lambda: Own(lambda own, x: torch.repeat_interleave(own.dense(x), 3, 1) * x.repeat_interleave(3, dim=-2)),
        PLACES,
    ),
    "a norm by hand": (
        lambda: Own(lambda own, x: (y := own.dense(x)) * torch.rsqrt(y.pow(2).mean(-1, True) + 1e-6) * own.ones),
        PLACES,
    ),
    "bounds": (lambda: Own(lambda own, x: own.dense(x).clamp(-0.5, 0.75) + own.dense(x).clamp(max=0.1)), PLACES),
    "numbers that are the bounds": (
        lambda: Own(
            lambda own, x: own.dense(x) * own.by.clamp(-0.5, 0.5) + own.by.clamp(min=0.5) + own.by.clamp(0, math.inf)
            + (own.by - 0.5).clamp(min=0) + functional.hardtanh(own.by, -0.5, 0.5)
            + functional.hardtanh(own.by, 0, math.inf)
        ), PLACES,
    ),
    "lengths of 0": (
        lambda: Own(
            lambda own, x: (y := own.dense(x) * torch.tensor([0.0, 1, 1, 0, 1])[:, None]).norm(dim=2, keepdim=True)
            + y.std(2, keepdim=True) + functional.normalize(y, dim=2)
        ), PLACES,
    ),
    "transformer layer": (lambda: Encoder(), (5, 8)),
    "transformer layer, norm first": (lambda: Encoder(norm_first=True, activation="gelu", dropout=0.0), (5, 8)),
    "attention with weights": (lambda: Own(lambda own, x: own.attention(x, x, x)[0]), PLACES),
    "causal attention": (
        lambda: Own(lambda own, x: own.attention(x, x, x, attn_mask=own.mask, need_weights=False)[0]), PLACES,
    ),
    "attention of a learned query": (
        lambda: Own(lambda own, x: own.attention(own.first.expand(x.shape[0], -1, -1), own.dense(x), x)[0]), PLACES,
    ),
    "attention with a bias": (
        lambda: Own(lambda own, x: attend(x, own.dense(x), x, own.first[0, :, :1])), PLACES,
    ),
    "a token before the others": (
        lambda: Own(lambda own, x: torch.cat([own.first.repeat(x.shape[0], 1, 1), own.dense(x)], 1)), PLACES,
    ),
    "numbers": (lambda: Own(lambda own, x: own.dense(x) * own.by - 3 + x / 2 + 2 * own.ones), PLACES),
    "whole numbers": (
        lambda: Own(lambda own, x: torch.cat([own.dense(x) * torch.arange(4), given.numbered(x)], 2)), PLACES,
    ),
    "constants of other types": (
        lambda: Own(
            lambda own, x: own.dense(x) * (own.mask < 0)[:, :4].type_as(x) + torch.arange(4).to(x) + x
            + torch.arange(5)[:, None].expand(x.shape[0], -1, 1).float()
        ), PLACES,
    ),
    "masks that differ by head": (
        lambda: Own(
            lambda own, x: attend(
                y := own.dense(x).reshape(-1, 5, 2, 2).transpose(1, 2), y, y,
                torch.stack([own.mask == 0, torch.eye(5) == 1]),
            )
        ), PLACES,
    ),
    "scores times constants": (
        lambda: Own(lambda own, x: torch.softmax(
            own.dense(x) @ x.mT * torch.where(own.mask == 0, torch.arange(1.0, 6), 0.0)
            + torch.where(own.mask == 0, 0, own.mask), -1) @ x), PLACES,
    ),
    "weights of a norm of all": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3), dim=None), ROWS),
    "norms": (lambda: Own(lambda own, x: own.joint(x) + own.without_bias(functional.rms_norm(x, (4,)))), PLACES),
    "products": (
        lambda: Own(
            lambda own, x: x @ own.matrix
            + functional.linear(x, own.matrix.t()) + functional.linear(x, own.dense.weight[1:], own.dense.bias[1:])
            + functional.linear(x, own.dense.weight[:3] * own.by)
        ), PLACES,
    ),
    "products of rows with computed matrices": (
        lambda: Own(
            lambda own, x: own.dense(x) @ functional.normalize(own.dense.weight).T
            + x.softmax(1) @ (2 * own.dense.weight) + x @ (own.dense.weight @ own.matrix).softmax(1)[:, :1]
        ), ROWS,
    ),
    "products of samples": (lambda: Own(lambda own, x: torch.softmax(own.dense(x) @ x.mT, 1)), PLACES),
    "in place": (lambda: Own(given.added_in_place), PLACES),
    "parts": (
        lambda: Own(
            lambda own, x: torch.stack([own.dense(x)[:, 1:, None, 1], torch.cat(x.chunk(2, 2)[::-1], 2)[:, :-1, 2:3]])
            .sum(0).pow(2)
        ), PLACES,
    ),
    "samples on another axis": (lambda: Own(lambda own, x: own.dense(x.transpose(0, 1)).relu().mean(0)), PLACES),
    "turned": (lambda: Own(lambda own, x: own.dense(x).transpose(0, 1).reshape(5, -1).t().reshape(-1, 4, 5)), PLACES),
    "every second": (lambda: Own(given.shortcut), (2, 4, 4)),
    "hidden places": (
        lambda: Own(lambda own, x: torch.where(own.mask < 0, x @ x.mT, own.dense(x).sum(2, keepdim=True))), PLACES,
    ),
    "frozen statistics": (given.Frozen, ROWS),
    "products by letters": (
        lambda: Own(
            lambda own, x: torch.einsum("bij,oj->bio", x, own.dense.weight) + torch.einsum("bij,bkj,bkl->bil", x, x, x)
            + torch.einsum("bij,bij->bi", x, own.dense(x))[:, :, None] + torch.einsum("bij->bj", x)[:, None]
        ), PLACES,
    ),
    "products by letters, of tensors of parameters": (
        lambda: Own(lambda own, x: torch.einsum("jl,bij->ibl", own.matrix, own.dense(x)).transpose(0, 1)), PLACES,
    ),
    "other orders": (
        lambda: Own(
            lambda own, x: own.dense(x).flip(1).roll((1, -2), (1, 2))[:, [0, 0, 3, 1, 4]]
            + x.index_select(2, torch.tensor([3, 1, 1, 0]))
        ), PLACES,
    ),
    "sums of those before": (lambda: Own(lambda own, x: own.dense(x).cumsum(1) + x.cumsum(-1)), PLACES),
    "padding by an image's own pixels": (
        lambda: images(
            nn.Conv2d(2, 3, 3, padding=2, padding_mode="reflect"), nn.ReplicationPad2d((0, 2, 1, 0)),
            nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular"), nn.ZeroPad2d((-1, 0, 2, -2)), nn.ReflectionPad2d(1),
            outputs=429,
        ), IMAGE,
    ),
    "shuffled pixels": (
        lambda: images(
            nn.PixelUnshuffle(2), nn.Conv2d(8, 16, 1), nn.ChannelShuffle(4), nn.PixelShuffle(4), nn.Conv2d(1, 2, 3, 2),
            outputs=70,
        ), IMAGE,
    ),
    "pixels between": (
        lambda: images(
            nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            nn.Upsample(scale_factor=(0.7, 1.4), mode="bilinear"), nn.Upsample((5, 7), mode="bicubic"), outputs=105,
        ), IMAGE,
    ),
    "elements between": (
        lambda: nn.Sequential(nn.Upsample(7, mode="linear"), nn.Conv1d(5, 2, 3), nn.Flatten(), nn.Linear(10, 3)),
        PLACES,
    ),
    "transposed convolutions": (
        lambda: images(
            nn.ConvTranspose2d(2, 3, 2, 2), nn.ConvTranspose2d(3, 2, (4, 3), (2, 1), (1, 2), bias=False),
            nn.ConvTranspose2d(2, 1, 3, (3, 2), 1, output_padding=(2, 1)), outputs=144,
        ), (2, 3, 2),
    ),
    "windows over the edge": (
        lambda: images(
            nn.Conv2d(2, 3, (1, 2)), nn.MaxPool2d(2, 1, 1, ceil_mode=True), nn.MaxPool2d(2, ceil_mode=True),
            nn.AvgPool2d(3, 2, 1, ceil_mode=True), nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
            nn.AvgPool2d((2, 1), divisor_override=3), outputs=3,
        ), IMAGE,
    ),
    "the largest": (
        lambda: Own(
            lambda own, x: own.dense(x).max(1)[0] + own.dense(x).amax((1, 2))[:, None]
            + x.min(2, keepdim=True)[0].sum(1)
            + own.dense(x).amin(1)
            + functional.adaptive_max_pool1d(own.dense(x), 2).mean((1, 2))[:, None]
        ), PLACES,
    ),
    "adaptive largest": (
        lambda: images(nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveMaxPool2d((4, 2)), outputs=24), IMAGE,
    ),
    "gates": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.GLU(), nn.PReLU(), nn.Linear(3, 5), nn.PReLU(5), nn.CELU(0.5)), ROWS,
    ),
    "powers": (lambda: Own(lambda own, x: own.dense(x) ** 3 + (x**4 + 1) ** -0.5 + (x**2 + 1).pow(0.5)), ROWS),
    "quotients": (
        lambda: Own(
            lambda own, x: own.dense(x).exp() / (1 + x.abs()) + 2 / (own.by + x.square()) + (x * x + 1).reciprocal()
        ), ROWS,
    ),
    "more activations": (
        lambda: nn.Sequential(
            nn.Linear(4, 3), nn.Softplus(2.0), nn.Linear(3, 3), nn.Mish(), nn.Linear(3, 3), nn.LogSigmoid(),
            nn.Softsign(), nn.Linear(3, 3), nn.LogSoftmax(1),
        ), ROWS,
    ),
    "periodic": (
        lambda: Own(
            lambda own, x: (y := own.dense(x)) + (own.by * y).sin().square() / own.by + (30 * y).sin()
            + x.cos() * y.cos()
        ), PLACES,
    ),
    "logarithms": (
        lambda: Own(
            lambda own, x: (1 + (y := own.dense(x)).exp()).log() + y.square().log1p() + (y.abs() + 1).log2()
            + (x.abs() + y.exp()).log10()
        ), ROWS,
    ),
    "the larger of two": (
        lambda: Own(
            lambda own, x: torch.maximum(own.dense(x), x) + torch.max(own.dense(x), own.by).min(own.ones * 0.5)
            + torch.minimum(own.dense(x), own.first[0, 0]) + torch.maximum(own.dense(x).relu(), torch.tensor(0.0))
        ), PLACES,
    ),
    "masks": (
        lambda: Own(
            lambda own, x: torch.where(own.mask == 0, 0.0, own.dense(x) @ x.mT).masked_fill(own.mask.T < 0, own.by)
            + (own.dense(x) @ x.mT).tril(1).triu(-1)
        ), PLACES,
    ),
    "masks that hide what is infinite": (
        lambda: Own(
            lambda own, x: (y := (own.dense(x) @ x.mT).masked_fill(own.mask < 0, -math.inf)).log_softmax(-1).tril()
            + y.masked_fill((own.mask < 0) | (torch.eye(5) > 0), -math.inf)[:, 1:].softmax(-1).sum(1, True)
        ), PLACES,
    ),
    "detached": (
        lambda: Own(
            lambda own, x: own.dense(x).detach().tanh() * own.dense(x) + own.by.detach() * x + own.joint(x).detach()
        ), PLACES,
    ),
    "without gradients": (lambda: Own(
        lambda own, x: given.tables(own, x) + given.without_gradient(own, x) + given.with_gradient_within(own, x)
    ), ROWS),
    "logarithms of sums": (
        lambda: Own(
            lambda own, x: (y := own.dense(x)).logsumexp(2, keepdim=True) + (60 * y).logsumexp((1, 2))[:, None, None]
            + torch.logsumexp(y.masked_fill(own.mask[:, :4] < 0, -math.inf), -1)[:, :, None]
        ), PLACES,
    ),
    "tangents, and exponentials near 1": (
        lambda: Own(
            lambda own, x: (0.4 * (y := own.dense(x))).tan() + y.expm1() + 1e4 * (1e-5 * y).expm1()
            + (0 * y.detach() + own.by - own.by.detach()).expm1()
        ), PLACES,
    ),
    "deviations": (
        lambda: Own(
            lambda own, x: (own.dense(x) - x.mean(-1, True)) / (own.dense(x).std(-1, keepdim=True) + 1e-6)
            + own.dense(x).var((1, 2), unbiased=False)[:, None, None] + functional.normalize(own.dense(x), dim=2)
            + own.dense(x).norm(1, 2, keepdim=True)
        ), PLACES,
    ),
    "weights of a norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), ROWS),
    "dropout of channels": (
        lambda: images(nn.Conv2d(2, 3, 3), nn.Dropout2d(0.4), nn.Conv2d(3, 2, 3), outputs=16), IMAGE
    ),
    "recurrent": (lambda: given.Recurrent("LSTM"), PLACES),
    "recurrent both ways": (lambda: given.Recurrent("GRU", bidirectional=True, num_layers=2, dropout=0.3), PLACES),
    "recurrent without a bias": (lambda: given.Recurrent("RNN", bias=False, nonlinearity="relu"), PLACES),
    "no elements": (given.Spare, ROWS),
    "a norm of two names": (given.TwoNames, IMAGE),
    "recurrent, time first": (lambda: given.Recurrent("RNN", batch_first=False), PLACES),
    "cells": (given.Cells, PLACES),
    "parts from the end": (
        lambda: Own(
            lambda own, x: torch.cat([own.dense(x).narrow(1, -3, 2), own.matrix.narrow(0, -1, 1) + x[:, 1:]], 1)
        ), ROWS,
    ),
    "every second and third": (
        lambda: Own(lambda own, x: torch.cat([own.dense(x)[..., :3:2], own.dense(x)[..., ::3], x[..., :2:3]], -1)),
        PLACES,
    ),
    "constants of one element": (
        lambda: Own(lambda own, x: (own.dense(x).mean(1) * torch.ones(1, 1) + torch.zeros(1, 1)).mT), ROWS,
    ),
    "other names": (
        lambda: Own(lambda own, x: torch.true_divide(torch.multiply(torch.subtract(own.dense(x), 0.5, alpha=2), x),
                    torch.divide(torch.negative(x * x) - 1, own.matrix.ravel()[:4]))), ROWS,
    ),
    "matrices of places by samples": (
        lambda: Own(
            lambda own, x: torch.bmm(x.transpose(0, 1), own.dense.weight.relu().expand(5, 4, 4)).transpose(0, 1)
        ), PLACES,
    ),
    "sums over places by letters": (
        lambda: Own(lambda own, x: torch.einsum("nsj,ij->ni", x, own.dense.weight) @ own.matrix), PLACES,
    ),
    "sums over a matrix by letters": (
        lambda: Own(lambda own, x: torch.einsum("nj,ij->n", x, own.dense.weight)[:, None] * own.first[0]), ROWS,
    ),
    "places' matrices by letters": (
        lambda: Own(lambda own, x: torch.einsum("sij,nsj->nsi", own.dense.weight.tanh().expand(5, 4, 4), x)), PLACES,
    ),
}  # fmt: skip


def test_a_train_method_may_return_nothing() -> None:
    one, other = (captured(seeded(make), samples(ROWS)) for make in (given.Silent, given.Frozen))
    assert one.graph.nodes == other.graph.nodes


def test_no_order_of_products_by_letters_is_chosen_for_a_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch does where opt_einsum is installed, unless it is switched off."""
    letters, found = SimpleNamespace(enabled=True), []
    monkeypatch.setattr(torch.backends, "opt_einsum", letters)

    def forward(own: Any, x: Any) -> Any:
        found.append(letters.enabled)
        return own.dense(x)

    captured(seeded(lambda: Own(forward)), samples(PLACES))
    assert found
    assert set(found) == {False}
    assert letters.enabled


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_and_gradients_are_pytorchs(name: str) -> None:
    make, shape = NETWORKS[name]
    module, x = seeded(make), samples(shape)
    names = [(key, tuple(value.shape)) for key, value in module.named_parameters()]
    graph = captured(module, x).graph
    assert list(graph.layout.tensors) == names
    compare(module, graph, x)


#: Products whose samples are columns, and the same with samples as rows.
TURNED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any], Shape]] = {
    "computed": (lambda own, h: (own.dense.weight.relu() @ h.T).T, lambda own, h: h @ own.dense.weight.relu().T, ROWS),
    "a parameter": (lambda own, h: (own.dense.weight @ h.T).T, lambda own, h: h @ own.dense.weight.T, ROWS),
    "its transpose": (lambda own, h: (own.matrix.t() @ h.t()).t(), lambda own, h: h @ own.matrix, ROWS),
    "rows of it": (lambda own, h: (own.dense.weight[:2] @ h.T).T, lambda own, h: h @ own.dense.weight[:2].T, ROWS),
    "mm": (lambda own, h: torch.mm(own.matrix.relu().t(), h.t()).t(), lambda own, h: h @ own.matrix.relu(), ROWS),
    "linear": (
        lambda own, h: functional.linear(own.dense.weight.relu(), h).T, lambda own, h: h @ own.dense.weight.relu().T,
        ROWS,
    ),
    "addmm": (
        lambda own, h: torch.addmm(own.first[0, 0, :, None], own.dense.weight.relu(), h.T).T,
        lambda own, h: own.first[0] + h @ own.dense.weight.relu().T, ROWS,
    ),
    "places first": (
        lambda own, h: (own.dense.weight.relu() @ h.permute(1, 2, 0)).permute(2, 0, 1),
        lambda own, h: h @ own.dense.weight.relu().T, PLACES,
    ),
    "rows of places": (
        lambda own, h: (own.dense.weight.relu() @ h.reshape(-1, 4).T).T.reshape(h.shape),
        lambda own, h: h @ own.dense.weight.relu().T, PLACES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNED)
def test_products_whose_samples_are_columns_have_the_bits_of_those_whose_samples_are_rows(name: str) -> None:
    columns, rows, shape = TURNED[name]
    x = samples(shape)

    def made(by: Callable[[Any, Any], Any]) -> Any:
        return seeded(lambda: Own(lambda own, x: by(own, own.dense(x))))

    modules = [made(by) for by in (columns, rows)]
    params = np.concatenate([value.detach().numpy().reshape(-1) for value in modules[0].parameters()])
    turned, plain = (captured(module, x).graph for module in modules)
    errors = samples(plain.shapes[-1])
    np.testing.assert_array_equal(turned.forward(params, x).output, plain.forward(params, x).output)
    np.testing.assert_array_equal(turned.gradient(params, x, errors)[0], plain.gradient(params, x, errors)[0])
    compare(modules[0], turned, x)


def test_what_is_named_instead_of_operators_is_in_the_set() -> None:
    known = {name for text in INSTEAD.values() for name in re.split(", and ", text)}
    assert known <= OPERATORS.keys()
    assert not INSTEAD.keys() & OPERATORS.keys()


GRAPHS: list[tuple[str, Callable[..., Graph], int, Shape, dict[str, Any]]] = [
    ("lenet", lenet, 4, (2, 16, 18), {}),
    ("resnet", resnet, 5, (1, 6, 7), {"width": 8}),
    ("vgg", vgg, 3, (1, 6, 5), {"widths": [4, 6]}),
    ("gpt", gpt, 11, (5,), {"width": 12, "layers": 2, "heads": 3}),
]


@pytest.mark.parametrize(("name", "graph", "classes", "shape", "options"), GRAPHS, ids=[case[0] for case in GRAPHS])
def test_the_graphs_of_networks_that_come_with_fredsim_are_those_written_by_hand(
    name: str, graph: Callable[..., Graph], classes: int, shape: Shape, options: dict[str, Any]
) -> None:
    module = seeded(lambda: getattr(zoo, name)(classes, shape, **options))
    rng, expected = np.random.default_rng(0), graph(classes, shape, **options)
    x = rng.integers(0, classes, (3, *shape)) if name == "gpt" else samples(shape)
    assert capture(module, x, expected.target, refused).graph == expected


@pytest.mark.parametrize("floats", [False, True])
def test_attention_that_is_written_out_is_one_operator(floats: bool) -> None:
    module, x = seeded(given.Plain), np.random.default_rng(0).integers(0, 11, (3, 6))
    x = x.astype(np.float32) if floats else x
    graph = captured(module, x).graph
    operators = [node.operator for node in graph.nodes]
    (attention,) = [operator for operator in operators if isinstance(operator, Attention)]
    assert attention == Attention(causal=True, scale=1 / math.sqrt(4), dropout=0.1)
    assert not any(isinstance(operator, MatMul) for operator in operators)
    assert operators.count(Dropout(0.1)) == 1
    assert graph.layout.tensors[0][0] == "tokens.weight"
    assert "head.weight" not in dict(graph.layout.tensors)
    assert {node.tensors for node in graph.nodes} >= {(("weight", "tokens.weight"),)}
    compare(module, graph, x)


def test_the_row_of_padding_is_not_trained() -> None:
    module, x = seeded(lambda: nn.Embedding(6, 4, padding_idx=2)), np.array([[0, 2, 2], [2, 5, 1]])
    compare(module, captured(module, x).graph, x)


def test_views_become_as_few_nodes_as_they_need() -> None:
    module = seeded(lambda: Own(lambda own, x: own.dense(x).view(-1, 5, 2, 2).transpose(1, 2).flatten(1, 2)))
    operators = [node.operator for node in captured(module, samples(PLACES)).graph.nodes[1:]]
    assert operators == [Reshape((5, 2, 2)), Permute((1, 0, 2)), Reshape((10, 2))]
    heads = seeded(lambda: Own(lambda own, x: own.attention(x, x, x, need_weights=False)[0]))
    nodes = captured(heads, samples(PLACES)).graph.nodes
    views = [type(node.operator) for node in nodes if isinstance(node.operator, Reshape | Permute | Slice | Cat)]
    assert views == [Slice, Slice, Slice, *[Reshape, Permute] * 3, Permute, Reshape]


def test_modules_are_left_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    module = seeded(NETWORKS["vgg with batch norm"][0]).eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    state = torch.get_rng_state()
    found = captured(module, samples(IMAGE, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert not module.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert capfd.readouterr() == ("", "")
    (remark,) = found.remarks
    assert remark.startswith("keeps running statistics (1.running_mean, …), which no client pushes")


def of_half(own: Any, x: Any) -> Any:
    return own.dense(x).half()


NOT_IN_THE_SET = "which is not among the operators that fredsim computes itself"
REFUSED: dict[str, tuple[Callable[[], Any], Shape, str]] = {
    "lstm": (lambda: given.Recurrent("LSTM", proj_size=2, hidden_size=4), PLACES,
             "uses lstm in its layer 'body' (LSTM), which has a projection of its output (proj_size); give numerics: "),
    "softshrink": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Softshrink()), ROWS,
                   f"uses softshrink in its layer '1' (Softshrink), {NOT_IN_THE_SET}; the nearest that it does is "),
    "transposed": (lambda: images(nn.ConvTranspose2d(2, 2, 2, 2, groups=2), outputs=384), IMAGE,
                   "uses conv_transpose2d in its layer '0' (ConvTranspose2d), which has groups=2; the nearest that it "
                   "does is conv_transpose2d of one group;"),
    "another letter twice": (lambda: Own(lambda own, x: torch.einsum("bii->b", x @ x.mT)[:, None]), PLACES,
                   "uses einsum in its forward, which is 'bii->b', with an ellipsis or a letter that a tensor has"),
    "a letter of two sizes": (lambda: Own(lambda own, x: torch.einsum("nsj,tsj->nt", x, own.first)), PLACES,
                   "uses einsum in its forward, which has the letter s for the sizes 5 and 1; the nearest"),
    "letters of samples": (lambda: Own(lambda own, x: own.dense(x) @ torch.einsum("bi,bj->ij", x, x)), ROWS,
                   "uses einsum in its forward, which sums over samples"),
    "gradients within": (lambda: Own(given.by_own_gradient), ROWS,
                         "cannot be captured by torch.export: its forward computes gradients, as by torch.autograd"),
    "assigned data": (lambda: Own(given.with_assigned_data), ROWS, "its forward computes gradients, as by torch.auto"),
    "a derivative": (lambda: Own(lambda own, x: torch.func.vmap(torch.func.jacrev(own.dense))(x)[:, 0]), ROWS,
                     "cannot be captured by torch.export: its forward computes by torch.func, or forward derivatives"),
    "a derivative of all samples": (lambda: Own(lambda own, x: torch.func.vjp(own.dense, x)[1](x)[0]), ROWS,
                     "cannot be captured by torch.export: its forward computes by torch.func, or forward derivatives;"),
    "a forward derivative": (lambda: Own(lambda own, x: torch.func.jvp(own.dense, (x,), (x,))[1]), ROWS,
                     "cannot be captured by torch.export: its forward computes by torch.func, or forward derivatives;"),
    "dual numbers": (lambda: Own(given.by_dual_numbers), ROWS,
                     "cannot be captured by torch.export: its forward computes by torch.func, or forward derivatives;"),
    "vmap": (lambda: Own(lambda own, x: torch.func.vmap(own.dense)(x)), ROWS,
             "uses _add_batch_dim in its forward, which is of torch.func.vmap; compute all samples at once; give"),
    "a list": (lambda: Own(lambda own, x: own.dense(torch.tensor(x.tolist()))), ROWS,
               "cannot be captured by torch.export: its forward makes a list of a tensor; give numerics: native"),
    "a number of Python's": (lambda: Own(lambda own, x: own.dense(x) * float(x.sum())), ROWS,
               "makes a Python number of a tensor, as by .item(), and computes with it; give numerics: native"),
    "an array": (lambda: Own(lambda own, x: own.dense(torch.from_numpy(np.sin(x.numpy())))), ROWS,
                 "cannot be captured by torch.export: its forward makes a NumPy array of a tensor (test_capture.py:"),
    "a copy": (lambda: Own(lambda own, x: deepcopy(own.dense)(x)), ROWS,
               "its forward reads a tensor's memory, as copy.deepcopy or another library does (test_capture.py:"),
    "a part of torch.jit": (lambda: nn.Sequential(nn.Flatten(), torch.jit.script(nn.Linear(4, 3))), ROWS,
               "cannot be captured by torch.export: it has the part '1' of torch.jit, which that does not read; "),
    "sparse": (lambda: Own(lambda own, x: torch.sparse.mm(x.to_sparse(), own.dense.weight)), ROWS,
               "cannot be captured by torch.export: UnsupportedOperatorException: aten._to_sparse.default (test_capt"),
    "a sum over samples": (lambda: Own(lambda own, x: own.dense(x) @ (x.T @ own.dense(x))), ROWS,
                   "uses matmul in its forward, which sums over samples: (4, n) and (n, 4); give numerics: native"),
    "samples by samples": (lambda: Own(lambda own, x: own.dense(x) @ x.T), ROWS,
               "uses matmul in its forward, which multiplies samples with one another: (n, 4) and (4, n); give num"),
    "a vector": (lambda: Own(lambda own, x: own.dense(x) @ own.first[0, 0]), ROWS,
               "which takes a vector: (n, 4) and (4,); the nearest that it does is a matrix of one row or column, as"),
    "places": (lambda: Own(lambda own, x: own.dense(x).max(1)[1].float() + own.dense(x).sum(1)), ROWS,
               "uses getitem in its forward, which takes the places of the largest, integers that depend on samples; "),
    "windows of several sizes": (lambda: images(nn.AdaptiveMaxPool2d((3, 3)), outputs=18), IMAGE,
               "which makes 3×3 windows of 8×6, not of one size; the nearest that it does is max_pool2d;"),
    "chosen by samples": (lambda: Own(lambda own, x: own.dense.weight[x[:, 0].long()]), ROWS,
               "which chooses elements by numbers that depend on samples; the nearest that it does is embedding;"),
    "no whole factor": (lambda: images(nn.Upsample((9, 9)), outputs=162), IMAGE,
                        "uses upsample_nearest2d in its layer '0' (Upsample), which makes 9 of 8 pixels, which is no "),
    "bounds by samples": (lambda: Own(lambda own, x: own.dense(x).clamp(x, x + 1)), ROWS,
                          "uses clamp in its forward, which has bounds that depend on samples or parameters; the near"),
    "samples in another order": (lambda: Own(lambda own, x: own.dense(x).flip(0)), ROWS,
             "uses flip in its forward, which takes some of the samples, or puts them in another order; give numerics"),
    "comparison": (lambda: Own(lambda own, x: own.dense(x) * (x > 0)), ROWS,
             f"uses gt in its forward, {NOT_IN_THE_SET}; give numerics: native"),
    "sorted": (lambda: Own(lambda own, x: own.dense(x).sort()[0]), ROWS,
             f"uses sort in its forward, {NOT_IN_THE_SET}; give numerics: native"),
    "side by side": (lambda: Own(lambda own, x: torch.hstack([own.dense(x), x])), ROWS,
             f"uses hstack in its forward, {NOT_IN_THE_SET}; the nearest that it does is cat; give"),
    "dilated pooling": (lambda: images(nn.MaxPool2d(2, 1, dilation=2), outputs=48), IMAGE,
                        "uses max_pool2d in its layer '0' (MaxPool2d), which has dilation=[2, 2]; give numerics: "),
    "same": (lambda: images(nn.Conv2d(2, 3, 2, padding="same"), outputs=144), IMAGE,
             "which has padding 'same' and a kernel of 2×2, which would pad one side more; give"),
    "draws": (lambda: Own(lambda own, x: own.dense(x) + torch.randn(4)), ROWS,
              "uses randn in its forward, which draws"),
    "padding_idx": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Embedding(9, 2, padding_idx=1)), ROWS,
                    "failed on samples of shape (n, 4): RuntimeError: Expected tensor for argument #1 'indices'"),
    "by data": (lambda: Own(lambda own, x: own.dense(x) if x.sum() > 0 else x), ROWS,
                "decides by the values of its data (torch.export: data-dependent expression Eq(u0, 1)); give"),
    "item": (lambda: Own(lambda own, x: own.dense(x) * x[0, 0].item()), ROWS,
              "uses select in its forward, which takes"),
    "the number of samples": (lambda: Own(lambda own, x: own.dense(x) / x.shape[0]), ROWS,
                              "uses div in its forward, which depends on the number of samples; give"),
    "bits": (lambda: Own(lambda own, x: own.dense(x).view(torch.int32)), ROWS,
             "uses view in its forward, which reads the bits of numbers as another type; give"),
    "the numbers of samples": (
        lambda: Own(lambda own, x: own.dense(x) + torch.arange(x.shape[0], dtype=x.dtype)[:, None]), ROWS,
        "uses arange in its forward, which depends on the number of samples; give"),
    "floats cut off": (lambda: Own(lambda own, x: own.dense(x - x.long())), ROWS,
        "uses sub in its forward, which makes floats of integers; the nearest that it does is embedding; give"),
    "dropout of a parameter": (lambda: Own(lambda own, x: own.dense(x) + functional.dropout(own.first[0], 0.5)), ROWS,
        "uses dropout in its forward, which drops elements of what all samples share, for which PyTorch draws once for "
        "all of them; the nearest that it does is dropout of what depends on the samples; give"),
    "a limit on weights": (lambda: Own(given.limited), ROWS,
        "changes its parameter 'dense.weight' in forward, which torch.export leaves out; give"),
    "dilated, transposed": (lambda: images(nn.ConvTranspose2d(2, 2, 2, dilation=2), outputs=160), IMAGE,
        "uses conv_transpose2d in its layer '0' (ConvTranspose2d), which has dilation=[2, 2]; give"),
    "a factor that is not whole": (
        lambda: images(nn.Conv2d(2, 2, (1, 1)), nn.Upsample(scale_factor=2.1), outputs=384), (2, 8, 6),
        "uses upsample_nearest2d in its layer '1' (Upsample), which makes 16 of 8 pixels by 2.1, which is no whole"),
    "an infinite number": (lambda: Own(lambda own, x: own.dense(x) + math.inf), ROWS,
        "uses add in its forward, which takes the number inf; give"),
    "four samples": (lambda: Own(lambda own, x: own.dense(x).reshape(4, 4)), ROWS,
                      "fixes the number of samples in forward, as by len(x), or a reshape to a number; use x.shape[0]"),
    "their number": (lambda: Own(lambda own, x: own.dense(x).reshape(len(x), -1)), ROWS,
                     "fixes the number of samples in forward, as by len(x), or a reshape to a number; use x.shape[0]"),
    "pairs of samples": (lambda: Own(lambda own, x: own.dense(x).reshape(x.shape[0] // 2, 8)), ROWS,
                         "uses reshape in its forward, which has a size of (s77//2) for s77 samples, which mixes them"),
    "mean of samples": (lambda: Own(lambda own, x: own.dense(x) - x.mean(0)), ROWS,
                        "which is taken over samples; give"),
    "samples last": (lambda: nn.TransformerEncoderLayer(4, 2, 8), PLACES,
                     "which attends from sample to sample, as layers without batch_first=True do; the nearest"),
    "two outputs": (lambda: Own(lambda own, x: (own.dense(x), x)), ROWS,
                    "returns more than one tensor; let forward return the logits alone, or join what a loss of"),
    "a dictionary": (lambda: Own(lambda own, x: {"logits": own.dense(x)}), ROWS, "returns more than one tensor"),
    "the sample": (lambda: Own(lambda own, x: x), ROWS, "returns the sample itself"),
    "a constant": (lambda: Own(lambda own, x: own.ones * 2), ROWS, "has an output that does not depend on the sample"),
    "half": (lambda: Own(of_half), ROWS, "uses to in its forward, which gives torch.float16; fredsim computes with"),
    "buffer": (lambda: Own(lambda own, x: own.dense(x) + own.ones.add_(1)), ROWS,
               "uses add_ in its forward, which changes a parameter or a buffer that it uses; give"),
    "a view": (lambda: Own(given.overwritten), PLACES,
               "which changes a tensor in place of which another view is used later; do not change in place; give"),
    "evaluation": (lambda: Own(lambda own, x: own.dense(x) * 2 if own.training else own.dense(x)), ROWS,
                   "computes other things in evaluation than in training, dropout and running statistics apart; a"),
    "one sample": (lambda: Own(lambda own, x: own.dense(x) if x.shape[0] > 1 else own.dense(x) * 2), ROWS,
                   "computes one sample otherwise than several, by their number; give"),
    "few samples": (lambda: Own(lambda own, x: own.dense(x) if len(x) < 5 else own.dense(x).tanh()), ROWS,
                    "fixes the number of samples in forward, as by len(x), or a reshape to a number; use x.shape[0]"),
    "changes without gradients": (lambda: Own(given.changed_without_gradient), ROWS,
                    "has another gradient than torch.export's program of it, as with a torch.autograd.Function or a"),
    "own gradient": (lambda: Own(lambda own, x: given.Straight.apply(own.dense(x))), ROWS,
                     "has another gradient than torch.export's program of it, as with a torch.autograd.Function or a"),
    "no parameters": (lambda: nn.Flatten(), ROWS, "has no parameters; there is nothing to train"),
    "double": (lambda: nn.Linear(4, 2).double(), ROWS, "has a parameter 'weight' of torch.float64; parameters must be"),
    "an error": (lambda: Own(lambda own, x: 1 / 0), ROWS,
                 "failed on samples of shape (n, 4): ZeroDivisionError: division by zero"),
    "a sum of no elements": (own_modules.Empty, (64,), "uses sum in its forward, which reshape: 0 elements, (0, 4)"),
    "a product of no elements": (
        lambda: Own(lambda own, x: torch.cat([own.dense(x), x @ own.dense.weight[:, :0]], 1)), ROWS, "; give numerics: "
    ),
    "other channels": (lambda: images(nn.Conv2d(3, 2, 3), outputs=48), IMAGE,
                       "failed on samples of shape (n, 2, 8, 6): RuntimeError: Given groups=1, weight of size [2, 3,"),
    "channels last": (lambda: images(nn.Conv2d(3, 2, 3), outputs=48), (8, 6, 3),
                      "but got 8 channels instead; if the channels are last, save them first: x.transpose(0, 3, 1, 2)"),
}  # fmt: skip
#: What PyTorch would not compute either.
NOWHERE = (
    "padding_idx", "two outputs", "a dictionary", "no parameters", "double", "an error", "other channels",
    "channels last",
)  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make, shape, says = REFUSED[name]
    module = seeded(make)
    with pytest.raises(ConfigError) as caught:
        captured(module, samples(shape))
    text = str(caught.value)
    assert text.startswith("model.name: m ")
    assert says in text
    assert "\n" not in text
    assert "fake" not in text
    assert len(text) < 420
    assert ("numerics: native" in text) == (name not in NOWHERE)
    assert capfd.readouterr() == ("", "")


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.networks.capture.recurrent.MOST", 9)
    module = seeded(lambda: given.Recurrent("GRU", num_layers=2))
    with pytest.raises(ConfigError, match=r"which has 10 steps, layers and directions counted; 9 at most; the nearest"):
        captured(module, samples(PLACES))


def test_outputs_that_do_not_fit_the_loss_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"m gives outputs that do not fit the data: cross_entropy: takes outputs"):
        capture(seeded(lambda: Own(lambda own, x: own.dense(x))), samples(PLACES), (), refused)


def test_classes_that_are_not_last() -> None:
    says = r"takes outputs \(…, classes\) and labels \(…\), not \(4, 5\) and \(5,\); put the classes last: x\.movedim"
    with pytest.raises(ConfigError, match=says):
        capture(seeded(lambda: Own(lambda own, x: own.dense(x).mT)), samples(PLACES), (5,), refused)


def test_activation_checkpointing_changes_no_graph() -> None:
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8)).astype(np.float32)
    found = [capture(own_modules.Tanhs(again), x, (), ConfigError).graph for again in (False, True)]
    assert found[0] == found[1]


def test_gradients_are_compared_with_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tanh, "_slope", lambda self, x: np.ones_like(x))
    with pytest.raises(
        ConfigError, match=r"was not captured rightly: the gradient of dense\.weight is .* from PyTorch"
    ):
        captured(seeded(lambda: Own(lambda own, x: own.dense(x).tanh())), samples(ROWS))


def test_what_weights_of_0_hide_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "sigmoid", lambda to, x: pointwise(to, x, Tanh()))
    module = seeded(lambda: Own(lambda own, x: own.dense(x) + own.dense.weight.sigmoid().sum() * own.by))
    module.by.data.zero_()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(ConfigError, match=r"was not captured rightly: .* numerics: native"):
        captured(module, samples(ROWS))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_other_samples_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATORS, "relu", lambda to, x: pointwise(to, x, LeakyRelu(0.5)))
    module, x = seeded(lambda: Own(lambda own, x: own.dense(x.relu()))), np.abs(samples(ROWS, 8))
    captured(module, x)
    x[6] *= -1
    with pytest.raises(ConfigError, match="was not captured rightly: outputs"):
        captured(module, x)


def test_two_that_are_the_largest_are_no_fault() -> None:
    module = seeded(lambda: Own(lambda own, x: own.dense(x).amax(1)[:, None]))
    module.dense.weight.data.zero_()
    module.dense.bias.data.zero_()
    captured(module, samples(ROWS))


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("div", lambda own, x: own.dense(x.unsqueeze(-1).expand(-1, -1, 4) / 11)),
        ("cat", lambda own, x: own.dense(torch.cat([x[:, :, None], own.first.expand(x.shape[0], 5, -1)[:, :, :3]], 2))),
        ("mul", lambda own, x: own.dense(own.ones * x[:, :, None])),
        ("mean", lambda own, x: own.dense(own.ones * x.mean(1, True, dtype=torch.float32))),
        ("to", lambda own, x: own.dense(own.ones * x[:, :, None].float())),
    ],
)
def test_integer_samples_are_rows_of_a_table_alone(name: str, forward: Any) -> None:
    with pytest.raises(ConfigError, match=f"uses {name} in its forward, which makes floats of integers; the nearest"):
        captured(seeded(lambda: Own(forward)), np.random.default_rng(0).integers(0, 11, (4, 5)))


@pytest.mark.parametrize(
    "forward",
    [
        lambda own, x: own.table(torch.stack([x[:, 1], x[:, 0]], 1)),
        lambda own, x: own.table(functional.pad(x, (1, 2), value=3)),
        lambda own, x: own.table(x) + own.table(torch.ones_like(x)),
    ],
    ids=["stack", "pad", "ones_like"],
)
def test_tokens_that_are_put_together(forward: Any) -> None:
    module = seeded(lambda: Own(forward))
    module.table = nn.Embedding(11, 3)
    x = np.random.default_rng(0).integers(0, 11, (4, 5))
    compare(module, captured(module, x).graph, x)


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
def test_outputs_that_are_not_finite(hole: float) -> None:
    module, x = seeded(lambda: Own(lambda own, x: own.dense(x) * torch.tensor([hole, 1.0, 1.0, 1.0]))), samples(ROWS)
    params = np.concatenate([value.detach().numpy().reshape(-1) for value in module.parameters()])
    found = captured(module, x).graph.forward(params, x).output
    expected = module(torch.from_numpy(x)).detach().numpy()
    assert np.isfinite(expected).tolist() == [[False, True, True, True]] * len(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf, 1.0])
def test_what_is_near(hole: float) -> None:
    expected = np.array([1000.0, hole, 1.0], np.float32)
    assert near(expected, expected, 1e-5)
    assert near(expected + np.float32(0.005), expected, 1e-5)
    assert not near(expected + np.float32(0.05), expected, 1e-5)
    assert not near(np.array([1000.0, 2.0, 1.0], np.float32), expected, 1e-5)


def test_weights_of_attention_that_are_also_used_elsewhere_are_dropped_once() -> None:
    def forward(own: Any, x: Any) -> Any:
        weights = functional.dropout(torch.softmax(own.dense(x) @ x.mT, -1), 0.5, own.training)
        return torch.cat([weights @ x, weights], 2)

    graph = captured(seeded(lambda: Own(forward)), samples(PLACES)).graph
    assert [node.operator for node in graph.nodes if node.operator.draws] == [Dropout(0.5)]


def test_statistics_of_an_instance_norm_are_remarked_on() -> None:
    def make(tracks: bool) -> Any:
        return images(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, track_running_stats=tracks), outputs=72)

    (remark,) = captured(seeded(lambda: make(True)), samples(IMAGE)).remarks
    assert remark == (
        "keeps running statistics (1.running_mean, …), which no client pushes: evaluation normalizes by each sample's "
        "own statistics, as with track_running_stats=False"
    )
    assert captured(seeded(lambda: make(False)), samples(IMAGE)).remarks == ()


def test_tables_of_different_columns_have_rows_of_their_own() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 3, 12), rng.integers(0, 50, 12), rng.integers(40, 50, 12)], 1)
    graph = captured(seeded(given.Columns), x).graph
    compare(seeded(given.Columns), graph, x)
    y = rng.normal(size=(12, 4)).astype(np.float32)
    graph = replace(graph, target=(4,), loss=MeanSquaredError())
    params = rng.normal(size=graph.layout.size).astype(np.float32)
    split = Split(x.reshape(12, -1).astype(np.int32), y)
    engine = NumbaGraphEngine(graph, Dataset(split, split, split, 4), 5, 1)
    found, _ = engine.gradients([params], np.arange(5)[None])
    np.testing.assert_array_equal(found[0], graph.gradient(params, x[:5], y[:5])[0])
    x[3, 0] = 3
    with pytest.raises(ConfigError, match="has a table of 3 rows; samples choose the rows 0 … 3"):
        captured(seeded(given.Columns), x)


STARTS: dict[str, tuple[Callable[[], Any], Shape, set[str], set[str]]] = {
    "norms without a bias": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, bias=False), nn.Linear(4, 3)), ROWS, {"1.weight"}, set(),
    ),
    "norms of several axes": (
        lambda: nn.Sequential(nn.LayerNorm((5, 4)), nn.RMSNorm((5, 4)), nn.Flatten(), nn.Linear(20, 3)), PLACES,
        {"0.weight", "1.weight"}, set(),
    ),
    "transposed convolutions": (
        lambda: images(nn.ConvTranspose2d(2, 3, 3, 2), outputs=663), IMAGE, set(), {"0.weight"},
    ),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), ROWS, set(),
        {"parametrizations.weight.original1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("init", ["he", "glorot", "torch", "normal", "zeros"])
def test_what_parameters_start_from(name: str, init: str) -> None:
    make, shape, ones, drawn = STARTS[name]
    module, x = seeded(make), samples(shape)
    graph = captured(module, x).graph
    params = initial_parameters(graph, Streams(3), init, 0.5)
    views = graph.layout.split(params)
    assert {key for key, view in views.items() if (view == 1).all()} >= ones
    assert all(len(np.unique(views[key])) == views[key].size for key in drawn if init != "zeros")
    assert np.isfinite(graph.forward(params, x).output).all()
    if name == "weight norm" and init != "zeros":
        v, g = (views[f"parametrizations.weight.original{i}"] for i in (1, 0))
        np.testing.assert_allclose(g[:, 0], np.linalg.norm(v, axis=1), rtol=1e-6)
        assert v.std() == pytest.approx(
            {"he": (2 / 4) ** 0.5, "glorot": (2 / 7) ** 0.5, "torch": (1 / 12) ** 0.5, "normal": 0.5}[init], rel=0.5
        )
    if name == "transposed convolutions" and init in {"torch", "glorot"}:  # PyTorch's fans: 3·9 and 2·9
        limit = (1 / 27) ** 0.5 if init == "torch" else (6 / (27 + 18)) ** 0.5
        assert 0.8 * limit < np.abs(views["0.weight"]).max() <= limit
