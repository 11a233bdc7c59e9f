"""Tables of keys: the fields of a pydantic model, and those of the models within it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from docs.generate.markdown import flow, linked, one_line, table
from fredsim.plugins.attribute_docs import meanings
from fredsim.show.catalogue.descriptions import constant_of, models_of, range_of

__all__ = ["Key", "default_of", "example_of", "keys_of", "name_of", "nested", "tables"]

HEAD = ("key", "values", "default", "meaning")


@dataclass(frozen=True)
class Key:
    """A key of a model: its dotted name, its field, and its meaning on one line."""

    name: str
    field: FieldInfo
    meaning: str

    @property
    def values(self) -> str:
        """The values that the key may have, as text, with links for a page in the schedules' folder."""
        text = range_of(self.field.annotation, self.field.metadata)
        text = re.sub(r"\{name: (\w+)[^{}]*\}", r"{name: \1}", text)
        text = re.sub(r"\{[^{}]*\}", lambda match: f"`{match[0]}`", text)
        return text.replace("a schedule", "a [schedule](schedules.md)")


def keys_of(model: type[BaseModel], prefix: str = "") -> list[Key]:
    """Return the keys of a model as they are written in YAML, without the name that chooses it."""
    said = meanings(model)
    return [
        Key(f"{prefix}{field.alias or name}", field, one_line(said.get(name, "")))
        for name, field in model.model_fields.items()
        if name != "name" or name_of(model)
    ]


def name_of(model: type[BaseModel]) -> str:
    """Return `name` if it is an ordinary key of the model, "" if it chooses among models or does not exist."""
    return "name" if "name" in model.model_fields and not constant_of(model) else ""


def default_of(field: FieldInfo) -> str:
    """Return a key's default as YAML in backquotes, or `required` if it has none."""
    return "required" if field.is_required() else f"`{flow(field.get_default(call_default_factory=True))}`"


def example_of(field: FieldInfo) -> Any:
    """Return an example of a key's value: the field's first example, a choice other than the default, or a number."""
    inner = [mark for part in get_args(field.annotation) for mark in getattr(part, "__metadata__", ())]
    for one in (field, *(mark for mark in inner if isinstance(mark, FieldInfo))):
        if one.examples:
            return one.examples[0]
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    kinds = [field.annotation, *get_args(field.annotation)]
    if bool in kinds:
        return not default
    if field.is_required() and (models := models_of(field.annotation)):
        return {key.name: example_of(key.field) for key in keys_of(models[0]) if key.field.is_required()}
    for choices in kinds:
        if get_origin(choices) is Literal:
            return next(
                choice for choice in reversed(get_args(choices)) if choice != default or len(get_args(choices)) == 1
            )
    kind: Any = Annotated[field.annotation, None, *field.metadata]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    for value in (8 if "integer" in range_of(field.annotation) else 0.5, 2.0, 0.01, "a"):
        with suppress(ValidationError):
            return adapter.validate_python(value, strict=True)
    return default


def nested(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield (dotted key, model) for each model that a value within this one may be, except schedules."""
    for key in keys_of(model):
        for inner in models_of(key.field.annotation):
            yield key.name, inner
            yield from ((f"{key.name}.{name}", one) for name, one in nested(inner))


def tables(model: type[BaseModel], up: str) -> str:
    """Return the table of a model's hyper-parameters, and one for each model that a value within it may be."""
    places: dict[type[BaseModel], list[str]] = {}
    for name, inner in nested(model):
        places.setdefault(inner, []).append(name)
    found = [_table(keys_of(model), up)]
    for inner, names in places.items():
        constant, where = constant_of(inner), ", ".join(f"`{name}`" for name in dict.fromkeys(names))
        idea = one_line((inner.__doc__ or "").partition("\n\n")[0])
        label = f"`{{name: {constant}}}` of {where}" if constant else where
        keys = keys_of(inner, "" if constant or len(names) > 1 else f"{names[0]}.")
        found.append(f"{label}: {idea}\n\n{_table(keys, up)}".rstrip())
    return "\n\n".join(filter(None, found))


def _table(keys: list[Key], up: str) -> str:
    rows = [(f"`{key.name}`", key.values, default_of(key.field), linked(key.meaning, up)) for key in keys]
    return table(HEAD, rows) if rows else ""
