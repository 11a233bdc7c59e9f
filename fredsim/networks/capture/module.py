"""Captures a PyTorch module: its graph, after comparing what that and the module compute."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fredsim.errors import ConfigError
from fredsim.networks.capture.program import Program
from fredsim.networks.capture.values import UnsupportedError
from fredsim.networks.captured import lacking_rows
from fredsim.networks.graph import Graph
from fredsim.networks.layout import Layout
from fredsim.networks.running import RunningNorm
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import BatchNorm
from fredsim.numerics.ops.operator import Array, Shape
from fredsim.plugins.failures import failed_on, is_interrupt, message_of

__all__ = ["NATIVE", "Captured", "capture"]

Refusal = Callable[[str], ConfigError]
NATIVE = "give numerics: native, by which PyTorch computes it"
NOT_EXPORTED = "cannot be captured by torch.export"
#: How far the outputs and gradients of two programs may be apart, relative to the largest: far more than rounding is.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Captured:
    """The graph of a module, and what may not have been meant about it."""

    graph: Graph
    remarks: tuple[str, ...] = ()
    running: tuple[RunningNorm, ...] = ()


def capture(module: Any, x: Array, target: Shape, refused: Refusal, loss: Loss | None = None) -> Captured:
    """Return the graph of a module in training mode, and its parameters' names and shapes in their order.

    `x` are a few samples, float32 or integers (n, …), on which the graph's outputs are compared with the module's;
    `target` is the shape of what a sample's output is compared with. `refused` makes the error of a text that follows
    the module's name. Raises ConfigError, which names the operator and its layer, if the module cannot be captured.
    """
    x = x[:4] if len(x) > 1 else np.repeat(x, 2, axis=0)
    _check_parameters(module, refused)
    layout = Layout(tuple((name, tuple(value.shape)) for name, value in module.named_parameters()))
    samples = torch.from_numpy(np.array(x))
    samples = samples if samples.is_floating_point() else samples.long()
    with _kept(module):
        exported = _exported(module.train(), samples, refused)
        try:
            program = Program(exported, module)
            nodes = program.nodes(x.shape[1:], dict(layout.tensors))
            graph = Graph(x.shape[1:], target, nodes, loss or CrossEntropy(), layout)
        except UnsupportedError as error:
            near = f"; the nearest that it does is {error.instead}" if error.instead else ""
            raise refused(f"{error}{near}{f'; {NATIVE}' * error.native}") from None
        except ValueError as error:
            raise refused(f"gives outputs that do not fit the data: {error}") from None
        if lacks := lacking_rows(graph, x):
            raise refused(lacks)
        _compare(module, exported, graph, samples, refused)
    remarks = [_about_statistics(module, graph)]
    return Captured(graph, tuple(filter(None, remarks)), tuple(RunningNorm(*norm) for norm in program.running))


def _check_parameters(module: Any, refused: Refusal) -> None:
    if next(module.parameters(), None) is None:
        raise refused("has no parameters; there is nothing to train")
    for name, value in module.named_parameters():
        if value.dtype != torch.float32:
            raise refused(f"has a parameter {name!r} of {value.dtype}; parameters must be torch.float32")


@contextmanager
def _kept(module: Any) -> Iterator[None]:
    """Put the module's mode and buffers back after a `with` block, and let PyTorch write no messages within it."""
    buffers = [(value, value.clone()) for value in module.buffers()]
    modes = [(part, part.training) for part in module.modules()]
    trained = [(value, value.requires_grad) for value in module.parameters()]
    level, threads = logging.root.manager.disable, torch.get_num_threads()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)  # for so few samples
    einsum = torch.backends.opt_einsum.enabled
    torch.backends.opt_einsum.enabled = False  # it chooses an order for a fixed number of samples
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            for value, _ in trained:
                value.requires_grad_(True)
            yield
    finally:
        logging.disable(level)
        torch.set_num_threads(threads)
        torch.backends.opt_einsum.enabled = einsum
        for part, mode in modes:
            part.training = mode
        for value, learns in trained:
            value.requires_grad_(learns)
        with torch.no_grad():
            for value, before in buffers:
                value.copy_(before)


