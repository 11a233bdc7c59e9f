"""The check of every array (P,) that a user's class hands to the event loop."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.numerics.given_arrays import readable
from fredsim.plugins.guarded import Guarded

__all__ = ["checked_array"]


def checked_array(guarded: Guarded, array: Any, size: int, what: str) -> NDArray[np.float32]:
    """Return an array of the object's, named `what` in errors, as kernels can read it.

    Raises SimulationError unless it is float32 (size,).
    """
    is_array = hasattr(array, "__array_ufunc__") and hasattr(array, "shape") and hasattr(array, "dtype")
    if not is_array or array.dtype != np.float32 or array.shape != (size,):
        found = f"{array.dtype} {array.shape}" if is_array else type(array).__name__
        hint = ": nothing has set it" if array is None else ""
        if is_array and array.dtype == np.float64 and array.shape == (size,):
            hint = "; a float64 took part: give np.float32 numbers, or .astype(np.float32)"
        raise guarded.error(what, f"is {found}; it must be float32 ({size},){hint}")
    try:
        return readable(array, size)
    except (TypeError, ValueError) as error:
        raise guarded.error(what, str(error).removeprefix("the array ")) from None
