"""fredsim: a deterministic, single-machine simulator of asynchronous and synchronous distributed training.

>>> import fredsim
>>> result = fredsim.run("quickstart", out="results/mine")      # doctest: +SKIP
>>> result.runs                                                 # doctest: +SKIP

Each name is imported when first used, so that importing the package loads nothing heavy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fredsim.api import Result, Results, load, run, sweep
    from fredsim.errors import (
        ClusterError,
        ConfigError,
        DataError,
        FredsimError,
        FredsimWarning,
        OutputError,
        SimulationError,
    )

__all__ = [
    "ClusterError",
    "ConfigError",
    "DataError",
    "FredsimError",
    "FredsimWarning",
    "OutputError",
    "Result",
    "Results",
    "SimulationError",
    "__version__",
    "load",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from fredsim.system.version import fredsim_version

        return fredsim_version()
    if name in __all__:
        from importlib import import_module

        home = "fredsim.errors" if name.endswith(("Error", "Warning")) else "fredsim.api"
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'fredsim' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
