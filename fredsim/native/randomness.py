"""The random generators that everybody in a process shares: Python's, NumPy's and PyTorch's."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from fredsim.numerics.ops.draws import Draws
from fredsim.numerics.streams import Stream, Streams

__all__ = ["keyed", "random_states", "seeded"]


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