def _exported(module: Any, samples: Any, refused: Refusal) -> Any:
    """Return the exported program of a module, for any number of samples."""
    written = io.StringIO()  # export prints the program where it fails
    try:
        with redirect_stdout(written), redirect_stderr(written):
            return torch.export.export(
                module, (samples.clone(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
            )
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise refused(_reason(error, module, samples)) from error


def _reason(error: BaseException, module: Any, samples: Any) -> str:
    """Return why torch.export refuses a module, and the remedy, in a line."""
    text = _why(error)
    if text.startswith(NOT_EXPORTED) and (failure := _failure(module, samples)):
        return failure  # PyTorch would not compute it, either
    return f"{text}; {NATIVE}"


def _failure(module: Any, samples: Any) -> str:
    """Return how a module fails when it is called with samples; an empty text if it does not."""
    try:
        module(samples.clone())
    except BaseException as error:
        if is_interrupt(error):
            raise
        return failed_on(samples.shape[1:], error)
    return ""


def _why(error: BaseException) -> str:
    """Return why torch.export refuses a module."""
    first = message_of(error).strip().partition("\n")[0].strip()
    if "specialized it to be a constant" in message_of(error):
        return "fixes the number of samples in forward, for example by a reshape to a number; use x.shape[0], or -1"
    if "data-dependent" in first:
        expression = first.partition("expression ")[2].partition(" (")[0]
        return f"decides by the values of its data (torch.export: data-dependent expression {expression})"
    return f"{NOT_EXPORTED}: {type(error).__name__}: {first[:200]}"


def _compare(module: Any, exported: Any, graph: Graph, samples: Any, refused: Refusal) -> None:
    """Raise ConfigError unless module, program and graph compute the same.

    The program may lack what an own torch.autograd.Function does on the way back; dropout draws the same numbers in
    both. The graph is compared without dropout, and with the module in evaluation.
    """
    parameters = list(module.parameters())

    def gradients(forward: Callable[[Any], Any]) -> list[Any]:
        torch.default_generator.manual_seed(0)
        output = forward(samples.clone())  # it may write into them
        weights = torch.cos(torch.arange(output.numel(), dtype=torch.float32)).reshape(output.shape)
        found = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True, materialize_grads=True)
        return [output.detach(), *(each.reshape(-1) for each in found)]

    try:
        pairs = zip(gradients(module), gradients(exported.module(check_guards=False)), strict=True)
    except BaseException as error:  # of any type: the module is the user's
        if is_interrupt(error):
            raise
        raise refused(f"cannot be trained: {' '.join(message_of(error).split())[:200]}") from error
    for own, its in pairs:
        if not torch.allclose(own, its, TOLERANCE, TOLERANCE * float(own.abs().max()), equal_nan=True):
            raise refused(
                "has another gradient than torch.export's program of it, as with a torch.autograd.Function or a "
                f"hook of its own; {NATIVE}"
            )
    for node in exported.graph.nodes:
        if "dropout" in str(node.target):
            node.args = (node.args[0], 0.0, *node.args[2:])
        elif "scaled_dot_product_attention" in str(node.target) and len(node.args) > 4:
            node.args = (*node.args[:4], 0.0, *node.args[5:])
        elif str(node.target).split(".")[1:2] in (["lstm"], ["gru"], ["rnn_tanh"], ["rnn_relu"]):
            node.args = (*node.args[:5], 0.0, *node.args[6:])  # between layers
    with torch.no_grad():
        expected = exported.module(check_guards=False)(samples.clone()).numpy()
    params = torch.cat([value.detach().reshape(-1) for value in parameters]).numpy()
    found = graph.forward(params, samples.numpy()).output
    if not np.allclose(found, expected, TOLERANCE, TOLERANCE * np.abs(expected).max(initial=0), equal_nan=True):
        apart = np.abs(found - expected).max()
        raise refused(f"was not captured rightly: outputs are {apart:.2g} from PyTorch's; {NATIVE}, and report this")
    with _by_own_statistics(module), torch.no_grad():
        evaluated = module.eval()(samples.clone()).numpy()
    if not np.allclose(evaluated, expected, TOLERANCE, TOLERANCE * np.abs(expected).max(initial=0), equal_nan=True):
        raise refused(
            "computes other things in evaluation than in training, dropout and running statistics apart; a portable "
            f"module computes the same: {NATIVE}"
        )


@contextmanager
def _by_own_statistics(module: Any) -> Iterator[None]:
    """Let norms that use a minibatch's statistics in training do so in evaluation, too, inside a `with` block."""
    kinds = torch.nn.modules.batchnorm._NormBase
    norms = [part for part in module.modules() if isinstance(part, kinds) and part.training]
    kept = [(part, part.running_mean, part.running_var, part.track_running_stats) for part in norms]
    for part in norms:
        part.running_mean = part.running_var = None
        part.track_running_stats = False  # of an InstanceNorm
    try:
        yield
    finally:
        for part, mean, variance, tracks in kept:
            part.running_mean, part.running_var, part.track_running_stats = mean, variance, tracks


def _about_statistics(module: Any, graph: Graph) -> str:
    """Return the remark about running statistics, which graphs do not keep; "" if there are none."""
    if not any(isinstance(node.operator, BatchNorm) for node in graph.nodes):
        return ""
    names = [name for name, _ in module.named_buffers() if name.endswith("running_mean")]
    if not names:
        return ""
    return (
        f"keeps running statistics ({names[0]}, …), which no client pushes: evaluation normalizes by the statistics of "
        "the rows that are evaluated at once, as with track_running_stats=False"
    )
