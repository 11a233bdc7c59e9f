"""Graphs as JSON: a text that is the same for equal graphs, and its reader, which trusts nothing that it reads.

The text has the graph's shapes and tensors, and for each node the name of its operator, its inputs, its tensors by
role, and the operator's own fields. A reader makes operators of the names in fredsim.numerics.ops.registry alone, after
checking the type and the size of every field, and no code of the file's runs.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, StrictBytes, ValidationError, create_model

from fredsim.networks.graph import Graph, Node
from fredsim.networks.layout import Layout
from fredsim.networks.own_loss import ArrayLoss
from fredsim.networks.running import Running, RunningNorm
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.ops.operator import Operator
from fredsim.numerics.ops.registry import LOSSES, OPERATORS
from fredsim.system.json_files import parse_json
from fredsim.system.repeated import first_repeated

__all__ = ["MOST_BYTES", "graph_of_text", "text_of_graph"]

VERSION = 1
MOST_BYTES = 2**28  # of a text; constants are part of it
MOST_ELEMENTS = 2**31  # of a tensor, and of a sample's value
MOST_PARAMETERS = 2**36
LARGEST = 2**31 - 1

#: A user's own loss is read without its function, which only an experiment that names it imports.
KINDS_OF_LOSS: dict[str, type[Loss]] = {**LOSSES, "own": ArrayLoss}
NAMES = {kind: name for name, kind in (OPERATORS | KINDS_OF_LOSS).items()}

Strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, val_json_bytes="base64")
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Name = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[ -~]+$")]


class SavedNode(BaseModel):
    """A node; the fields of its operator are checked by a model of their own."""

    model_config = Strict

    operator: str
    inputs: Annotated[tuple[Whole, ...], Field(max_length=10_000)]
    tensors: dict[Name, Name] = {}
    fields: dict[str, Any] = {}


class SavedLoss(BaseModel):
    """A loss, with its fields."""

    model_config = Strict

    name: str
    fields: dict[str, Any] = {}


class SavedRunning(BaseModel):
    """Running statistics: of each batch norm the names of its mean and its variance, and its momentum."""

    model_config = Strict

    served: Literal["averaged", "last"]
    norms: Annotated[tuple[tuple[Name, Name, Annotated[float, Field(ge=0, le=1)]], ...], Field(min_length=1)]


class SavedGraph(BaseModel):
    """A file."""

    model_config = Strict

    format: str
    version: int
    sample: Annotated[tuple[Positive, ...], Field(max_length=16)]
    target: Annotated[tuple[Positive, ...], Field(max_length=16)]
    tensors: tuple[tuple[Name, Annotated[tuple[Whole, ...], Field(max_length=16)]], ...]
    nodes: tuple[SavedNode, ...]
    loss: SavedLoss
    frozen: tuple[Name, ...] = ()
    running: SavedRunning | None = None


def text_of_graph(graph: Graph) -> str:
    """Return a graph as JSON, one line for each tensor and node. Equal graphs have equal texts."""
    document: dict[str, Any] = {
        "format": "fredsim graph",
        "version": VERSION,
        "sample": graph.sample,
        "target": graph.target,
        "tensors": graph.layout.tensors,
        "nodes": [
            {"operator": NAMES[type(node.operator)], "inputs": node.inputs, "tensors": dict(node.tensors),
             "fields": _fields(node.operator)}
            for node in graph.nodes
        ],
        "loss": {"name": NAMES[type(graph.loss)], "fields": _fields(graph.loss)},
    }  # fmt: skip
    if graph.frozen:
        document["frozen"] = graph.frozen
    if graph.running is not None:
        document["running"] = {"served": graph.running.served, "norms": graph.running.norms}
    lines = []
    for key, value in document.items():
        if key in {"tensors", "nodes"}:
            each = ",\n  ".join(map(_compact, value))
            lines.append(f'"{key}": [\n  {each}\n ]' if value else f'"{key}": []')
        else:
            lines.append(f'"{key}": {_compact(value)}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def graph_of_text(content: bytes) -> Graph:
    """Return the graph of a text. Raises ValueError, which says what is wrong, in a line."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; a graph has {MOST_BYTES:,} at most")
    parse_json(content)  # refuses what Python's own reader and pydantic's take in their own way
    try:
        saved = SavedGraph.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    if saved.format != "fredsim graph" or saved.version != VERSION:
        raise ValueError(f"it is {saved.format!r}, version {saved.version}; this fredsim reads version {VERSION}")
    layout = _layout(saved)
    nodes = tuple(_node(node, f"node {number}") for number, node in enumerate(saved.nodes, start=1))
    if not nodes:
        raise ValueError("it has no nodes")
    loss: Loss = _made(KINDS_OF_LOSS, "loss", saved.loss.name, saved.loss.fields, "loss")
    if not any(node.tensors for node in nodes):
        raise ValueError("no node takes a tensor")
    try:
        graph = Graph(saved.sample, saved.target, nodes, loss, layout, saved.frozen, _running(saved.running))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"its parts do not fit: {error}") from None
    for number, shape in enumerate(graph.shapes):
        if math.prod(shape) > MOST_ELEMENTS or any(size < 1 for size in shape):
            raise ValueError(f"value {number} has the shape {shape}; {MOST_ELEMENTS:,} elements are the most")
    return graph


