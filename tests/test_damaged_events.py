"""A record of events that is damaged, or no file: one clear error, whatever reads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import fredsim
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
