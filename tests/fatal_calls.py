"""System calls that end their process by SIGKILL: at the n-th one that changes a folder, before, after or amid it.

For forked processes alone: what is patched here stays so.
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

__all__ = ["FatalCalls", "Scene"]

#: Calls that take a path first, or a descriptor.
CALLS = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate", "fsync", "write")


class Scene:
    """Memory that a process and its children share: how far a run is, and the call that it is in."""

    SHAPE = struct.Struct("=qq120p")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SHAPE.size)
        self.clear()

    def clear(self) -> None:
        self.iteration, self.begun, self.call = -1, -1, ""
        self.put()

    def put(self) -> None:
        """Let the other process see the attributes."""
        self._memory[:] = self.SHAPE.pack(self.iteration, self.begun, self.call.encode()[:119])

    def get(self) -> None:
        """See what the other process has put."""
        self.iteration, self.begun, call = self.SHAPE.unpack(self._memory[:])
        self.call = call.decode(errors="replace")


class FatalCalls:
    """Notes each call that changes something below a folder; once `armed`, the n-th kills the process."""

    def __init__(self, folder: Path, scene: Scene, rng: random.Random) -> None:
        """Patch `os` and `open` for good."""
        self._below, self._scene, self._rng = f"{folder}{os.sep}", scene, rng
        self.left = -1  # calls until the fatal one; −1: none is
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
            return self.happens(f"{name} {path.removeprefix(self._below)}", lambda: call(what, *rest, **options))

        return noted

    def open(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        """Open a file; one below the folder that is written is noted, and so is what is written into it."""
        path = os.fspath(file) if not isinstance(file, int) else ""
        if not str(path).startswith(self._below) or not set(mode) & set("wxa+"):
            return self._open(file, mode, *rest, **options)
        name = str(path).removeprefix(self._below)
        opened = self.happens(f"open {name}", lambda: self._open(file, mode, *rest, **options))
        return Written(opened, name, self)

    def happens(self, what: str, call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        """Do a call, whose first part `half` does; or end there."""
        self._scene.call = what
        self._scene.put()
        if self.left == 0:
            first: Callable[[], Any] = self._rng.choice([lambda: None, call, half or call])
            first()
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= self.left > 0
        result = call()
        self._scene.call = ""
        self._scene.put()
        return result


class Written:
    """A file that is written."""

    def __init__(self, file: Any, name: str, calls: FatalCalls) -> None:
        self._file, self._name, self._calls = file, name, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        """Write, or write some of it and end."""

        def half() -> None:
            self._file.write(content[: len(content) // 3])
            self._file.flush()

        def whole() -> int:
            written: int = self._file.write(content)
            return written

        return int(self._calls.happens(f"write {self._name}", whole, half))

    def truncate(self, size: int) -> Any:
        """Cut the file."""
        return self._calls.happens(f"truncate {self._name}", lambda: self._file.truncate(size))
