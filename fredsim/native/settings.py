"""The settings under which PyTorch computes for an engine, and the random generators that all in a process share."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
import torch.utils.deterministic

from fredsim.numerics.ops.draws import Draws
from fredsim.numerics.streams import Stream, Streams

__all__ = ["deterministic", "filling", "keyed", "random_states", "seeded"]


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


def seeded(seed: int, device: str = "cpu") -> AbstractContextManager[None]:
    """Seed them all inside a `with` block, those of PyTorch for the CPU and for `device`; put them back after it."""
    return _seeded(seed, seed, device)


@contextmanager
def _seeded(seed: int, of_numpy: int | list[int], device: str) -> Iterator[None]:
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  a user's module may use it
    try:
        with torch.random.fork_rng(devices=devices):
            random.seed(seed)
            np.random.seed(of_numpy)  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def random_states(device: str = "cpu") -> tuple[bytes, ...]:
    """Return the state of each; one that is equal to an earlier one has not been drawn from in between."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device == "cuda" else [])]
    others = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    return (*(state.numpy().tobytes() for state in states), *map(pickle.dumps, others))


def keyed(draws: Draws, device: str = "cpu") -> AbstractContextManager[None]:
    """Seed them all inside a `with` block for one gradient of a client: by four words of a stream of fredsim's own.

    PyTorch's generators get the first two, of which the one for the CPU uses the last 32 bits.
    """
    words = Streams(draws.seed).blocks(Stream.MODULE, 0, draws.number, draws.client)
    first, second, third, fourth = (int(word) for word in words)
    return _seeded(first << 32 | second, [first, second, third, fourth], device)
