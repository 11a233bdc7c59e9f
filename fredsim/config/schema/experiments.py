"""The JSON Schema of an experiment's file, for editors; `fredsim schema` prints it.

It is made from pydantic models: `Experiment`, the hyper-parameters of every class that an experiment may name,
including those that installed packages register, and the keys of files with many runs. Keys that `cases` and `sweep`
give may be missing elsewhere, so a file with one of these may leave out keys that are required of other files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from fredsim.config.experiment import Experiment
from fredsim.config.registry import KNOWN, Kind, find_class, registered
from fredsim.config.resolution import KIND_OF_KEY, LENGTHS
from fredsim.config.schema.rules import (
    REF,
    Schema,
    discriminate,
    lists_of,
    named_in,
    optional,
    refer_to_kind,
    requirements,
    settings,
    share_definitions,
)
from fredsim.config.sections import EXCHANGE_KEYS, DispatcherChoice, Section
from fredsim.config.sweep.selection import Selection
from fredsim.dispatchers.gates import GATES
from fredsim.errors import ConfigError
from fredsim.hyper import Configurable, HyperParameters
from fredsim.plugins.attribute_docs import meanings

__all__ = ["SweepKeys", "as_text", "json_schema"]

#: Definitions within which no axis of a sweep can vary a key, so that their required keys are required in every file.
NEVER_SWEPT = ("FigureChoice", "Published", "Selection", "Series")


class SweepKeys(HyperParameters):
    """The keys of a file that describes several runs."""

    cases: Annotated[
        list[dict[str, Any]] | None,
        Field(examples=[[{"clients.count": 128, "clients.batch_size": 1}, {"clients.count": 32}]]),
    ] = None
    """A list of combinations of values, under dotted keys; each is combined with the grid of `sweep`."""
    sweep: Annotated[dict[str, list[Any]] | None, Field(examples=[{"seed": [0, 1, 2], "server.lr": [0.01, 0.02]}])] = (
        None
    )
    """A grid: a list of values for each dotted key; every combination is a run (docs/sweeps.md)."""
    select: Annotated[Selection | None, Field(examples=[{"best": "validation_error", "over": "server.lr"}])] = None
    """`{best: validation_error, over: server.lr}` chooses the best value of an axis (docs/sweeps.md)."""
    overrides: Annotated[dict[str, Any] | None, Field(examples=[{"iterations": 500}])] = None
    """Only in a recorded `sweep.yaml`: the overrides of the command line that apply to each run, under dotted keys."""


class Described(GenerateJsonSchema):
    """Makes schemas whose properties have the meanings of the fields as their descriptions."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model."""
        made = super().model_schema(schema)
        model = schema["cls"]
        for name, text in meanings(model).items():
            made["properties"][model.model_fields[name].alias or name].setdefault("description", text)
        return made

    def encode_default(self, dft: Any) -> Any:
        """Return a default with the keys that it leaves out of configurations."""
        return super().encode_default(dict(dft) if isinstance(dft, Section) else dft)


def json_schema() -> Schema:
    """Return the JSON Schema (draft 7) of an experiment's file."""
    choices = {f"{kind}_{name}": _choice(kind, name) for kind in KNOWN for name in [*KNOWN[kind], *registered(kind)]}
    models: list[type[BaseModel]] = [Experiment, SweepKeys, *filter(None, choices.values())]
    _, made = models_json_schema(
        [(model, "validation") for model in models], ref_template=f"{REF}{{model}}", schema_generator=Described
    )
    definitions: dict[str, Schema] = _cleaned(made["$defs"])
    for title in [title for title, model in choices.items() if model is None]:
        definitions[title] = _named({"const": title.partition("_")[2]})
    for kind in KNOWN:
        definitions[kind] = _one_of(kind, [title for title in choices if title.startswith(f"{kind}_")], definitions)
    definitions["gate"] = _gate(definitions)
    top, many = (definitions.pop(model.__name__)["properties"] for model in (Experiment, SweepKeys))
    required = [name for name, field in Experiment.model_fields.items() if field.is_required()]
    for key, kind in KIND_OF_KEY.items():
        refer_to_kind(top[key], kind)
    optimizer = definitions["Clients"]["properties"]["optimizer"]
    refer_to_kind(optimizer, "optimizer")
    optimizer["anyOf"].insert(1, {"type": "string"})
    for definition in definitions.values():
        for key in ("push", "fetch"):
            if "wait" in definition.get("properties", {}):
                refer_to_kind(definition["properties"][key], "gate")
    discriminate(definitions, {"top": top})
    share_definitions(definitions)
    required_too = requirements({"type": "object", "properties": top, "required": required}, definitions)
    required_too = _or_of_problem(required_too)
    required_too["oneOf"] = [_is_given(key) for key in LENGTHS]
    definitions["settings"] = settings(top, definitions)
    one_setting = {"$ref": f"{REF}settings"}
    many["cases"] |= {"anyOf": [{"type": "array", "minItems": 1, "items": one_setting}, {"type": "null"}]}
    many["sweep"] |= {"anyOf": [lists_of(definitions["settings"]), {"type": "null"}]}
    many["overrides"] |= {"anyOf": [one_setting, {"type": "null"}]}
    several = [_is_given(key) for key in ("cases", "sweep")]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "An experiment of fredsim",
        "type": "object",
        "properties": top | many,
        "additionalProperties": False,
        "if": {"anyOf": several},
        "else": required_too,
        "definitions": {
            name: definitions[name] if name in NEVER_SWEPT else optional(definitions[name])
            for name in sorted(named_in([top, many], definitions))
        },
    }


