"""The versions of fredsim, that of the checkout which is imported or else of the package, and of other packages."""

from __future__ import annotations

import functools
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["fredsim_version", "package_version"]

UNKNOWN = "0+unknown"  # by the form of Python's versions: of a copy that has lost its pyproject.toml


@functools.cache
def fredsim_version() -> str:
    """Return the version of the fredsim that is imported.

    In a checkout that is what its pyproject.toml says, whether or not it is installed, and whichever other one is.
    """
    try:
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if project["name"] == "fredsim":
            return str(project["version"])
    except (OSError, ValueError, KeyError):  # an installed package has no such file beside it
        pass
    try:
        return version("fredsim")
    except PackageNotFoundError:
        return UNKNOWN


def package_version(package: str) -> str:
    """Return an installed package's version; PyTorch's names its build, too, as in 2.13.0+cu130.

    Of PyTorch alone, `none` if it cannot be imported: a forged record may say that it was used.
    """
    if package == "torch":
        try:
            import torch
        except ImportError:
            return "none"
        return str(torch.__version__)
    return fredsim_version() if package == "fredsim" else _installed(package)


_installed = functools.cache(version)  # looking it up reads files
