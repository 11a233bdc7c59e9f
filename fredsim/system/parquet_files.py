"""Reads Parquet files, also those that a process was writing when it was killed: up to the last complete footer."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Any

from fredsim.errors import OutputError, needs
from fredsim.system.files import open_whole

__all__ = ["MAGIC", "need_pyarrow", "open_parquet"]

MAGIC = b"PAR1"
FOOTER_BEGINS = 0x15  # by Thrift's compact protocol: its first field, the version, a 32-bit integer
MOST_FOOTERS = 1000  # the most that are looked for, from the end on: a file of nothing but MAGIC would take hours


def need_pyarrow(what: str) -> None:
    """Raise ConfigError, which says what needs it, if pyarrow is not installed: it is larger than all of fredsim."""
    with needs(what, "pyarrow", "events"):
        import pyarrow.parquet  # noqa: F401


def open_parquet(path: str | os.PathLike[str], *, follow: bool = False) -> tuple[Any, str]:
    """Return a file as pyarrow's ParquetFile, and a warning if its end is damaged, otherwise "".

    Bytes after the last complete footer are ignored. `follow`: the path may be a symbolic link. Raises OutputError if
    the file cannot be read, ConfigError if pyarrow is not installed.
    """
    need_pyarrow(str(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_whole(path, follow=follow) as stream:
            if not os.fstat(stream.fileno()).st_size:
                raise OutputError(f"{path}: is empty")
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if content[:4] != MAGIC:
        raise OutputError(f"{path}: is no Parquet file")
    for end in _ends(content):
        try:
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(memoryview(content)[:end])))
        except (pa.ArrowException, OSError, ValueError):
            continue
        if end == len(content):
            return file, ""
        rows = file.metadata.num_rows
        if not rows:
            break
        return file, f"{path}: its end is damaged; its first {rows:,} rows are read"
    raise OutputError(f"{path}: is damaged, and no part of it can be read")


def _ends(content: mmap.mmap) -> Iterator[int]:
    """Yield the places, from the last on, where a Parquet file that begins here may end: behind a footer."""
    end = len(content)
    yield end
    for _ in range(MOST_FOOTERS):
        end = content.rfind(MAGIC, len(MAGIC), end - 1) + len(MAGIC)
        size = int.from_bytes(content[end - 8 : end - 4], "little")  # of the footer, which follows the first MAGIC
        # where no MAGIC is left, the place is before any footer's end
        if end >= size + 12 and content[end - 8 - size] == FOOTER_BEGINS:
            yield end