def _running(saved: SavedRunning | None) -> Running | None:
    return None if saved is None else Running(tuple(RunningNorm(*norm) for norm in saved.norms), saved.served)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _fields(made: Operator | Loss) -> dict[str, Any]:
    """Return the fields of an operator or a loss as JSON has them."""
    found, hints = dict[str, Any](), get_type_hints(type(made))
    for field in fields(made):  # type: ignore[arg-type]  # all are dataclasses
        value = getattr(made, field.name)
        if isinstance(made, Operator) and field.name in made.added and value == field.default:
            continue
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif isinstance(value, int) and not isinstance(value, bool) and hints[field.name] in {float, float | None}:
            value = float(value)
        found[field.name] = value
    return found


def _layout(saved: SavedGraph) -> Layout:
    names = [name for name, _ in saved.tensors]
    if twice := first_repeated(names):
        raise ValueError(f"it has the tensor {twice!r} twice")
    layout = Layout(saved.tensors)
    if max(layout.sizes, default=0) > MOST_ELEMENTS or layout.size > MOST_PARAMETERS:
        raise ValueError(f"its tensors have {layout.size:,} elements, which are too many")
    return layout


def _node(saved: SavedNode, where: str) -> Node:
    operator: Operator = _made(OPERATORS, "operator", saved.operator, saved.fields, where)
    if operator.inputs not in {None, len(saved.inputs)} or not saved.inputs:
        raise ValueError(f"{where}: {saved.operator} takes {operator.inputs or 'some'} inputs, not {len(saved.inputs)}")
    return Node(operator, saved.inputs, tuple(saved.tensors.items()))


def _made(kinds: Mapping[str, Any], kind: str, name: str, given: Mapping[str, Any], where: str) -> Any:
    """Return the operator or loss, which `kind` says, of a name with the given fields."""
    if name not in kinds:
        raise ValueError(f"{where}: unknown {kind} {name[:100]!r}; a newer fredsim may know it")
    try:
        checked = _model(kinds[name]).model_validate_json(json.dumps(given))
    except ValidationError as error:
        raise ValueError(f"{where}: {name}: {_first(error)}") from None
    values = {key: getattr(checked, key) for key in type(checked).model_fields}
    for key, value in values.items():
        least = kinds[name].at_least.get(key, -1)
        for number in _integers(value):
            if not least <= number <= LARGEST:
                raise ValueError(f"{where}: {name}: {key} is {number}; it must lie in {least} … {LARGEST}")
    try:
        return kinds[name](**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@cache
def _model(kind: type[Any]) -> type[BaseModel]:
    """Return the pydantic model of the fields of a dataclass."""
    hints = get_type_hints(kind)
    given: dict[str, Any] = {
        field.name: (
            StrictBytes if hints[field.name] is bytes else hints[field.name],
            ... if field.default is MISSING else field.default,
        )
        for field in fields(kind)
    }
    return create_model(kind.__name__, __config__=Strict, **given)


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, tuple):
        for each in value:
            yield from _integers(each)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def _first(error: ValidationError) -> str:
    """Return the first thing that is wrong, in a line."""
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place or 'it'}: {first['msg'][:200]}"
