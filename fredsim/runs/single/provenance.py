"""The part of summary.json that records how, where, and from which data a run was computed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from fredsim.compute.engines import Engine
from fredsim.config.choices import Backend
from fredsim.data.datasets import Dataset
from fredsim.numerics import CONTRACT
from fredsim.simulation.paths.choice import Choice
from fredsim.system.machine import processor_name
from fredsim.system.version import package_version

__all__ = ["changed_provenance", "provenance"]


def provenance(
    backend: Backend, engine: Engine, choice: Choice, dataset: Dataset, commit: str | None
) -> dict[str, Any]:
    """Return the part of summary.json that says how and where a run was computed, from which `commit` of git."""
    packages = ("fredsim", "numpy", "numba", *engine.packages)
    return {
        "backend": backend,
        "device": engine.device_name,
        "threads": engine.threads,
        "path": choice.path,
        "path_why": choice.why,
        "machine": platform.machine(),
        "processor": processor_name(),
        **engine.facts(),
        "contract": CONTRACT,
        "data": dataset.digest,
        "git": commit,
        "versions": {"python": platform.python_version(), **{p: package_version(p) for p in packages}},
    }


def changed_provenance(summary: Mapping[str, Any]) -> list[str]:
    """Say how the processor and the version of PyTorch differ from those that a summary.json names, and on what it ran.

    Where a device has computed the gradients, the processor does not matter to them.
    """
    torch, device = summary["versions"].get("torch"), summary.get("device")
    pairs = [("processor", summary["processor"], processor_name())]
    if torch is not None:  # a problem's class may do without
        pairs.append(("PyTorch", torch, package_version("torch")))
    told = [f"{what} was {before} and is {here}" for what, before, here in pairs if before != here]
    if device is not None:
        told.insert(0, f"its gradients were computed on {device}")
    return told
