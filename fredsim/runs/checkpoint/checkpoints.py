"""Checkpoints: the state of a run on disk, from which it continues bit for bit, however its process ended.

`FOLDER/checkpoint/ITERATION.safetensors` has the arrays of the state, and `ITERATION.json` everything else: numbers and
texts, the size of each growing file, the identity of the run, and the SHA-256 of every part. Each file is written under
another name, flushed to the disk and renamed, the JSON last: a checkpoint is complete, or it does not exist.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.config.experiment import Experiment
from fredsim.errors import FredsimError, OutputError
from fredsim.numerics import CONTRACT
from fredsim.plugins.state.states import State
from fredsim.runs.checkpoint.format import FORMAT, json_with_digest, read_metadata
from fredsim.runs.checkpoint.tensors import map_arrays, tensor_chunks, tensor_type
from fredsim.runs.folder.growing_files import FilePrefix
from fredsim.simulation.paths.loop import Diverged
from fredsim.system.files import (
    CHUNK_BYTES,
    LINK,
    hash_of_prefix,
    named_as,
    open_whole,
    read_bytes,
    whole_name,
    write_chunks,
)
from fredsim.system.machine import processor_name
from fredsim.system.version import fredsim_version, package_version

__all__ = [
    "EVERY_MINUTE",
    "NO_CHECKPOINTS",
    "Checkpoint",
    "CheckpointPolicy",
    "Checkpoints",
    "identity_of_run",
    "resume_errors",
]

LAST_KEPT = 2
SUFFIXES = {"json", "safetensors"}


@dataclass(frozen=True)
class CheckpointPolicy:
    """When a run writes checkpoints, and which of them are kept."""

    seconds: float = 0.0
    """Seconds between two checkpoints; 0: no checkpoints."""
    keep: bool = False
    """Whether all are kept, even when the run has ended; otherwise the last two are, until the run ends."""
    at: int | None = None
    """An iteration at which one is written in any case."""


NO_CHECKPOINTS, EVERY_MINUTE = CheckpointPolicy(), CheckpointPolicy(60.0)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: the state from which a run can continue."""

    iteration: int
    identity: Mapping[str, Any]
    """Experiment, code, versions, backend and path, as `identity_of_run` has them, without which no run continues."""
    files: Mapping[str, FilePrefix]
    """What the growing files held at that time, by name."""
    state: State
    """Arrays, which lie in the checkpoint's file until they are changed, numbers and texts; {} once it is restored."""
    spent: Mapping[str, float]
    """The seconds that the run has taken so far, by their names in summary.json."""


def identity_of_run(
    experiment: Experiment,
    backend: str,
    path: str,
    code: Mapping[str, str],
    model_files: Mapping[str, str],
    data: str | None,
    *,
    made: str,
    numerics: str,
    device: str | None,
    threads: int | None,
) -> dict[str, Any]:
    """Return the identity of a run.

    `code` has the SHA-256 of the user's modules, `model_files` that of the files that a PyTorch module reads, by name;
    `data` is the digest of the data; `made` that of what a module's factory has made, "" of other models.
    `device` is where gradients are computed, None: on the processor; native ones depend on it, and on `threads`, which
    may be None for others.
    """
    where: dict[str, Any] = {}
    if numerics == "native":  # portable runs go on on any machine
        if experiment.problem is None:  # whose class computes by itself
            where = {"threads": threads, "device": device, "torch": package_version("torch")}
        if device is None:
            where["processor"] = processor_name()
        where["numpy"] = package_version("numpy")
    return {
        "experiment": experiment.digest,
        "fredsim": fredsim_version(),
        "contract": CONTRACT,  # between releases it may change, and the version does not
        "backend": backend,
        "path": path,
        "code": dict(code),
        "data": data,
        "probe": None if experiment.probe is None else experiment.probe.model_dump(),
        "model_files": dict(model_files),
        "module": made,
        **where,
    }


