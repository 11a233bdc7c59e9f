"""An emulated device on which every access of a kernel is checked; see checker.cpp for what is found."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda import emulation, machines
from fredsim.cuda.cache import Kept
from fredsim.cuda.interface import Memory
from fredsim.errors import DeviceMemoryError

__all__ = ["CheckedEmulation", "Finding", "as_the_machine", "unavailable"]

CHECKER, HOOKS = (Path(__file__).with_name(name) for name in ("checker.cpp", "hooks.h"))
HOOKS_TEXT = HOOKS.read_text(encoding="utf-8")
#: -fsanitize=thread makes calls of accesses; without default libraries, those are not the sanitizer's own functions.
FLAGS = (
    "-O1", "-fsanitize=thread", "-nodefaultlibs", "-include", str(HOOKS),
    f"-DHOOKS={hashlib.sha256(HOOKS_TEXT.encode()).hexdigest()[:16]}",  # what is compiled with others is another
)  # fmt: skip


class Finding(NamedTuple):
    """A fault of a kernel, and the first accesses that showed it."""

    kernel: str
    fault: str
    example: str


class CheckedMemory:
    """Memory that the checker knows."""

    def __init__(self, checker: ctypes.PyDLL, size: int) -> None:
        address = checker.checker_allocate(size)
        if not address:
            raise DeviceMemoryError(f"the checker has no room for {size:,} bytes more")
        self.address = int(address)
        self.shadow = np.ctypeslib.as_array((ctypes.c_uint8 * max(size, 1)).from_address(address))[:size]
        weakref.finalize(self, checker.checker_free, address, size)


class CheckedEmulation(emulation.Emulation):
    """An emulated device whose kernels are checked, and whose streams are in order with each other only if they must.

    Raises ConfigError if a kernel cannot be compiled.
    """

    flags = (*emulation.FLAGS, *FLAGS)

    def __init__(self) -> None:
        super().__init__()
        self._checker = _checker(self._compiler)

    def streams(self, count: int) -> list[int]:
        """Return so many streams, which are numbers: launches are calls, but the checker takes them for unordered."""
        return list(range(1, count + 1))

    def allocate(self, size: int) -> Memory:
        """Return memory of this process."""
        return CheckedMemory(self._checker, size)

    def allocate_on_host(self, size: int) -> Memory:
        """Return memory of this process."""
        return CheckedMemory(self._checker, size)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy between two addresses."""
        self._checker.checker_wait()
        super().copy(source, target, size)

    def upload(self, values: NDArray[Any], address: int) -> None:
        """Copy an array to an address."""
        self._checker.checker_wait()
        super().upload(values, address)

    def download(self, address: int, values: NDArray[Any]) -> None:
        """Copy from an address to an array."""
        self._checker.checker_wait()
        super().download(address, values)

    def ran(self) -> set[str]:
        """Return the names of the kernels that have run since `forget`."""
        return set(self._checker.checker_ran().decode().split())

    def found(self) -> list[Finding]:
        """Return what was found since `forget`, of each kernel and fault one example."""
        return [Finding(*line.split("\t")) for line in self._checker.checker_found().decode().splitlines()]

    def forget(self) -> None:
        """Forget what ran and what was found."""
        self._checker.checker_forget()


def unavailable() -> str | None:
    """Return why kernels cannot be checked here; None if they can."""
    compiler = emulation.compiler()
    if compiler is None:
        return "there is no C++ compiler"
    words = [compiler, *CheckedEmulation.flags, "-fsyntax-only", os.devnull]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    return f"{compiler} cannot compile what is checked: {said.stderr.strip()}" if said.returncode else None


@contextmanager
def as_the_machine() -> Iterator[CheckedEmulation]:
    """Let fredsim compute on a checked device within a `with` block."""
    with patch.object(emulation, "Emulation", CheckedEmulation):
        machines.machine.cache_clear()
        try:
            machine = machines.machine()
            assert isinstance(machine, CheckedEmulation)
            yield machine
        finally:
            machines.machine.cache_clear()


@functools.cache
def _checker(compiler: str) -> ctypes.PyDLL:
    """Return the checker, compiled if it is not in the cache; kernels that are loaded later find its functions."""
    flags = ("-std=c++17", "-O2", "-fPIC", "-shared")

    def compiled() -> bytes:
        with tempfile.TemporaryDirectory(prefix="fredsim-") as folder:
            library = Path(folder, "checker.so")
            subprocess.run([compiler, *flags, str(CHECKER), "-o", str(library), "-ldl"], check=True)
            return library.read_bytes()

    text = CHECKER.read_text(encoding="utf-8") + HOOKS_TEXT
    path = Kept("checker", [compiler, *flags]).file(text, ".so", compiled)
    checker = ctypes.PyDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # with Python's lock: it has none for its memory
    checker.checker_allocate.restype = ctypes.c_void_p
    checker.checker_allocate.argtypes = [ctypes.c_uint64]
    checker.checker_free.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
    checker.checker_found.restype = checker.checker_ran.restype = ctypes.c_char_p
    return checker
