"""Sends checkpoints of runs on a Dask cluster to the folder of results as they are written, and back to a new worker.

A lost worker's disk is lost with it. So each checkpoint is sent at once, with whatever the growing files have grown by,
in pieces through a queue of the scheduler; last comes the JSON, which completes it. The worker that does the run next
is given the newest complete checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredsim.errors import OutputError
from fredsim.runs.checkpoints import Checkpoints
from fredsim.system.files import PIECE, write_atomic

__all__ = ["Piece", "Sender", "make_queue", "put_back", "put_piece", "to_hand_back"]

PIECES = 4  # the most pieces that wait at the scheduler
Piece = tuple[str, int, bytes]
"""The name of a file in the run's folder, an offset in it, and the bytes that the file has from there on to its end."""


@dataclass
class Sender:
    """Sends a worker's checkpoints of one run; `begun` are the files that the run was given to go on from."""

    folder: Path
    send: Callable[[Piece], None]
    begun: Mapping[str, bytes]

    def __post_init__(self) -> None:
        self._sent: dict[str, int] = {}  # by growing file, how many of its bytes the other side has

    def __call__(self, iteration: int) -> None:
        """Send a checkpoint. Raises OSError."""
        tensors, plain = Checkpoints(self.folder).paths(iteration)
        content = plain.read_bytes()
        for name, file in json.loads(content)["files"].items():
            self._send_from(name, self._sent[name] if name in self._sent else self._there(name), file["size"])
            self._sent[name] = file["size"]
        self._send_from(f"checkpoint/{tensors.name}", 0, tensors.stat().st_size)
        self.send((f"checkpoint/{plain.name}", 0, content))

    def _there(self, name: str) -> int:
        """Return how many bytes of a file the other side had from the start: 0 if the run started over."""
        content = self.begun.get(name, b"")
        with (self.folder / name).open("rb") as file:
            return len(content) if file.read(len(content)) == content else 0

    def _send_from(self, name: str, begin: int, end: int) -> None:
        with (self.folder / name).open("rb") as file:
            file.seek(begin)
            while begin < end:
                piece = file.read(min(PIECE, end - begin))
                self.send((name, begin, piece))
                begin += len(piece)


def make_queue(client: Any, key: str) -> Any:
    """Return the queue, with room for a few pieces, for the checkpoints of the task with this key."""
    from distributed import Queue

    return Queue(key, client=client, maxsize=PIECES)


def put_piece(folder: Path, piece: Piece, *, keep: bool) -> None:
    """Write a piece that a worker sent into the folder of the run. Raises OSError."""
    name, begin, content = piece
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".json":
        write_atomic(path, content)
        Checkpoints(folder, keep=keep).remove_others(int(path.stem))
        return
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(begin)
        file.seek(begin)
        file.write(content)


def to_hand_back(folder: Path) -> dict[str, bytes]:
    """Return the files of a run's newest intact checkpoint, with the growing files and config.yaml; {} if none is."""
    checkpoints = Checkpoints(folder)
    for iteration in reversed(checkpoints.iterations):
        try:
            grown = checkpoints.read(iteration).files
            files = {f"checkpoint/{path.name}": path.read_bytes() for path in checkpoints.paths(iteration)}
            files["config.yaml"] = (folder / "config.yaml").read_bytes()
            return files | {name: (folder / name).read_bytes()[: file.size] for name, file in grown.items()}
        except (OSError, OutputError):
            continue
    return {}


def put_back(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files that `to_hand_back` returned into a worker's folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
