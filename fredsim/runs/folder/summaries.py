"""Compares a record, the summary.json of a run, with that of the same run done again: entry by entry, both ways.

Each entry that either of them has must be in both, with the same value of the same type. Only the entries of
CIRCUMSTANCES may differ, because they depend on the machine or on the time; of these the form is checked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from fredsim.config.choices import Backend
from fredsim.config.data import DataRead
from fredsim.config.document import flatten, read_document
from fredsim.config.experiment import Experiment
from fredsim.config.models import Recorded, recorded
from fredsim.config.registry import own_modules
from fredsim.config.resolution import resolve
from fredsim.errors import shown
from fredsim.numerics import CONTRACT
from fredsim.plugins.user_code import digest_changes, named_modules
from fredsim.runs.folder.result import Result
from fredsim.runs.folder.run_files import version_numbers
from fredsim.simulation.paths.choice import PathTaken
from fredsim.system.files import named_as

__all__ = ["CIRCUMSTANCES", "file_changes", "is_record_of", "record_difference", "recorded_module"]

#: Entries that were added after fredsim 1.0.0, with the version that added each: records of earlier ones lack them.
ADDED: dict[str, tuple[int, ...]] = {"model_files": (1, 1)}
#: A version by Python's rules; a build between releases may end in a sign, as Python 3.12.3+ does.
VERSION = re.compile(r"\d\w*([.+!-]\w+)*\+?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40,64}(-dirty)?")
MOST_THREADS = 2**16
SHORT_NAMES = (1, 1)  # the version since which `code` has the modules of short names, which installed packages give
LONGEST = 500  # the most characters of a text


#: The entries that follow from experiment, backend and fredsim's version.
TAKEN = {"path", "path_why"}


def record_difference(one: Result, other: Result) -> str | None:
    """Return the first entry in which a record and its repetition differ, or None.

    The repetition may be on another backend and path. A live run, which is repeated by the simulator, has the entry
    `live`, the file live.csv, and a dispatcher of its own.
    """
    record, now = one.summary, dict(other.summary)
    config = read_document(one.folder / "config.yaml")
    with recorded(recorded_module(one, config.data)):
        experiment = resolve(config.data, config.place)
    experiments = _digests(experiment)
    now["experiment"] = record.get("experiment") if record.get("experiment") in experiments else experiments[0]
    if version_numbers(record["versions"].get("fredsim")) < SHORT_NAMES:
        short = own_modules(experiment.plain()) - named_modules(experiment.plain()) - record.get("code", {}).keys()
        now["code"] = {name: digest for name, digest in now["code"].items() if name not in short}
    made = [(said.get("backend"), said.get("config"), said["versions"].get("fredsim")) for said in (record, now)]
    free = CIRCUMSTANCES.keys() - (TAKEN if made[0] == made[1] else set())
    if "model_files" in record and "model_files" in now:
        now["model_files"] = named_as(now["model_files"], record["model_files"])
    added = ({"live": None}, {"live.csv": ""}) if one.live else ({}, {})
    now, files = now | added[0], now["files"] | added[1]
    keys = [key for key in {**record, **now} if key not in ("config", "files", "sha256")]
    for key in keys:
        if key not in record and version_numbers(record["versions"].get("fredsim")) >= ADDED.get(key, ()):
            return f"summary.json: {key} is missing (recorded) and {now[key]} (now)"
        if key not in now:
            return f"summary.json: {key} is {record[key]} (recorded) and missing (now)"
    for key in keys:
        if key not in record:
            continue
        if key in free:
            if not CIRCUMSTANCES[key](record[key], record, config.data):
                return f"summary.json: {key} is {record[key]!r}, which no run records"
        elif key == "model_files" and (read := file_changes(record[key], now[key])):
            return f"summary.json: {'; '.join(read)}"
        elif json.dumps(record[key], sort_keys=True) != json.dumps(now[key], sort_keys=True):
            return f"summary.json: {key} is {record[key]} (recorded) and {now[key]} (now)"
    if record["files"].keys() != files.keys():
        return f"summary.json: files has {', '.join(record['files'])} (recorded) and {', '.join(files)} (now)"
    if record["versions"].keys() != now["versions"].keys():
        return f"summary.json: versions has {', '.join(record['versions'])} (recorded) and {', '.join(now['versions'])}"
    return None if one.live or made[0][2] != made[1][2] else _lacking(config.data, other.folder)


def _lacking(config: Mapping[str, Any], again: Path) -> str | None:
    """Return the first key that a config.yaml lacks, and that the same version of fredsim writes again."""
    whole, known = flatten(read_document(again / "config.yaml").data), flatten(config)
    missing = next((key for key in whole if key not in known), None)
    return missing and f"config.yaml: {missing} is missing (recorded) and {shown(whole[missing])} (now)"


def recorded_module(result: Result, config: Mapping[str, Any]) -> Recorded | None:
    """Return what a folder has of a PyTorch module; None if the run has not ended, or its model is another."""
    model = config.get("model")
    if not (result.has_ended and isinstance(model, dict) and str(model.get("name")).startswith("torch:")):
        return None
    summary = result.summary
    code = {name: digest for name, digest in summary.get("code", {}).items() if name in named_modules({"model": model})}
    return Recorded(result.folder, str(summary.get("numerics")), code, summary.get("model_files", {}))


def file_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a text for each file that a PyTorch module was built from, and that differs from the one it has now.

    That it lies in another folder, or that the command was given in another one, is no difference.
    """
    new, gone = (
        "the model now reads the file {}, of which the record has no digest",
        "the model no longer reads the file {}",
    )
    return digest_changes(before, named_as(now, before), new, gone, "the file {} that the model reads has changed")


