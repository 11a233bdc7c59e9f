"""Which lines of a figure are compared: those with as many clients, and with staleness where waiting costs nothing.

One client has no staleness, a round that waits for every client has none, nor has a pipeline without delays. Beside
asynchronous runs such lines are references: that they are ahead says nothing about who copes with staleness.

- If lines differ in λ, those are compared whose λ most lines have; of several such λ those of the largest.
- Against iterations, updates or bytes, where waiting costs nothing, lines without staleness are references. Against
  seconds they are compared.
- A rule that would leave a single line to compare is not applied.
- Panels of one client count only if no other panel has more: who is ahead there copes with no staleness.

A line of one run is ahead of another one only if it was behind it at none of the last rows of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fredsim.config.registry import KNOWN
from fredsim.runs.folder.result import Result
from fredsim.show.plots.finals import last_rows
from fredsim.show.plots.numbers import given

__all__ = ["Field", "field_of", "is_fresh", "nowhere_compared"]


@dataclass(frozen=True)
class Field:
    """The labels of lines that are compared, those of references with what they have, and what the compared share.

    `clients`: how many clients the compared have, None if they differ. `last`: the last values of lines of one run.
    """

    compared: Sequence[str]
    references: Mapping[str, str]
    of: str = ""
    clients: int | None = None
    last: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def cross(self, first: str, other: str, *, largest: bool = False) -> bool:
        """Return whether `first` was behind at one of the last rows, counted from the end, of two lines of one run."""
        rows = zip(reversed(self.last.get(first, ())), reversed(self.last.get(other, ())), strict=False)
        return any(b > a if largest else b < a for a, b in rows)


def nowhere_compared(fields: Sequence[Field]) -> set[str]:
    """Return the labels of references that no panel compares."""
    compared = {label for field in fields for label in field.compared}
    return {label for field in fields for label in field.references} - compared


def field_of(lines: Mapping[str, Sequence[Result]], x: str | None, y: str | None = None) -> Field:
    """Return which of these lines, each with its runs, are compared against `x`, an axis of a figure.

    `y`: the column whose final values are compared, if it is these.
    """
    counts = {label: _count(runs) for label, runs in lines.items()}
    compared, references, of = [*lines], dict[str, str](), ""
    if None not in counts.values() and len(set(counts.values())) > 1:
        found = Counter(count for count in counts.values() if count is not None)
        usual = max(found, key=lambda count: (found[count], count))
        if found[usual] > 1:
            of = f"λ = {given(usual)}"
            compared = [label for label in lines if counts[label] == usual]
            references = {label: f"λ = {given(counts[label])}" for label in lines if counts[label] != usual}
    if x != "seconds":
        fresh = [label for label in compared if all(is_fresh(run.config) for run in lines[label])]
        stale = [label for label in compared if label not in fresh]
        if fresh and len(stale) > 1:
            compared = stale
            references |= dict.fromkeys(fresh, "no staleness")
    clients = {counts[label] for label in compared}
    last = {} if y is None else {label: last_rows(runs, y) for label, runs in lines.items()}
    return Field(compared, references, of, clients.pop() if len(clients) == 1 else None, last)


def is_fresh(config: Mapping[str, Any]) -> bool:
    """Return whether no gradient of a run can be stale: with one client, with rounds that wait, or no delay."""
    server, clients, stages = config["server"], config["clients"], config.get("stages") or {}
    kind = KNOWN["server"].get(server["name"])
    waits = bool(getattr(kind, "holds", False))
    whole = server.get("aggregate") in (None, clients["count"]) or bool(server.get("restart"))
    if not stages:
        return clients["count"] == 1 or (waits and whole)
    delay = stages.get("delay")
    if clients["count"] != 1 or not isinstance(delay, Mapping):
        return False
    forward = delay.get("forward")  # of each stage, or of all
    return not (any(forward) if isinstance(forward, list) else forward)


def _count(runs: Sequence[Result]) -> int | None:
    """Return how many clients all of these runs have, None if they differ."""
    counts = {int(run.config["clients"]["count"]) for run in runs}
    return counts.pop() if len(counts) == 1 else None
