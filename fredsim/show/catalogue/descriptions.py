"""Descriptions of hyper-parameters, for `fredsim list NAME`, and the comments of `fredsim show` on nulls.

A hyper-parameter's meaning is the string below its field in the class, or its Field(description=…).
"""

from __future__ import annotations

import inspect
import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from fredsim.config.experiment import Experiment
from fredsim.config.registry import REQUIRED, find_class, is_user_clock
from fredsim.config.resolution import KIND_OF_KEY
from fredsim.errors import ConfigError, nearest
from fredsim.hyper import Configurable
from fredsim.plugins.attribute_docs import meanings
from fredsim.plugins.modules import import_named, parameters_of
from fredsim.servers.schedules import Constant
from fredsim.show.catalogue.listing import Entry, default_of, own_text
from fredsim.show.catalogue.names import names_by_kind
from fredsim.simulation.plugins.client_work import clients_at_work

__all__ = ["constant_of", "describe", "description", "explain_nulls", "models_of", "range_of"]


def describe(name: str) -> str:
    """Describe a class or a function of the user's own, by its name. Raises ConfigError if there is none."""
    if ":" in name:
        try:
            return _own(name)
        except ConfigError as error:
            raise ConfigError(f"list: {error}") from None
    kinds = names_by_kind()
    known = [*kinds, *(known for names in kinds.values() for known in names)]
    raise ConfigError(
        f"list: there is no '{name}'{nearest(name, known)} (kinds: {', '.join(kinds)}; each lists its names)"
    )


def _own(name: str) -> str:
    """Describe a user's class or function. Raises ConfigError if it cannot be imported."""
    from fredsim.networks.own_problem import METHODS

    factory = name.startswith("torch:")
    found = import_named(name.removeprefix("torch:"), "package.module:Class")
    text = own_text(found, "idea") or (found.__doc__ or "").strip().partition("\n")[0]
    if not isinstance(found, type):
        schedule = not factory and next(iter(parameters_of(found) or ()), "") == "t"
        kind = "model" if factory else "schedule" if schedule else "function"
        return _signature(f"{name}: {kind}", text, found, skipped=("t",) if schedule else ())
    kinds: list[tuple[str, tuple[str, ...]]] = [*REQUIRED.items(), ("problem", METHODS)]
    fits = [kind for kind, methods in kinds if all(callable(getattr(found, one, None)) for one in methods)]
    kind = "model" if factory else fits[0] if fits else "dispatcher" if is_user_clock(found) else "class"
    if issubclass(found, Configurable):
        return description(kind, name, Entry(text, found.Hyper, own_text(found, "citation")))
    return _signature(f"{name}: {kind}", text, found)


def _signature(heading: str, text: str, found: Any, skipped: Sequence[str] = ()) -> str:
    """Describe the parameters of a plain class or function."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{heading}: what it takes cannot be read ({error})") from None
    rows = [
        (one.name, "required" if one.default is one.empty else "null" if one.default is None else str(one.default))
        for one in parameters
        if one.name not in skipped
    ]
    return _page(heading, [text], rows)


def description(kind: str, name: str, entry: Entry) -> str:
    """Describe a name of a kind, such as `server`."""
    rows = list(_rows(entry.model)) if entry.model else []
    return _page(f"{name}: {kind}", [entry.idea, entry.takes, entry.citation], rows)


def _page(heading: str, lines: Sequence[str | None], rows: Sequence[Sequence[str]]) -> str:
    """Return a heading, with indented lines and a table of aligned columns below it."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join([*map(str.ljust, row[:-1], widths), row[-1]]) for row in rows]
    return "\n".join([heading, *(f"  {line}" for line in (*lines, *table) if line)])


