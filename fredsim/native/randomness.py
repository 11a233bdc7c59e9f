"""The random generators that everybody in a process shares: Python's, NumPy's and PyTorch's."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["random_states", "seeded"]


@contextmanager
def seeded(seed: int, device: str = "cpu") -> Iterator[None]:
    """Seed them all inside a `with` block, those of PyTorch for the CPU and for `device`; put them back after it."""
    devices = [torch.cuda.current_device()] if device == "cuda" else []
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  a user's module may use it
    try:
        with torch.random.fork_rng(devices=devices):
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
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
