"""The optimizers by which clients take local steps (`clients.optimizer`); one file per method.

`OPTIMIZERS` maps their names in YAML, those of the files, to classes. A file is listed if its class has an `idea`. The
classes are attributes of this package, too.
"""

from collections.abc import Mapping
from typing import Any

from fredsim.optimizers.base import Optimizer
from fredsim.plugins.discovery import Classes, class_named

__all__ = ["OPTIMIZERS", "Optimizer"]

OPTIMIZERS: Mapping[str, type[Optimizer]] = Classes(__name__, Optimizer)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, OPTIMIZERS)
