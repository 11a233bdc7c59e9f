"""The picture of drawn images: `python -m docs.generate.samples_picture` draws a few of `data: {name: glyphs}`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from docs.generate.links import ROOT
from fredsim.config.data import Glyphs
from fredsim.data.glyphs import GLYPH, draw_glyphs, draw_places

__all__ = ["PICTURE", "save"]

PICTURE = ROOT / "docs/pictures/glyphs.png"
IMAGES = 3  # of each class
FRAME = "#e8731a"


def save(path: Path = PICTURE) -> None:
    """Save the glyph of each class above some of its images, in which a frame shows where it is."""
    keys = Glyphs(name="glyphs")
    train = keys.load(ROOT, 0).train
    glyphs = draw_glyphs(keys.classes, keys.seed)
    figure = Figure(figsize=(keys.classes, IMAGES + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(IMAGES + 1, keys.classes)
    for label in range(keys.classes):
        numbers = np.flatnonzero(train.y == label)[:IMAGES]
        places = draw_places(numbers, 0, keys.size, keys.clutter, keys.seed)[:, -1]
        images = train.x[numbers].reshape(-1, keys.size, keys.size)
        middle = (keys.size - GLYPH) / 2  # the glyph alone is as large as in the images below
        axes[0, label].set_title(f"class {label}", fontsize=9)
        for axis, shown, (row, column) in zip(
            axes[:, label], [glyphs[label], *images], [(0, 0), *places.tolist()], strict=True
        ):
            axis.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.add_patch(
                Rectangle((column - 0.5, row - 0.5), GLYPH, GLYPH, fill=False, color="#e8731a", linewidth=1.5)
            )
            axis.axis("off")
        axes[0, label].set(xlim=(-0.5 - middle, GLYPH - 0.5 + middle), ylim=(GLYPH - 0.5 + middle, -0.5 - middle))
    figure.savefig(path, dpi=100, facecolor="white", metadata={"Software": None})


if __name__ == "__main__":
    save()
