"""What each entry of summary.json may be, whoever wrote it: its readers rely on that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from fredsim.config.choices import Backend
from fredsim.errors import nearest, shown
from fredsim.runs.folder.run_files import FILES
from fredsim.simulation.paths.choice import PathTaken
from fredsim.simulation.record.status import Status
from fredsim.system.csv_files import LARGEST_INTEGER

__all__ = ["fault_of_summary"]

LATEST = 2**63 / 1e9  # simulated seconds, whose nanoseconds have 64 bits


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LARGEST_INTEGER


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _time(value: Any) -> bool:
    return value is None or (type(value) is float and 0 <= value < LATEST)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value.values()))


def _numbers(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_number_or_none, value.values())))


def _columns(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(map(_text, value)))


def _live(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_count, map(value.get, ("workers", "works_redone"))))


Kind = Callable[[Any], bool]
#: The entries that every run has.
ALWAYS: dict[str, Kind] = {
    "status": _text, "digest": _text, "iterations": _count, "updates": _count, "backend": _text, "path": _text,
    "device": _text_or_none, "versions": _texts, "processor": _text, "validation_loss": _number_or_none,
    "validation_error": _number_or_none, "test_error": _number_or_none,
}  # fmt: skip
#: Those of some runs, or that nothing needs: but if they are there, they have these values.
SOMETIMES: dict[str, Kind] = {
    "code": _texts, "files": _texts, "model_files": _texts, "metrics": _numbers, "measured_by": _text_or_none,
    "larger_is_better": _columns, "time": _time, "gap": _number_or_none,
    "gradient_norm": _number_or_none, "live": _live, "shares_kernels": _numbers, "seconds": _number,
    "seconds_evaluation": _number, "seconds_probe": _number, "seconds_kernels": _number_or_none,
    "iterations_per_second": _number, "contract": _count, "threads": _count,
    **dict.fromkeys(("pushes", "fetches", "bytes_pushed", "bytes_fetched"), _count),
    **dict.fromkeys(("name", "experiment", "config", "path_why", "machine", "numerics", "vmap", "sha256"), _text),
    **dict.fromkeys(("data", "git"), _text_or_none),
}  # fmt: skip
#: The words that some of them are one of.
WORDS = {"status": get_args(Status), "path": get_args(PathTaken), "backend": get_args(Backend)}


def fault_of_summary(found: Any) -> str:
    """Return what is wrong with the content of a summary.json, without its digests; "" if nothing is."""
    if not isinstance(found, dict):
        return "it holds no mapping"
    for key, fits in (SOMETIMES | ALWAYS).items():
        value = found.get(key)
        if (key in found or key in ALWAYS) and not fits(value):
            return f"{key} is {None if value is None else shown(value)}"
    if unknown := found.get("files", {}).keys() - FILES:
        return f"files has {shown(min(unknown))}, which no run writes"
    if lost := ALWAYS.keys() - found.keys():
        return f"it has no {min(lost)}"
    return _fault_of_columns(found) or _fault_of_words(found)


def _fault_of_columns(found: Mapping[str, Any]) -> str:
    for name, value in (found.get("metrics") or {}).items():
        if not (name.isidentifier() and name.isascii()):
            return f"metrics has {shown(name)}: {shown(value)}"
    named = [("larger_is_better", name) for name in found.get("larger_is_better") or ()]
    if found.get("measured_by") is not None:
        named.append(("measured_by", found["measured_by"]))
    for key, name in named:
        if not (name.isidentifier() and name.isascii()):
            return f"{key} names {shown(name)}"
    return ""


def _fault_of_words(found: Mapping[str, Any]) -> str:
    for key, words in WORDS.items():
        if found[key] not in words:
            return f"{key} is {shown(found[key])}{nearest(found[key], words)} (known: {', '.join(words)})"
    return ""
