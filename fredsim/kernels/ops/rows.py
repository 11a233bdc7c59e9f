"""Parts that kernels of values share: the division of work, halos, rows of images, and taps inside of an image."""

from __future__ import annotations

from fredsim.jit.subroutine import subroutine
from fredsim.jit.vector import store, store_part, zeros

__all__ = ["clear", "clear_halo", "inside", "part_of", "put_lanes", "taps_inside"]


@subroutine
def part_of(rank, size, count):
    """Return the begin and the end of a thread's share of `count` tasks."""
    return count * rank // size, count * (rank + 1) // size


@subroutine
def clear(out, at, count):
    """Set out[at : at + count] to +0."""
    i = 0
    while i + 16 <= count:
        store(out, at + i, zeros(16))
        i += 16
    if i < count:
        store_part(out, at + i, zeros(16), count - i)


@subroutine
def clear_halo(image, first, width, gap):
    """Set the halo beside a row of `width` floats to +0: `gap` floats behind it, and before it if it is the first."""
    if gap > 0:
        clear(image, width, gap)
        if first:
            clear(image, -gap, gap)


@subroutine
def put_lanes(out, at, value, left):
    """Store the first `left` lanes of a vector of 16, all if there are more."""
    if left >= 16:
        store(out, at, value)
    else:
        store_part(out, at, value, left)


def inside(direction: int, first: int, last: int, size: int, taps: int, apart: int) -> tuple[int, int]:
    """Return the first tap, and the end, of those that any of an axis's neighbouring outputs finds inside.

    The first output's taps are at first, first + direction·apart, …, the last one's at last, …; the axis has `size`
    inputs. The end may lie before the first.
    """
    if direction > 0:
        low, high = -last, size - first
    else:
        low, high = first - size + 1, last + 1
    if apart > 1:  # of so many taps one apart, every one of these
        low, high = -(-low // apart), -(-high // apart)
    return max(0, low), min(taps, high)


taps_inside = subroutine(inside)
