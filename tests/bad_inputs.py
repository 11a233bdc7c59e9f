"""Bad inputs, made at random: what a user may get wrong in YAML, overrides, data files and on the command line.

Case i of a seed is always the same. The keys come from the schemas of the models themselves, so a new key takes part
without a line here. tests/try_bad_inputs.py tries them.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

import fredsim
from fredsim.config.experiment import Experiment
from fredsim.config.registry import KNOWN
from fredsim.config.selection import Selection
from fredsim.servers.schedules import SCHEDULES
from tests.bad_values import OPTIONS, PIECES, VALUES

__all__ = ["Case", "make"]

Key = tuple[str | int, ...]
Schema = Mapping[str, Any]

TOKEN = "@@"  # stands where a value will

BASE: dict[str, Any] = {
    "iterations": 6,
    "data": {"name": "digits", "train": 12, "validation": 3},
    "model": {"hidden": [3]},
    "clients": {"count": 3, "batch_size": 2},
    "server": {"name": "fasgd", "lr": 0.01},
    "backend": "numpy",
}


@dataclass
class Case:
    """What is tried: the command's words and the files beside; `key` is given `value`, where it is known to be."""

    kind: str
    words: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    key: Key = ()
    value: str = ""


# What there is to set


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
    """Return a value that a schema takes."""
    if schema.get("default") is not None:
        return schema["default"]
    schema = resolved(schema, defs)
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "integer":
            return max(1, schema.get("minimum", 1))
        case "number":
            return 0.5
        case "array":
            return [valid(schema["items"], defs)] * schema.get("minItems", 1)
        case "object":
            known = schema.get("properties", {})
            return {name: valid(known[name], defs) for name in schema.get("required", ())}
        case "boolean":
            return False
    return "x"


def keys_of(schema: Schema, defs: Schema, at: Key = ()) -> Iterator[tuple[Key, Schema]]:
    """Yield every key below a schema, of mappings in lists too, with its own schema."""
    schema = resolved(schema, defs)
    for name, inner in schema.get("properties", {}).items():
        yield (*at, name), inner
        yield from keys_of(inner, defs, (*at, name))
    if schema.get("type") == "array":
        yield (*at, 0), schema["items"]
        yield from keys_of(schema["items"], defs, (*at, 0))


def rooms() -> Iterator[tuple[Key, dict[str, Any], Schema]]:
    """Yield each mapping of keys: where it stands, an experiment that has it there, and its schema."""
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
        lr = {**valid(schema, {}), "name": name}
        yield ("server", "lr"), BASE | {"server": {"name": "asgd", "lr": lr}}, schema


def placed(data: Any, at: Key, key: Key, schema: Schema, value: Any) -> Any:
    """Return an experiment with a value at a key, what is around it made where it is not there; `at` is the room's."""
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


ROOMS = [(at, data, schema, list(keys_of(schema, schema.get("$defs", {})))) for at, data, schema in rooms()]
KEYS = [(at, data, schema, key) for at, data, schema, keys in ROOMS for key, _ in keys]


def as_yaml(data: Any, value: str) -> bytes:
    """Return YAML with a text where the token stands."""
    return json.dumps(data, indent=1).replace(f'"{TOKEN}"', value).encode("utf-8", "surrogatepass")


# What goes wrong


def a_value(rng: random.Random) -> Case:
    """Give a key a value, in the file, by an override, in a sweep or a case."""
    at, data, schema, key = rng.choice(KEYS)
    value, whole = rng.choice(VALUES), (*at, *key)
    name = ".".join(map(str, whole))
    here = placed(data, at, key, schema, TOKEN)
    where = rng.choice(("file", "file", "override", "sweep", "case"))
    if where == "file" or any(isinstance(part, int) for part in whole) or at == ("select",):
        return Case("value in file", ["show", "x.yaml"], {"x.yaml": as_yaml(here, value)}, whole, value)
    if where == "override":
        file = {"x.yaml": as_yaml(placed(data, at, key, schema, None), "")}
        return Case("value by override", ["show", "x.yaml", f"{name}={value}"], file, whole, value)
    around = {"sweep": {name: [TOKEN, 1]}} if where == "sweep" else {"cases": [{name: TOKEN}, {name: 1}]}
    return Case(f"value in {where}", ["show", "x.yaml"], {"x.yaml": as_yaml(data | around, value)})


def a_key(rng: random.Random) -> Case:
    """Misspell a key, leave it out, put it elsewhere, or write it twice."""
    at, data, schema, key = rng.choice(KEYS)
    text = as_yaml(placed(data, at, key, schema, TOKEN), "1").decode()
    name = next(part for part in reversed(key) if isinstance(part, str)) if any(map(str, key)) else "x"
    other = rng.choice((name[:-1], name + "s", name.upper(), rng.choice(VALUES), f"{name}.{name}", rng.choice(PIECES)))
    changed = text.replace(f'"{name}":', rng.choice((f'"{other}":', f"{other}:", f'"{name}": 1, "{name}":', "")), 1)
    return Case("key", ["show", "x.yaml"], {"x.yaml": changed.encode("utf-8", "surrogatepass")})