class Checkpoints:
    """The checkpoints of one run; the last two are kept, or all."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        """Take the folder of the run, and whether all checkpoints are kept.

        Raises OutputError if the folder of its checkpoints is a symbolic link.
        """
        self.folder, self._keep = folder / "checkpoint", keep
        if os.path.islink(self.folder):
            raise OutputError(f"{self.folder}: is {LINK}; put the folder itself there, or remove the link")

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove those that are no longer kept. Raises OSError; the earlier ones are intact.

        The arrays are written without being copied first.
        """
        self.folder.mkdir(exist_ok=True)
        tensors, plain = self.paths(checkpoint.iteration)
        arrays = {name: value for name, value in checkpoint.state.items() if isinstance(value, np.ndarray)}
        digest = write_chunks(tensors, tensor_chunks(arrays))
        metadata = {
            "format": FORMAT,
            "iteration": checkpoint.iteration,
            "identity": dict(checkpoint.identity),
            "files": {name: asdict(file) for name, file in checkpoint.files.items()},
            "tensors": digest,
            "dtypes": {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items() if not tensor_type(a)},
            "spent": dict(checkpoint.spent),
            "values": {
                name: value.item() if isinstance(value, np.generic) else value
                for name, value in checkpoint.state.items()
                if name not in arrays
            },
        }
        write_chunks(plain, [json_with_digest(metadata)])
        self.remove_others(checkpoint.iteration)

    def newest(self, identity: Mapping[str, Any], latest: int | None = None) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint of a run with this identity, and what is wrong with newer ones.

        `latest`: the latest iteration that it may be at.
        """
        faults: list[str] = []
        for iteration in reversed(self.iterations):
            if latest is not None and iteration > latest:
                continue
            try:
                return self.read(iteration, identity), faults
            except OutputError as error:
                faults.append(str(error))
        return None, faults

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the kept checkpoints, and files of one that has lost its other file."""
        for iteration in self.iterations:
            try:
                self.read(iteration)
            except OutputError as error:
                yield str(error)
        for path in sorted(self.folder.glob("*.safetensors")):
            if not os.path.lexists(path.with_suffix(".json")):
                yield f"{path}: has lost its JSON file"

    def copy(self, iteration: int, folder: Path) -> None:
        """Copy a checkpoint, and the growing files that it refers to, to another run's folder."""
        target = Checkpoints(folder)
        target.folder.mkdir()
        for ours, theirs in zip(self.paths(iteration), target.paths(iteration), strict=True):
            _copy(ours, theirs)
        for name in read_metadata(read_bytes(self.paths(iteration)[1]), iteration).files:
            _copy(self.folder.parent / name, folder / name)

    def clear(self) -> None:
        """Remove all checkpoints that are not kept, and half ones, because the run has ended."""
        if self.folder.is_dir():
            self._remove_all_but(self.iterations if self._keep else ())
            with suppress(OSError):  # the folder holds something else, too
                self.folder.rmdir()

    @property
    def iterations(self) -> list[int]:
        """The iterations that have checkpoints, in order."""
        found = {_iteration(path) for path in self.folder.glob("*.json")}
        return sorted(iteration for iteration in found if iteration is not None)

    def paths(self, iteration: int) -> tuple[Path, Path]:
        """Return the paths of a checkpoint's arrays and of its JSON."""
        stem = f"{iteration:012d}"
        return self.folder / f"{stem}.safetensors", self.folder / f"{stem}.json"

    def remove_others(self, newest: int) -> None:
        """Remove the checkpoints that are not kept; those after `newest` are left from before the run started over."""
        usable = [iteration for iteration in self.iterations if iteration <= newest]
        self._remove_all_but(usable[0 if self._keep else -LAST_KEPT :])

    def _remove_all_but(self, kept: Collection[int]) -> None:
        """Remove all checkpoints except those at `kept`, and unfinished ones that a killed process left."""
        for path in sorted(self.folder.iterdir()):  # a JSON before its arrays: without the JSON it is no checkpoint
            iteration = _iteration(path)
            if iteration is not None and (iteration not in kept or whole_name(path.name) != path.name):
                path.unlink(missing_ok=True)

    def read(self, iteration: int, identity: Mapping[str, Any] | None = None) -> Checkpoint:
        """Return a checkpoint.

        Raises OutputError if it, or a growing file that it refers to, is not as it was written; or if it does not have
        this identity (None: any).
        """
        tensors, plain = self.paths(iteration)
        try:
            metadata = read_metadata(read_bytes(plain), iteration)
            found, wanted = metadata.identity, metadata.identity if identity is None else identity
            if type(found.get("model_files")) is dict:
                wanted = {**wanted, "model_files": named_as(wanted.get("model_files", {}), found["model_files"])}
            for key in {**wanted, **found}:
                if wanted.get(key) != found.get(key):
                    raise ValueError(f"its {key} is {found.get(key)}, not {wanted.get(key)}")
            arrays = map_arrays(tensors, metadata.tensors, metadata.dtypes)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OutputError(f"{plain}: cannot be used ({reason})") from None
        recorded = metadata.files.items()
        files: dict[str, FilePrefix] = {name: FilePrefix(file.size, file.sha256) for name, file in recorded}
        for name, prefix in files.items():
            now = hash_of_prefix(self.folder.parent / name, prefix.size)
            if now is None or now.hexdigest() != prefix.sha256:
                raise OutputError(f"{self.folder.parent / name}: is not as it was at iteration {iteration}")
        spent = metadata.spent.model_dump(exclude_unset=True)
        return Checkpoint(iteration, found, files, {**metadata.values, **arrays}, spent)


def _copy(source: Path, target: Path) -> None:
    """Copy a file of results to a new one. Raises OSError."""
    with open_whole(source) as theirs, target.open("xb") as ours:
        shutil.copyfileobj(theirs, ours, CHUNK_BYTES)


def _iteration(path: Path) -> int | None:
    """Return the iteration of a checkpoint's file, finished or not; None for a file that is no checkpoint's."""
    stem, _, kind = whole_name(path.name).partition(".")
    ours = kind in SUFFIXES and stem.isdecimal() and stem == f"{int(stem):012d}" and not path.is_dir()
    return int(stem) if ours else None


@contextmanager
def resume_errors(checkpoint: Checkpoint | None, folder: Path) -> Iterator[None]:
    """Turn an unexpected error into an OutputError, if a run continues from a checkpoint, which may be nonsense.

    `folder` is the run's. That error may have other reasons: the remedy leaves all that the run has written.
    """
    try:
        yield
    except Exception as error:
        if checkpoint is None or isinstance(error, Diverged | FredsimError | MemoryError):
            raise
        what = f"cannot continue from its checkpoint at iteration {checkpoint.iteration}"
        where = Checkpoints(folder).folder
        raise OutputError(
            f"{folder}: the run {what} ({type(error).__name__}: {error}); remove {where}, and run it again"
        ) from error
