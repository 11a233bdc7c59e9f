"""The manual's pictures: `python -m docs.generate.pictures` does what its pages say, and keeps the figures they make.

That of a report is made by docs.generate.report_picture, which needs a browser, that of drawn images by
docs.generate.samples_picture.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from docs.generate.links import ROOT
from fredsim import cli
from tests.pages import Reader, items
from tests.test_code_blocks import reason

__all__ = ["FOLDER", "FROM_COMMANDS", "FROM_PAGES", "draw"]

FOLDER = ROOT / "docs/pictures"
#: For each page: the files that a reader gets, and the pictures that they become.
FROM_PAGES: dict[str, dict[str, str]] = {
    "docs/gallery.md": {
        **{f"{name}.png": f"{name}.png" for name in ("curves", "ends", "matrix", "staleness", "waits", "timeline")},
        **{f"{name}.png": f"{name}.png" for name in ("copies", "probe", "tensors", "shards", "column")},
    },
    "docs/tutorial.md": {
        "results/first/error.png": "tutorial_first.png",
        "staleness.png": "tutorial_staleness.png",
        "results/strategies/error.png": "tutorial_strategies.png",
        "results/seconds/error.png": "tutorial_seconds.png",
        "results/pole/steps.png": "tutorial_pole.png",
    },
    "docs/staleness.md": {"staleness.png": "staleness_clients.png", "probe.png": "staleness_probe.png"},
}
#: The same for commands that no page has its readers type.
FROM_COMMANDS: dict[tuple[str, ...], dict[str, str]] = {
    ("run", "harm"): {"results/harm/error.png": "harm.png"},
    ("run", "harm_rates"): {"results/harm_rates/rates.png": "harm_rates.png"},
}
COLOURS = 96  # of a palette; more are not seen


def draw() -> Iterator[Path]:
    """Yield each picture when it is written."""
    for page, made in FROM_PAGES.items():
        with _folder():
            reader = Reader(fredsim)
            for item in items(page):
                if reason(item) is None:
                    reader.do(item)
            reader.end()
            yield from _kept(made)
    for words, made in FROM_COMMANDS.items():
        with _folder():
            code, _, messages = fredsim(*words)
            assert code == 0, messages
            yield from _kept(made)


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Work in an empty folder, in which modules are looked up."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = list(sys.path)
        try:
            yield
        finally:
            sys.path[:] = path


def fredsim(*words: object) -> tuple[int, str, str]:
    """Call the command in this process; return its exit code, its output and its messages."""
    sys.argv = ["fredsim", *map(str, words)]
    output, messages = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
        try:
            cli.main()
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue(), messages.getvalue()
    raise RuntimeError(f"fredsim {' '.join(map(str, words))} did not end")


def _kept(made: dict[str, str]) -> Iterator[Path]:
    FOLDER.mkdir(exist_ok=True)
    for file, name in made.items():
        with Image.open(file) as picture:
            flat = Image.new("RGB", picture.size, "white")
            flat.paste(picture, mask=picture.getchannel("A") if picture.mode == "RGBA" else None)
        path = FOLDER / name
        flat.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        yield path


if __name__ == "__main__":
    for written in draw():
        print(written.relative_to(ROOT), written.stat().st_size)
    print("all", sum(path.stat().st_size for path in FOLDER.iterdir()))
