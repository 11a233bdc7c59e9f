"""The compressors, by which clients make pushes smaller; one file per method. Any server takes what is decoded.

`COMPRESSORS` maps their names in YAML, those of the files, to classes. A file is listed if its class has an `idea`. The
classes are attributes of this package, too.
"""

from collections.abc import Mapping
from typing import Any

from fredsim.compressors.base import Compressor
from fredsim.plugins.discovery import Classes, class_named

__all__ = ["COMPRESSORS", "Compressor"]

COMPRESSORS: Mapping[str, type[Compressor]] = Classes(__name__, Compressor)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, COMPRESSORS)
