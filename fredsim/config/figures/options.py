"""The options of a figure, and the checks of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fredsim.errors import nearest, shown

__all__ = [
    "KINDS",
    "LOG_FROM",
    "MOST_LANES",
    "MOST_TIMELINES",
    "SHARES",
    "STYLES",
    "FigureKind",
    "Options",
    "X",
    "Y",
    "client_ids",
    "is_wanted",
    "label_of",
    "name_of_error",
    "option_problems",
]

SHARES = ("pushes", "fetches")
STYLES = ("column", "page")
LOG_FROM = 5.0  # the largest value over the smallest from which on an axis is logarithmic by default
MOST_CLIENTS = 10_000_000  # the most clients that a range may name
MOST_TIMELINES = 8  # the most runs of which a figure has timelines
MOST_LANES = 64  # the most clients of a timeline
X = {
    "iterations": "iteration (gradients arrived)",
    "updates": "update (server timestamp)",
    "bytes": "pushed and fetched",
    "seconds": "simulated time",
}
Y = {
    "validation_error": "validation error (fraction)",
    "validation_loss": "validation loss (nats)",
    "train_loss": "training loss (nats)",
    "gap": "gap to the optimum, f − f*",
    "gradient_norm": "norm of the gradient, ‖∇f‖",
}


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure; the module of its name in fredsim.show.plots.kinds draws it.

    Attributes:
        takes: the options that it takes, of those that only some kinds take.
        fixed: why it does not take `by` or `panel`, which all others take.
        keys_as_x: whether `x` may be a dotted key, or a share of copies.

    """

    takes: AbstractSet[str] = frozenset()
    fixed: Mapping[str, str] = field(default_factory=dict)
    keys_as_x: bool = False

    @property
    def events(self) -> bool:
        """Whether it shows events.parquet."""
        return "clients" in self.takes


OWN_PANELS = "a figure of the kind {} has panels of its own, use by"
EACH_RUN = "a timeline has a panel for each run"
PART = {"clients", "from", "to"}
KINDS: dict[str, FigureKind] = {
    "curves": FigureKind({"x", "y", "reach", "quartiles", "log", "to"}),
    "ends": FigureKind({"x", "y", "log"}, keys_as_x=True),
    "matrix": FigureKind({"x", "y", "reach"}),
    "staleness": FigureKind({"log"}),
    "copies": FigureKind(fixed={"panel": OWN_PANELS.format("copies")}),
    "probe": FigureKind({"log"}, fixed={"panel": OWN_PANELS.format("probe")}),
    "tensors": FigureKind(),
    "shards": FigureKind(fixed={"by": "a figure of the kind shards has a panel a partition, use panel"}),
    "timeline": FigureKind(PART, fixed={"by": EACH_RUN, "panel": EACH_RUN}),
    "waits": FigureKind(PART),
}


@dataclass(frozen=True)
class Options:
    """The options of a figure.

    `by` and `panel` are dotted keys of the experiments (fredsim.show.plots.groups). `x` and `y` are for curves and
    ends: `y` is a column; `x` is one of `X` or, for ends, also the share of `pushes` or `fetches` that passed, or a
    dotted key; None is seconds for curves if all rows are on the clock, else iterations, and bytes for ends. `reach`:
    values of `y` for which the table of curves has the first iteration, bytes and seconds, and of which a matrix shows
    one (without it, y at the end); for runs that have a gap instead of an error, the error stands for the gap. `where`:
    only runs whose keys have these values, or one of a list, are drawn; `best`: of these, only those that `select`
    chose; `log`: whether the y axis is logarithmic, None: if the values shown span more than a factor of LOG_FROM;
    `quartiles`: the bands of curves cover the middle half of the runs, not all. `clients`, such as `0-3,8`, and `begin`
    and `end`, in simulated seconds, select the part of a timeline, or of waits, that is shown; for curves `end` is
    where the x axis ends. `caption`: whether the picture has its caption and `command`. `data_root`: where data files
    are kept, which only a figure of shards reads. `style`: one of STYLES, for one column of a paper or for the whole
    page; None: as large as the content requires. `nats`: whether losses are of probabilities, and so in nats.
    """

    by: Sequence[str] | None = None
    panel: Sequence[str] | None = None
    x: str | None = None
    y: str = "validation_error"
    reach: Sequence[float] = ()
    best: bool = False
    log: bool | None = None
    quartiles: bool = False
    title: str = ""
    caption: bool = True
    command: str = ""
    data_root: Path | None = None
    clients: str | None = None
    begin: float | None = None
    end: float | None = None
    style: str | None = None
    nats: bool = True
    where: Mapping[str, Any] = field(default_factory=dict)

    @property
    def axis(self) -> str | None:
        """The dotted key that `x` is; None if `x` is something measured."""
        return None if self.x is None or self.x in {*X, *SHARES} else self.x


