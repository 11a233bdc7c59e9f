"""Does something for each run of a document; an error that only some of them raise says of which run it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from fredsim.errors import ConfigError

__all__ = ["for_each_run", "in_run"]

LONGEST_LABEL = 160  # the most characters of a run's label in a message

Run = TypeVar("Run")
Done = TypeVar("Done")


def for_each_run(runs: Sequence[Run], do: Callable[[Run], Done], label: Callable[[Run], str]) -> list[Done]:
    """Return what `do` returns for each run.

    Raises the ConfigError of the first run that raises one, which names the run, unless each raises the same.
    """
    done: list[Done] = []
    for run in runs:
        try:
            done.append(do(run))
        except ConfigError as error:
            if not done and all(_message(do, other) == str(error) for other in runs[1:]):
                raise
            raise in_run(error, label(run)) from None
    return done


def _message(do: Callable[[Run], Done], run: Run) -> str | None:
    try:
        do(run)
    except ConfigError as error:
        return str(error)
    return None


def in_run(error: ConfigError, label: str) -> ConfigError:
    """Return the error with the run's label at the end of each of its lines; a single run has none."""
    if not label:
        return error
    short = label if len(label) <= LONGEST_LABEL else f"{label[:LONGEST_LABEL]}…"
    return ConfigError(*(f"{line} (in the run {short})" for line in error.args))
