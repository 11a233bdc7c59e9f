"""Captures a PyTorch module: its graph, after comparing what that and the module compute."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from fredsim.errors import ConfigError
from fredsim.networks.capture.program import Program
from fredsim.networks.capture.regions import inline_regions
from fredsim.networks.capture.values import UnsupportedError
from fredsim.networks.captured import lacking_rows
from fredsim.networks.graph import Graph
from fredsim.networks.layout import Layout
from fredsim.networks.running import RunningNorm
from fredsim.numerics.arrays import near
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.norms import BatchNorm
from fredsim.numerics.ops.operator import Array, Leaves, Shape, quiet
from fredsim.plugins.failures import failed_on, failing, is_interrupt, line_of, message_of

__all__ = ["NATIVE", "Captured", "capture", "kept", "one_thread"]

Refusal = Callable[[str], ConfigError]
NATIVE = "give numerics: native, by which PyTorch computes it"
NOT_EXPORTED = "cannot be captured by torch.export"
#: By a part of what torch.export says of its own tensors: what a forward does that it cannot follow.
UNSEEN = {
    "fake tensor in the exported program": "computes gradients, as by torch.autograd.grad, or assigns to .data",
    ".numpy() is not supported": "makes a NumPy array of a tensor",
    "Cannot access data pointer": "reads a tensor's memory, as copy.deepcopy or another library does",
}
#: How far the outputs and gradients of two programs may be apart, relative to the largest: far more than rounding is.
TOLERANCE = 1e-3
#: How far a tensor's gradient may be from PyTorch's, as lengths: rounding turns units of large networks on or off.
TURNED, NEARLY_NONE = 1e-2, 1e-4  # relative to this tensor's gradient; to that of all
TRIED = 4  # samples that are compared at once
ROWS = 2  # of matrices, whose gradients are compared, and as many of the largest


@dataclass(frozen=True)
class Captured:
    """The graph of a module, and what may not have been meant about it."""

    graph: Graph
    remarks: tuple[str, ...] = ()
    #: Of each batch norm of the graph, which statistics follow it: several if the module computes it more than once.
    running: tuple[tuple[RunningNorm, ...], ...] = ()


def capture(module: Any, x: Array, target: Shape, refused: Refusal, loss: Loss | None = None) -> Captured:
    """Return the graph of a module in training mode, and its parameters' names and shapes in their order.

    `x` are a few samples, float32 or integers (n, …), on which the graph's outputs are compared with the module's;
    `target` is the shape of what a sample's output is compared with. `refused` makes the error of a text that follows
    the module's name. Raises ConfigError, which names the operator and its layer, if the module cannot be captured.
    """
    x = x[: 2 * TRIED] if len(x) > 1 else np.repeat(x, 2, axis=0)
    _check_parameters(module, refused)
    layout = Layout(tuple((name, tuple(value.shape)) for name, value in module.named_parameters()))
    every = torch.from_numpy(np.array(x))
    every = every if every.is_floating_point() else every.long()
    samples, others = every[:TRIED], every[TRIED:] if len(x) > TRIED + 1 else every[:TRIED]
    with kept(module):
        exported = _exported(_in_training(module), samples, refused)
        inline_regions(exported)
        try:
            program = Program(exported, module)
            nodes = program.nodes(x.shape[1:], dict(layout.tensors))
            graph = Graph(x.shape[1:], target, nodes, loss or CrossEntropy(), layout)
        except UnsupportedError as error:
            nearest = f"; the nearest that it does is {error.instead}" if error.instead else ""
            raise refused(f"{error}{nearest}{f'; {NATIVE}' * error.native}") from None
        except ValueError as error:
            raise refused(f"gives outputs that do not fit the data: {error}") from None
        if any(0 in shape for shape in graph.shapes):
            raise refused(f"computes with a tensor without elements; {NATIVE}")
        if lacks := lacking_rows(graph, x):
            raise refused(lacks)
        _Comparison(module, exported, graph, refused).at(samples, others)
    remarks = [_about_statistics(module, graph)]
    running = tuple(tuple(RunningNorm(*norm) for norm in norms) for norms in program.running)
    return Captured(graph, tuple(filter(None, remarks)), running)


def _check_parameters(module: Any, refused: Refusal) -> None:
    if next(module.parameters(), None) is None:
        raise refused("has no parameters; there is nothing to train")
    for name, value in module.named_parameters():
        if value.dtype != torch.float32:
            raise refused(f"has a parameter {name!r} of {value.dtype}; parameters must be torch.float32")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread inside a `with` block, for a few samples.

    Once it has started others, a process that is forked from this one would wait for them forever.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def kept(module: Any) -> Iterator[None]:
    """Put the module's mode, values and attributes back after a `with` block, and let PyTorch write no messages in it.

    What a forward pass keeps while torch.export traces it is no real tensor.
    """
    values = [(value, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
    modes = [(part, part.training) for part in module.modules()]
    attributes = [(part, dict(vars(part)), dict(part._buffers.items())) for part in module.modules()]
    trained = [(value, value.requires_grad) for value in module.parameters()]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    einsum = torch.backends.opt_einsum.enabled
    torch.backends.opt_einsum.enabled = False  # it chooses an order for a fixed number of samples
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), one_thread():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        torch.backends.opt_einsum.enabled = einsum
        for part, known, buffers in attributes:
            for name in vars(part).keys() - known.keys():
                del vars(part)[name]
            vars(part).update(known)
            for name, value in list(part._buffers.items()):
                if name not in buffers:
                    del part._buffers[name]
                elif buffers[name] is not value:  # the module has assigned it
                    part._buffers[name] = buffers[name]
        for part, mode in modes:
            part.training = mode
        for value, learns in trained:
            value.requires_grad_(learns)
        with torch.no_grad():
            for value, before in values:
                if not (value.is_inference() or _repeats(value)):  # nobody has written what cannot be written
                    value.copy_(before)


def _repeats(value: Any) -> bool:
    """Return whether several elements of a tensor are one number in memory, as `expand` gives them."""
    strided = value.layout == torch.strided
    return strided and any(n > 1 and not step for n, step in zip(value.shape, value.stride(), strict=True))


def _in_training(module: Any) -> Any:
    """Return a module in training mode, whose own `train` may have frozen parameters: they need gradients here."""
    module.train()
    for value in module.parameters():
        value.requires_grad_(True)
    return module


def _exported(module: Any, samples: Any, refused: Refusal) -> Any:
    """Return the exported program of a module, for any number of samples."""
    written = io.StringIO()  # export prints the program where it fails
    with (
        failing(lambda error: refused(_reason(error, module, samples))),
        redirect_stdout(written),
        redirect_stderr(written),
    ):
        return torch.export.export(
            module, (samples.clone(),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False
        )


def _reason(error: BaseException, module: Any, samples: Any) -> str:
    """Return why torch.export refuses a module, and the remedy, in a line."""
    unseen, failure = _Unseen(), ""
    try:
        with unseen:
            module(samples.clone())
    except BaseException as own:
        if is_interrupt(own):
            raise
        failure = failed_on(samples.shape[1:], own)
    scripted = next((name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)), None)
    text = _why(error, unseen.what)
    if scripted is not None and not failure:  # what torch.export says is of its own wrapper's arguments
        part = f"has the part {scripted!r} of torch.jit" if scripted else "is of torch.jit"
        text = f"{NOT_EXPORTED}: it {part}, which that does not read"
    if text.startswith(NOT_EXPORTED) and failure:
        return failure  # PyTorch would not compute it, either
    return f"{text}; {NATIVE}"


class _Unseen(TorchFunctionMode):
    """Within a `with` block, notes what a forward does of which torch.export says something else, or nothing."""

    what = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch's."""
        wrapped = any(isinstance(x, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x) for x in args)
        if func is torch.Tensor.tolist:
            self.what = "makes a list of a tensor"
        elif wrapped or forward_ad._current_level >= 0:
            self.what = "computes by torch.func, or forward derivatives"
        return func(*args, **(kwargs or {}))


