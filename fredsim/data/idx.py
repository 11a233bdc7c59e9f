"""Reads MNIST's IDX files, from the data root or downloaded, and checks every byte of them."""

from __future__ import annotations

import gzip
import hashlib
import logging
import math
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import DataError, option
from fredsim.system.files import irregular_kind

__all__ = ["FILES", "IdxFile", "find_idx", "read_idx", "read_mnist"]


@dataclass(frozen=True)
class IdxFile:
    """An IDX file: its name, the MD5 of its uncompressed bytes, and the shape that its header must give."""

    name: str
    md5: str
    shape: tuple[int, ...]


FILES = {
    "train_x": IdxFile("train-images-idx3-ubyte", "6bbc9ace898e44ae57da46a324031adb", (60000, 28, 28)),
    "train_y": IdxFile("train-labels-idx1-ubyte", "a25bea736e30d166cdddb491f175f624", (60000,)),
    "test_x": IdxFile("t10k-images-idx3-ubyte", "2646ac647ad5339dbf082846283269ea", (10000, 28, 28)),
    "test_y": IdxFile("t10k-labels-idx1-ubyte", "27ae3e4e09519cfbb04c329615203637", (10000,)),
}
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def read_mnist(root: Path) -> dict[str, NDArray[np.uint8]]:
    """Return train_x, train_y, test_x and test_y, uint8. Raises DataError for a file that is missing or damaged."""
    return {key: read_idx(find_idx(file, root), file) for key, file in FILES.items()}


def find_idx(file: IdxFile, root: Path) -> Path:
    """Return a file's path in the data root; download the file if necessary. Raises DataError if that fails."""
    for folder in (root / "mnist", root / "MNIST" / "raw"):
        for name in (file.name, f"{file.name}.gz"):
            if found := irregular_kind(folder / name):
                raise DataError(f"{folder / name}: cannot be read (it is {found}); put MNIST's file in its place")
            if os.path.isfile(folder / name):
                return folder / name
    return _download(file, root / "mnist")


def read_idx(path: Path, file: IdxFile) -> NDArray[np.uint8]:
    """Return the uint8 array in an IDX file, gzipped or not.

    Raises DataError if it cannot be read, is truncated, or has another magic number, shape or digest.
    """
    dimensions = len(file.shape)
    header = struct.Struct(f">{1 + dimensions}I")
    expected = header.size + math.prod(file.shape)
    remedy = "delete it, so that it is downloaded again, or put a good copy in its place"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            data = stream.read(expected + 1)  # not more: a small file might unpack to more than fits into memory
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); {remedy}") from None
    if len(data) < header.size:
        raise DataError(f"{path}: truncated: {len(data)} bytes, too few for a header; {remedy}")
    magic, *shape = header.unpack_from(data)
    if magic != 0x0800 + dimensions:
        raise DataError(f"{path}: wrong magic number {magic:#010x}; expected {0x0800 + dimensions:#010x}; {remedy}")
    if tuple(shape) != file.shape:
        raise DataError(f"{path}: its header gives shape {tuple(shape)}; expected {file.shape}; {remedy}")
    if len(data) < expected:
        raise DataError(f"{path}: truncated: {len(data)} bytes of {expected}; {remedy}")
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if digest != file.md5:
        raise DataError(f"{path}: wrong digest: MD5 {digest}; expected {file.md5}; {remedy}")
    return np.frombuffer(data, np.uint8, offset=header.size).reshape(file.shape)


def _download(file: IdxFile, folder: Path) -> Path:
    """Download a file into the folder, from the first mirror that has the right bytes."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    reasons = []
    for mirror in MIRRORS:
        url = f"{mirror}{file.name}.gz"
        arriving = f"{file.name}.{uuid4().hex}.part.gz"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            pooch.retrieve(
                url, known_hash=None, fname=arriving, path=folder, downloader=pooch.HTTPDownloader(timeout=30)
            )
            read_idx(folder / arriving, file)
            return (folder / arriving).replace(folder / f"{file.name}.gz")
        except (OSError, requests.RequestException, DataError) as error:
            reasons.append(f"{mirror}: {type(error).__name__}")
            with suppress(OSError):  # there may be no such folder
                (folder / arriving).unlink()
    raise DataError(
        f"mnist: {file.name} is not in {folder} and could not be downloaded ({'; '.join(reasons)}); put the four IDX "
        f"files, gzipped or not, into {folder}, or name another data root by {option('data-root')} or FREDSIM_DATA"
    )
