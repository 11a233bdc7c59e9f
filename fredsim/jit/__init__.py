"""All code that uses the internals of numba and llvmlite: vectors, pointers, threads, the cache of compiled kernels."""

from llvmlite import binding
from numba import config

# LLVM's description of Qualcomm's Oryon cores (Snapdragon X) lacks instructions, and compiling for them aborts Python
# (github.com/numba/numba/issues/10388). Code compiled for a generic arm64 processor gives the same bits.
if binding.get_host_cpu_name().startswith("oryon") and config.CPU_NAME is None:  # type: ignore[attr-defined]
    config.CPU_NAME = "generic"  # type: ignore[attr-defined]
