"""The files of a run's folder, and the digests that show whether they are still as the run wrote them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fredsim.config.document import Document, flatten, problems_at
from fredsim.config.experiment import Experiment
from fredsim.errors import OutputError, shown
from fredsim.hyper import explain
from fredsim.system.files import is_hole, open_whole
from fredsim.system.memory import fills_memory

__all__ = [
    "FILES",
    "check_config",
    "file_digest",
    "file_digests",
    "first_line",
    "read_recorded",
    "requested_files",
    "summary_text",
    "too_large",
    "version_numbers",
    "with_digest",
]

Content = TypeVar("Content", str, bytes)
#: What is said of a text that is none of those known, or of a mapping with such a text in it.
OF_TEXTS = {
    "value_error", "literal_error", "union_tag_invalid", "string_pattern_mismatch", "string_too_long",
    "string_too_short",
}  # fmt: skip
PARTS, HOW = ("clients", "dispatcher", "server", "evaluation"), ("backend", "threads")
#: The files that a run writes before summary.json, each with the key that asks for it ("" for those of every run).
FILES = {
    "metrics.csv": "",
    "staleness.csv": "",
    "params.safetensors": "",
    "params_raw.safetensors": "average",
    "graph.json": "graph",  # of a captured module; no key asks for it
    "initial.safetensors": "graph",
    "probe.csv": "probe",
    "clients.csv": "evaluation.per_client",
    "events.parquet": "events",
    "live.csv": "live",
}


def requested_files(config: Mapping[str, Any]) -> list[str]:
    """Return the files that a run of this configuration writes because one of its keys asks for them."""
    known = {*config, *flatten(config)}  # keys that are off are absent from a resolved configuration
    return [name for name, key in FILES.items() if key in known]


def with_digest(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of summary.json with a SHA-256 of the rest added, which shows whether the file was changed."""
    content = {key: value for key, value in summary.items() if key != "sha256"}
    return content | {"sha256": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return the text of a summary.json with this content, to which its SHA-256 is added."""
    return json.dumps(with_digest(summary), indent=2) + "\n"


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of FILES that exists, by name."""
    paths = [folder / name for name in FILES]
    return {path.name: file_digest(path) for path in paths if path.is_file() and not path.is_symlink()}


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with open_whole(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def too_large(folder: Path) -> str:
    """Return the name of a file of FILES that a run on this machine cannot have written; "" if there is none.

    It would take hours to find its digest if it is a hole of a petabyte. Events may be more than fits into memory, but
    then take room on the disk.
    """
    for name in FILES:
        with suppress(OSError):
            found = os.lstat(folder / name)
            if fills_memory(found.st_size) and (is_hole(found) or name != "events.parquet"):
                return name
    return ""


def read_recorded(path: Path, read: Callable[[Path], Content]) -> Content:
    """Return what `read` returns of a file that a run has written. Raises OutputError if it cannot be read."""
    try:
        return read(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); run the experiment again") from None


def first_line(name: str, contents: Sequence[bytes], both: Callable[[str, str], str]) -> str:
    """Say where the contents of two files first differ: for CSV files the line, unless only line ends differ."""
    if name.endswith(".csv"):
        lines = (content.decode(errors="replace").splitlines() for content in contents)
        for line, (left, right) in enumerate(zip_longest(*lines, fillvalue="no more"), start=1):
            if left != right:
                return f"{name}, line {line} is {both(left, right)}"
    return f"{name}: the bytes differ"


def check_config(path: Path, document: Document, *, ended: bool) -> dict[str, Any]:
    """Return a resolved experiment with all of its keys, also if somebody has written some shorter, as one may.

    No code of a user is imported. That of a run that has ended is only shown, and may have any names and texts in the
    place of others; with such it is returned as it is. Raises ConfigError or OutputError if it is none.
    """
    of = ("problem",) if "problem" in document.data else ("data", "model")
    for key in ("name", "seed", *of, *PARTS, *HOW):
        if key not in document.data:
            raise OutputError(f"{path}: is damaged (it has no {key}); run the experiment again")
        value = document.data[key]
        if key in {*of, *PARTS} and not (isinstance(value, Mapping) and isinstance(value.get("name", ""), str)):
            what = f"{key} is {shown(value)}, which no run records"
            raise OutputError(f"{path}: is damaged ({what}); run the experiment again")
    try:
        return Experiment.model_validate(document.data).plain()
    except ValidationError as error:
        if not (ended and all(map(_of_text, error.errors(include_url=False)))):
            raise problems_at(explain(error, Experiment), document.place) from None
    return document.data


def _of_text(error: Mapping[str, Any]) -> bool:
    """Return whether what is wrong is a name or a text, and not the type or the size of a value."""
    return error["type"] == "extra_forbidden" or (
        error["type"] in OF_TEXTS and isinstance(error["input"], str | Mapping)
    )


def version_numbers(text: object) -> tuple[int, ...]:
    """Return the leading numbers of a version, such as (1, 0) of 1.0rc1."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[a-z+-]", str(text)[:500])[0])))
