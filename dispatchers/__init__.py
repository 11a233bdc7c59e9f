"""The dispatchers, which say whose gradient arrives next: one file per policy.

`DISPATCHERS` maps their names in YAML, those of the files, to classes. A file is listed if its class has an `idea`. The
classes are attributes of this package, too.
"""

if __name__ != "fredsim.dispatchers":
    raise ImportError("import this package as fredsim.dispatchers: under another name its classes would exist twice")

from collections.abc import Mapping
from typing import Any

from fredsim.dispatchers.base import Dispatcher
from fredsim.plugins.discovery import Classes, class_named

__all__ = ["DISPATCHERS", "Dispatcher"]

DISPATCHERS: Mapping[str, type[Dispatcher]] = Classes(__name__, Dispatcher)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, DISPATCHERS)
