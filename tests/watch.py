"""What a command does outside its folder, heard through Python's audit events."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

__all__ = ["Watch"]

#: Events of files: which of their arguments are paths that change.
CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
}  # fmt: skip
#: What no data may lead to.
NEVER = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "socket.getaddrinfo", "os.startfile"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Where others keep what they need: caches of fonts and kernels.
CACHES = ("/dev/null", "/proc", "__pycache__", "matplotlib", "fontlist", "numba", "fredsim/kernels")


class Watch:
    """Keeps, in a `with` statement, what was done in this process that data must not lead to.

    Temporary files belong into a folder of its own below `base`, and must be gone in the end.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.seen: set[str] = set()
        self._on = False
        self._temporary = base / "temporary"
        self._temporary.mkdir(parents=True, exist_ok=True)
        sys.addaudithook(self._hear)

    def __enter__(self) -> Self:
        self.seen.clear()
        self._before, tempfile.tempdir = tempfile.tempdir, str(self._temporary)
        self._modules, self._on = set(sys.modules), True
        return self

    def __exit__(self, *error: object) -> None:
        self._on, tempfile.tempdir = False, self._before
        self.seen |= {f"left {path}" for path in self._temporary.iterdir()}
        for name in set(sys.modules) - self._modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(self.base):
                self.seen.add(f"imported {file}")

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in NEVER:
            self.seen.add(f"{event} {given[:2]}")
        elif event == "open" and isinstance(given[2], int) and given[2] & WRITES:
            self._path(event, given[0])
        elif event in CHANGES:
            for place in CHANGES[event]:
                self._path(event, given[place])

    def _path(self, event: str, given: Any) -> None:
        if isinstance(given, int) or given is None:
            return
        path = os.path.realpath(os.fsdecode(given))
        if not path.startswith(str(self.base)) and not any(cache in path for cache in CACHES):
            self.seen.add(f"{event} {path}")
