"""All code that uses the internals of numba and llvmlite: vectors, pointers, threads, the cache of compiled kernels."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from llvmlite import binding


@contextmanager
def _without_yaml() -> Iterator[None]:
    """Within the `with` block, let nothing import PyYAML, nor say that it lacks it."""
    before = sys.modules.get("yaml", ...)
    sys.modules["yaml"] = None  # by which Python says that there is none
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        if before is ...:
            del sys.modules["yaml"]
        else:
            sys.modules["yaml"] = before


# numba takes settings from a file `.numba_config.yaml` in the current folder, which may be somebody else's: when it is
# imported, and whenever it compiles.
with _without_yaml():
    from numba import config
config._config_fname = ""

# LLVM's description of Qualcomm's Oryon cores (Snapdragon X) lacks instructions, and compiling for them aborts Python
# (github.com/numba/numba/issues/10388). Code compiled for a generic arm64 processor gives the same bits.
if binding.get_host_cpu_name().startswith("oryon") and config.CPU_NAME is None:  # type: ignore[attr-defined]
    config.CPU_NAME = "generic"  # type: ignore[attr-defined]
