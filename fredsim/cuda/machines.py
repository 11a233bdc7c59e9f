"""Which machine runs kernels here: a CUDA device, or its emulation if FREDSIM_EMULATE=1 is set."""

from __future__ import annotations

import functools
import gc
import os

from fredsim.cuda.interface import Machine

__all__ = ["EMULATED", "free_garbage", "machine"]

#: Whether kernels run on this machine's processor, compiled by its C++ compiler.
EMULATED = os.environ.get("FREDSIM_EMULATE", "0") == "1"
#: The share of the memory that this process may have before it looks for what nobody needs.
MOST_GARBAGE = 1 / 8


@functools.cache
def machine() -> Machine:
    """Return the machine: the first CUDA device, or its emulation. Raises ConfigError if there is none."""
    if EMULATED:
        from fredsim.cuda.emulation import Emulation

        return Emulation()
    from fredsim.cuda.driver import Driver

    return Driver()


def free_garbage() -> None:
    """Free what earlier runs have left on the machine, if it may be much: what refers to itself is not freed at once.

    Looking for it takes as long as a short run.
    """
    if machine().taken() > MOST_GARBAGE:
        gc.collect()
