"""Which paths can compute a server, a gate and so on, according to the checks of the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fredsim.config.choices import Backend, PathName
from fredsim.config.document import Document
from fredsim.errors import ConfigError
from fredsim.networks.layout import Layout
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.runs.single.opening import make_dispatcher, make_server, open_experiment
from fredsim.simulation.paths.choice import Abilities, choose_path
from fredsim.simulation.paths.start import arrivals_react
from fredsim.simulation.plugins.run_context import RunContext
from fredsim.simulation.schedule.guarded_clock import GuardedClock

__all__ = ["PLAIN", "supported_paths"]

#: The paths, fastest first, each with a backend that has it.
BACKENDS: dict[PathName, Backend] = {"hand": "numba", "fused": "numba", "queued": "cuda", "snapshots": "numba"}
PLAIN: dict[str, Any] = {
    "iterations": 1000,
    "data": {"name": "digits"},
    "model": {"hidden": [32]},
    "clients": {"count": 8, "batch_size": 4},
    "server": {"name": "asgd", "lr": 0.05},
}


def supported_paths(changes: Mapping[str, Any]) -> str:
    """Return a text with the paths that can compute a plain experiment with these keys, and why a faster one cannot."""
    data = {**PLAIN, **changes}
    experiment = open_experiment(data, Document(data).place)
    server, protocol = make_server(experiment)
    dispatcher = make_dispatcher(experiment)
    layout = Layout((("W1", (4, 3)), ("b1", (3,))))
    context = RunContext(experiment.clients.count, layout, Streams(0), NumpyOperations())
    server.start(np.zeros(layout.size, np.float32), context)  # some servers' contracts are complete only then
    reacts = isinstance(dispatcher, GuardedClock) and arrivals_react(dispatcher, server.contract, protocol)
    found: dict[PathName, str] = {}
    for path, backend in BACKENDS.items():
        try:
            choose_path(path, backend, server.contract, protocol, 1000, can=Abilities(), probed=False, reacts=reacts)
        except ConfigError as error:
            found[path] = str(error).removeprefix(f"path is {path}; ").removesuffix(": leave path out")
        else:
            found[path] = ""
    serving = ", ".join(f"`{path}`" for path, why in found.items() if not why)
    missing = next((f" (not `{path}`: {why})" for path, why in found.items() if why), "")
    return serving + missing
