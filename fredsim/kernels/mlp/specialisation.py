"""Copies of kernels for blocks of 1, 4 or 8 samples, for minibatches of one block, and for coded inputs or not."""

from __future__ import annotations

from functools import cache
from types import ModuleType

from fredsim.data.datasets import Split
from fredsim.jit import kernel
from fredsim.kernels.mlp.sparse_rows import is_coded
from fredsim.kernels.mlp.workspace import block_size

__all__ = ["specialise"]


def specialise(name: str, mu: int, split: Split) -> ModuleType:
    """Return a copy of the module fredsim.kernels.mlp.`name`, specialised for minibatches of µ samples of a split.

    The copy has its own values of LEAVES, ONE_BLOCK and CODED (fredsim.jit.kernel.specialise).
    """
    return _specialise(name, block_size(mu), mu <= 8, is_coded(split))


@cache
def _specialise(name: str, leaves: int, one_block: bool, coded: bool) -> ModuleType:
    parts = dict.fromkeys(("sparse_rows", "dense", "trees", "upper", "window", "gradient", name))
    names = [f"fredsim.kernels.mlp.{part}" for part in parts]
    return kernel.specialise(names, LEAVES=leaves, ONE_BLOCK=one_block, CODED=coded)