def _is_given(key: str) -> Schema:
    """Return the schema of what has a key that is not null."""
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def _or_of_problem(usual: Schema) -> Schema:
    """Return requirements that are the usual ones, or those of an experiment with a problem."""
    other = {name: one for name, one in usual["properties"].items() if name not in {"data", "model", "loss"}}
    clients = other["clients"]
    other["clients"] = clients | {"required": [name for name in clients["required"] if name != "batch_size"]}
    without = {"not": {"anyOf": [_is_given(key) for key in ("data", "model", "loss")]}}
    required = [name for name in usual["required"] if name != "data"]
    return {
        "if": _is_given("problem"),
        "then": {"required": required, "properties": other} | without,
        "else": usual,
    }


def as_text() -> str:
    """Return the JSON Schema as `fredsim schema` prints it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _choice(kind: Kind, name: str) -> type[BaseModel] | None:
    """Return the model of a name's hyper-parameters together with the name; None if they are not known."""
    try:
        found = find_class(kind, name)
    except ConfigError:  # the class of an installed package cannot be loaded
        return None
    if not issubclass(found, Configurable):
        return None
    fields: Any = {"name": (Literal[name], ...)}
    if kind == "dispatcher":
        said = meanings(DispatcherChoice)
        for key, field in DispatcherChoice.model_fields.items():
            described = copy(field)
            described.description = said.get(key)
            fields[key] = (field.annotation, described)
        usual = DispatcherChoice.model_fields["name"].default == name
        fields["name"] = (Literal[name], name if usual else ...)
    if kind == "gate":
        del fields["name"]
    return create_model(f"{kind}_{name}", __base__=found.Hyper, __doc__=getattr(found, "idea", ""), **fields)


def _cleaned(schema: Any) -> Any:
    """Return a schema without what only pydantic uses: titles made from names, keywords that JSON Schema lacks."""
    if isinstance(schema, list):
        return [_cleaned(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "properties" in schema:
        schema = {key: value for key, value in schema.items() if key != "title"}
        properties = {name: _cleaned(one) for name, one in schema["properties"].items()}
        schema["properties"] = {name: properties[name] for name in sorted(properties, key=lambda name: name != "name")}
        rest = {key: _cleaned(value) for key, value in schema.items() if key != "properties"}
        return rest | {"properties": schema["properties"]}
    found = {
        key: value
        for key, value in schema.items()
        if key not in {"gt", "lt", "title"} or (key == "title" and not isinstance(value, str))
    }
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    values = ("default", "examples", "const", "enum")
    return {key: value if key in values else _cleaned(value) for key, value in found.items()}


def _named(name: Schema) -> Schema:
    return {"type": "object", "properties": {"name": {"type": "string", **name}}, "required": ["name"]}


def _one_of(kind: str, titles: list[str], definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of a choice among these, a user's own class and, as a sweep may give the name, no name."""
    own = _named({"pattern": ":"}) | {"description": f"The user's own {kind}, as package.module:Class."}
    if kind == "dispatcher":
        own["properties"] |= {key: definitions[titles[0]]["properties"][key] for key in EXCHANGE_KEYS}
    nameless = any("name" not in definitions[title].get("required", []) for title in titles)
    rest = [] if nameless else [{"type": "object", "not": {"required": ["name"]}}]
    return {"oneOf": [*({"$ref": f"{REF}{title}"} for title in titles), own, *rest]}


def _gate(definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of a gate: a name, or {name: hyper-parameters, or the only one that may be given by itself}."""
    bare = [name for name in KNOWN["gate"] if not definitions[f"gate_{name}"].get("required")]
    properties: Schema = {}
    for title in [title for title in definitions if title.startswith("gate_")]:
        name = title.partition("_")[2]
        short = GATES[name].short if name in GATES else ""
        value = [{"$ref": f"{REF}{title}"}, *([{"$ref": f"{REF}{title}/properties/{short}"}] if short else [])]
        properties[name] = {"anyOf": value}
    named = {"type": "object", "minProperties": 1, "maxProperties": 1, "properties": properties}
    named |= {"patternProperties": {":": {}}, "additionalProperties": False}
    return {"anyOf": [{"enum": bare}, {"type": "string", "pattern": ":"}, named]}
