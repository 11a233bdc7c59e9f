"""What a client may make of a push to save bytes, one file a method; any server takes what is decoded.

`COMPRESSORS` maps the names used in YAML, those of the files, to classes.

A file is listed when its class has an `idea`. The classes are attributes of this package, too.
"""

from typing import Any

from fredsim.compressors.base import Compressor
from fredsim.plugins.offered import class_named, offered

__all__ = ["COMPRESSORS", "Compressor"]

COMPRESSORS: dict[str, type[Compressor]] = offered(__name__, Compressor)


def __getattr__(name: str) -> Any:
    return class_named(name, __name__, COMPRESSORS)
