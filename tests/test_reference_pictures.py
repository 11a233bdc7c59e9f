"""The pictures in results/reference are those that today's code draws from the tables beside them."""

import csv
import lzma
from pathlib import Path

import pytest
from matplotlib import __version__

import fredsim
from docs.generate.figures import REFERENCE, Picture, completed, differing, draw, pictures, shown, tables_of
from docs.generate.recorded import ROWS, keep_rows, recorded

ROOT = Path(__file__).parent.parent
SAMPLE = ("fasgd/fig1/error.png", "time/strategies_128/seconds.png", "fasgd/push_and_fetch.png")
EXPERIMENT = {
    "iterations": 20, "data": {"name": "digits"}, "model": {"hidden": []}, "clients": {"count": 2, "batch_size": 2},
    "server": {"name": "asgd", "lr": 0.1}, "sweep": {"seed": [0, 1]},
}  # fmt: skip
PINNED = next(
    line.partition("==")[2]
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line.startswith("matplotlib==")
)


@pytest.fixture(scope="module")
def every() -> dict[str, Picture]:
    found = {picture.path.relative_to(ROOT / REFERENCE).as_posix(): picture for picture in pictures(ROOT / REFERENCE)}
    assert len(found) == len(list((ROOT / REFERENCE).rglob("*.png")))
    return found


def test_what_cannot_be_drawn_says_why(every: dict[str, Picture]) -> None:
    whole = [name for name, picture in every.items() if not picture.lacks]
    assert {*SAMPLE} <= {*whole}
    assert len(whole) >= 28
    for picture in every.values():
        assert picture.lacks == "" or " of its runs" in picture.lacks


@pytest.mark.skipif(__version__ != PINNED, reason=f"matplotlib is {__version__}; the pictures are of {PINNED}")
@pytest.mark.parametrize("name", SAMPLE)
def test_committed_pictures_are_todays(name: str, every: dict[str, Picture], tmp_path: Path) -> None:
    is_todays(every[name], tmp_path / every[name].path.name)


def is_todays(picture: Picture, new: Path) -> None:
    """Draw a picture into a file; compare it and its tables with the committed ones."""
    draw(picture, new)
    assert differing(new, picture.path) == "", picture.path
    for table in tables_of(picture.path):
        assert new.with_name(table.name).read_text("utf-8") == table.read_text("utf-8"), table


def test_another_picture_is_noticed(every: dict[str, Picture]) -> None:
    first, second = (every[f"fasgd/{name}/error.png"].path for name in ("fig1", "fig1_as_written"))
    assert "differs in" in differing(first, second) or "pixels" in differing(first, second)


@pytest.mark.slow
@pytest.mark.skipif(__version__ != PINNED, reason=f"matplotlib is {__version__}; the pictures are of {PINNED}")
def test_all_committed_pictures_are_todays(every: dict[str, Picture], tmp_path: Path) -> None:
    for picture in every.values():
        if not picture.lacks:
            is_todays(picture, tmp_path / picture.path.name)
    for path in sorted((ROOT / REFERENCE).rglob(ROWS)):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            assert {row["run"] for row in csv.DictReader(file)} >= shown(path.parent) != set(), path


def test_a_table_keeps_what_its_runs_are_not_recorded_to_have_had() -> None:
    head = "Caption.\n\n| line | error | bytes | of pushes |\n| --- | --- | --- | --- |\n"
    old = f"Old.\n\n{head[10:]}| a | 0.5 | 7 | 0.25 |\n| b | 0.25 | 9 | 1.0 |\n"
    new = f"{head}| A | 0.5 | 7 | nan |\n| B | 0.25 | 9 | nan |\n\nEnd.\n"
    assert completed(new, old) == f"{head}| A | 0.5 | 7 | 0.25 |\n| B | 0.25 | 9 | 1.0 |\n\nEnd.\n"
    for other in (old.replace("| 7 |", "| 8 |"), old.replace("0.25 | 9", "0.26 | 9"), head):
        with pytest.raises(ValueError, match=r"its table was of other runs than row [23]: \| [AB] "):
            completed(new, other)
    assert completed(other, new) == other
    digits, decimals = f"{head}| A | 5.713·10⁻³ | 7 | nan |\n", f"{head}| A | 0.0057 | 7 | 0.25 |\n"
    assert completed(digits, decimals) == digits.replace("nan", "0.25")


def test_the_rows_are_of_these_runs() -> None:
    kept = sorted((ROOT / REFERENCE).rglob(ROWS))
    assert kept
    for path in kept:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = {row["run"] for row in csv.DictReader(file)}
        with path.with_name("runs.csv").open(encoding="utf-8", newline="") as table:
            every = {row["run"] for row in csv.DictReader(table)}
        assert set() != rows <= every, path


def test_rows_are_kept_of_the_runs_that_a_figure_shows(tmp_path: Path) -> None:
    figures = [{"name": "first", "where": {"seed": 0}}, {"name": "ends", "kind": "ends"}]
    whole, part = tmp_path / "whole", tmp_path / "part"
    fredsim.sweep(EXPERIMENT | {"figures": figures}, out=whole)
    names = {run.folder.name for run in recorded(whole)}
    first = shown(whole)
    assert len(names) == 2
    assert [name.partition("-")[0] for name in first] == ["seed=0"]
    fredsim.sweep(EXPERIMENT | {"sweep": {"seed": [0]}}, out=part)
    keep_rows(part, whole, first)
    assert {len(run.metrics) > 1 for run in recorded(whole) if run.folder.name in first} == {True}
    assert {len(run.metrics) for run in recorded(whole) if run.folder.name not in first} == {1}
    with pytest.raises(ValueError, match=r"part: lacks seed=1-[0-9a-f]+; finish it with --resume"):
        keep_rows(part, whole, names)


@pytest.mark.parametrize("with_rows", [False, True])
def test_a_run_that_ends_without_a_finite_loss_counts_as_diverged(with_rows: bool, tmp_path: Path) -> None:
    """As it does with its folder, in which `nan` and an empty cell are not the same."""
    fredsim.sweep(EXPERIMENT, out=tmp_path)
    if with_rows:
        keep_rows(tmp_path, tmp_path, {run.folder.name for run in recorded(tmp_path)})
    path = tmp_path / "runs.csv"
    first, *others = csv.DictReader(path.read_text("utf-8").splitlines())
    path.write_text(path.read_text("utf-8").replace(first["validation_loss"], "nan"), "utf-8")
    assert [run.has_diverged for run in recorded(tmp_path)] == [True, *(False for _ in others)]
