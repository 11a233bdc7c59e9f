"""The state of the random generators that everybody in a process shares, read in a few microseconds.

Python and NumPy give a copy of theirs in a tenth of a millisecond, which is as long as a small network's gradient
takes. So the words of both generators, which are Mersenne twisters, are read where they lie.
"""

from __future__ import annotations

import _random
import pickle
import random
import sys
from ctypes import c_uint32, string_at
from functools import cache
from typing import Any

import numpy as np

__all__ = ["generator_states"]

WORDS = 625  # 624 of the state, and which is next


def generator_states() -> dict[str, bytes]:
    """Return the state of each; one that is equal to an earlier one has not been drawn from in between.

    That holds but for NumPy's normal(), which draws two numbers at a time and keeps the second one.
    """
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    python, numpy = _place_of_python(), _place_of_numpy(bits)
    kept = repr(random._inst.gauss_next).encode()  # type: ignore[attr-defined]  # the second number of gauss()
    found = {
        "random": string_at(python, 4 * WORDS) + kept if python else pickle.dumps(random.getstate()),
        "np.random": string_at(numpy, 4 * WORDS) if numpy else pickle.dumps(bits.state),
    }
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.default_generator.get_state().numpy().tobytes()
        for number, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []):
            found[f"cuda:{number}"] = state.numpy().tobytes()
    return found


@cache
def _place_of_python() -> int:
    """Return the address of the words of Python's generator; 0 if they are not where CPython has them."""
    header = object.__basicsize__
    if sys.implementation.name != "cpython" or _random.Random.__basicsize__ < header + 4 * WORDS:
        return 0
    place = id(random._inst) + header  # the object of its functions, which stays
    words = [*(c_uint32 * WORDS).from_address(place)]
    return place if (*words[1:], words[0]) == random.getstate()[1] else 0


@cache  # which keeps the object, too
def _place_of_numpy(bits: Any) -> int:
    """Return the address of the words of a bit generator of NumPy's; 0 if it is of another kind."""
    if type(bits) is not np.random.MT19937:
        return 0
    place, state = int(bits.ctypes.state_address), bits.state["state"]
    words = [*(c_uint32 * WORDS).from_address(place)]
    return place if words == [*state["key"].tolist(), state["pos"]] else 0
