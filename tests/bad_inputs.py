"""Random bad inputs: mistakes of users in YAML, overrides, data files and on the command line.

Case i of a seed is always the same. The keys come from the schemas of the models themselves, so new keys are covered
without a change here. tests/try_bad_inputs.py tries the cases.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from ruamel.yaml import YAML

from fredsim.config.experiment import Experiment
from fredsim.config.registry import KNOWN
from fredsim.config.shipped import shipped
from fredsim.config.sweep.selection import Selection
from fredsim.servers.schedules import SCHEDULES
from tests.bad_cases import BASE, TOKEN, Case, Key, as_yaml, reshaped
from tests.bad_files import an_idx_file, an_npz_file
from tests.bad_results import a_folder
from tests.bad_runs import a_checkpoint
from tests.bad_tables import a_trace, an_order
from tests.bad_values import OPTIONS, PIECES, VALUES

__all__ = ["KINDS", "make"]

Schema = Mapping[str, Any]

# The keys that can be set


def resolved(schema: Schema, defs: Schema) -> Schema:
    """Return a schema, or the first of its alternatives that is not null."""
    while True:
        if "$ref" in schema:
            schema = defs[schema["$ref"].rpartition("/")[2]]
        elif branches := schema.get("anyOf", schema.get("oneOf")):
            known = [branch for branch in branches if branch.get("type") != "null"]
            schema = next((branch for branch in known if "$ref" in branch), known[0])
        else:
            return schema


def valid(schema: Schema, defs: Schema) -> Any:
    """Return a value that is valid by a schema."""
    if schema.get("default") is not None:
        return schema["default"]
    schema = resolved(schema, defs)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "integer":
            return max(1, schema.get("minimum", 1))
        case "number":
            return max(0.5, schema.get("minimum", 0.5), schema.get("exclusiveMinimum", 0.0) + 0.5)
        case "array":
            return [valid(schema["items"], defs)] * schema.get("minItems", 1)
        case "object":
            known = schema.get("properties", {})
            return {name: valid(known[name], defs) for name in schema.get("required", ())}
        case "boolean":
            return False
    return "x"


def keys_of(schema: Schema, defs: Schema, at: Key = ()) -> Iterator[tuple[Key, Schema]]:
    """Yield every key within a schema, also in mappings within lists, with its own schema."""
    schema = resolved(schema, defs)
    for name, inner in schema.get("properties", {}).items():
        yield (*at, name), inner
        yield from keys_of(inner, defs, (*at, name))
    if schema.get("type") == "array":
        yield (*at, 0), schema["items"]
        yield from keys_of(schema["items"], defs, (*at, 0))


def sections() -> Iterator[tuple[Key, dict[str, Any], Schema]]:
    """Yield each mapping of keys: its own key, an experiment that has it, and its schema."""
    yield (), BASE, Experiment.model_json_schema()
    sweep = BASE | {"sweep": {"seed": [0, 1]}}
    yield ("select",), sweep | {"select": {"over": "seed"}}, Selection.model_json_schema()
    places = {"compressor": "compress"}
    for kind, classes in KNOWN.items():
        for name, found in classes.items():
            schema = cast(Any, found).Hyper.model_json_schema()
            hyper = valid({key: schema[key] for key in schema if key != "default"}, schema.get("$defs", {}))
            if kind == "gate":
                yield ("dispatcher", "fetch", name), BASE | {"dispatcher": {"fetch": {name: hyper}}}, schema
            else:
                place = places.get(kind, kind)
                yield (place,), BASE | {place: {"name": name, **hyper}}, schema
    for name, schedule in SCHEDULES.items():
        schema = cast(Any, schedule).model_json_schema()
        lr = {**valid({key: schema[key] for key in schema if key != "default"}, schema.get("$defs", {})), "name": name}
        yield ("server", "lr"), BASE | {"server": {"name": "asgd", "lr": lr}}, schema


def placed(data: Any, at: Key, key: Key, schema: Schema, value: Any) -> Any:
    """Return an experiment with `value` at `key` of the section `at`; missing mappings and lists are created."""
    data, defs = json.loads(json.dumps(data)), schema.get("$defs", {})
    here: Any = data
    for part in at:
        here = here[part]
    for depth, part in enumerate(key):
        schema = resolved(schema, defs)
        schema = schema["items"] if isinstance(part, int) else schema["properties"][part]
        if isinstance(part, int) and not here:
            here.append(None)
        if depth == len(key) - 1:
            here[part] = value
        else:
            if not isinstance(here[part] if isinstance(part, int) else here.get(part), dict | list):
                here[part] = valid({"$ref": schema["$ref"]} if "$ref" in schema else dict(schema, default=None), defs)
            here = here[part]
    return data


SECTIONS = [(at, data, schema, list(keys_of(schema, schema.get("$defs", {})))) for at, data, schema in sections()]
KEYS = [(at, data, schema, key) for at, data, schema, keys in SECTIONS for key, _ in keys]
OVERRIDABLE = [of for of in KEYS if of[0] != ("select",) and not any(isinstance(part, int) for part in of[3])]
NAMES = sorted(shipped())


# The mistakes


def a_value(rng: random.Random) -> Case:
    """Give a key a random value, in the file, in a sweep or in a case."""
    at, data, schema, key = rng.choice(KEYS)
    value, whole = rng.choice(VALUES), (*at, *key)
    name = ".".join(map(str, whole))
    here = placed(data, at, key, schema, TOKEN)
    where = rng.choice(("file", "file", "sweep", "case"))
    if where == "file" or any(isinstance(part, int) for part in whole) or at == ("select",):
        return Case("value in file", ["show", "x.yaml"], {"x.yaml": as_yaml(here, value)}, whole, value)
    around = {"sweep": {name: [TOKEN, 1]}} if where == "sweep" else {"cases": [{name: TOKEN}, {name: 1}]}
    return Case(f"value in {where}", ["show", "x.yaml"], {"x.yaml": as_yaml(data | around, value)})


def by_override(rng: random.Random) -> Case:
    """Give a key a random value by an override."""
    at, data, schema, key = rng.choice(OVERRIDABLE)
    value, whole = rng.choice(VALUES), (*at, *key)
    file = {"x.yaml": as_yaml(placed(data, at, key, schema, None), "")}
    arguments = ["show", "x.yaml", f"{'.'.join(map(str, whole))}={value}"]
    return Case("value by override", arguments, file, whole, value)


def a_key(rng: random.Random) -> Case:
    """Misspell a key, leave it out, move it, or write it twice."""
    at, data, schema, key = rng.choice(KEYS)
    text = as_yaml(placed(data, at, key, schema, TOKEN), "1").decode()
    name = next(part for part in reversed(key) if isinstance(part, str)) if any(map(str, key)) else "x"
    other = rng.choice((name[:-1], name + "s", name.upper(), rng.choice(VALUES), f"{name}.{name}", rng.choice(PIECES)))
    changed = text.replace(f'"{name}":', rng.choice((f'"{other}":', f"{other}:", f'"{name}": 1, "{name}":', "")), 1)
    return Case("key", ["show", "x.yaml"], {"x.yaml": changed.encode("utf-8", "surrogatepass")})


SHIPPED = list(shipped().values())


def a_text(rng: random.Random) -> Case:
    """Damage the text of an experiment that comes with fredsim, or of BASE."""
    text = rng.choice((rng.choice(SHIPPED).read_text(encoding="utf-8"), as_yaml(BASE, "").decode()))
    for _ in range(rng.choice((1, 1, 2, 3, 10))):
        begin = rng.randrange(len(text) + 1)
        end = min(len(text), begin + rng.choice((0, 0, 1, 1, 2, 5, 20, 200)))
        other = rng.choice((rng.choice(PIECES), rng.choice(VALUES), "", text[end : end + 30]))
        text = text[:begin] + other + text[end:]
    content = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        content = rng.choice((content[: len(content) // 2] + b"\xff", b"\xef\xbb\xbf" + content, text.encode("utf-16")))
    return Case("text", ["show", "x.yaml"], {"x.yaml": content})


def an_option(rng: random.Random) -> Case:
    """Give the command odd options or files."""
    arguments = [word for option in rng.sample(OPTIONS, rng.choice((1, 1, 2))) for word in option]
    command = rng.choice(("run", "run", "show", "plan", "verify", "compare", "list", "reproduce", ""))
    file = rng.choice(("x.yaml", "x.yaml", "x.yaml", "none", ".", "", "pipe", "data.npz", "/dev/zero", "x" * 300))
    quiet = ["--quiet"] if command == "run" else []
    quiet += ["--out", "out"] if command in {"run", "reproduce"} and "--out" not in arguments else []
    files = {"x.yaml": as_yaml(BASE, ""), "data.npz": b"x"}
    return Case("option", [command, file, *arguments, *quiet] if command else arguments, files)


def an_override(rng: random.Random) -> Case:
    """Give overrides that are invalid, or do not fit together."""
    keys = [".".join(map(str, (*at, *key))) for at, _, _, key in rng.choices(KEYS, k=rng.choice((1, 1, 2, 3)))]
    arguments = [f"{key}={rng.choice(VALUES)}" for key in keys]
    for _ in range(rng.choice((0, 1, 2))):
        at = rng.randrange(len(arguments))
        word, begin = arguments[at], rng.randrange(len(arguments[at]) + 1)
        other = rng.choice((rng.choice(PIECES), "=", ".", "..", "\ud800", rng.choice(arguments)))
        arguments[at] = word[:begin] + other.replace("\0", "") + word[begin + rng.choice((0, 0, 1, 5)) :]
    arguments = [word for word in arguments if not word.startswith("-")]  # which are options
    source = rng.choice(("x.yaml", "x.yaml", rng.choice(NAMES)))
    return Case("override", ["show", source, *arguments], {"x.yaml": as_yaml(BASE, "")})


def a_structure(rng: random.Random) -> Case:
    """Remove, move, double or replace parts of an experiment that comes with fredsim, or of BASE."""
    text = rng.choice((rng.choice(SHIPPED).read_text(encoding="utf-8"), as_yaml(BASE, "").decode()))
    data = YAML(typ="safe", pure=True).load(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = reshaped(rng, data)
    return Case("structure", ["show", "x.yaml"], {"x.yaml": json.dumps(data).encode()})


Make = Callable[[random.Random], Case]

#: The functions that make the cases of a kind, with their relative frequencies.
KINDS: dict[str, dict[Make, int]] = {
    "yaml": {a_value: 10, a_key: 2, a_text: 4, a_structure: 4},
    "override": {by_override: 1, an_override: 1},
    "option": {an_option: 1},
    "npz": {an_npz_file: 1},
    "idx": {an_idx_file: 1},
    "order": {an_order: 1},
    "trace": {a_trace: 1},
    "checkpoint": {a_checkpoint: 1},
    "folder": {a_folder: 1},
}


def make(seed: int, kind: str, number: int) -> Case:
    """Return case `number` of a kind."""
    rng = random.Random(f"{seed} {kind} {number}")
    makers = KINDS[kind]
    return rng.choices(list(makers), list(makers.values()))[0](rng)