def is_record_of(result: Result, experiment: Experiment) -> bool:
    """Return whether a record is of an experiment, which may be the content of its config.yaml.

    That has the numbers of rows that the run has found. Raises OutputError, ConfigError if config.yaml is damaged.
    """
    recorded = result.summary.get("experiment")
    if recorded == experiment.digest or recorded not in _digests(experiment):
        return bool(recorded == experiment.digest)
    given, found = experiment.plain()["data"], result.config["data"]
    return all(given.get(key) in (None, found.get(key)) for key in ("train", "validation"))


def _digests(experiment: Experiment) -> list[str]:
    """Return the digests that a run with this configuration may record.

    The configuration has the numbers of rows that the run found, even where the experiment did not give them.
    """
    data = experiment.data
    if not isinstance(data, DataRead):
        return [experiment.digest]
    some = ((), ("train",), ("validation",), ("train", "validation"))
    given = (data.model_copy(update=dict.fromkeys(keys)) for keys in some)
    return [experiment.model_copy(update={"data": one}).digest for one in given]


Form = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], bool]
"""Returns whether a value is one that a run records; given the value, the record, and the content of config.yaml."""


def _seconds(value: Any, *_: object) -> bool:
    return type(value) is float and 0 <= value < math.inf


def _rate(value: Any, record: Mapping[str, Any], _: object) -> bool:
    seconds = record["seconds"]
    return _seconds(value) and _seconds(seconds) and seconds > 0 and value == record["iterations"] / seconds


def _text(value: Any, *_: object) -> bool:
    return type(value) is str and 0 < len(value) <= LONGEST and value.isprintable()


def _count(value: Any, *_: object) -> bool:
    return type(value) is int and value >= 0


def _shares(value: Any, *_: object) -> bool:
    return value is None or (type(value) is dict and all(_seconds(share) and share <= 1 for share in value.values()))


def _threads(value: Any, _: object, config: Mapping[str, Any]) -> bool:
    return type(value) is int and (value == 1 or (1 < value <= MOST_THREADS and config["threads"] in (None, value)))


def _backend(value: Any, _: object, config: Mapping[str, Any]) -> bool:
    known = get_args(Backend) if config["backend"] == "auto" else (config["backend"],)
    return value in known and value != "auto"


def _device(value: Any, record: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    model = config.get("model")
    if model is None:  # beside a problem of the user's own, which is on no device that is known
        return value is None
    asked = model.get("device") if record.get("numerics") == "native" else record["backend"]
    if asked != "cuda" and record["backend"] == "cuda" and value is None:
        return True  # PyTorch could not compute the module there
    return _text(value) if "cuda" in (asked, record["backend"]) else value is None


def _versions(value: Any, *_: object) -> bool:
    return all(len(one) <= LONGEST and VERSION.fullmatch(one) for one in value.values())


def _live(value: Any, *_: object) -> bool:
    kinds = {"workers": _count, "works_redone": _count, "delay": _delay}
    return type(value) is dict and value.keys() == kinds.keys() and all(kinds[key](value[key]) for key in kinds)


def _delay(value: Any) -> bool:
    return _seconds(value) or _count(value)


#: The entries that depend on the machine, on the time, or on the backend and path on which a run is repeated.
CIRCUMSTANCES: dict[str, Form] = {
    "seconds": lambda value, *_: _seconds(value) and value > 0,
    "seconds_evaluation": _seconds,
    "seconds_probe": _seconds,
    "seconds_kernels": lambda value, *_: value is None or _seconds(value),
    "shares_kernels": _shares,
    "iterations_per_second": _rate,
    "backend": _backend,
    "device": _device,
    "threads": _threads,
    "path": lambda value, *_: value in get_args(PathTaken),
    "path_why": _text,
    "machine": _text,
    "processor": _text,
    "vmap": _text,
    "contract": lambda value, *_: type(value) is int and 1 <= value <= CONTRACT,
    "git": lambda value, *_: value is None or (type(value) is str and COMMIT.fullmatch(value) is not None),
    "live": _live,
    "versions": _versions,
}
