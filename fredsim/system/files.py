"""Reads and writes files: nothing but regular files is read, and no write follows a link. Digests of files.

A pipe or a device could block for ever, or never end. In a folder of results, which may be somebody else's, symbolic
links are not followed either (docs/trust.md); a path that the user names may be a link.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from fredsim.errors import FredsimError, OutputError, option
from fredsim.system.memory import fills_memory

__all__ = [
    "CHUNK_BYTES",
    "LINK",
    "content_digest",
    "digest_of_digests",
    "digests_of_files",
    "files_named",
    "hash_of_prefix",
    "irregular_kind",
    "is_hole",
    "named_as",
    "open_growing",
    "open_regular",
    "open_whole",
    "read_bytes",
    "remove_parts",
    "replacing",
    "scratch_folder",
    "whole_name",
    "write_atomic",
    "write_chunks",
    "write_errors",
]

DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
NO_FILE = {errno.EINVAL, errno.EISDIR}
SCRATCH, OTHER_SCRATCH = "fredsim-scratch-", "let TMPDIR name another folder"
CHUNK_BYTES = 2**24  # bytes that are hashed or written at once
LINK = "a symbolic link, and links in a folder of results are not followed"
#: Flags of os.open that not every system has: not to wait for the other end of a pipe, and not to follow a link.
NO_WAIT, NO_LINK = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
BINARY = getattr(os, "O_BINARY", 0)
#: The name of a file that is being written, `NAME.<16 digits>.part`, or `NAME.part` until fredsim 1.0.
PART = re.compile(r"(.+?)(?:\.[0-9a-f]{16})?\.part", re.DOTALL)


def irregular_kind(path: str | os.PathLike[str], *, follow: bool = True) -> str:
    """Return what a path is instead of a file, such as `a folder`; "" if it is a regular file or does not exist.

    If links are not to be followed, a symbolic link is no regular file, wherever it leads.
    """
    try:
        return _kind(os.stat(path, follow_symlinks=follow).st_mode)
    except (OSError, ValueError):  # a name that no file can have
        return ""


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return ""
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISLNK: LINK}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")


def open_regular(path: str | os.PathLike[str], *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading, without ever waiting.

    Raises OSError, also for anything that is no regular file; unless `follow`, also for a symbolic link.
    """
    return open(_descriptor(path, os.O_RDONLY, follow=follow), "rb")


def open_whole(path: str | os.PathLike[str], *, follow: bool = False) -> BufferedReader:
    """Open a regular file of which everything is to be read, a part at a time, so that it may be larger than memory.

    Raises OSError as `open_regular` does, and for a hole larger than memory: it would take hours to read a petabyte of
    nothing.
    """
    file = open_regular(path, follow=follow)
    found = os.fstat(file.fileno())
    if fills_memory(found.st_size) and is_hole(found):
        file.close()
        raise OSError(errno.EFBIG, f"its {found.st_size:,} bytes are a hole larger than memory", os.fspath(path))
    return file


def is_hole(found: os.stat_result) -> bool:
    """Return whether a file takes next to no room on the disk for its size."""
    return found.st_size > 100 * 512 * getattr(found, "st_blocks", found.st_size)


def read_bytes(path: str | os.PathLike[str], *, follow: bool = False, most: int | None = None) -> bytes:
    """Return the content of a regular file, of at most `most` bytes, or of less than this machine has memory.

    Raises OSError as `open_regular` does.
    """
    with open_regular(path, follow=follow) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {most:,} at most are read", os.fspath(path))
        try:
            if fills_memory(size):  # else the system, which promises more than it has, ends the process
                raise MemoryError
            return file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, f"its {size:,} bytes do not fit into memory", os.fspath(path)) from None


def open_growing(path: str | os.PathLike[str], *, anew: bool, buffering: int = -1) -> IO[bytes]:
    """Open a file of results to write on in it; `anew`: it is made anew, in place of one that is there.

    Raises OSError, also for anything that is no regular file.
    """
    if anew:
        Path(path).unlink(missing_ok=True)
        return open(path, "x+b", buffering=buffering)
    return open(_descriptor(path, os.O_RDWR, follow=False), "r+b", buffering=buffering)


def _descriptor(path: str | os.PathLike[str], flags: int, *, follow: bool) -> int:
    """Return the descriptor of a regular file. Raises OSError for anything else, even if it comes there meanwhile."""
    if kind := irregular_kind(path, follow=follow):  # opening a device may already do something
        raise _no_file(path, kind)
    descriptor = os.open(path, flags | NO_WAIT | BINARY | (0 if follow else NO_LINK))
    if kind := _kind(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path, kind)
    return descriptor


def _no_file(path: str | os.PathLike[str], kind: str) -> OSError:
    return OSError(errno.EINVAL, f"it is {kind}", os.fspath(path))


