"""`python -m docs.generate.figures`, in the repository's root: draws the pictures of results/reference again.

They are drawn from the tables beside them: runs.csv has how runs ended, and rows.csv.xz, where it was kept, their
curves. Pictures that need more are left as they are, and listed with what they need. The same tables give the same
bytes with the matplotlib of constraints.txt.

`--check` writes nothing; the exit code is 1 if a picture is not the one that is drawn today.
`--keep RESULTS` first keeps the rows of runs that were done again, below RESULTS: `fredsim run fasgd/fig1 --out
results/fasgd/fig1`, then `--keep results`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from docs.generate.recorded import ROWS, Recorded, chosen, folders, keep_rows, recorded
from fredsim.config.figure_options import SHARES, Options
from fredsim.config.figures import FigureChoice, recorded_figures
from fredsim.show.plots import plot

__all__ = ["REFERENCE", "Picture", "differing", "draw", "pictures"]

REFERENCE = Path("results/reference")
BYTES = Options(
    x="bytes",
    by=["dispatcher.fetch", "dispatcher.push"],
    title="What saves more bytes: fewer fetches or fewer pushes?",
    command="fredsim plot results/fasgd/fig3_fetch results/fasgd/fig3_push --kind ends --x bytes --by dispatcher.fetch "
    "--by dispatcher.push",
)  # fmt: skip
#: Pictures that no experiment asks for: their folders, and how they are drawn.
EXTRA = {"fasgd/push_and_fetch.png": (("fasgd/fig3_fetch", "fasgd/fig3_push"), "ends", BYTES)}
#: Pictures that are drawn from files of runs of which no table is kept.
NEEDING = {"clusters/timeline.png": "events.parquet of its runs (`events: true`)"}
SEEN = 64  # the difference, of 255, from which on a pixel is another one
FEW = 1e-4  # the share of pixels that may be others


@dataclass(frozen=True)
class Picture:
    """A committed picture: the folders with its runs, how it is drawn, and what it lacks ("" if nothing)."""

    path: Path
    folders: tuple[Path, ...]
    kind: str
    options: Options
    lacks: str = ""


def pictures(root: Path = REFERENCE) -> Iterator[Picture]:
    """Yield all committed pictures. Raises ValueError for one that nothing is known about."""
    found = set(root.rglob("*.png"))
    for folder in folders(root):
        name = folder.relative_to(root).as_posix()
        for choice in recorded_figures(folder):
            if (path := folder / f"{choice.name}.png") in found:
                found.remove(path)
                options = choice.options(command=f"fredsim plot results/{name}")
                yield Picture(path, (folder,), choice.kind, options, _lacks(folder, choice))
    for name, (where, kind, options) in EXTRA.items():
        found.discard(root / name)
        yield Picture(root / name, tuple(root / one for one in where), kind, options)
    for name, lacks in NEEDING.items():
        found.discard(root / name)
        yield Picture(root / name, (), "timeline", Options(), lacks)
    if found:
        raise ValueError(f"{min(found)}: is asked for by no experiment beside it; say in EXTRA how it is drawn")


def _lacks(folder: Path, choice: FigureChoice) -> str:
    """Return what a figure needs that is not beside it."""
    if choice.kind == "matrix" or (choice.kind == "ends" and choice.x not in SHARES):
        return ""
    if choice.kind in {"curves", "ends", "copies"}:
        return "" if (folder / ROWS).is_file() else f"{ROWS}, the rows of its runs"
    return {"staleness": "staleness.csv", "probe": "probe.csv"}.get(choice.kind, "files") + " of its runs"


def draw(picture: Picture, path: Path, known: dict[Path, list[Recorded]] | None = None) -> None:
    """Draw a picture into a file; `known`: runs that were read already, which it adds to."""
    known = {} if known is None else known
    runs: list[Recorded] = []
    for folder in picture.folders:
        some = known.setdefault(folder, []) or recorded(folder)
        known[folder] = some
        runs += chosen(folder, some) if picture.options.best else some
    plot(runs, path, picture.kind, replace(picture.options, best=False))


def differing(one: Path, other: Path) -> str:
    """Return how two pictures differ, "" if a reader sees no difference."""
    first, second = (imread(path)[..., :3] for path in (one, other))
    if first.shape != second.shape:
        return f"is {first.shape[1]} × {first.shape[0]} pixels, not {second.shape[1]} × {second.shape[0]}"
    share = float((np.abs(first - second).max(axis=2) * 255 > SEEN).mean())
    return f"differs in {share:.2%} of its pixels" if share > FEW else ""


def main(words: list[str]) -> int:
    """Draw or check the pictures, print what is done, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.generate.figures", description="Draw results/reference again."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; say which pictures are not today's")
    parser.add_argument("--keep", type=Path, help="the folder of results whose rows to keep")
    options = parser.parse_args(words)
    if options.keep is not None:
        for folder in folders(REFERENCE):
            if (options.keep / (name := folder.relative_to(REFERENCE)) / "runs.csv").is_file():
                keep_rows(options.keep / name, folder)
                print(f"{folder / ROWS}: kept")
    known: dict[Path, list[Recorded]] = {}
    wrong = 0
    for picture in pictures():
        if picture.lacks:
            print(f"{picture.path}: left as it is (needs {picture.lacks})")
            continue
        new = picture.path.with_name(f".{picture.path.stem}-new.png")
        try:
            draw(picture, new, known)
            text = differing(new, picture.path) if options.check else ""
            if not options.check and new.read_bytes() != picture.path.read_bytes():
                new.replace(picture.path)
                text = "drawn"
        finally:
            new.unlink(missing_ok=True)
        if text:
            print(f"{picture.path}: {text}")
            wrong += options.check
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