SHIPPED = sorted((Path(fredsim.__file__).parent / "experiments").rglob("*.yaml"))


def a_text(rng: random.Random) -> Case:
    """Damage the text of an experiment that comes with fredsim, or of our own."""
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
    """Give the command something odd."""
    words = [word for option in rng.sample(OPTIONS, rng.choice((1, 1, 2))) for word in option]
    command = rng.choice(("run", "run", "show", "plan", "verify", "compare", "list", "reproduce", ""))
    file = rng.choice(("x.yaml", "x.yaml", "x.yaml", "none", ".", "", "pipe", "data.npz", "/dev/zero", "x" * 300))
    quiet = ["--quiet"] if command == "run" else []
    quiet += ["--out", "out"] if command in {"run", "reproduce"} and "--out" not in words else []
    files = {"x.yaml": as_yaml(BASE, ""), "data.npz": b"x"}
    return Case("option", [command, file, *words, *quiet] if command else words, files)


def a_data_file(rng: random.Random) -> Case:
    """Damage an NPZ file, or write one that is no good."""
    x = rng.choice(("f4", "f8", "u1", "i8", "c16", "U3", "O", "?", "f2", "M8[s]", "V4"))
    shapes = ((), (0,), (20,), (20, 3), (20, 2, 2), (0, 3), (20, 0), (20, 3, 1, 1, 1))
    arrays = {
        "x_train": np.zeros(rng.choice(((20, 3), rng.choice(shapes))), rng.choice(("f4", x))),
        "y_train": np.zeros(rng.choice((20, 20, 19, 0)), rng.choice(("i8", "i8", "u8", "f4", x))),
        "x_test": np.zeros(rng.choice(((4, 3), rng.choice(shapes))), "f4"),
        "y_test": np.zeros(rng.choice((4, 4, 5)), "i8"),
    }
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        arrays["y_train"].flat[:] = rng.choice((0, 0, 0, 1, -1, 99, 2**20, 2**31))
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        arrays["x_train"].flat[:1] = rng.choice((0, 0, np.nan, np.inf, 1e30))
    if rng.random() < 0.2:
        del arrays[rng.choice(list(arrays))]
    room = io.BytesIO()
    np.savez(room, allow_pickle=True, **arrays)
    content = bytearray(room.getvalue())
    for _ in range(rng.choice((0, 0, 1, 3))):
        content[rng.randrange(len(content))] = rng.randrange(256)
    if rng.random() < 0.2:
        content = content[: rng.randrange(len(content))]
    if rng.random() < 0.3:
        content = bytearray(claiming(rng.choice(((10**12, 3), (2**62, 3), (2**70,), (-1, 3), (3, 10**9)))))
    words = ["run", "x.yaml", "--quiet", "--out", "out"]
    text = as_yaml(BASE | {"data": {"name": "npz:data.npz"}}, "")
    return Case("data file", words, {"x.yaml": text, "data.npz": bytes(content)})


def claiming(shape: tuple[int, ...]) -> bytes:
    """Return an NPZ file of a few bytes whose header claims an array of this shape."""
    room = io.BytesIO()
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    with zipfile.ZipFile(room, "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header + b"\0" * 64)
    return room.getvalue()


def an_order(rng: random.Random) -> Case:
    """Write a CSV file of clients that is no good."""
    rows = [
        rng.choice(("0", "1", "2", "3", "-1", "x", "", "1.0", "9" * 5000, "1,2", '"', "\0", "١", " 1 "))
        for _ in range(4)
    ]
    text = "\n".join([rng.choice(("client", "\ufeffclient", "Client", "", "client,client", '"client')), *rows])
    content = text.encode() if rng.random() < 0.9 else rng.choice((b"", b"\xff\xfe", text.encode("utf-16")))
    data = BASE | {"dispatcher": {"name": "scripted", "order": {"csv": "order.csv"}}}
    return Case("order", ["show", "x.yaml"], {"x.yaml": as_yaml(data, ""), "order.csv": content})


def a_root(rng: random.Random) -> Case:
    """Put something that is not MNIST where MNIST is looked up."""
    name = rng.choice(("train-images-idx3-ubyte", "train-images-idx3-ubyte.gz"))
    content = rng.choice(
        (b"", b"\0\0\x08\x03", b"\0\0\x08\x03" + b"\xff" * 12, rng.randbytes(99), b"\x1f\x8b" + b"\0" * 9)
    )
    words = ["run", "x.yaml", "--quiet", "--out", "out", "--data-root", "."]
    return Case("root", words, {"x.yaml": as_yaml(BASE | {"data": {"name": "mnist"}}, ""), f"mnist/{name}": content})


KINDS: dict[Callable[[random.Random], Case], int] = {
    a_value: 10, a_key: 2, a_text: 4, an_option: 3, a_data_file: 2, an_order: 1, a_root: 1,
}  # fmt: skip


def make(seed: int, number: int) -> Case:
    """Return a case."""
    rng = random.Random(f"{seed} {number}")
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng)
