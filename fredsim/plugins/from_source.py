"""Imports a user's modules from their source, not from the bytecode that Python has kept of it.

Python takes bytecode for that of a file if the file has the same length and, in whole seconds, the same time of its
last change. So a file that was changed within a second, or copied with its time, could run as it was before, while the
record has the SHA-256 of what it is now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

from fredsim.plugins.state.fingerprints import is_installed

__all__ = ["from_source"]


class _Loader(SourceFileLoader):
    """Compiles the source, and neither reads nor writes bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder:
    """Finds what others find, and gives modules that are not of an installed package this loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = [other for other in sys.meta_path if not isinstance(other, _Finder) and hasattr(other, "find_spec")]
        found = next(filter(None, (other.find_spec(name, path, target) for other in others)), None)
        if found is None or type(found.loader) is not SourceFileLoader or name.partition(".")[0] == "fredsim":
            return found
        if found.origin and not is_installed(found.origin):
            found.loader = _Loader(name, found.origin)
        return found


@contextmanager
def from_source() -> Iterator[None]:
    """Within the `with` block, import modules of the user's from their source."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
