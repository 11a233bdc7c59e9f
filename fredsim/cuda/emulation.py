"""Emulates a device on the processor: the same sources, compiled by a C++ compiler (sources/emulate.h)."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.cache import Kept
from fredsim.cuda.interface import Loaded, Memory
from fredsim.cuda.kernels import FOLDER, Unit
from fredsim.errors import ConfigError
from fredsim.numerics.arrays import aligned
from fredsim.system import notices

__all__ = ["Emulation", "compiler"]

#: No flag names an architecture, so that none can bring instructions that fuse a product with a sum.
FLAGS = (
    "-std=c++17", "-O2", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-U_FORTIFY_SOURCE", "-fPIC",
    "-shared", "-w", "-DEMULATED", "-x", "c++",
)  # fmt: skip
REMEDY = "install g++ or clang++, or name a C++ compiler by CXX"


@functools.cache
def compiler() -> str | None:
    """Return the path of a C++ compiler: CXX, else g++, clang++ or c++; None if there is none."""
    return next(filter(None, map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")))), None)


class HostMemory:
    """Memory of this process, full of NaNs at first."""

    def __init__(self, size: int) -> None:
        self.shadow = aligned(size, dtype=np.uint8)
        self.shadow[...] = 0xFF
        self.address = int(self.shadow.__array_interface__["data"][0])


class Emulation:
    """A machine whose memory is this process's, and whose kernels run in `launch` itself; see Machine."""

    name = "emulated"
    flags: tuple[str, ...] = FLAGS

    def __init__(self) -> None:
        path = compiler()
        if path is None:
            raise ConfigError(f"FREDSIM_EMULATE is 1, but there is no C++ compiler: {REMEDY}")
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        self._compiler, self._kept = path, Kept("emulated", [path, said, *self.flags, _emulate()])
        self._loaded: dict[Unit, dict[str, Loaded]] = {}
        self._libraries: list[ctypes.CDLL] = []

    def use(self) -> None:
        """Do nothing: launches are calls."""

    def load(self, unit: Unit) -> dict[str, Loaded]:
        """Compile a unit, or take it from the cache, and load it."""
        if unit not in self._loaded:
            path = self._kept.file(unit.text, ".so", functools.partial(self._compile, unit))
            library = ctypes.CDLL(str(path))
            self._libraries.append(library)
            launcher = _address(library.emulated_launch)
            library.emulated_size.restype = ctypes.c_int64
            loaded = {}
            for name, kernel in unit.kernels.items():
                handle = ctypes.addressof(ctypes.c_char.in_dll(library, name))
                size = library.emulated_size(ctypes.c_void_p(handle))
                assert size == kernel.arguments.itemsize, f"{name}: its structure has {size} bytes"
                loaded[name] = Loaded(name, kernel.arguments, kernel.threads, kernel.shared, launcher, handle)
            self._loaded[unit] = loaded
        return self._loaded[unit]

    def _compile(self, unit: Unit) -> bytes:
        """Return a unit as a shared library. Raises ConfigError with what the compiler says."""
        notices.compiling()
        with tempfile.TemporaryDirectory(prefix="fredsim-") as folder:
            source, library = Path(folder, "unit.cpp"), Path(folder, "unit.so")
            source.write_text(unit.text.replace('#include "emulate.h"', _emulate()), encoding="utf-8")
            words = [self._compiler, *self.flags, str(source), "-o", str(library)]
            found = subprocess.run(words, capture_output=True, text=True, check=False)
            if found.returncode:
                said = next((line for line in found.stderr.splitlines() if "error" in line), found.stderr.strip())
                raise ConfigError(f"{self._compiler} does not compile the kernels of {unit.purpose}: {said}; {REMEDY}")
            return library.read_bytes()

    def streams(self, count: int) -> list[int]:
        """Return so many streams, which are none: launches are calls."""
        return [0] * count

    def allocate(self, size: int) -> Memory:
        """Return memory of this process."""
        return HostMemory(size)

    def room(self) -> int:
        """Return more bytes than anything takes."""
        return 2**60

    def taken(self) -> float:
        """Return 0."""
        return 0.0

    def allocate_on_host(self, size: int) -> Memory:
        """Return memory of this process."""
        return HostMemory(size)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy between two addresses."""
        ctypes.memmove(target, source, size)

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy an array to an address."""
        ctypes.memmove(address, values.__array_interface__["data"][0], values.nbytes)

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Copy from an address to an array."""
        ctypes.memmove(values.__array_interface__["data"][0], address, values.nbytes)


@functools.cache
def _emulate() -> str:
    return (FOLDER / "emulate.h").read_text(encoding="utf-8")


def _address(function: Any) -> int:
    """Return the address of a library's function."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
