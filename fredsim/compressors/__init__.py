"""The compressors, by which clients make pushes smaller; one file per method. Any server takes what is decoded.

`COMPRESSORS` maps their names in YAML, those of the files, to classes. A file is listed if its class has an `idea`. The
classes are attributes of this package, too.
"""

from typing import Any

from fredsim.compressors.base import Compressor
from fredsim.plugins.discovery import class_named, find_classes

__all__ = ["COMPRESSORS", "Compressor"]

COMPRESSORS: dict[str, type[Compressor]] = find_classes(__name__, Compressor)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, COMPRESSORS)
