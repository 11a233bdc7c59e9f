"""The experiments that come with fredsim, and their schema."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shipped", "shipped_schema"]


def shipped() -> dict[str, Path]:
    """Return the files of the experiments that come with fredsim, by name, such as `fasgd/fig1`."""
    folder = _folder()
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def shipped_schema() -> str | None:
    """Return the JSON Schema of an experiment's file, which `python -m docs.generate` wrote.

    None if it is missing, or is not this one: installed packages may register classes, which have keys of their own.
    """
    from importlib.metadata import entry_points

    path = _folder() / "schema.json"
    if any(group.startswith("fredsim.") for group in entry_points().groups) or not path.is_file():
        return None
    return path.read_text(encoding="utf-8")


def _folder() -> Path:
    package = Path(__file__).parents[1]
    folder = package / "experiments"
    if not folder.is_dir():  # an editable install of a source distribution, or of a checkout without links
        folder = package.parent / "experiments"
    return folder
