"""The parameter servers, one file per algorithm. `SERVERS` maps their names in YAML, those of the files, to classes.

A file is listed if its class has an `idea`. The classes are attributes of this package, too.
"""

if __name__ != "fredsim.servers":
    raise ImportError("import this package as fredsim.servers: under another name its classes would exist twice")

from collections.abc import Mapping
from typing import Any

from fredsim.plugins.discovery import Classes, class_named
from fredsim.servers.base import Reply, Server
from fredsim.servers.elementwise import ElementwiseServer
from fredsim.servers.parameter_store import ParameterStore
from fredsim.servers.window_average import WindowAverage

__all__ = ["SERVERS", "ElementwiseServer", "ParameterStore", "Reply", "Server", "WindowAverage"]

SERVERS: Mapping[str, type[Server]] = Classes(__name__, Server)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, SERVERS)
