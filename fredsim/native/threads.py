"""PyTorch's threads, for kernels of ours."""

from __future__ import annotations

from contextlib import suppress
from ctypes import CDLL
from pathlib import Path

import torch

from fredsim.jit.openmp import OpenMPTeam
from fredsim.jit.team import Team

__all__ = ["pytorch_team"]

LIBRARY = Path(torch.__file__).parent / "lib/libtorch_cpu.so"  # it depends on the OpenMP library that PyTorch uses


def pytorch_team(threads: int) -> Team:
    """Return a team of PyTorch's own threads; of the calling thread alone where PyTorch uses another OpenMP than GCC's.

    Between its operations PyTorch's threads spin: further ones of ours would take processors from them.
    """
    with suppress(OSError, AttributeError):
        if threads > 1:
            return OpenMPTeam(threads, CDLL(str(LIBRARY)))
    return Team(1)
