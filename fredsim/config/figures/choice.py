"""The key `figures` of an experiment: the figures that are drawn when its runs have ended."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, field_validator, model_serializer

from fredsim.config.document import Document, Problems, problems_at, read_document
from fredsim.config.figures.options import KINDS, STYLES, Options, option_problems
from fredsim.config.metrics import columns_of, is_column
from fredsim.hyper import FileName, Finite, HyperParameters, NonNegative, Printable, explain

__all__ = ["FigureChoice", "read_figures", "recorded_figures"]


class FigureChoice(HyperParameters):
    """A figure of an experiment's runs: its name, and the options of `fredsim plot`; `panel: none` is one panel."""

    name: Annotated[FileName, Field(examples=["rates"])]
    """The name of the files: `rates.png`, `rates-table.csv`, `rates-table.md`."""
    kind: Annotated[Printable, Field(examples=["ends"], json_schema_extra={"enum": [*KINDS]})] = "curves"
    """What is drawn (docs/plots.md)."""
    by: Annotated[list[Printable] | None, Field(examples=["server.name"])] = None
    """The key, or keys, by whose values there is a line each; null: all keys that differ, except the seed."""
    panel: Annotated[list[Printable] | None, Field(examples=["none"])] = None
    """The key, or keys, by whose values there is a panel each; `none`: a single panel; null: λ and µ."""
    x: Annotated[Printable | None, Field(examples=["seconds"])] = None
    """The x axis of curves and ends, and the unit of a matrix: `iterations`, `updates`, `bytes`, `seconds`; for ends
    also the share of `pushes` or `fetches` that passed, or a dotted key of the experiment."""
    y: Annotated[Printable, Field(examples=["train_loss"])] = "validation_error"
    """The column of `metrics.csv` that curves, ends and a matrix show."""
    reach: list[Finite] = Field(default_factory=list, examples=[[0.1, 0.05]])
    """For curves: the table says when each of these values of y was reached. A matrix shows when its one value was;
    without one, y at the end."""
    where: dict[Printable, Any] = Field(default_factory=dict, examples=[{"server.name": ["asgd", "sync"]}])
    """Only runs whose keys have these values, or one of a list, are drawn."""
    best: bool = False
    """Whether only those of these runs are drawn that the experiment's `select` chose."""
    log: bool | None = None
    """Whether the y axis is logarithmic; null: if the values shown span more than a factor of 5."""
    quartiles: bool = False
    """For curves: whether bands are from the lower to the upper quartile of the runs, not from the smallest to the
    largest value."""
    title: Annotated[str, Field(examples=["Rates, $\\lambda = 128$"])] = ""
    """The title, which may have formulas between `$`; by default the question, or with a style none."""
    clients: Annotated[Printable | None, Field(examples=["0-7"])] = None
    """For a timeline, and for waits: which clients are shown."""
    from_: NonNegative | None = Field(None, alias="from", examples=[10.0])
    """For a timeline, and for waits: the simulated second to begin at."""
    to: Annotated[NonNegative | None, Field(examples=[20.0])] = None
    """For a timeline, and for waits: the simulated second to end at; for curves: the end of the x axis, in iterations,
    updates, bytes or seconds."""
    style: Annotated[Printable | None, Field(examples=["column"], json_schema_extra={"enum": [*STYLES, None]})] = None
    """For a paper: as wide as its `column`, or as the whole `page`, without the caption, as `rates.pdf`; null: as large
    as the content requires."""
    latex: bool = False
    """Whether the table is also written as LaTeX: `rates-table.tex`."""

    @field_validator("clients", mode="before", json_schema_input_type=str | int | None)
    @classmethod
    def as_text(cls, clients: Any) -> Any:
        """Accept a single id as a number."""
        return str(clients) if isinstance(clients, int) and not isinstance(clients, bool) else clients

    @model_serializer(mode="wrap")
    def plain(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return the keys as they are written; some of them only if they do not have their defaults."""
        data: dict[str, Any] = serialize(self)
        data["from"] = data.pop("from_")
        optional = {"clients", "from", "log", "to", "style"}
        data = {key: value for key, value in data.items() if key not in optional or value is not None}
        return {
            key: value for key, value in data.items() if key not in {"best", "latex", "quartiles", "where"} or value
        }

    @field_validator("by", "panel", mode="before", json_schema_input_type=str | list[str] | None)
    @classmethod
    def as_list(cls, keys: Any) -> Any:
        """Accept a single key instead of a list."""
        return [keys] if isinstance(keys, str) else keys

    def options(self, command: str = "") -> Options:
        """Return the options of `plot`; `command` is what draws the figure."""
        same = ("by", "x", "y", "reach", "best", "log", "quartiles", "title", "clients", "style", "where")
        return Options(
            **{name: getattr(self, name) for name in same},
            panel=[] if self.panel == ["none"] else self.panel,
            caption=self.style is None,
            command=command,
            begin=self.from_,
            end=self.to,
        )

    @property
    def file(self) -> str:
        """The name of the figure's file."""
        return f"{self.name}.{'pdf' if self.style else 'png'}"

    def named_keys(self) -> Iterator[tuple[str, str]]:
        """Yield (option, key) for each key of an experiment that the figure's options name."""
        options = self.options()
        yield from (("by", key) for key in options.by or ())
        yield from (("panel", key) for key in options.panel or ())
        yield from (("where", key) for key in options.where)
        if options.axis is not None:
            yield "x", options.axis


class _Figures(HyperParameters):
    figures: list[FigureChoice]


def read_figures(data: Mapping[str, Any]) -> tuple[list[FigureChoice] | None, Problems]:
    """Return the `figures` in an experiment's data, and for each problem with them (location, what is wrong).

    None stands for the usual figure; an empty list asks for none.
    """
    if data.get("figures") is None:
        return None, []
    try:
        found = _Figures.model_validate({"figures": data["figures"]}).figures
    except ValidationError as error:
        return [], explain(error, _Figures)
    problems: Problems = []
    for number, one in enumerate(found):
        recorded = _columns(data, one.y)
        problems += [
            (("figures", number, name), text) for name, text in option_problems(one.kind, one.options(), recorded)
        ]
        if one.name in [before.name for before in found[:number]]:
            problems.append((("figures", number, "name"), f"is '{one.name}', as another figure's; give it its own"))
    return found, problems


def _columns(data: Mapping[str, Any], y: str) -> list[str]:
    """Return the columns that the metrics of an experiment's data have, among them y if that is one of a class."""
    parts = [data.get("evaluation")]
    for cases in (data.get("cases"), [data.get("sweep")]):
        for case in cases if isinstance(cases, list) else ():
            for key, value in case.items() if isinstance(case, Mapping) else ():
                name = str(key).removeprefix("evaluation.")
                given = value if isinstance(value, list) and cases is not data.get("cases") else [value]
                parts += given if key == "evaluation" else []
                parts += [{name: one, "test": True} for one in given] if name == "metrics" and name != key else []
    if has_problem(data):  # only its runs say which columns it has
        return [y]
    return [
        *(name for part in parts for name in columns_of(part)),
        *([y] if any(is_column(y, one) for one in parts) else []),
    ]


def has_problem(data: Mapping[str, Any]) -> bool:
    """Return whether an experiment's data, or a case or an axis of it, has the key `problem`."""
    cases, sweep = data.get("cases"), data.get("sweep")
    given = [data, *(cases if isinstance(cases, list) else ()), sweep]
    return any(str(key).partition(".")[0] == "problem" for one in given if isinstance(one, Mapping) for key in one)


def recorded_figures(folder: Path) -> list[FigureChoice] | None:
    """Return the figures that the experiment in a folder of results asks for, as `read_figures`. Raises ConfigError."""
    files = [path for name in ("sweep.yaml", "config.yaml") if os.path.lexists(path := folder / name)]
    document = read_document(files[0]) if files else Document({})
    found, problems = read_figures(document.data)
    if problems:
        raise problems_at(problems, document.place)
    return found
