"""The sizes of a figure and its fonts: for a page of results, or for one or both columns of a paper."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

from matplotlib.artist import Artist
from matplotlib.text import Text

from fredsim.config.figures.options import Options
from fredsim.errors import visible
from fredsim.show.plots.numbers import THIN

__all__ = ["MOST_LINES", "PLAIN", "SHOWN", "WIDEST", "Style", "cut_lines", "style_of", "take_literally"]


@dataclass(frozen=True)
class Style:
    """How a figure is drawn; lengths are in inches, font sizes in points.

    `width`: of the whole figure; None: as wide as its content requires. `columns`: the most panels side by side.
    `alone`, `row`: the height of a single row of panels, and of each of several rows. `rc`: matplotlib's settings.
    `title`: the font size of the title; `dense`: that of text in and beside many small cells.
    """

    width: float | None = None
    columns: int = 2
    alone: float = 3.6
    row: float = 2.5
    title: float = 10.0
    dense: float = 7.0
    dpi: int = 200
    rc: Any = field(default_factory=dict)

    def wrapped(self, name: str, letters: int, share: float = 0.4) -> str:
        """Return a name in lines of up to `letters` letters; or fewer, if a given width requires it."""
        if self.width is not None:
            letters = min(letters, int(share * self.width * LETTERS_PER_INCH))
        return "\n".join(textwrap.wrap(name, letters))


SHOWN = f"\n{THIN}"  # the letters that a figure shows though they are no printed ones
WIDEST = 7.0  # the most inches of a figure whose style gives no width: 1,400 px
MOST_LINES = 3  # of a name beside or above what it names
LETTERS_PER_INCH = 17  # at a font size of seven points
BASE: dict[str, Any] = {
    "svg.hashsalt": "fredsim",
    "pdf.fonttype": 42,  # TrueType, which publishers accept
    "font.size": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.4,
}
PAPER: dict[str, Any] = {
    **BASE,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.labelspacing": 0.3,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "lines.markersize": 4,
    "axes.labelpad": 2,
}
PLAIN = Style(rc=BASE)
STYLES = {
    None: PLAIN,
    "column": Style(width=3.35, columns=1, alone=2.3, row=2.1, title=8.0, dense=6.0, dpi=300, rc=PAPER),
    "page": Style(width=6.9, columns=2, alone=2.6, row=2.1, title=8.0, dense=6.5, dpi=300, rc=PAPER),
}


def cut_lines(text: str, letters: int, most: int = MOST_LINES) -> str:
    """Return a text in lines of up to so many letters; what has no room on so many lines is left out."""
    return "\n".join(textwrap.wrap(text, letters, max_lines=most, placeholder="…"))


def style_of(options: Options) -> Style:
    """Return the style that a figure's options name."""
    return STYLES[options.style]


def take_literally(artist: Artist) -> None:
    """Let every text in a part of a figure be shown as it is, also one that looks like a formula."""
    for text in artist.findobj(Text):
        assert isinstance(text, Text)
        text.set(text=visible(text.get_text(), SHOWN), parse_math=False)
