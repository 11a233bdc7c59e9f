"""`python -m docs.generate.figures`, in the repository's root: draws the pictures of results/reference again.

They are drawn, and their own tables written, from what was kept of the runs: runs.csv has how they ended, and
rows.csv.xz, where it was kept, their curves. Pictures that need more are left as they are, and listed with what they
need. The same runs give the same bytes with the matplotlib of constraints.txt.

`--check` writes nothing; the exit code is 1 if a picture or its table is not today's.
`--keep RESULTS` first keeps the rows of runs that were done again, below RESULTS: `fredsim run fasgd/fig1 --out
results/fasgd/fig1`, then `--keep results`.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from docs.generate.recorded import ROWS, Recorded, chosen, folders, keep_rows, recorded
from fredsim.config.figures.choice import FigureChoice, recorded_figures
from fredsim.config.figures.options import SHARES, Options
from fredsim.show.plots import plot
from fredsim.show.plots.figure import select_runs
from fredsim.show.tables import write_files

__all__ = ["REFERENCE", "Picture", "completed", "differing", "draw", "pictures", "shown", "tables_of"]

REFERENCE = Path("results/reference")
BYTES = Options(
    x="bytes",
    by=["dispatcher.fetch", "dispatcher.push"],
    command="fredsim plot results/fasgd/fig3_fetch results/fasgd/fig3_push --kind ends --x bytes --by dispatcher.fetch "
    "--by dispatcher.push",
)  # fmt: skip
#: Pictures that no experiment asks for: their folders, and how they are drawn.
EXTRA = {"fasgd/push_and_fetch.png": (("fasgd/fig3_fetch", "fasgd/fig3_push"), "ends", BYTES)}
SEEN = 64  # the difference, of 255, from which on a pixel is another one
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")  # as tables write exponents
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
        for choice in recorded_figures(folder) or ():
            if (path := folder / f"{choice.name}.png") in found:
                found.remove(path)
                options = choice.options(command=f"fredsim plot results/{name}")
                yield Picture(path, (folder,), choice.kind, options, _lacks(folder, choice))
    for name, (where, kind, options) in EXTRA.items():
        found.discard(root / name)
        yield Picture(root / name, tuple(root / one for one in where), kind, options)
    if found:
        raise ValueError(f"{min(found)}: is asked for by no experiment beside it; say in EXTRA how it is drawn")


def _lacks(folder: Path, choice: FigureChoice) -> str:
    """Return what a figure needs that is not beside it."""
    if _shows_rows(choice):
        return "" if (folder / ROWS).is_file() else f"{ROWS}, the rows of its runs"
    if choice.kind in {"matrix", "ends"}:
        return ""
    return {"staleness": "staleness.csv", "probe": "probe.csv"}.get(choice.kind, "files") + " of its runs"


def _shows_rows(choice: FigureChoice) -> bool:
    """Return whether a figure shows rows of its runs, not only how they ended."""
    return choice.kind in {"curves", "copies"} or (choice.kind == "ends" and choice.x in SHARES)


def shown(folder: Path) -> set[str]:
    """Return the names of the runs whose rows the figures of a folder show."""
    runs, names = recorded(folder), set[str]()
    for choice in filter(_shows_rows, recorded_figures(folder) or ()):
        options = choice.options()
        some = chosen(folder, runs) if options.best else runs
        names |= {run.folder.name for run in select_runs(some, replace(options, best=False))}
    return names


def tables_of(path: Path) -> list[Path]:
    """Return the tables that belong to a picture: the page with its caption, and a file for programs if it is kept."""
    page, table = (path.with_name(f"{path.stem}-table.{kind}") for kind in ("md", "csv"))
    return [page, *([table] if table.is_file() else [])]


def draw(picture: Picture, path: Path, known: dict[Path, list[Recorded]] | None = None) -> None:
    """Draw a picture into a file, and write its tables beside that; `known`: runs read already, which it adds to."""
    known = {} if known is None else known
    runs: list[Recorded] = []
    for folder in picture.folders:
        some = known.setdefault(folder, []) or recorded(folder)
        known[folder] = some
        runs += chosen(folder, some) if picture.options.best else some
    drawing = plot(runs, path, picture.kind, replace(picture.options, best=False))
    write_files(path, drawing.tables, drawing.caption, picture.options.command)
    for new, old in zip(tables_of(path), tables_of(picture.path), strict=False):
        if old.is_file():
            new.write_text(completed(new.read_text("utf-8"), old.read_text("utf-8")), "utf-8")


def completed(new: str, old: str) -> str:
    """Return the text of a table in which cells that runs.csv does not tell, `nan`, are those of an older one.

    Raises ValueError if that has not the same numbers in the same rows.
    """
    before = [line.split(" | ") for line in old.splitlines() if line.startswith("| ")]
    lines = []
    row = -1
    for line in new.splitlines(keepends=True):
        row += line.startswith("| ")
        cells = line.rstrip("\n").rstrip(" |").split(" | ")
        if "nan" not in cells:
            lines.append(line)
            continue
        known = before[row] if row < len(before) else []
        at = range(cells.index("nan") - 2, cells.index("nan"))  # a value, and the bytes
        if len(known) != len(cells) or any(not _agree(cells[k], known[k]) for k in at):
            raise ValueError(f"its table was of other runs than row {row}: {line.strip()}")
        cells = [one.removesuffix(" |") if cell == "nan" else cell for cell, one in zip(cells, known, strict=True)]
        lines.append(" | ".join(cells) + " |\n")
    return "".join(lines)


def _agree(one: str, other: str) -> bool:
    """Return whether two cells may have the same value, each to at least four decimals or four digits."""
    if "–" in (one, other):
        return one == other
    first, second = (float(cell.replace(",", "").replace("·10", "e").translate(RAISED)) for cell in (one, other))
    return math.isclose(first, second, rel_tol=1e-3, abs_tol=6e-5)


def differing(one: Path, other: Path) -> str:
    """Return how two pictures differ, "" if a reader sees no difference."""
    first, second = (imread(path)[..., :3] for path in (one, other))
    if first.shape != second.shape:
        return f"is {first.shape[1]} × {first.shape[0]} pixels, not {second.shape[1]} × {second.shape[0]}"
    share = float((np.abs(first - second).max(axis=2) * 255 > SEEN).mean())
    return f"differs in {share:.2%} of its pixels" if share > FEW else ""


def _renewed(picture: Picture, known: dict[Path, list[Recorded]], *, check: bool) -> Iterator[tuple[Path, str]]:
    """Yield what is not today's of a picture and its tables, with what is wrong; unless `check`, after renewing it."""
    with tempfile.TemporaryDirectory() as folder:
        new = Path(folder, picture.path.name)
        draw(picture, new, known)
        if check and picture.path.is_file():
            if text := differing(new, picture.path):
                yield picture.path, text
        elif not picture.path.is_file() or new.read_bytes() != picture.path.read_bytes():
            picture.path.write_bytes(new.read_bytes())
            yield picture.path, "drawn"
        for path in tables_of(picture.path):
            today = new.with_name(path.name).read_bytes()
            if not path.is_file() or path.read_bytes() != today:
                if not check:
                    path.write_bytes(today)
                yield path, "is not today's" if check else "written"


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
            if (options.keep / (name := folder.relative_to(REFERENCE))).is_dir():
                keep_rows(options.keep / name, folder, shown(folder))
                print(f"{folder / ROWS}: kept")
    known: dict[Path, list[Recorded]] = {}
    wrong = 0
    for picture in pictures():
        if picture.lacks:
            print(f"{picture.path}: left as it is (needs {picture.lacks})")
            continue
        for path, text in _renewed(picture, known, check=options.check):
            print(f"{path}: {text}")
            wrong += options.check
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
