"""Figures: the options of `fredsim plot`, and the `figures` of an experiment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, field_validator, model_serializer

from fredsim.config.document import Document, read_document
from fredsim.errors import ConfigError, nearest, shown
from fredsim.hyper import FileName, Finite, HyperParameters, NonNegative, Printable, explain

__all__ = [
    "KINDS",
    "OF_EVENTS",
    "SHARES",
    "STYLES",
    "FigureChoice",
    "Options",
    "X",
    "Y",
    "client_ids",
    "label_of",
    "option_problems",
    "read_figures",
    "recorded_figures",
]

KINDS = ("curves", "ends", "matrix", "staleness", "copies", "probe", "shards", "timeline", "waits")
OF_EVENTS = ("timeline", "waits")  # kinds that show events.parquet
SHARES = ("pushes", "fetches")
STYLES = ("column", "page")
MOST_CLIENTS = 10_000_000  # that a range names
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
class Options:
    """The options of a figure.

    `by` and `panel` are dotted keys of the experiments (fredsim.show.plots.groups). `x`, `y` are of curves and ends:
    `y` a column, `x` one of `X`, of ends also the share of `pushes` or `fetches` that passed, or a dotted key; None:
    of curves seconds where all rows are on the clock, else iterations; of ends bytes. `reach`: values of `y` whose
    first iteration, bytes and seconds stand in the table of curves, and which a matrix shows; of runs that have a gap
        in place of an error, the error means that. `best`: only the runs that `select` chose are drawn; `log`: a
    logarithmic y axis; `quartiles`: bands of curves hold the middle half of the runs, not all of them; `clients`, such
    as `0-3,8`, `begin` and `end`, in simulated seconds: what of a timeline, or of     waits, is shown; `caption`:
    whether the picture carries caption and `command`. `data_root`: where data files are     kept, which only a figure
    of shards reads. `style`: one of STYLES, for one column of a paper, or for both; None:     as large as what is in it
    asks for.
    """

    by: Sequence[str] | None = None
    panel: Sequence[str] | None = None
    x: str | None = None
    y: str = "validation_error"
    reach: Sequence[float] = ()
    best: bool = False
    log: bool = False
    quartiles: bool = False
    title: str = ""
    caption: bool = True
    command: str = ""
    data_root: Path | None = None
    clients: str | None = None
    begin: float | None = None
    end: float | None = None
    style: str | None = None

    @property
    def axis(self) -> str | None:
        """The dotted key that `x` is; None where it is measured."""
        return None if self.x is None or self.x in {*X, *SHARES} else self.x


def label_of(y: str) -> str:
    """Return the label of the y axis; that of a server's own number is its name."""
    return Y.get(y, y)


