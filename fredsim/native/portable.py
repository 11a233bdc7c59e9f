"""Captures a user's PyTorch module for fredsim to compute, and checks that a captured network fits the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.native.model import TorchModel
from fredsim.networks.captured import CapturedNetwork, lacking_rows
from fredsim.networks.graph import Graph
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy

__all__ = ["captured", "check_fit"]

Refusal = Callable[[str], ConfigError]
TRIED = 4  # samples on which a graph and its module are compared
KEPT = 16  # graphs

#: By module and data: the runs of a sweep, and the checks before them, share what takes seconds to capture.
_known: dict[tuple[Any, ...], tuple[Graph, tuple[str, ...]]] = {}


def captured(model: TorchModel, dataset: Dataset, *, chosen: bool) -> CapturedNetwork:
    """Return a module's network; `chosen`: whether the user has said that it is to be portable.

    Raises ConfigError if it is not made of operators that fredsim computes.
    """
    from fredsim.networks.capture.module import capture

    x = dataset.train.x[:TRIED].reshape(-1, *model.shape)
    y = dataset.train.y
    key = (*model.identity, x.dtype.str, x.shape, x.tobytes(), y.shape[1:], dataset.ignored)
    if key not in _known:
        found = capture(model.module, x, y.shape[1:], model.refused, CrossEntropy(ignored=dataset.ignored))
        if len(_known) >= KEPT:
            _known.pop(next(iter(_known)))
        _known[key] = replace(found.graph, frozen=model.frozen), found.remarks
    graph, about = _known[key]
    remarks = [f"model.name: {model.name} {text}" for text in (*model.built_remarks, *about)]
    if not chosen:
        what = "is computed by fredsim, with the same bits on every machine (numerics: portable)"
        remarks.append(f"model.name: {model.name} {what}; with numerics: native PyTorch computes it")
    return CapturedNetwork(graph, model.values, model.files, remarks)


def check_fit(network: CapturedNetwork, dataset: Dataset, refused: Refusal) -> CapturedNetwork:
    """Return the network. Raises ConfigError if it does not fit the data, or needs what a run does not give."""
    graph, y = network.graph, dataset.train.y
    found, wanted = graph.shapes[-1], (*y.shape[1:], dataset.classes)
    if graph.sample != (shape := dataset.shape or (dataset.inputs,)):
        raise refused(f"takes samples of shape {graph.sample}; those of the data have {shape}")
    if found != wanted or graph.target != y.shape[1:] or graph.loss != CrossEntropy(ignored=dataset.ignored):
        raise refused(f"maps a sample to {found}; it must give logits, {wanted}")
    if lacks := lacking_rows(graph, *(part.x for part in (dataset.train, dataset.validation, dataset.test))):
        raise refused(lacks)
    return network