def _why(error: BaseException, unseen: str) -> str:
    """Return why torch.export refuses a module; `unseen` is what its forward does that need not be in the error."""
    first = message_of(error).strip().partition("\n")[0].strip()
    if "data-dependent" in first:
        expression = first.partition("expression ")[2].partition(" (")[0]
        if re.fullmatch(r"z?uf?\d+", expression):
            return "makes a Python number of a tensor, as by .item(), and computes with it"
        return f"decides by the values of its data (torch.export: data-dependent expression {expression})"
    if not unseen and "specialized it to be a constant" in message_of(error):
        return "fixes the number of samples in forward, as by len(x), or a reshape to a number; use x.shape[0], or -1"
    told = unseen or next((what for text, what in UNSEEN.items() if text in first), "")
    line = line_of(error) if any(frame.f_code.co_name == "forward" for frame, _ in walk_tb(error.__traceback__)) else ""
    if told:
        return f"{NOT_EXPORTED}: its forward {told}{line}"
    return f"{NOT_EXPORTED}: {type(error).__name__}: {first[:200]}{line}"


class _Comparison:
    """Whether a module, its exported program and its graph compute the same, outputs and gradients.

    The program may lack what an own torch.autograd.Function does on the way back; dropout draws the same numbers in
    both. The graph is compared without dropout, and with the module in evaluation.
    """

    def __init__(self, module: Any, exported: Any, graph: Graph, refused: Refusal) -> None:
        self._module, self._graph, self._refused = module, graph, refused
        self._parameters = list(module.parameters())
        self._program = exported.module(check_guards=False)
        _leave_out_dropout(exported)
        self._without_dropout = exported.module(check_guards=False)

    def at(self, samples: Any, others: Any) -> None:
        """Raise ConfigError unless they compute the same, for `others` at other parameters.

        There nothing is hidden by weights that begin at 0, and no two units are alike. A gradient that differs in one
        of two places decides nothing: rounding may have turned a unit on, or two elements may be the largest.
        """
        wrong = [self._once(samples)]
        with self._moved(0):
            wrong.append(self._once(others))
        if any(wrong) and not all(wrong):
            with self._moved(1):
                wrong.append(self._once(samples))
        if sum(map(bool, wrong)) > 1:
            raise self._refused(f"was not captured rightly: {max(wrong)}; {NATIVE}, and report this")
        self._of_one(samples[:1])

    def _of_one(self, sample: Any) -> None:
        """Raise ConfigError if one sample is computed otherwise: torch.export takes it that there are two or more."""
        try:
            evaluated = self._evaluated(sample)
        except BaseException as error:  # of any type: one sample may have no statistics
            if is_interrupt(error):
                raise
            return
        output = self._graph.forward(self._params, sample.numpy()).output
        if evaluated.size != output.size or not near(output, evaluated.reshape(output.shape), TOLERANCE):
            raise self._refused(f"computes one sample otherwise than several, by their number; {NATIVE}")

    @contextmanager
    def _moved(self, seed: int) -> Iterator[None]:
        """Change the parameters a little in a `with` block."""
        generator, moved = torch.Generator().manual_seed(seed), [one for one in self._parameters if not _repeats(one)]
        before = [value.detach().clone() for value in moved]
        with torch.no_grad():
            for value, old in zip(moved, before, strict=True):
                noise = torch.rand(value.shape, generator=generator) - 0.5
                value.add_(noise * (0.1 + 0.1 * old.abs().mean()))
        try:
            yield
        finally:
            with torch.no_grad():
                for value, old in zip(moved, before, strict=True):
                    value.copy_(old)

    def _once(self, samples: Any) -> str:
        """Return which gradient is not PyTorch's, for these samples; raise ConfigError if anything else differs."""
        self._check_program(samples)
        expected, *gradients = self._gradients(self._without_dropout, samples)
        output, weights = expected.numpy(), _weights_of(expected).numpy()
        params = self._params
        passed = self._graph.forward(params, samples.numpy())
        if not near(passed.output, output, TOLERANCE):
            apart = np.abs(passed.output - output).max()
            raise self._refused(
                f"was not captured rightly: outputs are {apart:.2g} from PyTorch's; {NATIVE}, and report this"
            )
        if not near(self._evaluated(samples), output, TOLERANCE):
            raise self._refused(
                "computes other things in evaluation than in training, dropout and running statistics apart; a "
                f"portable module computes the same: {NATIVE}"
            )
        whole = float(torch.cat(gradients).nan_to_num(0, 0, 0).norm())
        leaves = self._graph.leaves(params, passed, weights)
        for value, own, (name, its) in zip(self._parameters, gradients, leaves.items(), strict=True):
            if apart := _apart(its, own.reshape(value.shape or (1,)).numpy(), whole):
                return f"the gradient of {name} is {apart}"
        return ""

    @property
    def _params(self) -> Array:
        """The module's parameters as one vector."""
        found: Array = torch.cat([value.detach().reshape(-1) for value in self._parameters]).numpy()
        return found

    def _evaluated(self, samples: Any) -> Array:
        """Return the outputs in evaluation, by the statistics of these samples."""
        try:
            with _by_own_statistics(self._module), torch.no_grad():
                self._module.eval()
                found: Array = self._module(samples.clone()).numpy()
        finally:
            _in_training(self._module)
        return found

    def _gradients(
        self, forward: Callable[[Any], Any], samples: Any, gradients_of: Callable[[Any], Sequence[Any]] | None = None
    ) -> list[Any]:
        """Return the outputs, and the parameters' gradients of their product with fixed weights."""
        torch.default_generator.manual_seed(0)
        output = forward(samples.clone())  # it may write into them
        loss = (output * _weights_of(output)).sum()
        found = (gradients_of or self._by_grad)(loss)
        return [output.detach(), *(each.reshape(-1) for each in found)]

    def _by_grad(self, loss: Any) -> Sequence[Any]:
        found: Sequence[Any] = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
        return found

    def _by_backward(self, loss: Any) -> Sequence[Any]:
        """Return the gradients as training loops have them, with what is hooked to where they are added up."""
        before = [value.grad for value in self._parameters]
        try:
            for value in self._parameters:
                value.grad = None
            loss.backward()
            return [torch.zeros_like(value) if value.grad is None else value.grad for value in self._parameters]
        finally:
            for value, gradient in zip(self._parameters, before, strict=True):
                value.grad = gradient

    def _check_program(self, samples: Any) -> None:
        """Raise ConfigError unless module and program compute the same."""
        before = [value.detach().clone() for value in self._parameters]
        try:
            own_ones = self._gradients(self._module, samples, self._by_backward)
            pairs = zip(own_ones, self._gradients(self._program, samples), strict=True)
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            raise self._refused(f"cannot be trained: {' '.join(message_of(error).split())[:200]}") from error
        for (name, value), old in zip(self._module.named_parameters(), before, strict=True):
            if not torch.equal(value.detach().resolve_neg().view(torch.int32), old.view(torch.int32)):
                raise self._refused(
                    f"changes its parameter {name!r} in forward, which torch.export leaves out; {NATIVE}"
                )
        for own, its in pairs:
            if not near(its.numpy(), own.numpy(), TOLERANCE):
                raise self._refused(
                    "has another gradient than torch.export's program of it, as with a torch.autograd.Function or a "
                    f"hook of its own; {NATIVE}"
                )


