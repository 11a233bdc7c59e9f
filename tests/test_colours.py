"""The colours of figures: contrast, and what people with another colour vision tell apart."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.show.colours import DARK_GROUND, DARK_PALETTE, DARK_SEQUENCE, PALETTE, SEQUENCE, sequential

Colour = NDArray[np.float64]
WHITE = "#FFFFFF"
#: Linear RGB as it is seen (Machado, Oliveira and Fernandes 2009, severity 1), and as it is.
VISIONS = {
    "all cones": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}  # fmt: skip
#: sRGB to CIE XYZ, whose second row is the luminance (IEC 61966-2-1).
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the ratio of the luminances, as WCAG defines it."""
    low, high = sorted(float(linear(colour) @ XYZ[1]) + 0.05 for colour in (one, other))
    return high / low


def cielab(seen: Colour) -> Colour:
    scaled = (XYZ @ np.clip(seen, 0, 1)) / [0.95047, 1.0, 1.08883]
    f = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize(
    ("colours", "ground"),
    [
        (PALETTE, WHITE),
        (DARK_PALETTE, DARK_GROUND),
        (sequential(9), WHITE),
        (sequential(9, DARK_SEQUENCE), DARK_GROUND),
    ],
)
def test_contrast(colours: Any, ground: str) -> None:
    for colour in colours:
        assert contrast(colour, ground) >= 3, colour


@pytest.mark.parametrize("palette", [PALETTE, DARK_PALETTE])
@pytest.mark.parametrize("vision", VISIONS)
def test_colours_stay_apart(vision: str, palette: tuple[str, ...]) -> None:
    seen = [cielab(np.asarray(VISIONS[vision]) @ linear(colour)) for colour in palette]
    for one, other in combinations(range(len(palette)), 2):
        least = 20 if other < 6 else 12
        assert np.linalg.norm(seen[one] - seen[other]) >= least, (palette[one], palette[other])


def test_no_line_is_yellow() -> None:
    for colour in (*PALETTE, *sequential(9)):
        lightness, a, b = cielab(linear(colour))
        assert not (lightness > 65 and b > 40 and abs(a) < b), colour


def test_a_sequence_has_an_order() -> None:
    assert sequential(4) == list(SEQUENCE)
    assert sequential(2) == [SEQUENCE[0], SEQUENCE[-1]]
    assert sequential(1) == [SEQUENCE[0]]
    for ends in (SEQUENCE, DARK_SEQUENCE):
        lightness = [cielab(linear(colour))[0] for colour in sequential(12, ends)]
        assert all(one < other for one, other in pairwise(lightness))
