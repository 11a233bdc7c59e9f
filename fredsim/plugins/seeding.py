"""Seeds the random generators that everybody in a process shares: Python's, NumPy's and, if it is loaded, PyTorch's."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

__all__ = ["generator_states", "seeded"]


@contextmanager
def seeded(seed: int | Sequence[int]) -> Iterator[None]:
    """Seed them inside a `with` block, by a number or by several 32-bit words; put them back after it."""
    words = [seed] if isinstance(seed, int) else list(seed)
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  a user's class may use it
    state = None if torch is None else torch.get_rng_state()
    whole = sum(word << 32 * place for place, word in enumerate(words))
    random.seed(whole)
    np.random.seed(words if len(words) > 1 else whole)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(whole % 2**63)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(state)


def generator_states() -> tuple[bytes, ...]:
    """Return the state of each; one that is equal to an earlier one has not been drawn from in between."""
    torch = sys.modules.get("torch")
    others = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002
    return (*map(pickle.dumps, others), b"" if torch is None else torch.get_rng_state().numpy().tobytes())