def _leave_out_dropout(exported: Any) -> None:
    """Let an exported program draw nothing."""
    for node in exported.graph.nodes:
        if "dropout" in str(node.target):
            node.args = (node.args[0], 0.0, *node.args[2:])
        elif "scaled_dot_product_attention" in str(node.target) and len(node.args) > 4:
            node.args = (*node.args[:4], 0.0, *node.args[5:])
        elif str(node.target).split(".")[1:2] in (["lstm"], ["gru"], ["rnn_tanh"], ["rnn_relu"]):
            node.args = (*node.args[:5], 0.0, *node.args[6:])  # between layers


def _weights_of(output: Any) -> Any:
    """Return the numbers that outputs are multiplied by before they are summed."""
    return torch.cos(torch.arange(output.numel(), dtype=torch.float32)).reshape(output.shape)


def _apart(leaves: Sequence[Leaves], expected: Array, whole: float) -> str:
    """Return how far a tensor's gradient is from what is expected; "" if it is near. `whole` is that of all tensors.

    Of matrices some rows are looked at, the largest gradients among them: all would take long.
    """
    if not expected.size:
        return ""
    rows = np.square(expected.reshape(len(expected), -1), dtype=np.float64).sum(axis=1)
    parts = [slice(0, len(expected))]
    if expected.ndim > 1:
        step = max(1, len(expected) // ROWS)
        parts = [slice(i, i + 1) for i in sorted({*np.argsort(rows)[-ROWS:].tolist(), *range(0, len(expected), step)})]
    own = np.concatenate([expected[part] for part in parts]).astype(np.float64)
    its = np.zeros_like(own)
    with quiet():
        for one in leaves:
            its += np.concatenate([one(part).sum(axis=0, dtype=np.float64) for part in parts])
        finite = np.isfinite(own)
        if not np.isfinite(its[finite]).all():
            return f"{its[finite & ~np.isfinite(its)][0]}, and PyTorch's is finite"
        apart, length = (float(np.linalg.norm(each)) for each in (its[finite] - own[finite], own[finite]))
    return f"{apart:.2g} from PyTorch's" if apart > TURNED * length + NEARLY_NONE * whole else ""


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
    norms = {name: part for name, part in module.named_modules() if getattr(part, "running_mean", None) is not None}
    of_samples = [name for name, part in norms.items() if isinstance(part, _InstanceNorm) and part.training]
    kept = "keeps running statistics ({}, …), which no client pushes: evaluation normalizes by {}, as with "
    whose = f"{of_samples[0]}.running_mean".lstrip(".") if of_samples else ""
    found = [kept.format(whose, "each sample's own statistics")] if of_samples else []
    names = [name for name, _ in module.named_buffers() if name.endswith("running_mean")]
    if names and any(isinstance(node.operator, BatchNorm) for node in graph.nodes):
        found.insert(0, kept.format(names[0], "the statistics of the rows that are evaluated at once"))
    return f"{found[0]}track_running_stats=False" if found else ""
