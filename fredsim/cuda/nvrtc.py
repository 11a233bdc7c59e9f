"""Compiles kernels by NVRTC, NVIDIA's compiler at run time, through cuda-bindings; it needs no device and no driver.

No option fuses a product with a sum: -fmad=false is given for every architecture, and what NVRTC writes are
instructions rounded one by one (mul.rn, add.rn), which no later step may fuse.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from cuda.bindings import nvrtc

from fredsim.cuda.kernels import Unit
from fredsim.errors import SimulationError

__all__ = ["OPTIONS", "Machine", "architectures", "compile_unit", "version"]

OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-default-device")


class Machine(NamedTuple):
    """What a unit compiles to: machine code for one architecture, and the intermediate text that it was made from."""

    cubin: bytes
    ptx: bytes


@functools.cache
def version() -> str:
    """Return NVRTC's version."""
    major, minor = _checked(nvrtc.nvrtcVersion())
    return f"{major}.{minor}"


@functools.cache
def architectures() -> tuple[int, ...]:
    """Return the architectures that NVRTC knows, such as 90, in ascending order."""
    (found,) = _checked(nvrtc.nvrtcGetSupportedArchs())
    return tuple(sorted(int(one) for one in found))


def compile_unit(unit: Unit, architecture: int) -> Machine:
    """Return a unit compiled for an architecture, such as 90. Raises SimulationError with what NVRTC says."""
    (program,) = _checked(nvrtc.nvrtcCreateProgram(unit.text.encode(), f"{unit.purpose}.cu".encode(), 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture=sm_{architecture}", *OPTIONS)]
        (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
            first = next((line for line in log.splitlines() if "error" in line), log.strip())
            raise SimulationError(f"NVRTC {version()} does not compile the kernels of {unit.purpose}: {first}")
        cubin = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        return Machine(cubin, _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(program: Any, size_of: Any, get: Any) -> bytes:
    (size,) = _checked(size_of(program))
    text = bytearray(size)
    _checked(get(program, text))
    return bytes(text)


def _checked(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a function of NVRTC returns behind its code. Raises SimulationError if the code is an error."""
    code, *values = found
    if code != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise SimulationError(f"NVRTC fails: {code.name}")
    return tuple(values)
