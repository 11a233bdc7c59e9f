"""Random bad folders of runs: checkpoints that are damaged, swapped, removed or forged.

The folders, and the expected results, come from runs that are done once, in the process that makes the cases.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load, save

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.checkpoint.format import json_with_digest
from fredsim.runs.single import run as run_module
from tests.bad_cases import BASE, Case, Outcome, damaged, reshaped

__all__ = ["Files", "a_checkpoint", "facts", "files_in", "what_differs"]

Files = dict[str, bytes]

#: The keys of summary.json that depend on the circumstances of a run, not on its results.
CIRCUMSTANCES = {"seconds", "seconds_evaluation", "seconds_probe", "seconds_kernels", "shares_kernels"}
CIRCUMSTANCES |= {"iterations_per_second", "sha256", "git", "device"}


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def facts(summary: bytes) -> dict[str, Any]:
    return {key: value for key, value in json.loads(summary).items() if key not in CIRCUMSTANCES}


def what_differs(found: Files, wanted: Files) -> str:
    """Say which files of a run are not as they must be."""
    names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
    names = [
        name
        for name in names
        if not name.endswith("summary.json")
        or name not in found
        or name not in wanted
        or facts(found[name]) != facts(wanted[name])
    ]
    return f"not as they must be: {names}" if names else ""


# Checkpoints

EVENTFUL = BASE | {
    "iterations": 40, "evaluation": {"every": 7, "per_client": True}, "probe": {"every": 5}, "events": True,
}  # fmt: skip
ON_KERNELS = BASE | {
    "iterations": 40, "evaluation": {"every": 7, "per_client": True}, "events": True, "backend": "numba",
}  # fmt: skip
EXPERIMENTS: tuple[dict[str, Any], ...] = (
    EVENTFUL | {"path": "snapshots"},
    EVENTFUL
    | {
        "server": {"name": "soft_sync", "lr": 0.1, "n": 2},
        "dispatcher": {"name": "weighted", "weights": [1, 2, 3], "push": {"every": {"k": 2}}},
        "compress": {"name": "top_k", "k": 3},
    },
    EVENTFUL
    | {
        "server": {"name": "asgd", "lr": 0.1},
        "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}, "fetch": {"every": {"k": 2}}},
        "average": {"name": "window", "rate": 0.5, "min_window": 2},
        "clients": {"count": 3, "batch_size": 2, "local_steps": 2, "sampling": "shuffled"},
    },
    ON_KERNELS | {"path": "hand"},
    ON_KERNELS | {"path": "hand", "server": {"name": "ia2sgd", "lr": 0.1}, "dispatcher": {"name": "clock"}},
    ON_KERNELS
    | {
        "path": "fused",
        "dispatcher": {"name": "uniform", "fetch": {"bandwidth_aware": {"c": 0.1}}},
        "probe": {"every": 5},
    },
    ON_KERNELS | {"path": "snapshots", "server": {"name": "bfasgd", "lr": 0.01}},
)


@dataclass(frozen=True)
class KilledRun:
    """A run: its YAML, and the files in its folder at an early and at a late checkpoint, and at its end."""

    yaml: bytes
    early: Files
    late: Files
    done: Files


class CopyingCheckpoints(Checkpoints):
    """Checkpoints that copy the files of the run's folder after each one is written."""

    taken: list[Files]

    def write(self, checkpoint: Any) -> None:
        super().write(checkpoint)
        self.taken.append(files_in(self.folder.parent))


@functools.cache
def killed_run(number: int, seed: int) -> KilledRun:
    data = EXPERIMENTS[number] | {"name": "x", "seed": seed}
    copies: list[Files] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(run_module, "MOST_CHECKPOINT_SHARE", 1e9),
        patch.object(run_module, "Checkpoints", type("CopyingCheckpoints", (CopyingCheckpoints,), {"taken": copies})),
    ):
        fredsim.run(data, out=folder, checkpoint=1e-9)
        done = files_in(Path(folder))
    if len(copies) < 4:
        raise AssertionError(f"{data} has {len(copies)} checkpoints")
    return KilledRun(dump_yaml(data).encode(), copies[len(copies) // 3], copies[2 * len(copies) // 3], done)


def a_checkpoint(rng: random.Random) -> Case:
    """Damage the checkpoints of a run that was killed, or the files beside them, and let it continue."""
    number = rng.randrange(len(EXPERIMENTS))
    run = killed_run(number, 0)
    files, exact = dict(run.late), True
    for _ in range(rng.choice((1, 1, 2))):
        exact &= rng.choice(DAMAGES)(rng, files, number)
    arguments = ["run", "x.yaml", "--resume", "--checkpoint", "0", "--out", "out", "--quiet"]

    def judge(outcome: Outcome) -> str:
        found = files_in(outcome.folder / "out")
        if outcome.code == 0:
            kept = {name: content for name, content in found.items() if not name.startswith("checkpoint/")}
            return what_differs(kept, run.done) if exact else ""
        if not exact:  # it may have continued for a while from a forged state
            return ""
        lost = [name for name, content in files.items() if found.get(name) != content and name != "config.yaml"]
        return f"refused, and changed {lost}" if lost else ""

    named = {f"out/{name}": content for name, content in files.items()}
    return Case("checkpoint", arguments, {"x.yaml": run.yaml, **named}, judge=judge)


def _of_checkpoints(files: Files, kind: str = "") -> list[str]:
    return sorted(name for name in files if name.startswith("checkpoint/") and name.endswith(kind))


def _damage(rng: random.Random, files: Files, _: int) -> bool:
    names = _of_checkpoints(files)
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 4)))):
        files[name] = damaged(rng, files[name], text=name.endswith("json"))
    return True


