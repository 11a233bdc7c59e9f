"""Compiles functions to C functions, and stores them in a cache on disk that many processes may share.

numba's own `cache=True` checks only the file of the function itself, so a change in another module that a kernel is
built from would go unnoticed. It also numbers its data files, so two processes that compile different signatures at
once can mix them up, and it loads whatever a file holds. Here, the cache's version is one digest of the sources of all
kernels, a file is named after its key, and it begins with a checksum.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import sys
import tempfile
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import ModuleType

import numba
import platformdirs
from numba import types
from numba.core import caching, serialize
from numba.core.ccallback import CFunc
from numba.core.runtime.nrt import rtsys

from fredsim.jit.subroutine import operators_found_once
from fredsim.plugins.private_files import why_not_private
from fredsim.system import notices
from fredsim.system.frames import in_one_piece
from fredsim.system.given import at_home
from fredsim.system.memory import uncollected

__all__ = ["Compiled", "cache_folder", "checksum", "is_private", "make_module", "write_private"]


def cache_folder() -> Path:
    """Return the folder for compiled kernels: FREDSIM_CACHE, else the user's cache folder."""
    return at_home(os.environ.get("FREDSIM_CACHE") or platformdirs.user_cache_dir("fredsim"))


def _digest_of_sources(package: Path) -> str:
    """Return a digest of everything that kernels are compiled from, names of modules too, and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for folder in ("jit", "kernels", "numerics"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(package).as_posix()}\n".encode())  # pickles name their modules
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


SOURCES = _digest_of_sources(Path(__file__).parent.parent)
CHECKSUM_BYTES = hashlib.sha256().digest_size


class _Locator:
    """Tells numba which folder to use, and what identifies the source: the digest of the sources of all kernels."""

    def __init__(self, disambiguator):
        self._disambiguator = disambiguator
        self._path = cache_folder() / f"kernels-{SOURCES}"

    def ensure_cache_path(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.mkdir(mode=0o700, exist_ok=True)

    def get_cache_path(self):
        return str(self._path)

    def get_source_stamp(self):
        return SOURCES

    def get_disambiguator(self):
        return self._disambiguator


class _Impl(caching.CompileResultCacheImpl):
    """numba's storage of compiled code, with our locator."""

    def __init__(self, function):
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(hashlib.sha256(function.__module__.encode()).hexdigest()[:10])
        self._filename_base = self.get_filename_base(function.__qualname__, getattr(sys, "abiflags", ""))


class _Files:
    """The cached files, one for each key, named after the key's digest; each begins with a checksum.

    What is read is unpickled and holds machine code, so the checksum is compared first, and nobody else may have been
    able to write the file. A file that is damaged counts as missing: what it held is compiled again.
    """

    def __init__(self, folder, base):
        self._folder, self._base = Path(folder), base

    def load(self, key):
        """Return what was saved under a key, None if there is nothing that can be used."""
        path = self._path(key)
        if not path.is_file() or not (is_private(self._folder) and is_private(path)):
            return None
        content = path.read_bytes()
        found, data = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        return pickle.loads(data) if found == checksum(path.name, data) else None

    def save(self, key, data):
        """Save something under a key: the file is there as a whole, or not at all."""
        path, content = self._path(key), serialize.dumps(data)
        if not is_private(self._folder):
            return
        write_private(path, checksum(path.name, content) + content)

    def _path(self, key):
        return self._folder / f"{self._base}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.kernel"


def checksum(name: str, data: bytes) -> bytes:
    """Return the SHA-256 of a file's name and content."""
    return hashlib.sha256(name.encode() + b"\n" + data).digest()


def write_private(path: Path, data: bytes) -> None:
    """Write a file, for this user alone: it is there as a whole, or not at all."""
    handle, part = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


@functools.cache
def is_private(path):
    """Return whether nobody but this user, or root, can have written a file or folder; say so once if not."""
    if not (what := why_not_private(path)):
        return True
    remedy = "delete it, or name a folder of your own by FREDSIM_CACHE"
    notices.note(f"compiled kernels are neither read nor kept: {path} {what}; {remedy}")
    return False


class KernelCache(caching.Cache):
    """numba's cache with our locator and our data files."""

    _impl_class = _Impl

    def __init__(self, function):
        super().__init__(function)
        impl = self._impl
        self._cache_file = _Files(self._cache_path, impl.filename_base)

    def load_overload(self, sig, target_context):
        """Return code from the cache; if there is none, announce that compilation begins, and return None."""
        found = None
        # numba's own method first imports all that it compiles with, and SciPy, if it is there, which takes half a
        # second. Code that is loaded needs none of it, but the functions of numba's runtime.
        rtsys.initialize(target_context)
        with suppress(OSError):
            found = self._load_overload(sig, target_context)
        if found is None:
            notices.compiling()
        return found

    def save_overload(self, sig, data):
        """Store compiled code, unless the folder cannot be written: then every process compiles for itself."""
        with suppress(OSError):
            super().save_overload(sig, data)


class Compiled:
    """A function from 64-bit integers to one 64-bit integer, compiled to a plain C function when it is first used.

    A call from Python takes a microsecond and releases the GIL. Kernels call it by its `address`.
    """

    def __init__(self, function):
        self._function = function

    @cached_property
    def _callback(self):
        count = self._function.__code__.co_argcount
        options = {"error_model": "numpy"}  # as C divides; never fastmath
        callback = CFunc(self._function, ((types.int64,) * count, types.int64), {}, options)
        with suppress(OSError):  # if no folder can be written, every process compiles for itself
            setattr(callback, "_cache", KernelCache(self._function))  # noqa: B010  numba's types do not have it
        with uncollected(), operators_found_once():  # searching for garbage takes a tenth of the time
            in_one_piece(callback.compile)()
        return callback

    @property
    def address(self):
        """The address of the machine code."""
        return self._callback.address

    @cached_property
    def call(self):
        """The C function as a callable for Python."""
        return self._callback.ctypes


def make_module(source: str, purpose: str) -> ModuleType:
    """Return a module made from a generated source text; `purpose` describes it. Its name has the text's digest.

    So equal texts give one module, and its kernels are found in the cache.
    """
    name = f"fredsim.kernels.generated_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    module = sys.modules.get(name)
    if module is None:
        module = ModuleType(name, f"Generated by fredsim: {purpose}.")
        sys.modules[name] = module
        exec(compile(source, f"<fredsim: {purpose}>", "exec"), module.__dict__)
    return module
