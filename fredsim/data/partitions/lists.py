"""Reads a user's own lists of the training rows of each client, from a JSON or an NPZ file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.data.npz import read_arrays
from fredsim.data.partitions.shards import ShardTable
from fredsim.errors import DataError, shown
from fredsim.system.files import content_digest, read_bytes
from fredsim.system.given import why_unread

__all__ = ["read_lists"]

JSON = "a JSON file of one list of row numbers per client, such as [[0, 2], [1, 3]]"
NPZ = "an NPZ file of one array of row numbers per client, arr_0, arr_1, … (numpy.savez(file, *lists))"


def read_lists(path: str, sha256: str | None, rows: int, clients: int) -> ShardTable:
    """Return the shards in a file. Raises DataError if it has another SHA-256, or does not fit rows and clients."""
    found = content_digest(path)
    if sha256 is not None and found is not None and found != sha256:
        which = "clients.partition.sha256"
        raise DataError(f"{path}: SHA-256 {found} is not {which}, {sha256}; put the file back, or change the key")
    lists = _from_npz(path) if path.endswith(".npz") else _from_json(path)
    if len(lists) != clients:
        remedy = f"give one list per client, or clients.count {len(lists)}"
        raise DataError(f"{path}: holds {len(lists)} lists, and clients.count is {clients}; {remedy}")
    return ShardTable.from_lists([_check_rows(path, client, one, rows) for client, one in enumerate(lists)])


def _from_json(path: str) -> Sequence[Any]:
    try:
        loaded = json.loads(read_bytes(path, follow=True))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({why_unread(path, error)}); name {JSON}, or {NPZ}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON ({error}); name {JSON}, or {NPZ}") from None
    if not isinstance(loaded, list):
        raise DataError(f"{path}: holds {shown(loaded)}; it must be {JSON}")
    return loaded


def _from_npz(path: str) -> Sequence[Any]:
    """Return arr_0, arr_1, …; refuse a file in which one of these is missing, or which has other names."""
    arrays: Mapping[str, NDArray[Any]] = read_arrays(path, None, f"it must be {NPZ}")
    names = [f"arr_{client}" for client in range(len(arrays))]
    if wrong := [name for name in arrays if name not in names]:
        raise DataError(f"{path}: has an array '{wrong[0]}' among {len(arrays)}; it must be {NPZ}")
    return [arrays[name] for name in names]


def _check_rows(path: str, client: int, entries: Any, rows: int) -> NDArray[np.int64]:
    """Return one client's rows. Raises DataError, which names the client, the entry and the value."""
    where = f"{path}: the list of client {client}"
    if isinstance(entries, list):
        wrong = next((number for number, one in enumerate(entries) if type(one) is not int), None)
        if wrong is not None:
            raise DataError(f"{where}, entry {wrong}, is {shown(entries[wrong])}; it must be a row number, an integer")
        values = np.array([min(max(one, -1), rows) for one in entries], np.int64)  # clipped: integers may be huge
    elif isinstance(entries, np.ndarray) and entries.ndim == 1 and entries.dtype.kind in "iu":
        values = entries
    else:
        kind = f"{entries.dtype} {entries.shape}" if isinstance(entries, np.ndarray) else shown(entries)
        raise DataError(f"{where} is {kind}; it must be a list of row numbers, integers")
    if len(values) == 0:
        raise DataError(f"{where} is empty; give it a row, or leave the client out and lower clients.count")
    outside = np.flatnonzero((values < 0) | (values >= rows))
    if len(outside):
        first = int(outside[0])
        known = f"rows are 0 … {rows - 1} (data.train is {rows})"
        raise DataError(f"{where}, entry {first}, is {entries[first]}; {known}")
    return np.asarray(values, np.int64)
