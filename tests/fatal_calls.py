"""Kills a process by SIGKILL at the n-th system call that changes a folder: before, after or in the middle of the call.

Only for forked processes, since `os` and `open` stay patched.
"""

from __future__ import annotations

import builtins
import io
import mmap
import os
import random
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["FatalCalls", "SharedState"]

#: Calls that take a path first, or a descriptor.
CALLS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate", "fsync", "write")


class SharedState:
    """Memory shared by a process and its children: how far a run has come, and its current system call."""

    SHAPE = struct.Struct("=qq120p")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SHAPE.size)
        self.clear()

    def clear(self) -> None:
        self.iteration, self.begun, self.call = -1, -1, ""
        self.put()

    def put(self) -> None:
        """Write the attributes to the shared memory."""
        self._memory[:] = self.SHAPE.pack(self.iteration, self.begun, self.call.encode()[:119])

    def get(self) -> None:
        """Read the attributes that the other process has put."""
        self.iteration, self.begun, call = self.SHAPE.unpack(self._memory[:])
        self.call = call.decode(errors="replace")


class FatalCalls:
    """Records each call that changes something below a folder; after `left` more calls, if it is ≥ 0, one is fatal."""

    def __init__(self, folder: Path, shared: SharedState, rng: random.Random) -> None:
        """Patch `os` and `open` permanently."""
        self._below, self._shared, self._rng = f"{folder}{os.sep}", shared, rng
        self.left = -1  # the number of calls before the fatal one; −1: none is fatal
        for name in CALLS:
            setattr(os, name, self._noted(name, getattr(os, name)))
        self._open = io.open
        io.open = builtins.open = self.open

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(what: Any, *rest: Any, **options: Any) -> Any:
            path = f"/proc/self/fd/{what}" if isinstance(what, int) else os.fspath(what)
            path = os.readlink(path) if isinstance(what, int) and os.path.lexists(path) else str(path)
            if not path.startswith(self._below):
                return call(what, *rest, **options)
            return self.perform(f"{name} {path.removeprefix(self._below)}", lambda: call(what, *rest, **options))

        return noted

    def open(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        """Open a file; below the folder, opening a file for writing and every write to it are recorded."""
        path = os.fspath(file) if not isinstance(file, int) else ""
        if not str(path).startswith(self._below) or not set(mode) & set("wxa+"):
            return self._open(file, mode, *rest, **options)
        name = str(path).removeprefix(self._below)
        opened = self.perform(f"open {name}", lambda: self._open(file, mode, *rest, **options))
        return WatchedFile(opened, name, self)

    def perform(self, what: str, call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Do a call, or, if it is the fatal one, do all, none or half of it (`half`) and kill the process."""
        self._shared.call = what
        self._shared.put()
        if self.left == 0:
            first: Callable[[], Any] = self._rng.choice([lambda: None, call, half or call])
            first()
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= self.left > 0
        result = call()
        self._shared.call = ""
        self._shared.put()
        return result


class WatchedFile:
    """A file whose writes are recorded."""

    def __init__(self, file: Any, name: str, calls: FatalCalls) -> None:
        self._file, self._name, self._calls = file, name, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> WatchedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        """Write to the file; if the call is fatal, perhaps only a third of the content."""

        def half() -> None:
            self._file.write(content[: len(content) // 3])
            self._file.flush()

        def whole() -> int:
            written: int = self._file.write(content)
            return written

        return int(self._calls.perform(f"write {self._name}", whole, half))

    def truncate(self, size: int) -> Any:
        """Cut the file."""
        return self._calls.perform(f"truncate {self._name}", lambda: self._file.truncate(size))
