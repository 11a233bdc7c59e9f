"""Compiled kernels on disk, which many processes may share; each file has a checksum beside it.

The files are in a folder of fredsim.jit.cache.cache_folder, and are trusted as the kernels of numba are: only if nobody
but this user can have written them, and if they are what was written.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from fredsim.jit.cache import cache_folder, checksum, is_private, write_private

__all__ = ["Kept"]


class Kept:
    """The compiled texts of one compiler with one set of options."""

    def __init__(self, kind: str, compiled_by: Iterable[str]) -> None:
        """Take what a compiled text depends on besides the text: the compiler, its version, its options."""
        self._key = hashlib.sha256("\n".join(compiled_by).encode()).hexdigest()
        self._folder = cache_folder() / f"device-{kind}"
        self._own: list[tempfile.TemporaryDirectory[str]] = []  # where files are if the folder cannot be used

    def file(self, text: str, suffix: str, compile_text: Callable[[], bytes]) -> Path:
        """Return the path of a compiled text; if it is not there, or is damaged, it is compiled."""
        name = hashlib.sha256(f"{self._key}\n{text}".encode()).hexdigest()[:32] + suffix
        folder = self._folder
        try:
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            usable = is_private(folder)
        except OSError:
            usable = False
        path = folder / name
        if usable and _whole(path):
            return path
        data = compile_text()
        if usable:
            with suppress(OSError):
                write_private(path, data)
                write_private(_checksum_of(path), checksum(path.name, data).hex().encode())
                return path
        own = tempfile.TemporaryDirectory(prefix="fredsim-")
        self._own.append(own)
        path = Path(own.name, name)
        path.write_bytes(data)
        return path


def _whole(path: Path) -> bool:
    """Return whether a file is there, private, and what its checksum says."""
    try:
        if not is_private(path):
            return False
        return _checksum_of(path).read_bytes() == checksum(path.name, path.read_bytes()).hex().encode()
    except OSError:
        return False


def _checksum_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
