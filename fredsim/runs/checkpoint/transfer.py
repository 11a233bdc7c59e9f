"""Sends checkpoints of runs on a Dask cluster to the folder of results as they are written, and back to a new worker.

A lost worker's disk is lost with it. So each checkpoint is sent at once, with the bytes that the growing files have
gained since the last one, in chunks through a queue of the scheduler; the JSON, which completes it, is sent last. The
first of all chunks is config.yaml, which has the numbers of rows that the worker found. The worker that does the run
next gets the newest complete checkpoint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredsim.errors import OutputError, shown
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.checkpoint.format import read_metadata
from fredsim.system.files import CHUNK_BYTES, open_growing, read_bytes, write_atomic

__all__ = [
    "GROWING",
    "CheckpointSender",
    "Chunk",
    "check_chunk",
    "make_queue",
    "read_resume_files",
    "write_chunk",
    "write_resume_files",
]

CHECKPOINT = re.compile(r"checkpoint/\d{12}\.(json|safetensors)")
#: The files that grow during a run, of which a checkpoint has a prefix.
GROWING = ("metrics.csv", "probe.csv", "events.parquet", "live.csv")
MOST_WAITING = 4  # the most chunks that wait in the scheduler's queue
Chunk = tuple[str, int, bytes]
"""The name of a file in the run's folder, an offset in it, and the bytes that the file has from there on to its end."""


@dataclass
class CheckpointSender:
    """Sends a worker's checkpoints of one run; `resume_files` are the files that the run continued from, by name."""

    folder: Path
    send: Callable[[Chunk], None]
    resume_files: Mapping[str, bytes]

    def __post_init__(self) -> None:
        self._sent: dict[str, int] = {}  # how many bytes of each growing file the other side has, by file name

    def __call__(self, iteration: int) -> None:
        """Send a checkpoint. Raises OSError."""
        tensors, plain = Checkpoints(self.folder).paths(iteration)
        content = plain.read_bytes()
        sizes = {name: file["size"] for name, file in json.loads(content)["files"].items()}
        if not self._sent:
            self._send_from("config.yaml", 0, (self.folder / "config.yaml").stat().st_size)
            self._sent = self._bytes_there(sizes)
        for name, size in sizes.items():
            self._send_from(name, self._sent[name], size)
            self._sent[name] = size
        self._send_from(f"checkpoint/{tensors.name}", 0, tensors.stat().st_size)
        self.send((f"checkpoint/{plain.name}", 0, content))

    def _bytes_there(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many bytes of each file the other side had before the first checkpoint: 0 if the run started over.

        Then the other side removes all that it had, also a file that begins as before, such as the events.
        """
        before = {name: self.resume_files.get(name, b"") for name in names}
        for name, content in before.items():
            with (self.folder / name).open("rb") as file:
                if file.read(len(content)) != content:
                    return dict.fromkeys(before, 0)
        return {name: len(content) for name, content in before.items()}

    def _send_from(self, name: str, begin: int, end: int) -> None:
        with (self.folder / name).open("rb") as file:
            file.seek(begin)
            while True:
                chunk = file.read(min(CHUNK_BYTES, end - begin))
                self.send((name, begin, chunk))  # an empty one, too: the file must exist there
                begin += len(chunk)
                if begin >= end:
                    return


def make_queue(client: Any, key: str) -> Any:
    """Return the Dask queue, of at most MOST_WAITING chunks, for the checkpoints of the task with this key."""
    from distributed import Queue

    return Queue(key, client=client, maxsize=MOST_WAITING)


def check_chunk(chunk: Any) -> Chunk:
    """Return what a worker sent if it is a chunk. Raises ValueError."""
    if not isinstance(chunk, tuple | list) or len(chunk) != 3:
        raise ValueError("it is no part of a file")
    name, begin, content = chunk
    known = isinstance(name, str) and (name == "config.yaml" or name in GROWING or CHECKPOINT.fullmatch(name))
    if not known:
        raise ValueError(f"it is of a file {shown(name)}, which no checkpoint has")
    if type(begin) is not int or begin < 0 or not isinstance(content, bytes):
        raise ValueError(f"it is no part of {name}")
    return name, begin, content


def write_chunk(folder: Path, chunk: Chunk, *, keep: bool) -> int | None:
    """Write a chunk, not of config.yaml; return the iteration of the checkpoint that it completes, or None.

    Raises OSError; ValueError if what comes before it in its file, or what its checkpoint refers to, is not there.
    """
    name, begin, content = chunk
    path, checkpoints = folder / name, Checkpoints(folder, keep=keep)
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".json":
        for needed, prefix in read_metadata(content, int(path.stem)).files.items():
            if _size(folder / needed) < prefix.size:
                raise ValueError(
                    f"it refers to {prefix.size:,} bytes of {needed}, of which {_size(folder / needed):,} are there"
                )
        write_atomic(path, content)
        checkpoints.remove_others(int(path.stem))
        return int(path.stem)
    if begin > _size(path):
        raise ValueError(f"it is of {name} from byte {begin:,} on, of which {_size(path):,} are there")
    with open_growing(path, anew=not begin) as file:
        file.truncate(begin)
        file.seek(begin)
        file.write(content)
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def read_resume_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a run's newest intact checkpoint, with the growing files and config.yaml; {} if none is."""
    checkpoints = Checkpoints(folder)
    for iteration in reversed(checkpoints.iterations):
        try:
            prefixes = checkpoints.read(iteration).files
            files = {f"checkpoint/{path.name}": read_bytes(path) for path in checkpoints.paths(iteration)}
            files["config.yaml"] = read_bytes(folder / "config.yaml")
            return files | {name: read_bytes(folder / name)[: file.size] for name, file in prefixes.items()}
        except (OSError, OutputError):
            continue
    return {}


def write_resume_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `read_resume_files` returned into a worker's folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
