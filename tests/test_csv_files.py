"""What is read of CSV files: tables that are checked, and cells that are not."""

from pathlib import Path

import pytest

from fredsim.errors import OutputError
from fredsim.system.csv_files import COUNT, NUMBER, read_cells, read_table


def test_other_columns_are_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,extra\n1,0.5\n2,x\n", encoding="utf-8")
    assert list(read_table(path, {"n": COUNT}, increasing=("n",))["extra"]) == ["0.5", "x"]
    with pytest.raises(OutputError, match=r"a\.csv: is damaged \(line 3: extra is 'x'\); run the experiment again"):
        read_table(path, {"n": COUNT}, increasing=("n",), others=NUMBER)


def test_the_column_that_falls_is_named(tmp_path: Path) -> None:
    path = tmp_path / "live.csv"
    for rows, says in (("1,2\n2,1\n", "n is 1 after 2"), ("1,2\n0.5,3\n", "time is 0.5 after 1")):
        path.write_text(f"time,n\n{rows}", encoding="utf-8")
        with pytest.raises(OutputError, match=rf"is damaged \(line 3: {says}\)"):
            read_table(path, {"time": NUMBER, "n": COUNT}, increasing=("time", "n"))


def test_cells_of_a_row_that_is_cut_off_or_has_more(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,extra\n1\n2,x,y\n", encoding="utf-8")
    assert read_cells(path) == [{"n": "1"}, {"n": "2", "extra": "x"}]
    path.write_bytes(b"")
    assert read_cells(path) == []
    path.write_text('n,extra\n1,"x"y\n', encoding="utf-8")
    with pytest.raises(OutputError, match=r"a\.csv: cannot be read \(.*expected after"):
        read_cells(path)


def test_words_that_look_like_no_value_are_texts(tmp_path: Path) -> None:
    """A sweep may have an axis of them."""
    path = tmp_path / "runs.csv"
    words = ["NA", "None", "null", "N/A", "-", "x"]
    path.write_text("run,kind,loss\n" + "".join(f"{n},{word},nan\n" for n, word in enumerate(words)), encoding="utf-8")
    table = read_table(path, {"run": COUNT})
    assert list(table["kind"]) == words
    assert table["loss"].isna().all()
    assert table["loss"].dtype == float
