"""The format of a checkpoint's files, and checks beyond their digests, since a forged file can have right digests."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fredsim.errors import shown
from fredsim.plugins.state.packing import State

__all__ = [
    "FORMAT",
    "CheckpointMetadata",
    "check_restored",
    "check_types",
    "json_with_digest",
    "read_metadata",
]

FORMAT = 2
#: Parts of a state whose arrays must keep their shape: kernels access as many elements as there were at first.
FIXED_SHAPES = ("server.", "recorder.by_client.")
#: Parts of a state whose arrays, unless they exist at first, are as long as the parameters: kernels rely on that, too.
LIKE_PARAMS = (
    "server.", "compressor.", "outbox.", "holdings.version.", "work.kept.", "control.mean", "control.version.",
    "control.own.", "control.under_way.",
)  # fmt: skip
#: The ends of the names of arrays in these parts that are not.
OTHERS = (".losses", ".of")
Size = Annotated[int, Field(ge=0)]
#: A difference of two clocks may be a little less than 0, as it is rounded.
Seconds = Annotated[float, Field(ge=-1e-6, lt=1e12)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def _unknown(value: float) -> float:
    if not math.isnan(value):
        raise ValueError("it is no time")
    return value


class FileMetadata(BaseModel):
    """The size in bytes that a growing file had, and the SHA-256 of its first `size` bytes."""

    model_config = ConfigDict(strict=True, extra="forbid")
    size: Size
    sha256: Digest


class Spent(BaseModel):
    """The seconds that a run has taken so far; those in kernels are NaN if they are not known."""

    model_config = ConfigDict(strict=True, extra="forbid")
    seconds: Seconds = 0.0
    seconds_evaluation: Seconds = 0.0
    seconds_probe: Seconds = 0.0
    seconds_kernels: Seconds | Annotated[float, AfterValidator(_unknown)] = 0.0


class CheckpointMetadata(BaseModel):
    """The content of a checkpoint's JSON file. `files` can only name growing files, so that no other file is opened."""

    model_config = ConfigDict(strict=True, extra="forbid")
    format: Literal[2]
    iteration: Size
    identity: dict[str, Any]
    files: dict[Literal["metrics.csv", "probe.csv", "events.parquet", "live.csv"], FileMetadata]
    tensors: Digest
    dtypes: dict[str, Annotated[list[str | list[Size]], Field(min_length=2, max_length=2)]]
    """Type and shape, by name, of the arrays whose type the safetensors format does not have."""
    spent: Spent
    values: dict[str, bool | int | float | str]
    sha256: Digest


def json_with_digest(metadata: Mapping[str, Any]) -> bytes:
    """Return the JSON text of a mapping, with the SHA-256 of the rest of it added."""
    unsigned = {key: value for key, value in metadata.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(unsigned).encode()).hexdigest()
    return json.dumps(unsigned | {"sha256": digest}, indent=1).encode()


def read_metadata(text: bytes, iteration: int) -> CheckpointMetadata:
    """Return the content of a checkpoint's JSON for this iteration. Raises ValueError, which says what is wrong."""
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or text != json_with_digest(plain):
            raise ValueError("it is not as it was written")
        metadata = CheckpointMetadata.model_validate(plain)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"its {place} is {shown(first['input'])}: {first['msg']}") from None
    if metadata.iteration != iteration:
        raise ValueError(f"its iteration is {metadata.iteration}")
    return metadata


def check_types(state: State, first: State, params: NDArray[np.float32]) -> None:
    """Raise ValueError if arrays of a state have other types or shapes than those of `first`, a run's initial state.

    `params` (P,) are the run's parameters.
    """
    for name, value in state.items():
        other, fixed = first.get(name), name.startswith(FIXED_SHAPES)
        if other is None and name.startswith(LIKE_PARAMS) and not name.endswith(OTHERS):
            other, fixed = params, True
        if not isinstance(value, np.ndarray) or other is None:
            continue
        fits = isinstance(other, np.ndarray) and value.dtype == other.dtype and value.ndim == other.ndim
        if not fits or (fixed and value.shape != other.shape):
            raise ValueError(f"{name} is {_type_of(value)}, not {_type_of(other)}")


def check_restored(state: State, taken: State) -> None:
    """Raise ValueError if `taken`, the state taken after restoring `state`, has other names, types or shapes."""
    forms = [{name: _type_of(value) for name, value in found.items()} for found in (state, taken)]
    for name in sorted({**forms[0], **forms[1]}):
        if forms[0].get(name) != forms[1].get(name):
            raise ValueError(f"{name} is {forms[0].get(name, 'not there')}, not {forms[1].get(name, 'there')}")


def _type_of(value: Any) -> str:
    """Return the name of a value's type; for an array, its dtype and shape."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