def content_digest(path: str) -> str | None:
    """Return the SHA-256 of a file's bytes, or None if there is no such file or it cannot be read."""
    try:
        found = os.stat(path)
        return _digest(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except (OSError, ValueError):  # a name that no file can have
        return None


def files_named(value: Any) -> Iterator[str]:
    """Yield the texts in the values of keys that are the names of files."""
    if isinstance(value, str):
        if len(value) < 4096 and os.path.isfile(value):
            yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from files_named(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from files_named(inner)


def digests_of_files(paths: Iterable[str], refused: Callable[[str], FredsimError]) -> dict[str, str]:
    """Return the SHA-256 of files by path. Raises what `refused` makes of one that cannot be read."""
    found = {}
    for path in paths:
        digest = content_digest(path)
        if digest is None:
            raise refused(f"{path}: cannot be read; its class names it in files")
        found[path] = digest
    return found


def digest_of_digests(digests: Mapping[str, str | None]) -> str:
    """Return the SHA-256 of the lines that `sha256sum` prints of files, given the digest of each by its name."""
    return hashlib.sha256("".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode()).hexdigest()


@functools.lru_cache(maxsize=16)
def _digest(path: str, *state: int) -> str:
    del state  # only part of the cache's key, so that a file that has changed is read again
    with open_whole(path, follow=True) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named_as(found: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Return digests of files by the names that `known` has for them.

    A name may be a path below the folder in which a command was given, and the next one may be given elsewhere: a file
    of the same content, with the same name in another folder, is the same.
    """
    left = {name: digest for name, digest in known.items() if found.get(name) != digest}
    named = {}
    for name, digest in found.items():
        ours = os.path.basename(name)
        others = (other for other, its in left.items() if its == digest and os.path.basename(other) == ours)
        name = name if known.get(name) == digest else next(others, name)
        left.pop(name, None)
        named[name] = digest
    return named


def hash_of_prefix(path: Path, size: int) -> hashlib._Hash | None:
    """Return the SHA-256 of a file's first `size` bytes, which can be updated with more; None if it has fewer bytes."""
    found = hashlib.sha256()
    try:
        with open_whole(path) as file:
            while size and (chunk := file.read(min(size, CHUNK_BYTES))):
                found.update(chunk)
                size -= len(chunk)
    except OSError:
        return None
    return None if size else found


@contextmanager
def write_errors(path: Path, otherwise: str = "") -> Iterator[None]:
    """Turn an OSError raised while `path`, or something in it, is written into an OutputError with a remedy.

    `otherwise` is the remedy if the disk is not full; by default, to choose another folder: that of `scratch_folder` by
    the system's variable, as no option names it.
    """
    try:
        yield
    except OSError as error:
        remedy = "make room there and run it again" if error.errno in DISK_FULL else otherwise
        scratch = any(part.startswith(SCRATCH) for part in path.parts)
        remedy = remedy or (OTHER_SCRATCH if scratch else f"choose another folder by {option('out')}")
        if error.filename and error.errno in NO_FILE:  # something else is in the place of a file in a folder
            path = Path(os.fsdecode(error.filename))
        with suppress(OSError, ValueError):  # outside the current folder, or without one
            path = path.relative_to(Path.cwd())  # paths of runs are absolute, as their code may change the folder
        raise OutputError(f"{path}: cannot be written ({error.strerror or error}); {remedy}") from None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for temporary files, which is removed when the block ends. Raises OutputError."""
    import tempfile

    try:
        folder = tempfile.TemporaryDirectory(prefix=SCRATCH)
    except OSError as error:
        where = f"{os.fsdecode(error.filename)}: " * (error.filename is not None)
        raise OutputError(f"{where}no temporary folder can be made ({error.strerror}); {OTHER_SCRATCH}") from None
    with folder as path:
        yield Path(path)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file and rename it into place: even after a kill, the path holds the old or the new content, whole.

    Raises OSError.
    """
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write a file and rename it into place, flush it to the disk, and return its SHA-256. Raises OSError."""
    from concurrent.futures import ThreadPoolExecutor

    digest = hashlib.sha256()
    with replacing(path) as file, ThreadPoolExecutor(1) as pool:
        for chunk in chunks:
            hashed = pool.submit(digest.update, chunk)
            file.write(chunk)
            hashed.result()
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(path.parent)
    return digest.hexdigest()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file beside `path`, which replaces the file, or the symbolic link, at `path` when the block ends.

    Nobody can know its name before, and it must not exist, so nothing else is written into. Raises OSError.
    """
    if kind := irregular_kind(path):
        raise _no_file(path, kind)
    name = os.fsencode(path.name)[:200].decode(errors="ignore")  # file names have at most 255 bytes, of any encoding
    part = path.with_name(f"{name}.{os.urandom(8).hex()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(path)
    except (Exception, KeyboardInterrupt):
        with suppress(OSError):  # the disk may be full
            part.unlink()
        raise


def whole_name(name: str) -> str:
    """Return the name of the file that a file of this name was to become, if a process was killed while writing it."""
    found = PART.fullmatch(name)
    return found[1] if found else name


def remove_parts(folder: Path, names: Collection[str]) -> None:
    """Remove what killed processes left of files of these names that they were writing in a folder. Raises OSError."""
    for path in folder.iterdir():
        if path.name != (whole := whole_name(path.name)) and whole in names and (path.is_symlink() or path.is_file()):
            path.unlink()


def _flush_folder(folder: Path) -> None:
    """Flush a folder's entries, such as a rename, to the disk, if the system can do that for folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
