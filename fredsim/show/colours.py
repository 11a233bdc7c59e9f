"""The colours of figures and of the report, on white and on a dark ground.

Each has a contrast of 3:1 or more with its ground (WCAG 2.2, 1.4.11). The first six of each palette, seen with any
colour vision, differ by 20 or more in CIELAB (tests/test_colours.py).
"""

from __future__ import annotations

__all__ = ["DARK_GROUND", "DARK_PALETTE", "DARK_SEQUENCE", "PALETTE", "SEQUENCE", "sequential"]

#: Of lines that differ in kind.
PALETTE = ("#0B43B8", "#C8640A", "#09805B", "#9B2F80", "#222222", "#8F7BD8", "#7A5C1E", "#3A9EB9")
DARK_PALETTE = ("#4DA3FF", "#FF771F", "#35E4A0", "#EF83BE", "#F3F4F6", "#9949FF", "#C8A551", "#8FD8F0")
#: Of lines that differ in a number: its smallest, values between, and its largest.
SEQUENCE = ("#1F1147", "#6A1C81", "#B5367A", "#DB5A1E")
DARK_SEQUENCE = ("#7F72FF", "#CF6BDD", "#FF8A72", "#FFD58A")
DARK_GROUND = "#14161A"


def sequential(count: int, ends: tuple[str, ...] = SEQUENCE) -> list[str]:
    """Return colours of an order, between those given."""
    found = []
    for number in range(count):
        place = number / max(1, count - 1) * (len(ends) - 1)
        first = min(int(place), len(ends) - 2)
        pairs = zip(_parts(ends[first]), _parts(ends[first + 1]), strict=True)
        mixed = (round(low + (high - low) * (place - first)) for low, high in pairs)
        found.append("#" + "".join(f"{part:02X}" for part in mixed))
    return found


def _parts(colour: str) -> list[int]:
    return [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
