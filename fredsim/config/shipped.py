"""The experiments that come with fredsim."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

__all__ = ["shipped"]


def shipped() -> dict[str, Path]:
    """Return the files of the experiments that come with fredsim, by name, such as `fasgd/fig1`."""
    package = Path(str(resources.files("fredsim")))
    folder = package / "experiments"
    if not folder.is_dir():  # an editable install of a source distribution, or of a checkout without links
        folder = package.parent / "experiments"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
