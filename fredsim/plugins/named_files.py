"""The files that an object of a user's says it reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from fredsim.errors import FredsimError, shown
from fredsim.plugins.failures import failing, line_of, message_of

__all__ = ["own_files"]


def own_files(made: Any, refused: Callable[[str], FredsimError]) -> list[str]:
    """Return the paths in an object's `files`, if it has that. Raises what `refused` makes of what is wrong."""

    def cannot(error: BaseException) -> FredsimError:
        return refused(f"its files cannot be had ({type(error).__name__}: {message_of(error)}){line_of(error)}")

    with failing(cannot, MemoryError):
        own = getattr(made, "files", ())
    if not isinstance(own, list | tuple) or not all(isinstance(file, str | os.PathLike) for file in own):
        raise refused(f"its files are {shown(own)}; they must be a list of paths")
    return [str(os.fspath(file)) for file in own]
