"""Reads the image data sets of torchvision, which is imported only when one of them is used."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError, DataError, nearest, needs, option

__all__ = ["read_images"]

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]


def read_images(name: str, root: Path) -> tuple[Images, Images]:
    """Return the training and the test part of a class of torchvision.datasets.

    A part is images of bytes (n, channels, height, width) and their labels (n,). The class itself reads its files from
    `root`, or downloads them to it, and checks them.

    Raises ConfigError if torchvision or the class is missing; DataError if its files cannot be read or downloaded, or
    are not images of one size with one label each.
    """
    with needs(f"data.name: torchvision:{name}", "torchvision", "torch"):
        known = importlib.import_module("torchvision.datasets")
    found = getattr(known, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(known).items() if isinstance(value, type)]
        raise ConfigError(f"data.name: torchvision.datasets has no class '{name}'{nearest(name, classes)}")
    parameters = _parameters(found)
    if "train" in parameters:
        parts: list[dict[str, Any]] = [{"train": True}, {"train": False}]
    elif "split" in parameters:
        parts = [{"split": "train"}, {"split": "test"}]
    else:
        raise ConfigError(
            f"data.name: torchvision.datasets.{name} has no training and test part (no argument train or split); "
            "save its arrays as npz:PATH"
        )
    given = {"download": True} if "download" in parameters else {}
    lacks = [key for key, one in parameters.items() if one.default is one.empty and key not in {"root", *parts[0]}]
    if lacks:
        raise ConfigError(
            f"data.name: torchvision.datasets.{name} needs {', '.join(lacks)}, which cannot be given here; save its "
            "arrays as npz:PATH"
        )
    train, test = (_read(found, name, root, part | given) for part in parts)
    if train[0].shape[1:] != test[0].shape[1:]:
        shapes = f"{train[0].shape[1:]} in the training part and {test[0].shape[1:]} in the test part"
        raise DataError(f"torchvision:{name}: an image has shape {shapes}; they must agree")
    return train, test


def _parameters(found: type) -> dict[str, inspect.Parameter]:
    """Return a class's parameters by name, with those of its bases as far as it passes on any others (`**kwargs`)."""
    known: dict[str, inspect.Parameter] = {}
    for cls in found.__mro__:
        if "__init__" in vars(cls):
            own = dict([*inspect.signature(vars(cls)["__init__"]).parameters.items()][1:])
            named = {key: one for key, one in own.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
            known = named | known
            if len(named) == len(own):
                break
    return known


def _read(found: type, name: str, root: Path, arguments: dict[str, Any]) -> Images:
    """Return one part, read image by image, since that is the only interface that all these classes share."""
    try:
        samples: Any = found(root=str(root), **arguments)
        pairs = [samples[i] for i in range(len(samples))]
        images = [np.asarray(image) for image, _ in pairs]
        labels = np.array([label for _, label in pairs])
    except MemoryError:
        raise
    except Exception as error:  # of any type: a failed download, or a damaged file
        raise DataError(
            f"torchvision:{name}: cannot be read from {root} or downloaded ({type(error).__name__}: {error}); put its "
            f"files there as torchvision expects them, or name another data root by {option('data-root')} or "
            "FREDSIM_DATA"
        ) from None
    shapes = sorted({image.shape for image in images})
    if len(shapes) > 1:
        raise DataError(
            f"torchvision:{name}: has images of shapes {shapes[0]} and {shapes[-1]}; save such of one shape as npz:PATH"
        )
    pixels = np.stack(images) if images else np.empty(0)
    if pixels.dtype != np.uint8 or pixels.ndim not in {3, 4} or labels.dtype.kind not in "iu" or labels.ndim != 1:
        what = f"{pixels.dtype} {pixels.shape} with labels {labels.dtype} {labels.shape}"
        raise DataError(f"torchvision:{name}: holds {what}; it must hold images of bytes with one integer label each")
    channels_first = pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(channels_first), labels.astype(np.int64)
