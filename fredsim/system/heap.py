"""The heap of the C library: what it keeps of freed memory, and where new memory lies. Nothing is done but for glibc.

NumPy's and PyTorch's arrays of up to 32 MiB are in it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["fill_holes", "freed_memory_kept", "release_free_memory"]

#: Options of mallopt, and the most bytes of an array in the heap, not in a mapping of its own.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, MOST_IN_HEAP = -1, -2, -3, 2**25
#: The fewest bytes of a hole that is filled, and how many pieces fill all of them at most.
LEAST_FILLED, MOST_PIECES = 2**12, 10**5

_pieces: list[int] = []  # the addresses of what fills holes


class _Information(ctypes.Structure):
    """What mallinfo2 returns."""

    _fields_ = [
        ("arena", ctypes.c_size_t), ("ordblks", ctypes.c_size_t), ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t), ("hblkhd", ctypes.c_size_t), ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t), ("uordblks", ctypes.c_size_t), ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    ]  # fmt: skip


def _functions(*names: str) -> list[Any] | None:
    """Return functions of the C library; None if it has not all of them."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    found = [getattr(library, name, None) for name in names]
    return None if None in found else found


def release_free_memory() -> None:
    """Return memory that is allocated but not used to the system.

    Without this, a process that does one run of a sweep after the other may come to hold twice what a run needs: freed
    arrays leave gaps in the heap.
    """
    if found := _functions("malloc_trim"):
        found[0](0)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let what is freed in a `with` block be kept for what is allocated next.

    Else it is given back to the system, that of threads soonest, and every pass takes hundreds of new pages.
    """
    if not (found := _functions("mallopt")):
        yield
        return
    (set_option,) = found
    set_option(M_MMAP_THRESHOLD, MOST_IN_HEAP)  # which it reaches by itself, but not if another one is set
    set_option(M_TOP_PAD, 2 * MOST_IN_HEAP)
    set_option(M_TRIM_THRESHOLD, 2**30)
    try:
        yield
    finally:
        set_option(M_TOP_PAD, 2**17)
        set_option(M_TRIM_THRESHOLD, 2 * MOST_IN_HEAP)
        _empty_holes()
        release_free_memory()


def fill_holes() -> None:
    """Let what the main thread allocates lie behind all that there is, until `freed_memory_kept` ends.

    Passes that allocate and free the same sizes again and again take up to 6 % longer between what others have left.
    What fills the holes is never written, so it takes no memory.
    """
    release_free_memory()  # so that what is behind all is new
    found = _functions("malloc", "free", "sbrk", "mallinfo2")
    if not found:
        return
    malloc, free, sbrk, information = found
    malloc.restype = sbrk.restype = ctypes.c_void_p
    malloc.argtypes, free.argtypes, sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_void_p], [ctypes.c_ssize_t]
    information.restype = _Information
    end, size = sbrk(0) - information().keepcost, MOST_IN_HEAP // 2
    while size >= LEAST_FILLED and len(_pieces) < MOST_PIECES:
        piece = malloc(size)
        if piece is not None and piece < end:
            _pieces.append(piece)
        else:
            free(piece)
            size //= 2


def _empty_holes() -> None:
    found = _functions("free")
    while found and _pieces:
        found[0](ctypes.c_void_p(_pieces.pop()))