def option_problems(kind: str, options: Options, recorded: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield each option that is not valid for this kind of figure, and what is wrong with it.

    `recorded`: columns of metrics.csv that y may name beside the usual ones.
    """
    known = {"kind": (kind, KINDS), "y": (options.y, tuple(dict.fromkeys([*Y, *recorded])))}
    if kind in {"curves", "matrix"} and options.x is not None:
        known["x"] = options.x, tuple(X)
    if options.style is not None:
        known["style"] = options.style, STYLES
    for name, (value, choices) in known.items():
        if value not in choices:
            yield name, f"is '{value}'{nearest(value, choices)} (known: {', '.join(choices)})"
    given = {"x": options.x is not None, "y": options.y != Options().y, "reach": bool(options.reach)}
    with_y = ("curves", "ends", "matrix")
    for name, kinds in {"x": with_y, "y": with_y, "reach": ("curves", "matrix")}.items():
        if kind in KINDS and kind not in kinds and given[name]:
            yield name, f"is given; it goes with figures of the kind {' or '.join(kinds)}"
    if kind == "matrix" and len(options.reach) != 1:
        yield "reach", f"is given {len(options.reach)} times; a matrix shows when one value is reached, such as 0.05"
    if kind in {"copies", "probe"} and options.panel:
        yield "panel", f"is given; a figure of the kind {kind} has panels of its own, use by"
    if kind == "shards" and options.by:
        yield "by", "is given; a figure of the kind shards has a panel a partition, use panel"
    for name in ("by", "panel"):
        if kind == "timeline" and getattr(options, name):
            yield name, "is given; a timeline has a panel for each run"
    if kind in {"copies", "shards", "matrix", *OF_EVENTS} and options.log:
        yield "log", "is given; it goes with figures of the other kinds"
    if kind != "curves" and options.quartiles:
        yield "quartiles", "is given; it goes with figures of the kind curves"
    yield from _window_problems(kind, options)
    if wrong := _wrong_formula(options.title):
        yield "title", f"is '{options.title}', whose formula cannot be read ({wrong}); write \\$ for a dollar sign"


def _window_problems(kind: str, options: Options) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the clients and the time that a timeline, or waits, should show."""
    given = {"clients": options.clients, "from": options.begin, "to": options.end}
    for name, value in given.items():
        if value is not None and kind in KINDS and kind not in OF_EVENTS:
            yield name, f"is given; it goes with figures of the kind {' or '.join(OF_EVENTS)}"
        elif isinstance(value, float) and not 0 <= value < math.inf:
            yield name, f"is {value:g}; it must be a number of simulated seconds, 0 or more"
    if options.begin is not None and options.end is not None and options.end <= options.begin:
        yield "to", f"is {options.end:g}; it must be above `from`, which is {options.begin:g}"
    try:
        client_ids("0" if options.clients is None else options.clients)
    except ValueError:
        yield "clients", f"is {shown(options.clients)}; it must be ids and ranges, such as 0-7 or 0,4,10-12"


def client_ids(text: str) -> list[int]:
    """Return the ids that a text such as `0-3,8` names, ascending, each once. Raises ValueError."""
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
        except ValueError as error:
            return str(error).splitlines()[-1]
    return ""


class FigureChoice(HyperParameters):
    """A figure of an experiment's runs: its file, with the options of `fredsim plot`; `panel: none` is one panel."""

    name: Annotated[FileName, Field(examples=["rates"])]
    """The file: `rates.png`, `rates-table.csv`, `rates-table.md`."""
    kind: Annotated[Printable, Field(examples=["ends"], json_schema_extra={"enum": [*KINDS]})] = "curves"
    """What is drawn (docs/plots.md)."""
    by: Annotated[list[Printable] | None, Field(examples=["server.name"])] = None
    """The key, or keys, whose values make a line; null: all that differ but the seed."""
    panel: Annotated[list[Printable] | None, Field(examples=["none"])] = None
    """The key, or keys, whose values make a panel; `none`: one panel; null: λ and µ."""
    x: Annotated[Printable | None, Field(examples=["seconds"])] = None
    """Against what curves and ends are drawn: `iterations`, `updates`, `bytes`, `seconds`; of ends also the share of
    `pushes` or `fetches` that passed, or a dotted key of the experiment."""
    y: Annotated[Printable, Field(examples=["train_loss"])] = "validation_error"
    """Which column of `metrics.csv` curves and ends show."""
    reach: list[Finite] = Field(default_factory=list, examples=[[0.1, 0.05]])
    """Of curves: for each of these values of y, the table says when it was reached."""
    best: bool = False
    """Only the runs that the experiment's `select` chose."""
    log: bool = False
    """A logarithmic y axis."""
    quartiles: bool = False
    """Of curves: bands from the lower to the upper quartile of the runs, not from the smallest to the largest value."""
    title: Annotated[str, Field(examples=["Rates, $\\lambda = 128$"])] = ""
    """The title, which may hold formulas between `$`; without it the experiment's name."""
    clients: Annotated[Printable | None, Field(examples=["0-7"])] = None
    """Of a timeline, and of waits: which clients."""
    from_: NonNegative | None = Field(None, alias="from", examples=[10.0])
    """Of a timeline, and of waits: from this simulated second."""
    to: Annotated[NonNegative | None, Field(examples=[20.0])] = None
    """Of a timeline, and of waits: to this simulated second."""
    style: Annotated[Printable | None, Field(examples=["column"], json_schema_extra={"enum": [*STYLES, None]})] = None
    """For a paper: as wide as its `column`, or as both on a `page`, without the caption, as `rates.pdf`; null: as large
    as what is in it asks for."""
    latex: bool = False
    """The table as LaTeX, too: `rates-table.tex`."""

    @field_validator("clients", mode="before", json_schema_input_type=str | int | None)
    @classmethod
    def as_text(cls, clients: Any) -> Any:
        """Take a single id for the text of it."""
        return str(clients) if isinstance(clients, int) and not isinstance(clients, bool) else clients

    @model_serializer(mode="wrap")
    def plain(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys as they are written; those of a window only where they are given."""
        data: dict[str, Any] = serialize(self)
        data["from"] = data.pop("from_")
        given = {"clients", "from", "to", "style"}
        data = {key: value for key, value in data.items() if key not in given or value is not None}
        return {key: value for key, value in data.items() if key not in {"best", "latex", "quartiles"} or value}

    @field_validator("by", "panel", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def as_list(cls, keys: Any) -> Any:
        """Take a single key for a list of one."""
        return [keys] if isinstance(keys, str) else keys

    def options(self, title: str = "", command: str = "") -> Options:
        """Return the options of `plot`; `title` is used where the figure has none of its own, and no style."""
        panel = [] if self.panel == ["none"] else self.panel
        return Options(
            self.by,
            panel,
            self.x,
            self.y,
            self.reach,
            self.best,
            self.log,
            self.quartiles,
            title=self.title or ("" if self.style else title),
            caption=self.style is None,
            command=command,
            clients=self.clients,
            begin=self.from_,
            end=self.to,
            style=self.style,
        )

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.name}.{'pdf' if self.style else 'png'}"

    def named_keys(self) -> Iterator[tuple[str, str]]:
        """Yield (option, key) for each key of experiments that its options name."""
        options = self.options()
        yield from (("by", key) for key in options.by or ())
        yield from (("panel", key) for key in options.panel or ())
        if options.axis is not None:
            yield "x", options.axis


class _Figures(HyperParameters):
    figures: list[FigureChoice]


def read_figures(data: Mapping[str, Any]) -> tuple[list[FigureChoice], list[tuple[tuple[int | str, ...], str]]]:
    """Return the `figures` in an experiment's data, and (location, what is wrong) for each problem with them."""
    if data.get("figures") is None:
        return [], []
    try:
        found = _Figures.model_validate({"figures": data["figures"]}).figures
    except ValidationError as error:
        return [], explain(error, _Figures)
    problems: list[tuple[tuple[int | str, ...], str]] = []
    for number, one in enumerate(found):
        problems += [(("figures", number, name), text) for name, text in option_problems(one.kind, one.options())]
        if one.name in [before.name for before in found[:number]]:
            problems.append((("figures", number, "name"), f"is '{one.name}', as another figure's; give it its own"))
    return found, problems


def recorded_figures(folder: Path) -> list[FigureChoice]:
    """Return the figures that the experiment in a folder of results asks for. Raises ConfigError."""
    files = [path for name in ("sweep.yaml", "config.yaml") if (path := folder / name).is_file()]
    document = read_document(files[0]) if files else Document({})
    found, problems = read_figures(document.data)
    for at, text in problems:
        raise ConfigError(f"{document.place(at)}: {'.'.join(map(str, at))}: {text}")
    return found
