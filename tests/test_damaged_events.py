"""A record of events that is damaged, or no file: one clear error, whatever reads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import fredsim
from fredsim.errors import OutputError
from fredsim.runs.folder.results import Result
from fredsim.system.parquet_files import MOST_FOOTERS, open_parquet
from tests.test_going_on import DATA

Refused = Callable[..., None]


def ran(folder: Path) -> Path:
    fredsim.run(DATA | {"dispatcher": {"name": "clock"}}, out=folder)
    return folder


def test_a_folder_in_its_place(tmp_path: Path, refused: Refused) -> None:
    path = ran(tmp_path / "run") / "events.parquet"
    path.unlink()
    path.mkdir()
    says = f"{path}: cannot be read (it is a folder); run the experiment again"
    refused("plot", path.parent, "--kind", "waits", "-o", tmp_path / "waits.svg", says=[says])


def test_pages_that_are_damaged_before_an_intact_footer(tmp_path: Path, refused: Refused) -> None:
    whole, other = ran(tmp_path / "whole"), tmp_path / "other"
    shutil.copytree(whole, other)
    content = (whole / "events.parquet").read_bytes()
    (other / "events.parquet").write_bytes(content[:4] + b"\x07" * 400 + content[404:])
    says = [f"{whole / 'events.parquet'} or {other / 'events.parquet'}: cannot be read (", "run the experiment again"]
    refused("compare", whole, other, says=says)


def test_more_behind_the_end_of_a_run_that_has_ended(tmp_path: Path) -> None:
    """Only a run that was killed may leave a file that is cut off."""
    path = ran(tmp_path / "run") / "events.parquet"
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(OutputError, match=r"events.parquet: is not as the run wrote it; run the experiment again$"):
        Result(path.parent).events_of(["client"])


@pytest.mark.parametrize("block", [b"PAR1", b"\x15\x04\x19" + (3).to_bytes(4, "little") + b"PAR1"])
def test_a_file_of_nothing_but_ends(block: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each could be that of a footer; to try all of them would take hours."""
    tried: list[object] = []
    made = pq.ParquetFile

    def noting(source: object) -> object:
        tried.append(source)
        return made(source)

    monkeypatch.setattr(pq, "ParquetFile", noting)
    path = tmp_path / "events.parquet"
    path.write_bytes(b"PAR1" + block * 2**18)
    with pytest.raises(OutputError, match="is damaged, and no part of it can be read"):
        open_parquet(path)
    assert len(tried) <= 1 + MOST_FOOTERS * (block != b"PAR1")


def test_the_last_whole_footer_is_found(tmp_path: Path) -> None:
    """Behind it, what looks like the ends of others."""
    path = ran(tmp_path / "run") / "events.parquet"
    content, rows = path.read_bytes(), open_parquet(path)[0].metadata.num_rows
    for more in (b"PAR1", b"PAR1" * 500, b"\x15" + (1).to_bytes(4, "little") + b"PAR1"):
        path.write_bytes(content + more)
        file, cut = open_parquet(path)
        assert (file.metadata.num_rows, f"its first {rows} rows are read" in cut) == (rows, True)
