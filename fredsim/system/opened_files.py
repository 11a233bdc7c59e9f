"""Finds out which files are read while a user's function is called, such as a model's pretrained weights.

Python reports each file that it opens itself to an audit hook. Libraries that open files in other languages do not: of
these, `safetensors.safe_open` and `torch.jit.load` are reported by wrapping them.
"""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

__all__ = ["files_opened"]

#: The files that are read in this thread, while somebody wants to know; by full path.
_opened: ContextVar[dict[str, None] | None] = ContextVar("opened", default=None)
#: Functions that open the file that is their first argument without an audit event: module and name.
UNREPORTED = (("safetensors", "safe_open"), ("torch.jit", "load"))
CODE = (".py", ".pyc", ".pyi", ".so", ".pyd")
#: The folders of Python, of installed packages, and of the operating system.
LIBRARIES = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib"))
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr/share", *LIBRARIES)


@contextmanager
def files_opened() -> Iterator[dict[str, None]]:
    """Within a `with` block, collect the full paths of the files that this thread opens to read.

    After it those remain that are regular files, neither code nor of Python, an installed package or the system.
    """
    _listen()
    found: dict[str, None] = {}
    token = _opened.set(found)
    try:
        with _unreported_wrapped():
            yield found
    finally:
        _opened.reset(token)
        for path in [path for path in found if not _is_data(path)]:
            del found[path]


@functools.cache  # an audit hook cannot be removed
def _listen() -> None:
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened.get() is not None:
        path, _, flags = arguments
        if isinstance(path, str | bytes | os.PathLike) and flags & (os.O_WRONLY | os.O_RDWR) == os.O_RDONLY:
            _note(path)


def _note(path: Any) -> None:
    found = _opened.get()
    if found is not None:
        found[os.path.abspath(os.fsdecode(path))] = None


def _is_data(path: str) -> bool:
    folders = {Path(path), Path(os.path.realpath(path))}
    ours = any(folder.is_relative_to(one) for folder in folders for one in SYSTEM)
    return not ours and not path.endswith(CODE) and os.path.isfile(path)


@contextmanager
def _unreported_wrapped() -> Iterator[None]:
    """Wrap UNREPORTED wherever a module has one of them under its own name."""
    wrapped = []
    for module_name, name in UNREPORTED:
        if (home := sys.modules.get(module_name)) is None:
            continue
        original = getattr(home, name)
        noting = _noting(original)
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is original:
                wrapped.append((module, name, original))
                setattr(module, name, noting)
    try:
        yield
    finally:
        for module, name, original in wrapped:
            setattr(module, name, original)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, and notes the file that is its first argument."""

    def noting(*arguments: Any, **named: Any) -> Any:
        file = next(iter([*arguments, *named.values()]), None)
        if isinstance(file, str | bytes | os.PathLike):
            _note(file)
        return original(*arguments, **named)

    return noting
