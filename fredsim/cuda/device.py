"""The device that kernels run on, and how they are launched."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

from fredsim.errors import ConfigError

__all__ = ["INTERPRETED", "device", "launch", "name", "tile"]

#: Whether kernels run in Triton's interpreter, on the CPU.
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


def device() -> torch.device:
    """Return the device, the CPU for Triton's interpreter. Raises ConfigError if there is none."""
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "backend is cuda; PyTorch finds no CUDA device here: leave backend out, or set TRITON_INTERPRET=1 to run "
            "its kernels, slowly, on the CPU"
        )
    return torch.device("cuda")


def name() -> str:
    """Return the device's name."""
    return "Triton's interpreter" if INTERPRETED else torch.cuda.get_device_name()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Queue a kernel on the device, without fusing multiplications and additions, which would change roundings."""
    if min(grid) > 0:
        with np.errstate(all="ignore"):  # the interpreter computes by NumPy
            kernel[grid](*arguments, num_warps=warps, enable_fp_fusion=False, **constants)


def tile(length: int, most: int) -> int:
    """Return the length of a kernel's tile for an array of `length` elements: a power of two, at most `most`.

    For the interpreter `most` is 1,024: it is fastest with large tiles, and a 2-D one may have 2²⁰ elements.
    """
    return min(1 << max(0, length - 1).bit_length(), 1024 if INTERPRETED else most)
