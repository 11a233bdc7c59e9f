"""The settings under which PyTorch computes for an engine, and the seeds of what a gradient draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic

from fredsim.numerics.ops.draws import Draws
from fredsim.numerics.streams import Stream, Streams
from fredsim.plugins.seeding import seed_each

__all__ = ["deterministic", "filling", "seed_by"]


@contextmanager
def deterministic(threads: int, device: str = "cpu") -> Iterator[None]:
    """Let PyTorch use only deterministic algorithms, this many threads and no TF32 inside a `with` block.

    Nor does an einsum of several operands depend on whether the package opt_einsum, which orders them, is installed.
    """
    strict, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    ordered = torch.backends.opt_einsum.enabled
    if ordered:
        torch.backends.opt_einsum.enabled = False
    torch.use_deterministic_algorithms(True)
    if threads != before:  # setting them again makes what comes then slower
        torch.set_num_threads(threads)
    if precision != "highest":  # a user's module may have lowered it, for the whole process
        torch.set_float32_matmul_precision("highest")
    try:
        if device == "cpu":
            yield
        else:
            # With its benchmark cuDNN would choose the algorithm that is fastest at the moment.
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
                yield
    finally:
        if ordered:
            torch.backends.opt_einsum.enabled = True
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
        torch.use_deterministic_algorithms(strict, warn_only=warn_only)


@contextmanager
def filling() -> Iterator[None]:
    """Let memory that nothing has written be NaN inside a `with` block; it takes a twentieth of a small network's time.

    It is where algorithms are deterministic.
    """
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before


def seed_by(draws: Draws) -> None:
    """Seed all generators for one gradient of a client: by four words of a stream of fredsim's.

    PyTorch's generators get the first two, of which the one for the CPU uses the last 32 bits.
    """
    first, second, third, fourth = Streams(draws.seed).block(Stream.MODULE, 0, draws.number, draws.client)
    seed_each(first << 32 | second, [first, second, third, fourth], first << 32 | second)
