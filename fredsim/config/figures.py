"""The `figures` of an experiment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, field_validator, model_serializer

from fredsim.config.document import Document, read_document
from fredsim.config.figure_options import KINDS, STYLES, Options, option_problems
from fredsim.errors import ConfigError
from fredsim.hyper import FileName, Finite, HyperParameters, NonNegative, Printable, explain

__all__ = ["FigureChoice", "read_figures", "recorded_figures"]


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
    where: dict[Printable, Any] = Field(default_factory=dict, examples=[{"server.name": ["asgd", "sync"]}])
    """Only runs whose keys have these values, or one of a list."""
    best: bool = False
    """Of these, only the runs that the experiment's `select` chose."""
    log: bool = False
    """A logarithmic y axis."""
    quartiles: bool = False
    """Of curves: bands from the lower to the upper quartile of the runs, not from the smallest to the largest value."""
    title: Annotated[str, Field(examples=["Rates, $\\lambda = 128$"])] = ""
    """The title, which may hold formulas between `$`; without it the experiment's name, with a style none."""
    clients: Annotated[Printable | None, Field(examples=["0-7"])] = None
    """Of a timeline, and of waits: which clients."""
    from_: NonNegative | None = Field(None, alias="from", examples=[10.0])
    """Of a timeline, and of waits: from this simulated second."""
    to: Annotated[NonNegative | None, Field(examples=[20.0])] = None
    """Of a timeline, and of waits: to this simulated second; of curves: to this x, in iterations, bytes or seconds."""
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
        return {
            key: value for key, value in data.items() if key not in {"best", "latex", "quartiles", "where"} or value
        }

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
            where=self.where,
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
        yield from (("where", key) for key in options.where)
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
