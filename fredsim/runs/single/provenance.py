"""The part of summary.json that records how, where, and from which data a run was computed."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fredsim.compute.engines import Engine
from fredsim.config.choices import Backend
from fredsim.data.datasets import Dataset
from fredsim.numerics import CONTRACT
from fredsim.simulation.paths.choice import Choice
from fredsim.system.machine import git_commit, processor_name
from fredsim.system.version import fredsim_version

__all__ = ["changed_provenance", "provenance"]


def provenance(backend: Backend, engine: Engine, choice: Choice, dataset: Dataset) -> dict[str, Any]:
    """Return the part of summary.json that says how and where a run was computed."""
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
        "git": git_commit(Path.cwd()),
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in packages}},
    }


def changed_provenance(summary: Mapping[str, Any]) -> list[str]:
    """Say how the processor and the version of PyTorch differ from those that a summary.json names, and on what it ran.

    Where a device has computed the gradients, the processor does not matter to them.
    """
    torch, device = summary["versions"].get("torch"), summary.get("device")
    pairs = [("processor", summary["processor"], processor_name()), ("PyTorch", torch, _version("torch"))]
    told = [f"{what} was {before} and is {here}" for what, before, here in pairs if before != here]
    if device is not None:
        told.insert(0, f"its gradients were computed on {device}")
    return told


def _version(package: str) -> str:
    """Return an installed package's version; PyTorch's names its build, too, as in 2.13.0+cu130."""
    if package == "torch":
        import torch

        return str(torch.__version__)
    return fredsim_version() if package == "fredsim" else _installed(package)


_installed = functools.cache(version)  # looking it up reads files
