"""A user's code that ends the process: `os._exit` becomes an exception, and a crash or a kill is told by a watcher.

Both would otherwise end the command without a word, `os._exit(0)` even as if it had succeeded.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

__all__ = ["end_process", "exits_raise", "note_own_code", "watched"]

end_process = os._exit  # what fredsim itself calls

_noting: list[Callable[[str], None]] = []  # what is told of each module of the user's, if the process is watched


@contextmanager
def exits_raise() -> Iterator[None]:
    """Within the `with` block, let `os._exit` raise SystemExit in this process; those that it forks end as ever."""
    before: Any = os._exit
    process = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:
            before(status)
        raise SystemExit(f"os._exit({status}) would have ended the process")

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = before


def note_own_code(module: str) -> None:
    """Note that a module of the user's, `name (file)`, is about to be imported."""
    for note in _noting:
        note(module)


@contextmanager
def watched() -> Iterator[None]:
    """Within the `with` block, once a user's module is imported, let another process tell if this one dies."""
    pipe: list[int] = []

    def note(module: str) -> None:
        if not pipe:
            pipe.append(_watcher())
        shown = "".join(letter if letter.isprintable() else "?" for letter in module)  # it goes to a terminal
        with suppress(OSError):  # somebody has killed the watcher
            os.write(pipe[0], f"{shown}\n".encode())

    if not hasattr(os, "fork") or sys.platform == "darwin":
        yield
        return
    _noting.append(note)
    try:
        yield
    finally:
        _noting.remove(note)
        for end in pipe:
            with suppress(OSError):
                os.write(end, b"\0")
            os.close(end)


def _watcher() -> int:
    """Start a process that tells if this one ends without having written a 0 to the pipe that is returned."""
    its, ours = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # Python's, JAX's: of threads, none of which it needs
        first = os.fork()
    if first:
        os.close(its)
        os.waitpid(first, 0)
        return ours
    try:
        if os.fork() == 0:  # no child of this process, which a user's os.wait() would wait for
            _watch(its)
    finally:
        end_process(0)


def _watch(pipe: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(pipe, 0)
    os.close(1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    heard = b""
    while part := os.read(0, 4096):
        heard += part
    if not heard.endswith(b"\0"):
        modules = ", ".join(dict.fromkeys(heard.decode(errors="replace").splitlines()))
        what = "the process has crashed or was killed, as the system does where memory runs out"
        kept = "what it had finished is kept"
        os.write(2, f"error: {what}; it was running code of yours, {modules}; {kept}\n".encode())
