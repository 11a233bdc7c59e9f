"""What kernels need from the processor and the system: a pause, a clock, yielding to threads, and whole unrolling."""

from __future__ import annotations

import ctypes
import platform
import sys
import time

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from fredsim.jit.pointers import INT64, lowered

__all__ = ["WIDE", "pause", "ticks", "unroll_whole", "yield_processor"]

X86 = platform.machine() in {"x86_64", "AMD64"}
ARM = platform.machine() in {"aarch64", "arm64", "ARM64"}
NUMBA_FEATURES = config.CPU_FEATURES  # type: ignore[attr-defined]
FEATURES = binding.get_host_cpu_features().flatten() if NUMBA_FEATURES is None else NUMBA_FEATURES
#: Whether code is compiled for AVX-512, whose registers hold four times as much as those of AVX2.
WIDE = "+avx512f" in FEATURES.split(",")
CLOCK_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", 0)  # the clock's number on this system
WHOLE_SYSTEM = 15  # the only operand of the instruction `isb`
YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"

if sys.platform == "win32":  # the function is in a library that compiled code does not search by itself
    binding.add_symbol(YIELD, ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value)


def _call(builder, name, result, *arguments):
    """Emit a call of a C or LLVM function."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _emit_pause(builder):
    """Emit the processor's instruction for a short wait; nothing on processors other than x86 and ARM."""
    if X86:
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
    elif ARM:  # `yield` takes no time; an instruction barrier takes some tens of nanoseconds, like x86's pause
        _call(builder, "llvm.aarch64.isb", ir.VoidType(), ir.IntType(32)(WHOLE_SYSTEM))


def _emit_ticks(builder):
    """Emit the reading of the processor's cycle counter, or of the system's clock."""
    if X86:
        return _call(builder, "llvm.readcyclecounter", INT64)
    if sys.platform == "win32":
        return INT64(0)
    # On other processors, programs may not be allowed to read cycles. The clock writes seconds, then nanoseconds.
    now = cgutils.alloca_once(builder, INT64, size=2)
    _call(builder, "clock_gettime", ir.IntType(32), ir.IntType(32)(CLOCK_MONOTONIC), now)
    seconds, nanoseconds = (builder.load(builder.gep(now, [ir.IntType(32)(place)])) for place in range(2))
    return builder.add(builder.mul(seconds, INT64(10**9)), nanoseconds)


@intrinsic
def yield_processor(typingctx):
    """Let another thread run, if one is waiting for this processor."""
    return lowered(types.none(), lambda builder: _call(builder, YIELD, ir.IntType(32)))


@intrinsic
def pause(typingctx):
    """Wait for some tens of nanoseconds; for loops that wait for another thread."""
    return lowered(types.none(), _emit_pause)


@intrinsic
def ticks(typingctx):
    """Return the time of a steady clock: cycles on x86, nanoseconds elsewhere, 0 if there is no such clock."""
    return lowered(types.int64(), _emit_ticks)


@intrinsic
def unroll_whole(typingctx):
    """Keep LLVM from unrolling the loop around this where a rest would remain, unless there is AVX-512.

    In the code for a rest, tiles that fill 16 registers do not fit into them, and short loops are half rests.
    """

    def emit(builder):
        if not WIDE:
            nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "", side_effect=True)
            builder.call(nothing, [], attrs=("convergent",))

    return lowered(types.none(), emit)
