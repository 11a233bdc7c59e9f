"""Reads tensors in the safetensors format into NumPy arrays; a damaged file, or a type without one, is an error."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

__all__ = ["parse_tensors"]


def parse_tensors(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, by name and in the order of names. Raises ValueError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return dict(sorted(load(content).items()))  # the package's own order is another each time
    except SafetensorError as error:
        raise ValueError(f"it holds no arrays that can be read: {error}") from None
    # For types that NumPy does not have, such as bfloat16 and 8-bit floats, it raises what NumPy happens to raise.
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it holds tensors of a type that NumPy does not have: {error}") from None
