"""What kernels ask of the processor and the operating system: a pause, a counter, giving way to other threads."""

from __future__ import annotations

import ctypes
import platform
import sys

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from fredsim.jit.pointers import INT64, lowered

__all__ = ["give_way", "pause", "ticks"]

X86 = platform.machine() in {"x86_64", "AMD64"}
ARM = platform.machine() in {"aarch64", "arm64", "ARM64"}
YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"

if sys.platform == "win32":  # of a library that compiled code does not look into by itself
    binding.add_symbol(YIELD, ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value)


def _call(builder, name, result):
    """Emit a call of a C or LLVM function without arguments."""
    return builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, []), name), [])


def _assembly(builder, text, result, place=""):
    """Emit an instruction."""
    return builder.asm(ir.FunctionType(result, []), text, place, [], side_effect=True)


def _emit_pause(builder):
    if X86:
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif ARM:  # `yield` is over at once; a barrier for instructions takes some tens of nanoseconds, as x86's pause does
        _assembly(builder, "isb", ir.VoidType())


def _emit_ticks(builder):
    if X86:
        return _call(builder, "llvm.readcyclecounter", INT64)
    if ARM:  # LLVM's cycle counter may be one that programs must not read
        return _assembly(builder, "mrs $0, cntvct_el0", INT64, "=r")
    return INT64(0)


@intrinsic
def give_way(typingctx):
    """Let another thread run, where one waits for this processor."""
    return lowered(types.none(), lambda builder: _call(builder, YIELD, ir.IntType(32)))


@intrinsic
def pause(typingctx):
    """Wait for some tens of nanoseconds, as one does in a loop that waits for another thread."""
    return lowered(types.none(), _emit_pause)


@intrinsic
def ticks(typingctx):
    """Return a counter that rises at a steady pace: cycles on x86, ticks of the system's timer on arm64, else 0."""
    return lowered(types.int64(), _emit_ticks)
