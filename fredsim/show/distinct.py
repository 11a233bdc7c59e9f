"""Reads the runs that a command was given: each whole, and counted once; says which have the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fredsim.config.experiment import Affects, irrelevant_to
from fredsim.runs.folder.results import Result
from fredsim.show.terminal import say
from fredsim.system.given import real_path

__all__ = ["alike", "distinct", "note_alike", "of_bits"]

#: The keys that change no bit of a run, or that need not change any.
QUIET = {"seed", *irrelevant_to(Affects.BITS)}


def distinct(results: Sequence[Result]) -> list[Result]:
    """Return the runs without those that are there twice, such as a copy of a folder; print which, and `note_alike`.

    Two runs are the same if their configurations (figures aside) and their digests are; of such the first remains, or
    the first that has published points. Raises OutputError if a file of a run is damaged, gone, or not as the run wrote
    it.
    """
    kept: dict[object, Result] = {}
    twice: list[tuple[Result, Result]] = []
    for result in results:
        result.check_files()
        said = result.summary if result.has_ended else {}
        key = (said["config"], said["status"], said["digest"]) if said else real_path(result.folder)
        first = kept.setdefault(key, result)
        if first is result:
            continue
        if result.config.get("published") and not first.config.get("published"):  # whose points are drawn
            kept[key], first, result = result, result, first
        twice.append((result, first))
    if twice:
        result, first = twice[0]
        more = f", like {len(twice) - 1} more" if len(twice) > 1 else ""
        what = f"is the same run as {first.folder} (configuration, seed and digest) and counts once{more}"
        say(f"note: {result.folder}: {what}", err=True)
    note_alike([*kept.values()])
    return list(kept.values())


def of_bits(result: Result) -> dict[str, Any]:
    """Return those keys of a run's experiment that may change its bits: what is the same run, however computed."""
    return {key: value for key, value in result.config.items() if key not in irrelevant_to(Affects.BITS)}


def alike(results: Sequence[Result]) -> str:
    """Say which runs have the same bits though their seeds differ, or other keys that change no bit; "" if none have.

    Such runs draw nothing at random: they are one run, which has no spread.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.has_ended:
            config = {key: value for key, value in of_bits(result).items() if key != "seed"}
            groups.setdefault(repr(config), []).append(result)
    for runs in groups.values():
        if len(runs) > 1 and len({run.summary["digest"] for run in runs}) == 1:
            keys = sorted(key for key in QUIET if len({repr(run.config.get(key)) for run in runs}) > 1)
            return f"{len(runs)} runs that differ in {' and '.join(keys)} have the same bits: they show no spread"
    return ""


def note_alike(results: Sequence[Result]) -> None:
    """Say whether runs differ in nothing but keys that change no bit of them, such as a seed from which none draws."""
    if text := alike(results):
        say(f"note: {text}", err=True)