def label_of(y: str, *, nats: bool = True) -> str:
    """Return the label of the y axis; for a metric or a server's own number its name. `nats`: losses are in nats."""
    error = name_of_error(y)
    label = Y.get(y, f"{error} (fraction)" if error else y)
    return label if nats else label.removesuffix(" (nats)")


def name_of_error(y: str) -> str:
    """Return what a column of `top5` or `per_class` is called in a sentence; "" for other columns."""
    prefix, name = ("test ", y[5:]) if y.startswith("test_") else ("", y)
    if found := re.fullmatch(r"(top|error_class_)(\d+)", name):
        kind = f"top-{found[2]} error" if found[1] == "top" else f"error of class {found[2]}"
        return prefix + kind
    return ""


def option_problems(kind: str, options: Options, recorded: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield each option that is not valid for this kind of figure, and what is wrong with it.

    `recorded`: columns of metrics.csv that `y` may name besides the usual ones.
    """
    known = {"kind": (kind, KINDS), "y": (options.y, tuple(dict.fromkeys([*Y, *recorded])))}
    what = KINDS.get(kind, FigureKind())
    if "x" in what.takes and not what.keys_as_x and options.x is not None:
        known["x"] = options.x, tuple(X)
    if options.style is not None:
        known["style"] = options.style, STYLES
    for name, (value, choices) in known.items():
        if value not in choices:
            yield name, f"is '{value}'{nearest(value, choices)} (known: {', '.join(choices)})"
    is_given = {
        "x": options.x is not None, "y": options.y != Options().y, "reach": bool(options.reach), "log": options.log,
        "quartiles": options.quartiles, "clients": options.clients is not None, "from": options.begin is not None,
        "to": options.end is not None,
    }  # fmt: skip
    for name, given in is_given.items():
        if given and kind in KINDS and name not in what.takes:
            kinds = [other for other in KINDS if name in KINDS[other].takes]
            others = f"the kind {' or '.join(kinds)}" if len(kinds) < 4 else "the other kinds"
            yield name, f"is given; it goes with figures of {others}"
    for name, why in what.fixed.items():
        if getattr(options, name):
            yield name, f"is given; {why}"
    if wrong := [value for value in options.reach if not math.isfinite(value)]:
        yield "reach", f"is {wrong[0]:g}; it must be a finite number, such as 0.05"
    if kind == "matrix" and len(options.reach) > 1:
        yield "reach", f"is given {len(options.reach)} times; a matrix shows when one value is reached, such as 0.05"
    if kind == "matrix" and options.x is not None and not options.reach:
        yield "x", f"is '{options.x}'; a matrix without reach shows how runs ended, so leave it out, or give reach"
    yield from _window_problems(kind, options)
    if formula := _wrong_formula(options.title):
        yield "title", f"is '{options.title}', whose formula cannot be read ({formula}); write \\$ for a dollar sign"


def _window_problems(kind: str, options: Options) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the options that say which clients and which time a figure shows."""
    for name, value in {"from": options.begin, "to": options.end}.items():
        if value is None or name not in KINDS.get(kind, FigureKind()).takes:
            continue
        if kind == "curves" and not 0 < value < math.inf:
            yield name, f"is {value:g}; it must be a number above 0, where the x axis ends"
        elif not 0 <= value < math.inf:
            yield name, f"is {value:g}; it must be a number of simulated seconds, 0 or more"
    if options.begin is not None and options.end is not None and options.end <= options.begin:
        yield "to", f"is {options.end:g}; it must be above `from`, which is {options.begin:g}"
    try:
        client_ids("0" if options.clients is None else options.clients)
    except ValueError:
        yield "clients", f"is {shown(options.clients)}; it must be ids and ranges, such as 0-7 or 0,4,10-12"


def is_wanted(value: Any, wanted: Any) -> bool:
    """Return whether a key's value is the one that `where` wants, or one of a list that it wants."""
    return value == wanted or (isinstance(wanted, list) and value in wanted)


def client_ids(text: str) -> list[int]:
    """Return the client ids that a text such as `0-3,8` names, ascending, each once. Raises ValueError."""
    ids: set[int] = set()
    for part in text.split(","):
        ends = part.strip().split("-")
        if not 1 <= len(ends) <= 2 or not all(end.isascii() and end.isdigit() for end in ends):
            raise ValueError(part)
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last < 2**32 or last - first >= MOST_CLIENTS:
            raise ValueError(part)
        ids |= set(range(first, last + 1))
    return sorted(ids)


def _wrong_formula(title: str) -> str:
    """Return what matplotlib finds wrong with a formula between dollar signs, or an empty text."""
    if title.count("$") < 2:
        return ""
    from matplotlib.cbook import is_math_text
    from matplotlib.mathtext import MathTextParser

    for line in filter(is_math_text, title.split("\n")):
        try:
            MathTextParser("path").parse(line)
        except Exception as error:  # of any type, if a formula is odd enough
            return (str(error).splitlines() or [type(error).__name__])[-1]
    return ""
