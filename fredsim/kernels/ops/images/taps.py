"""Which taps of a kernel lie inside of an image."""

from __future__ import annotations

from fredsim.jit.subroutine import subroutine

__all__ = ["inside", "taps_inside"]


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
