"""Captures a user's PyTorch module for fredsim to compute, and checks that a captured network fits the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.native.model import TorchModel
from fredsim.networks.captured import CapturedNetwork, lacking_rows
from fredsim.networks.own_loss import ArrayLoss
from fredsim.networks.running import Running
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.losses.mse import MeanSquaredError
from fredsim.plugins.failures import is_interrupt
from fredsim.plugins.generators import generator_states
from fredsim.plugins.modules import has_file
from fredsim.plugins.seeding import seeded

if TYPE_CHECKING:  # it imports PyTorch
    from fredsim.networks.capture.module import Captured

__all__ = ["captured", "check_fit"]

Refusal = Callable[[str], ConfigError]
TRIED = 8  # samples on which a graph and its module are compared
KEPT = 16  # graphs

#: By module and data: the runs of a sweep, and the checks before them, share what takes seconds to capture.
_known: dict[tuple[Any, ...], Captured] = {}


def captured(model: TorchModel, dataset: Dataset, loss: Loss, *, chosen: bool) -> CapturedNetwork:
    """Return a module's network; `chosen`: whether the user has said that it is to be portable.

    Raises ConfigError if it is not made of operators that fredsim computes.
    """
    from fredsim.native.checks import check_hooks
    from fredsim.networks.capture.module import NATIVE, capture, kept

    if not chosen and (layer := _recurrent(model.module)):
        what = f"has the recurrent layer {layer!r}, which fredsim writes out step by step if numerics is portable"
        raise model.refused(f"{what}; {NATIVE}")
    x = dataset.train.x[:TRIED].reshape(-1, *model.shape)
    y = dataset.train.y
    key = (*model.identity, x.dtype.str, x.shape, x.tobytes(), y.shape[1:], loss)
    known = _known.get(key)
    if known is None:
        with kept(model.module):
            _call_first(model, x, dataset.train.divisor)
            check_hooks(model.module, model.refused)
            known = capture(model.module, x, y.shape[1:], model.refused, loss)
        if has_file(model.name.split(":")[1]):  # in a script or a notebook the factory may soon mean something else
            if len(_known) >= KEPT:
                _known.pop(next(iter(_known)))
            _known[key] = known
    graph, about, statistics = replace(known.graph, frozen=model.frozen), known.remarks, []
    if model.buffers in {"averaged", "last"}:
        running = _running(model, known)
        graph, about = replace(graph, running=running), ()
        statistics = [model.running[name].cpu().numpy() for name in running.names]
    remarks = [f"model.name: {model.name} {text}" for text in (*model.built_remarks, *about)]
    if not chosen:
        what = "is computed by fredsim, with the same bits on every machine (numerics: portable)"
        remarks.append(f"model.name: {model.name} {what}; with numerics: native PyTorch computes it")
    return CapturedNetwork(graph, model.values, model.files, remarks, statistics=statistics)


def _call_first(model: TorchModel, x: NDArray[Any], divisor: int) -> None:
    """Call a module with samples, before torch.export does so with others: it may make what it keeps for all calls.

    Raises ConfigError if it takes the samples, which fredsim has divided, as tokens, or draws random numbers that
    PyTorch does not know of.
    """
    import torch

    from fredsim.native.checks import Casts
    from fredsim.networks.capture.module import NATIVE

    samples = torch.from_numpy(np.array(x))
    samples = samples if samples.is_floating_point() else samples.long()
    casts = Casts(samples.clone())
    with seeded(0), torch.no_grad():
        before = generator_states()
        with casts:
            try:
                for training in (True, False):
                    model.module.train(training)  # which may return nothing, if it is the user's own
                    model.module(samples.clone())
            except BaseException as error:  # of any type: the module is the user's, and what is wrong is said later
                if is_interrupt(error):
                    raise
        model.check_calls()
        after = generator_states()
    if problem := casts.problem(divisor):
        raise model.refused(problem)
    if drawn := [name for name in ("random", "np.random") if before[name] != after[name]]:
        raise model.refused(f"draws random numbers from {drawn[0]}, and fredsim draws those of dropout alone; {NATIVE}")


def _running(model: TorchModel, known: Captured) -> Running:
    """Return the running statistics of a graph's norms. Raises ConfigError if fredsim cannot follow them."""
    assert model.buffers in {"averaged", "last"}
    norms, given = [norm for each in known.running for norm in each], f"and buffers is {model.buffers}"
    running = Running(tuple(norms), model.buffers)
    if not norms or not all(running.names):
        what = "keeps no running statistics" if not any(running.names) else "has a norm without running statistics"
        raise model.refused(f"{what}, {given}; leave buffers out")
    if others := [name for name in running.names if name not in model.running]:
        what = f"keeps running statistics in {others[0]!r}, which is no buffer of a norm of PyTorch's, {given}"
        raise model.refused(f"{what}; use nn.BatchNorm2d or the like, or leave buffers out")
    if odd := [norm.momentum for norm in norms if not 0 <= norm.momentum <= 1]:
        what = f"has a norm with momentum {odd[0]:g}, {given}"
        raise model.refused(f"{what}; give a momentum from 0 to 1, or numerics: native")
    if twice := [each[-1].mean for each in known.running if len(each) > 1]:
        what = f"computes the batch norm of {twice[0]!r} once more of the same values, {given}"
        raise model.refused(f"{what}; use its first result again, or give numerics: native")
    return running


def _recurrent(module: Any) -> str:
    """Return the name of a module's first recurrent layer, which PyTorch computes faster; "" if it has none."""
    from torch import nn

    kinds = nn.RNNBase, nn.RNNCellBase
    return next((name or "itself" for name, part in module.named_modules() if isinstance(part, kinds)), "")


def check_fit(network: CapturedNetwork, dataset: Dataset, loss: Loss, refused: Refusal) -> CapturedNetwork:
    """Return the network. Raises ConfigError if it does not fit the data, or needs what a run does not give."""
    graph, target = network.graph, dataset.target
    found, wanted = graph.shapes[-1], loss.output(target, dataset.classes)
    if isinstance(loss, ArrayLoss):  # it takes what it takes
        wanted = found or (1,)
    if graph.sample != dataset.sample:
        raise refused(f"takes samples of shape {graph.sample}; those of the data have {dataset.sample}")
    if (found or (1,)) != wanted or graph.target != target or graph.loss != loss:
        what = "outputs of the targets' shape" if isinstance(loss, MeanSquaredError) else "logits"
        raise refused(f"maps a sample to {found}; it must give {what}, {wanted}")
    if lacks := lacking_rows(graph, *(part.x for part in (dataset.train, dataset.validation, dataset.test))):
        raise refused(lacks)
    return network