def _rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Yield name, default, range and meaning of each hyper-parameter; within mappings, the name is a dotted key."""
    meaning = meanings(model)
    for name, field in model.model_fields.items():
        if name == "name":  # which chooses the class itself
            continue
        yield f"{prefix}{name}", default_of(field), range_of(field.annotation, field.metadata), meaning.get(name, "")
        for inner in models_of(field.annotation):
            yield from _rows(inner, f"{prefix}{name}.")


def range_of(annotation: Any, metadata: Any = ()) -> str:
    """Return a text that says which values a field may have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return range_of(arguments[0], [*arguments[1:], *metadata])
    if origin is Literal:
        return ", ".join(str(value) for value in arguments)
    if origin in {Union, types.UnionType}:
        if _holds(annotation, Constant):
            null = " or null" if type(None) in arguments else ""
            return f"number > 0, or a schedule{null}"
        return " or ".join(range_of(part, metadata if part in (int, float) else ()) for part in arguments)
    if origin is list:
        return f"list of {range_of(arguments[0])}"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{{{', '.join(_names(annotation))}}}"
    if annotation is ByteSize:
        return "number of bytes (500MB, 2GB)"
    names = {bool: "true, false", int: "integer", float: "number", str: "text", type(None): "null"}
    return f"{names.get(annotation, str(annotation))}{_bounds(metadata)}"


def _names(model: type[BaseModel]) -> list[str]:
    """Return the keys of a model as they are written in YAML, beginning with the name that chooses it."""
    constant, fields = constant_of(model), model.model_fields.items()
    first = [f"name: {constant}"] if constant else []
    return first + [field.alias or name for name, field in fields if name != "name" or not constant]


def constant_of(model: type[BaseModel]) -> str | None:
    """Return the name that chooses a model; None if it has no name, or may have any."""
    field = model.model_fields.get("name")
    found = get_args(field.annotation) if field is not None else ()
    return found[0] if len(found) == 1 and isinstance(found[0], str) else None


MOST_BOUND = 2**16  # larger bounds are limits of number formats, and are not printed


def _bounds(metadata: Any) -> str:
    flat = [part for one in metadata for part in (one.metadata if isinstance(one, FieldInfo) else [one])]
    bounds = []
    for symbol, key in ((">", "gt"), ("≥", "ge"), ("<", "lt"), ("≤", "le")):
        values = [getattr(part, key) for part in flat if getattr(part, key, None) is not None]
        bounds += [f"{symbol} {_spelled(value)}" for value in values[:1] if abs(value) < MOST_BOUND]
    return f" {', '.join(bounds)}" if bounds else ""


def _spelled(value: float) -> str:
    """Return a bound as short text: a very large or small power of two as `2^N`."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 and abs(exponent) > 20 else f"{value:g}"


def models_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a value may be, except schedules, which are described separately."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if _holds(annotation, Constant):
        return []
    return [model for part in get_args(annotation) for model in models_of(part)]


def _holds(annotation: Any, cls: type) -> bool:
    return annotation is cls or any(_holds(part, cls) for part in get_args(annotation))


def explain_nulls(text: str, experiment: Experiment) -> str:
    """Return the YAML text of an experiment with a comment beside each null that has a meaning."""
    lines, section = [], ""
    meaning: dict[str, Mapping[str, Any]] = {}  # by section (server, dispatcher, …) and hyper-parameter
    for key, kind in KIND_OF_KEY.items():
        choice = getattr(experiment, key)
        cls = find_class(kind, choice.name) if choice is not None else None
        if cls is not None and issubclass(cls, Configurable) and hasattr(cls.Hyper, "resolve_defaults"):
            clients = experiment.clients
            drawn = key == "server" and clients.fraction < 1 and getattr(cls, "takes_fraction", False)
            count = clients_at_work(clients.count, clients.fraction) if drawn else clients.count
            meaning[key] = cls.Hyper(**choice.hyper).resolve_defaults(count)
    for line in text.splitlines():
        section = line.partition(":")[0] if line[:1].isalpha() else section
        nulls = re.findall(r"([\w.]+): null(?=[,}\s]|$)", line)
        known = [(name, meaning[section][name]) for name in nulls if name in meaning.get(section, {})]
        if line.endswith(": null") and known:  # the only one on this line
            line += f"  # {known[0][1]}"
        elif known:
            line = f"{line.rstrip()}  # " + "; ".join(f"{name}: {value}" for name, value in known)
        lines.append(line)
    return "\n".join(lines) + "\n"
