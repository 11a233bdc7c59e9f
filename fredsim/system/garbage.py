"""Python's search for garbage, which takes a tenth of the time of a command that only imports and reads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Search for no garbage in a `with` block: for imports, of which all stays, or where nothing may be freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
