"""Watches what a command does outside its folder, through Python's audit events."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

__all__ = ["Watch"]

#: Audit events that change files: the positions of the arguments that are paths.
CHANGES = {
    "os.remove": (0,), "os.rename": (0, 1), "os.mkdir": (0,), "os.rmdir": (0,), "os.truncate": (0,), "os.link": (1,),
    "os.symlink": (1,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
}  # fmt: skip
#: Audit events that no input may cause.
NEVER = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "socket.getaddrinfo", "os.startfile"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Parts of paths where libraries may write: caches of fonts and kernels.
CACHES = ("/dev/null", "/proc", "__pycache__", "matplotlib", "fontlist", "numba", "fredsim/kernels")


class Watch:
    """Records, in a `with` statement, what this process does that no input may cause.

    Temporary files go to a folder below `base`, and must be removed by the end.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.seen: set[str] = set()
        self._on = False
        self._temporary = base / "temporary"
        self._temporary.mkdir(parents=True, exist_ok=True)
        sys.addaudithook(self._on_event)

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

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in NEVER:
            self.seen.add(f"{event} {arguments[:2]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            self._path(event, arguments[0])
        elif event in CHANGES:
            for place in CHANGES[event]:
                self._path(event, arguments[place])

    def _path(self, event: str, arguments: Any) -> None:
        if isinstance(arguments, int) or arguments is None:
            return
        path = os.path.realpath(os.fsdecode(arguments))
        if not path.startswith(str(self.base)) and not any(cache in path for cache in CACHES):
            self.seen.add(f"{event} {path}")