def _beside(rng: random.Random, files: Files, _: int) -> bool:
    """Damage or remove a growing file."""
    name = rng.choice(sorted({"metrics.csv", "probe.csv", "events.parquet"} & files.keys()) or [""])
    if not name or rng.random() < 0.3:
        files.pop(name, None)
    else:
        files[name] = damaged(rng, files[name], text=name.endswith("csv"))
    return True


def _lose(rng: random.Random, files: Files, _: int) -> bool:
    names = _of_checkpoints(files)
    for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 3)))):
        files.pop(name, None)
    return True


def _swap(rng: random.Random, files: Files, number: int) -> bool:
    """Swap files of checkpoints with each other, or with those of another run or another checkpoint."""
    one, other = rng.choices(_of_checkpoints(files) or ["checkpoint/x"], k=2)
    what = rng.randrange(4)
    if what == 0:
        files[one], files[other] = files.get(other, b""), files.get(one, b"")
    elif what == 1:  # the same experiment with another seed
        other_files = killed_run(number, 1).late
        files |= {name: other_files[name] for name in _of_checkpoints(other_files)}
    elif what == 2:
        other_files = killed_run(rng.randrange(len(EXPERIMENTS)), 0).early
        files |= {name: other_files[name] for name in _of_checkpoints(other_files)}
    else:  # the checkpoints are then newer than the files beside them
        other_files = killed_run(number, 0).early
        files |= {name: other_files[name] for name in other_files if not name.startswith("checkpoint/")}
    return True


def _clutter(rng: random.Random, files: Files, _: int) -> bool:
    """Copy a checkpoint to an unusual name."""
    names = _of_checkpoints(files)
    content = files[rng.choice(names)] if names else b""
    other = rng.choice(("999999999999.json", "0.json", "x.json", "9" * 200 + ".json", "١.json", "1.json/x", ".json"))
    files[f"checkpoint/{other}"] = content
    if other[:3] == "999":
        files["checkpoint/999999999999.safetensors"] = content
    return True


def _forge(rng: random.Random, files: Files, _: int) -> bool:
    """Write nonsense into a checkpoint, with correct digests; return whether its state is unchanged."""
    names = _of_checkpoints(files, ".json")
    name = names[-1] if names and rng.random() < 0.8 else rng.choice(names or ["checkpoint/000000000009.json"])
    metadata, exact = None, True
    with contextlib.suppress(ValueError, KeyError, RecursionError):
        metadata = json.loads(files[name])
    if not isinstance(metadata, dict):
        files[name] = json_with_digest(reshaped(rng, {"format": 2, "iteration": 9}))
        return True
    what = rng.choice(("all", "part", "values", "tensors"))
    if what == "all":
        metadata = reshaped(rng, metadata)
        exact = False
    elif what == "part":
        part = rng.choice([key for key in metadata if key not in {"values", "sha256", "dtypes"}])
        metadata[part] = reshaped(rng, {"x": metadata[part]}).get("x")
    elif what == "values":
        exact = False
        values: Any = metadata.get("values")
        try:
            key = rng.choice(sorted(values or {}))
            inside = json.loads(values[key])  # if the value is a JSON text itself
            values[key] = json.dumps(reshaped(rng, inside if isinstance(inside, dict) else {"x": inside}))
        except (TypeError, ValueError, IndexError):
            metadata["values"] = reshaped(rng, values)
    else:
        exact = False
        tensors = name.replace(".json", ".safetensors")
        with contextlib.suppress(Exception):
            files[tensors] = _forged_tensors(rng, files[tensors], metadata)
            metadata["tensors"] = hashlib.sha256(files[tensors]).hexdigest()
    files[name] = json_with_digest(metadata if isinstance(metadata, dict) else {"x": metadata})
    return exact and what == "part"


def _forged_tensors(rng: random.Random, content: bytes, metadata: dict[str, Any]) -> bytes:
    """Return other tensors: removed, renamed, with another shape or type, or with impossible numbers."""
    if rng.random() < 0.3:
        return damaged(rng, content)
    arrays = load(content)
    name = rng.choice(sorted(arrays))
    array = arrays.pop(name)
    what = rng.randrange(6)
    if what == 1:
        arrays[f"{name}x"] = array
    elif what == 2:
        arrays[name] = np.resize(array, rng.choice(((0,), (1,), (7,), (2, 2), (array.size + 1,), (1, 1, 1))))
    elif what == 3:
        kind = rng.choice(("f4", "f8", "i1", "i4", "i8", "u8", "?"))
        with np.errstate(all="ignore"):
            arrays[name] = array.astype(kind)
    elif what == 4:
        numbers = np.array([rng.choice((-1, 0, 1, 2**31, 2**62, 10**6))], np.int64).astype(array.dtype)
        array.flat[: rng.choice((1, array.size))] = numbers
        arrays[name] = array
    elif what == 5:
        metadata["dtypes"] = {name: [rng.choice(("O", "|V8", "<f8", "M8[s]", "x", "S1")), list(array.shape)]}
        arrays[name] = array.reshape(-1).view(np.uint8)
    return save(arrays)


DAMAGES: tuple[Callable[[random.Random, Files, int], bool], ...] = (
    _damage, _damage, _damage, _beside, _lose, _swap, _swap, _clutter, _forge, _forge, _forge, _forge,
)  # fmt: skip
