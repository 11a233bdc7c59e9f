"""The parameter servers, one file an algorithm. `SERVERS` maps the names used in YAML to the classes."""

if __name__ != "fredsim.servers":
    raise ImportError("import this package as fredsim.servers: under another name its classes would exist twice")

from fredsim.servers.asgd import ASGD
from fredsim.servers.base import ElementwiseServer, Reply, Server
from fredsim.servers.exponential import ExponentialASGD
from fredsim.servers.fasgd import FASGD
from fredsim.servers.sasgd import SASGD
from fredsim.servers.soft_sync import SoftSync
from fredsim.servers.sync import Sync

__all__ = [
    "ASGD",
    "FASGD",
    "SASGD",
    "SERVERS",
    "ElementwiseServer",
    "ExponentialASGD",
    "Reply",
    "Server",
    "SoftSync",
    "Sync",
]

SERVERS: dict[str, type[Server]] = {
    "sync": Sync,
    "soft_sync": SoftSync,
    "asgd": ASGD,
    "sasgd": SASGD,
    "exponential": ExponentialASGD,
    "fasgd": FASGD,
}
