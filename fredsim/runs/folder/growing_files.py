"""Files that grow during a run: append-only, truncatable, and with a size and SHA-256 that are always known."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fredsim.system.files import hash_of_prefix, open_growing, write_errors

__all__ = ["FilePrefix", "GrowingFile", "GrowingText"]


@dataclass(frozen=True)
class FilePrefix:
    """The content of a growing file at some time: its size in bytes, and the SHA-256 of these bytes."""

    size: int
    sha256: str


class GrowingFile:
    """A file that grows, open in a `with` statement, which first cuts it to `size` bytes.

    Raises OutputError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self.name = path, path.name
        self.size = 0  # in bytes

    def __enter__(self) -> Self:
        with write_errors(self._path):
            self._stream = open_growing(self._path, anew=not self.size, buffering=0)
            self._hash = hash_of_prefix(self._path, self.size) or hashlib.sha256()
            self._stream.truncate(self.size)
            self._stream.seek(self.size)
        return self

    def __exit__(self, *exception: object) -> None:
        with write_errors(self._path):
            self._stream.close()

    @property
    def prefix(self) -> FilePrefix:
        """The file's present size and SHA-256."""
        return FilePrefix(self.size, self._hash.hexdigest())

    def append(self, content: bytes) -> None:
        """Append to the file; a reader sees it at once."""
        left = memoryview(content)
        with write_errors(self._path):
            while left:
                left = left[self._stream.write(left) :]
        self.size += len(content)
        self._hash.update(content)


class GrowingText(GrowingFile):
    """A growing text file, which can be given to csv.writer."""

    def write(self, text: str) -> None:
        """Append to the file."""
        self.append(text.encode())
