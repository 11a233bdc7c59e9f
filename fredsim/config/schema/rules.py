"""Transformations of JSON Schemas: discriminated branches, requirements alone, values under dotted keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = [
    "REF",
    "Schema",
    "discriminate",
    "lists_of",
    "named_in",
    "optional",
    "refer_to_kind",
    "requirements",
    "settings",
    "share_definitions",
]

Schema = dict[str, Any]
REF = "#/definitions/"
ANNOTATIONS = {"default", "description", "examples"}
LONG = 150  # a schema that occurs several times gets its own definition if it has more characters


def refer_to_kind(schema: Schema, kind: str) -> None:
    """Replace a key's schema by a reference to that of a kind; it still allows null if it did before."""
    nullable = {"type": "null"} in schema.get("anyOf", [])
    for key in ("$ref", "anyOf", "type", "additionalProperties"):
        schema.pop(key, None)
    schema |= {"anyOf": [{"$ref": f"{REF}{kind}"}, {"type": "null"}]} if nullable else {"$ref": f"{REF}{kind}"}


def discriminate(definitions: Mapping[str, Schema], schema: Any) -> None:
    """Make at most one branch of each `oneOf` fit, by its `name`; if branches have no names, allow any (`anyOf`)."""
    for one in [*_within(definitions), *_within(schema)]:
        if "oneOf" not in one:
            continue
        branches = [_resolved(branch, definitions) for branch in one["oneOf"]]
        consts = [_const(branch) for branch in branches]
        if not any(consts):
            one["anyOf"] = one.pop("oneOf")
            continue
        patterns = [branch.get("properties", {}).get("name", {}).get("pattern") for branch in branches]
        named = {"enum": [*filter(None, consts)]}
        closed = [pattern for pattern in patterns if pattern not in {None, ":"}]
        others = {"anyOf": [named, *({"pattern": pattern} for pattern in closed)]} if closed else named
        for branch in branches:
            name = branch.get("properties", {}).get("name")
            if name is not None and not {"const", "pattern", "not"} & set(name):
                open_ended = branch.get("additionalProperties") is not False
                name |= {"pattern": ":"} if open_ended else {"not": others}


def share_definitions(definitions: dict[str, Schema]) -> None:
    """Move schemas that several definitions have for the same key, such as a learning rate's, to one definition."""
    found: dict[tuple[str, str], list[Schema]] = {}
    for definition in definitions.values():
        for name, one in definition.get("properties", {}).items():
            text = json.dumps({key: value for key, value in one.items() if key not in ANNOTATIONS}, sort_keys=True)
            if "$ref" not in one and len(text) > LONG:
                found.setdefault((name, text), []).append(one)
    for (name, text), places in found.items():
        if len(places) > 1 and name not in definitions:
            definitions[name] = json.loads(text)
            for one in places:
                for key in definitions[name]:
                    del one[key]
                one["$ref"] = f"{REF}{name}"


def named_in(schema: Any, definitions: Mapping[str, Schema]) -> set[str]:
    """Return the names of the definitions that a schema refers to, directly or indirectly."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for one in _within(waiting.pop()):
            title = one["$ref"].removeprefix(REF).partition("/")[0] if isinstance(one.get("$ref"), str) else ""
            if title in definitions and title not in found:
                found.add(title)
                waiting.append(definitions[title])
    return found


def _within(schema: Any) -> Iterator[Schema]:
    """Yield each mapping within a schema."""
    if isinstance(schema, dict):
        yield schema
    for one in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _within(one)


def _resolved(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    return definitions.get(schema.get("$ref", "").removeprefix(REF), schema)


def _const(schema: Schema) -> str | None:
    return cast("str | None", schema.get("properties", {}).get("name", {}).get("const"))


def optional(schema: Any) -> Any:
    """Return a schema that requires nothing except the names that tell branches apart."""
    if isinstance(schema, list):
        return [optional(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: optional(value) for key, value in schema.items()}
    if isinstance(found.get("required"), list) and "properties" in found:
        found["required"] = [name for name in found["required"] if name == "name"]
        if not found["required"] or not {"const", "pattern", "not"} & set(found["properties"]["name"]):
            del found["required"]
    return found


def requirements(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return a schema that has only the requirements of another one."""
    schema = _resolved(schema, definitions)
    found: Schema = {}
    if schema.get("required"):
        found["required"] = schema["required"]
    inner = {name: requirements(one, definitions) for name, one in schema.get("properties", {}).items()}
    if inner := {name: one for name, one in inner.items() if one}:
        found["properties"] = inner
    every: list[Schema] = []
    nameless: list[Schema] = []
    for branch in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        resolved, wanted = _resolved(branch, definitions), requirements(branch, definitions)
        const = _const(resolved)
        wanted = {key: value for key, value in wanted.items() if key != "required" or value != ["name"]}
        if const is not None and wanted:
            named = {"properties": {"name": {"const": const}}, "required": ["name"]}
            every.append({"if": named, "then": wanted})
        elif const is None and wanted and "name" not in resolved.get("properties", {}):
            nameless.append(wanted)
    every += nameless if len(nameless) < 2 else [{"anyOf": nameless}]  # one of several is enough
    if every:
        found["allOf"] = every
    if {"type": "object", "not": {"required": ["name"]}} in schema.get("oneOf", []):
        found["required"] = ["name"]
    if "items" in schema and (wanted := requirements(schema["items"], definitions)):
        found["items"] = wanted
    return found


def settings(top: Mapping[str, Schema], definitions: Mapping[str, Schema]) -> Schema:
    """Return the schema of values under dotted keys."""
    properties: Schema = {}
    for key, schema in top.items():
        properties[key] = {"$ref": f"#/properties/{key}"}
        properties |= {f"{key}.{name}": one for name, one in _inner(schema, definitions).items()}
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": {rf"^({'|'.join(top)})\.": {}},
        "additionalProperties": False,
    }


def _inner(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Return references to the schemas of the keys within a key, by name; {} for one that differs between branches."""
    branches = [schema, *schema.get("anyOf", []), *schema.get("oneOf", [])]
    found: Schema = {}
    seen: dict[str, str] = {}
    while branches:
        branch = branches.pop(0)
        title = branch.get("$ref", "").removeprefix(REF)
        resolved = _resolved(branch, definitions)
        if resolved is branch:
            continue
        branches += [*resolved.get("anyOf", []), *resolved.get("oneOf", [])]
        for name, one in resolved.get("properties", {}).items():
            kept = {key: value for key, value in one.items() if key not in ANNOTATIONS}
            text = json.dumps(kept, sort_keys=True)
            found[name] = {"$ref": f"{REF}{title}/properties/{name}"} if seen.setdefault(name, text) == text else {}
    return found


def lists_of(values: Schema) -> Schema:
    """Return the schema of lists of values under dotted keys, given the schema of the values."""
    listed = {"type": "array", "minItems": 1}
    properties = {key: {**listed, "items": one} for key, one in values["properties"].items()}
    patterns = dict.fromkeys(values["patternProperties"], listed)
    return {**values, "properties": properties, "patternProperties": patterns}
