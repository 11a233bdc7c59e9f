"""A checkout that nobody has installed: the package's metadata is missing, and everything works."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("fredsim", "servers", "dispatchers", "experiments", "pyproject.toml")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, whose version is another, and beside it `site`: every package but fredsim."""
    folder = tmp_path_factory.mktemp("copy")
    leave_out = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        whole = ROOT / part
        if whole.is_dir():
            shutil.copytree(whole, folder / part, symlinks=True, ignore=leave_out)
        else:
            text = whole.read_text(encoding="utf-8")
            version = tomllib.loads(text)["project"]["version"]
            (folder / part).write_text(text.replace(f'version = "{version}"', 'version = "7.8.9"'), encoding="utf-8")
    site = folder / "site"
    site.mkdir()
    for entry in Path(numpy.__file__).parents[1].iterdir():
        if "fredsim" not in entry.name:
            (site / entry.name).symlink_to(entry)
    return folder


def fredsim(checkout: Path, *arguments: str) -> str:
    """Call the command where only the checkout's packages are found; return its output."""
    found = subprocess.run(
        [sys.executable, "-S", "-m", "fredsim", *arguments],
        env=os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{checkout / 'site'}"},
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, "Traceback" in found.stderr) == (0, False), found.stderr
    return found.stdout


def test_the_version_is_that_of_the_checkout(checkout: Path) -> None:
    assert fredsim(checkout, "--version") == "fredsim 7.8.9\n"
    assert "7.8.9" in fredsim(checkout, "cite", "quickstart")


def test_runs_are_done_and_verified(checkout: Path) -> None:
    short = ("iterations=40", "evaluation.every=20", "sweep={seed: [0, 1]}", "--quiet")
    fredsim(checkout, "run", "quickstart", *short, "--jobs", "2", "--out", "done")
    (summary, *_) = checkout.glob("done/*/summary.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["versions"]["fredsim"] == "7.8.9"
    assert "same bits" in fredsim(checkout, "verify", "done", "--jobs", "2")
