"""Checkpoints of runs on a Dask cluster: they come to the folder of results as they are written, and go back from it.

A worker that is lost takes its disk along. So each checkpoint, and what the files that grow have grown by, is sent at
once, in pieces, through a queue of the scheduler; the JSON, which makes it a checkpoint, last. Who does the run next
is given the newest whole one.
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

PIECES = 4  # that wait at the scheduler
Piece = tuple[str, int, bytes]
"""The name of a file in the run's folder, a place in it, and the bytes that stand there from now on, to its end."""


@dataclass
class Sender:
    """Sends the checkpoints of one run on a worker; `begun`: the files that the other side handed to it."""

    folder: Path
    send: Callable[[Piece], None]
    begun: Mapping[str, bytes]

    def __post_init__(self) -> None:
        self._sent: dict[str, int] = {}  # of each file that grows, how much the other side has

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
        """Return how much of a file the other side has had from the beginning: nothing, where the run began anew."""
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
    """Return the queue through which the checkpoints of the task of this key come; it has room for a few pieces."""
    from distributed import Queue

    return Queue(key, client=client, maxsize=PIECES)


def put_piece(folder: Path, piece: Piece, *, keep: bool) -> None:
    """Write what a worker sent into the folder of the run. Raises OSError."""
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
    """Return the files of the newest whole checkpoint of a run, with what grew until then; none where there is none."""
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
    """Write what was handed back into a worker's folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
