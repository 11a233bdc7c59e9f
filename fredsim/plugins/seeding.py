"""Seeds the random generators that everybody in a process shares: Python's, NumPy's and, if it is loaded, PyTorch's.

PyTorch has one for the processor, and one for each CUDA device once a process uses them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["generators_kept", "seed_each", "seeded"]


def _torch() -> tuple[Any, bool]:
    """Return PyTorch if it is loaded, else None; and whether this process uses CUDA devices through it."""
    torch = sys.modules.get("torch")
    return torch, torch is not None and torch.cuda.is_initialized()


@contextmanager
def seeded(seed: int | Sequence[int]) -> Iterator[None]:
    """Seed them inside a `with` block, by a number or by several 32-bit words; put them back after it."""
    words = [seed] if isinstance(seed, int) else list(seed)
    whole = sum(word << 32 * place for place, word in enumerate(words))
    with generators_kept():
        seed_each(whole, words if len(words) > 1 else whole, whole % 2**63)
        yield


def seed_each(of_python: int, of_numpy: int | Sequence[int], of_torch: int) -> None:
    """Seed each by a seed of its own."""
    torch, on_devices = _torch()
    random.seed(of_python)
    np.random.seed(of_numpy)  # noqa: NPY002  a user's class may use it
    if torch is not None:
        torch.default_generator.manual_seed(of_torch)
    if on_devices:
        torch.cuda.manual_seed_all(of_torch)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put them back after a `with` block."""
    torch, on_devices = _torch()
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    state = None if torch is None else torch.get_rng_state()
    states = torch.cuda.get_rng_state_all() if on_devices else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(state)
        if on_devices:
            torch.cuda.set_rng_state_all(states)
