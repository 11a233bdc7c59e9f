"""The form of a checkpoint's files: what a digest cannot say, as whoever changes a file can write it anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fredsim.errors import shown
from fredsim.plugins.arrays import numeric
from fredsim.plugins.packing import State

__all__ = ["FORMAT", "Said", "check_after", "check_before", "read_arrays", "read_said", "signed"]

FORMAT = 1
#: Parts of a state whose arrays keep their shape: kernels write and read as much as they had at first.
FIXED = ("server.", "holdings.version.", "recorder.by_client.")
PARAMS = "server.own.params"
Size = Annotated[int, Field(ge=0)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class OfFile(BaseModel):
    """How long a file that grows was, and the SHA-256 of so many bytes."""

    model_config = ConfigDict(strict=True, extra="forbid")
    size: Size
    sha256: Digest


class Said(BaseModel):
    """The content of a checkpoint's JSON. The files are those that grow: no other is opened, whatever stands there."""

    model_config = ConfigDict(strict=True, extra="forbid")
    format: Literal[1]
    iteration: Size
    identity: dict[str, Any]
    files: dict[Literal["metrics.csv", "probe.csv", "events.parquet", "live.csv"], OfFile]
    tensors: Digest
    dtypes: dict[str, Annotated[list[str | list[Size]], Field(min_length=2, max_length=2)]]
    """Of the arrays that the safetensors format has no type for: type and shape, by name."""
    spent: dict[str, float]
    values: dict[str, bool | int | float | str]
    sha256: Digest


def signed(said: Mapping[str, Any]) -> bytes:
    """Return the text of a mapping with the SHA-256 of all else in it."""
    unsigned = {key: value for key, value in said.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(unsigned).encode()).hexdigest()
    return json.dumps(unsigned | {"sha256": digest}, indent=1).encode()


def read_said(text: bytes, iteration: int) -> Said:
    """Return the content of the JSON of a checkpoint at this iteration. Raises ValueError saying what is wrong."""
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict) or text != signed(plain):
            raise ValueError("it is not as it was written")
        said = Said.model_validate(plain)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"its {place} is {shown(first['input'])}: {first['msg']}") from None
    if said.iteration != iteration:
        raise ValueError(f"its iteration is {said.iteration}")
    return said


def read_arrays(content: bytes, dtypes: Mapping[str, list[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a safetensors file, those of `dtypes` in their type and shape. Raises ValueError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = {name: array.copy() for name, array in load(content).items()}
        for name, (dtype, shape) in dtypes.items():
            arrays[name] = arrays[name].view(numeric(dtype)).reshape(shape)
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"its arrays are none ({error})") from None
    return arrays


def check_before(state: State, first: State) -> None:
    """Raise ValueError where arrays of a state are not of the types, or the shapes, that they have in a run's first."""
    for name, value in state.items():
        other = first.get(PARAMS if name.startswith("holdings.version.") else name)
        if not isinstance(value, np.ndarray) or other is None:
            continue
        fits = isinstance(other, np.ndarray) and value.dtype == other.dtype and value.ndim == other.ndim
        if not fits or (name.startswith(FIXED) and value.shape != other.shape):
            raise ValueError(f"{name} is {_form(value)}, not {_form(other)}")


def check_after(state: State, taken: State) -> None:
    """Raise ValueError where what was taken up of a state is not all of it, and in its form."""
    forms = [{name: _form(value) for name, value in found.items()} for found in (state, taken)]
    for name in sorted({**forms[0], **forms[1]}):
        if forms[0].get(name) != forms[1].get(name):
            raise ValueError(f"{name} is {forms[0].get(name, 'not there')}, not {forms[1].get(name, 'there')}")


def _form(value: Any) -> str:
    """Return a value's type; of an array that of its numbers, and its shape."""
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
