"""The picture of a report: `python -m docs.generate.report_picture` runs a small sweep and saves what a browser shows.

It needs plotly, playwright and a Chromium (the system's, or the one that FREDSIM_BROWSER names).
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import fredsim
from docs.generate.browser import chromium
from docs.generate.links import ROOT

__all__ = ["PICTURE", "SWEEP", "save"]

PICTURE = ROOT / "docs/pictures/report.png"
SWEEP = {
    "name": "servers-and-rates", "iterations": 2000, "data": {"name": "digits"}, "model": {"hidden": [32]},
    "clients": {"count": 32, "batch_size": 4}, "server": {"name": "asgd", "lr": 0.05}, "evaluation": {"every": 50},
    "sweep": {"server.name": ["asgd", "sasgd", "fasgd"], "server.lr": [0.01, 0.03, 0.1], "seed": [0, 1, 2]},
}  # fmt: skip
SIZE = {"width": 1180, "height": 1000}
COLOURS = 96  # enough for text and lines, in a fraction of the bytes


def save(path: Path = PICTURE) -> None:
    """Save a picture of who won and of the curves, with the pointer on a line."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder, chromium() as opened:
        results = fredsim.sweep(SWEEP, out=Path(folder, "out"))
        results.report(Path(folder, "report.html"))
        page = opened.new_page(viewport=SIZE)
        page.goto(Path(folder, "report.html").as_uri())
        page.wait_for_selector("html[data-drawn]")
        page.locator("input[name=smooth]").fill("0.5")
        area = page.locator("#curves-0 .nsewdrag").first.bounding_box()
        assert area is not None
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(area["x"] + 0.62 * area["width"] - 5, area["y"] + 0.7 * area["height"])
        page.mouse.move(area["x"] + 0.62 * area["width"], area["y"] + 0.7 * area["height"])
        page.locator("#curves .hover").wait_for()
        content = page.screenshot(clip={"x": 0, "y": 0} | SIZE)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.open(io.BytesIO(content)).convert("RGB").quantize(COLOURS).save(path, optimize=True)


if __name__ == "__main__":
    save()
