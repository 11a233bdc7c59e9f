"""Who finishes next: one file a policy. `DISPATCHERS` maps the names used in YAML to the classes."""

if __name__ != "fredsim.dispatchers":
    raise ImportError("import this package as fredsim.dispatchers: under another name its classes would exist twice")

from fredsim.dispatchers.base import Dispatcher
from fredsim.dispatchers.round_robin import RoundRobin
from fredsim.dispatchers.scripted import Scripted
from fredsim.dispatchers.uniform import Uniform
from fredsim.dispatchers.weighted import Weighted

__all__ = ["DISPATCHERS", "Dispatcher", "RoundRobin", "Scripted", "Uniform", "Weighted"]

DISPATCHERS: dict[str, type[Dispatcher]] = {
    "uniform": Uniform,
    "weighted": Weighted,
    "round_robin": RoundRobin,
    "scripted": Scripted,
}
