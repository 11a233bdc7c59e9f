"""What surrounds a command: its folder, streams, limits and environment variables, and one line about what is wrong."""

from __future__ import annotations

import codecs
import errno
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO

from fredsim.errors import ConfigError, OutputError, one_line

__all__ = [
    "LenientStream",
    "check_surroundings",
    "file_room",
    "kept",
    "shut_output",
    "take_any_letter",
    "without_threads",
    "wrong_surroundings",
]

LEAST_ADDRESSES = 10**9  # bytes of address space: with less, the libraries that are imported fail in many ways
#: What writing to a stream fails with: a pipe, a file, a device, a socket, or none.
OF_STREAMS = {
    errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET, errno.ESTALE,
    getattr(errno, "EDQUOT", errno.ENOSPC),
}  # fmt: skip
BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # read when NumPy is imported
OUT_OF_MEMORY = "out of memory; end other programs, or raise the limit (ulimit -v)"
NO_PROCESS = "no further {} can be started; end other programs, or raise the limit (ulimit -u, ulimit -v)"
FILES_OF_A_RUN = 24  # the files that this process has open at most while it writes tables and starts processes


@contextmanager
def without_threads() -> Iterator[None]:
    """Let NumPy, if it is imported in a `with` block, start no threads: each spins for a tenth of a second.

    For a command that computes nothing.
    """
    if BLAS_THREADS in os.environ:
        yield
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[BLAS_THREADS]


class LenientStream:
    """A stream that ignores what cannot be written, so that progress which nobody can read stops no run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text, if that is possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is left, if that is possible."""
        with suppress(OSError):
            self._stream.flush()


def take_any_letter(stream: object) -> None:
    """Let a stream write letters that its encoding does not have, such as λ in Latin-1: as escapes, as stderr does.

    An output of ASCII is written as UTF-8, since ASCII mostly means that no locale is set.
    """
    if isinstance(stream, TextIOWrapper) and (name := codecs.lookup(stream.encoding).name) != "utf-8":
        stream.reconfigure(encoding="utf-8" if name == "ascii" else name, errors="backslashreplace")


def check_surroundings() -> None:
    """Raise ConfigError if fredsim cannot work here; let figures depend on no user interface of matplotlib's."""
    os.environ["MPLBACKEND"] = "agg"  # also in other processes
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)  # about a folder for its caches, or a matplotlibrc
    try:
        os.getcwd()
    except OSError:
        raise ConfigError("the current folder was removed; change into another one (cd)") from None
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not threads.isdecimal() or int(threads) < 1:
        what = f"NUMBA_NUM_THREADS is '{threads}'; it must be a whole number of 1 or more"
        raise ConfigError(f"{what}: unset it, and give the experiment `threads`")
    if sys.platform != "win32":
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if 0 <= most < LEAST_ADDRESSES:
            what = f"this process may use {most / 1e6:,.0f} MB of address space (ulimit -v)"
            raise ConfigError(f"{what}; give it {LEAST_ADDRESSES / 1e6:,.0f} MB at least")


def file_room() -> int | None:
    """Return how many more files this process may open than a run needs; None if that is not limited, or not known."""
    if sys.platform == "win32":
        return None
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        now = len(os.listdir("/dev/fd"))
    except OSError:
        return None
    return None if most == resource.RLIM_INFINITY else max(0, most - now - FILES_OF_A_RUN)


def wrong_surroundings(error: BaseException) -> str | None:
    """Return one line about an error that comes from the surroundings; None for any other."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, ImportError):
        mapped = any(part in str(error).lower() for part in ("failed to map", "cannot allocate memory"))
        return f"out of memory ({one_line(error)}); raise the limit (ulimit -v)" if mapped else None
    if isinstance(error, RuntimeError):
        return NO_PROCESS.format("thread") if "start new thread" in str(error) else None
    if not isinstance(error, OSError):
        return None
    why = error.strerror or one_line(error)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return f"{why}; raise the limit (ulimit -n)"
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {why}"
    if error.errno in OF_STREAMS or hasattr(error, "characters_written"):  # a stream that others read, and has no room
        return f"the output cannot be written ({why}); send it elsewhere"
    if error.errno == errno.EAGAIN:
        return NO_PROCESS.format("process")
    if error.errno == errno.ENOMEM:
        return OUT_OF_MEMORY
    return why


@contextmanager
def kept(folder: object) -> Iterator[None]:
    """Let an error of the surroundings within a `with` block say that the results in a folder are kept."""
    try:
        yield
    except BrokenPipeError:  # of a reader that has read enough
        raise
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        if (what := wrong_surroundings(error)) is None:
            raise
        raise OutputError(f"{what}; {folder} holds the results of the runs") from None


def shut_output() -> None:
    """Drop what is left to be written to stdout, where it cannot be written."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
