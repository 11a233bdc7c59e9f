"""Which machine runs kernels here: a CUDA device, or its emulation if FREDSIM_EMULATE=1 is set."""

from __future__ import annotations

import functools
import os

from fredsim.cuda.interface import Machine

__all__ = ["EMULATED", "machine"]

#: Whether kernels run on this machine's processor, compiled by its C++ compiler.
EMULATED = os.environ.get("FREDSIM_EMULATE", "0") == "1"


@functools.cache
def machine() -> Machine:
    """Return the machine: the first CUDA device, or its emulation. Raises ConfigError if there is none."""
    if EMULATED:
        from fredsim.cuda.emulation import Emulation

        return Emulation()
    from fredsim.cuda.driver import Driver

    return Driver()
