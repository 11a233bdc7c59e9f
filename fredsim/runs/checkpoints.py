"""Checkpoints: the state of a run on disk, from which it goes on bit for bit after whatever ended its process.

`FOLDER/checkpoint/ITERATION.safetensors` has the arrays of the state, and `ITERATION.json` all else: its numbers and
texts, how long each file that grows was, what the run is of, and the SHA-256 of every part. A checkpoint is
written beside, flushed to the disk and renamed, the JSON last: it is there whole, or it is not there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.errors import OutputError
from fredsim.plugins.states import State
from fredsim.runs.checkpoint_form import FORMAT, read_arrays, read_said, signed
from fredsim.runs.growing_files import Grown
from fredsim.system.files import PIECE, hash_of_first, write_pieces

__all__ = ["EVERY_MINUTE", "NO_CHECKPOINTS", "Checkpoint", "CheckpointPolicy", "Checkpoints"]

KEPT = 2
KINDS = {"json", "safetensors", "json.part", "safetensors.part"}
#: The safetensors format's names of types. Arrays of any other are written as their bytes.
TYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32", "float64": "F64",
}  # fmt: skip


@dataclass(frozen=True)
class CheckpointPolicy:
    """When a run writes checkpoints, and which of them stay."""

    seconds: float = 0.0
    """Between two of them; 0 for none."""
    keep: bool = False
    """Whether all stay, even when the run has ended; else the last two until then."""


NO_CHECKPOINTS, EVERY_MINUTE = CheckpointPolicy(), CheckpointPolicy(60.0)


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from."""

    iteration: int
    identity: Mapping[str, Any]
    """What the run is of: only one of the same goes on from it."""
    files: Mapping[str, Grown]
    """The files that grow, by name."""
    state: State
    spent: Mapping[str, float]
    """What the run has taken so far, in seconds, by the names of summary.json."""


class Checkpoints:
    """The checkpoints of one run; of those written the last two stay, or all."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        """Take the folder of the run, and whether all stay."""
        self.folder, self._keep = folder / "checkpoint", keep

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove those that need not stay. Raises OSError; all that there were are whole then.

        The arrays are written from where they lie, not copied.
        """
        self.folder.mkdir(exist_ok=True)
        tensors, plain = self.paths(checkpoint.iteration)
        arrays = {name: value for name, value in checkpoint.state.items() if isinstance(value, np.ndarray)}
        digest = write_pieces(tensors, _safetensors(arrays))
        said = {
            "format": FORMAT,
            "iteration": checkpoint.iteration,
            "identity": dict(checkpoint.identity),
            "files": {name: asdict(file) for name, file in checkpoint.files.items()},
            "tensors": digest,
            "dtypes": {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items() if not _named(a)},
            "spent": dict(checkpoint.spent),
            "values": {
                name: value.item() if isinstance(value, np.generic) else value
                for name, value in checkpoint.state.items()
                if name not in arrays
            },
        }
        write_pieces(plain, [signed(said)])
        self.remove_others(checkpoint.iteration)

    def newest(self, identity: Mapping[str, Any], until: int | None = None) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest whole checkpoint of a run of this identity, and what is wrong with newer ones.

        `until`: at this iteration at the latest.
        """
        faults: list[str] = []
        for iteration in reversed(self.iterations):
            if until is not None and iteration > until:
                continue
            try:
                checkpoint = self.read(iteration, identity)
            except OutputError as error:
                faults.append(str(error))
            else:
                return checkpoint, faults
        return None, faults

    def copy(self, iteration: int, folder: Path) -> None:
        """Copy a checkpoint, and the files that grew until then, to another run's folder."""
        there = Checkpoints(folder)
        there.folder.mkdir()
        for ours, theirs in zip(self.paths(iteration), there.paths(iteration), strict=True):
            shutil.copyfile(ours, theirs)
        for name in read_said(self.paths(iteration)[1].read_bytes(), iteration).files:
            shutil.copyfile(self.folder.parent / name, folder / name)

    def clear(self) -> None:
        """Remove all: the run has ended."""
        if self.folder.is_dir():
            self._remove_all_but(())
            with suppress(OSError):  # somebody keeps something there
                self.folder.rmdir()

    @property
    def iterations(self) -> list[int]:
        """The iterations of which there are checkpoints, in order."""
        found = {_iteration(path) for path in self.folder.glob("*.json")}
        return sorted(iteration for iteration in found if iteration is not None)

    def paths(self, iteration: int) -> tuple[Path, Path]:
        """Return the paths of a checkpoint's arrays, and of its JSON."""
        stem = f"{iteration:012d}"
        return self.folder / f"{stem}.safetensors", self.folder / f"{stem}.json"

    def remove_others(self, newest: int) -> None:
        """Remove what is no longer needed once there is a newest one: those beyond it are of a run that began anew."""
        until = [iteration for iteration in self.iterations if iteration <= newest]
        self._remove_all_but(until[0 if self._keep else -KEPT :])

    def _remove_all_but(self, kept: Collection[int]) -> None:
        """Remove checkpoints but for those of some iterations, and what a process that was killed wrote of others."""
        for path in sorted(self.folder.iterdir()):  # a JSON before its arrays: without it there is no checkpoint
            iteration = _iteration(path)
            if iteration is not None and iteration not in kept:
                path.unlink(missing_ok=True)

    def read(self, iteration: int, identity: Mapping[str, Any] | None = None) -> Checkpoint:
        """Read a checkpoint. Raises OutputError where it, or a file that grew until then, is not as it was written.

        And where it is not of this identity.
        """
        tensors, plain = self.paths(iteration)
        try:
            said = read_said(plain.read_bytes(), iteration)
            found, wanted = said.identity, said.identity if identity is None else identity
            for key in {**wanted, **found}:
                if wanted.get(key) != found.get(key):
                    raise ValueError(f"its {key} is {found.get(key)}, not {wanted.get(key)}")
            content = tensors.read_bytes()
            if hashlib.sha256(content).hexdigest() != said.tensors:
                raise ValueError(f"{tensors.name} is not as it was written")
            arrays = read_arrays(content, said.dtypes)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OutputError(f"{plain}: cannot be used ({reason})") from None
        files: dict[str, Grown] = {name: Grown(file.size, file.sha256) for name, file in said.files.items()}
        for name, grown in files.items():
            first = hash_of_first(self.folder.parent / name, grown.size)
            if first is None or first.hexdigest() != grown.sha256:
                raise OutputError(f"{self.folder.parent / name}: is not as it was at iteration {iteration}")
        return Checkpoint(iteration, found, files, {**said.values, **arrays}, said.spent)


def _iteration(path: Path) -> int | None:
    """Return the iteration of a file of a checkpoint, or of a part of one; None of what is none of ours."""
    stem, _, kind = path.name.partition(".")
    ours = kind in KINDS and stem.isdecimal() and stem == f"{int(stem):012d}" and path.is_file()
    return int(stem) if ours else None


def _named(array: Any) -> str | None:
    """Return the format's name of an array's type, None where it has none."""
    return TYPES.get(array.dtype.name) if array.dtype.isnative else None


def _safetensors(arrays: Mapping[str, Any]) -> Iterator[bytes | memoryview]:
    """Yield a file of the safetensors format piece by piece: the package's own writer would copy every array first."""
    header, at = {}, 0
    for name, array in arrays.items():
        kind = _named(array)
        shape = list(array.shape) if kind else [array.nbytes]
        header[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        if array.nbytes:
            view: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            for begin in range(0, len(view), PIECE):
                yield view[begin : begin + PIECE]
