"""The settings under which PyTorch computes for an engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["deterministic"]


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Let PyTorch use only deterministic algorithms, this many threads and no TF32 inside a `with` block."""
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")  # a user's module may have lowered it, for the whole process
    try:
        # With its benchmark cuDNN would choose the algorithm that is fastest at the moment.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)
