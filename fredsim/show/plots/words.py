"""The words of figures for the keys of an experiment and their values."""

from __future__ import annotations

from typing import Any

from fredsim.config.registry import KNOWN
from fredsim.show.plots.numbers import given

__all__ = ["NO_NOISE", "SYMBOLS", "name_of", "noun", "value_name", "words"]

SYMBOLS = {"clients.count": "λ", "clients.batch_size": "µ", "server.lr": "α"}
#: The noise of a clock whose tasks do not vary.
NO_NOISE = ("dispatcher.compute.noise", "none")
#: What values are that would otherwise be True, False or None.
WORDS: dict[tuple[str, Any], str] = {
    ("clients.partition.shards", True): "own samples",
    ("clients.partition.shards", False): "shared samples",
    ("server.aggregate", None): "aggregate all",
    ("server.adaptive", False): "not adaptive",
    ("server.inner.adaptive", False): "not adaptive",
    ("server.aware", True): "staleness-aware",
    ("server.aware", False): "not staleness-aware",
}
#: What lines differ in, by the beginnings of keys; the first that fits all of them counts.
NOUNS = {
    "server.name": "server", "server.lr": "learning rate", "clients.count": "number of clients",
    "clients.batch_size": "minibatch size", "clients.partition": "partition", "dispatcher.compute": "compute time",
    "dispatcher": "dispatcher", "average": "average", "data": "data set", "model": "model",
    "compressor": "compressor", "seed": "seed",
}  # fmt: skip


def value_name(key: str, value: Any) -> str:
    """Return a value as figures show it: for a server, the name of its class."""
    known = KNOWN["server"].get(value) if key in {"server.name", "server.inner.name"} else None
    return known.__name__ if known else given(value)


def name_of(key: str) -> str:
    """Return the symbol of a key, or its last part in words."""
    return SYMBOLS.get(key, key.rpartition(".")[2].replace("_", " "))


def words(key: str, value: Any) -> str:
    """Return a value with the key's symbol or last part before it; for a key `….name`, the value alone.

    Two parts of a clock can have the same distribution, so the name of the part is put before that of a distribution.
    """
    if key == "average.name":
        return "no average" if value in {None, "none"} else f"{value} average"
    *above, last = key.removeprefix("dispatcher.compute.").split(".")
    if last == "name":
        return f"{above[0]} {value}" if key.startswith("dispatcher.compute.") else value_name(key, value)
    if isinstance(value, bool | None) and (key, value) in WORDS:
        return WORDS[key, value]
    gate = f"{above[1]} " if above[:1] == ["dispatcher"] and len(above) > 1 else ""
    name = last.replace("_", " ")
    if value is None or value is False or (key, value) == NO_NOISE:
        return f"{gate}no {name}"
    if value is True:
        return f"{gate}{name}"
    return f"{SYMBOLS[key]} = {given(value)}" if key in SYMBOLS else f"{gate}{name} {given(value)}"


def noun(keys: set[str]) -> str:
    """Return what lines differ in that differ in these keys, such as `server`, for a question that begins with Which.

    A server's own hyper-parameters count as part of it where its name differs, too.
    """
    if "server.name" in keys and all(key.startswith("server.") for key in keys):
        return "server"
    if keys and all(key.startswith(("dispatcher.push", "dispatcher.fetch")) for key in keys):
        pushes, fetches = (any(key.startswith(f"dispatcher.{one}") for key in keys) for one in ("push", "fetch"))
        return "pair of gates" if pushes and fetches else "push gate" if pushes else "fetch gate"
    if len(keys) == 1 and not (keys & NOUNS.keys()) and not next(iter(keys)).endswith(".name"):
        return f"choice of {name_of(*keys)}"
    if keys and all(key.startswith("server.") for key in keys) and keys != {"server.lr"}:
        return "setting of the server"
    fitting = (found for start, found in NOUNS.items() if all(f"{key}.".startswith(f"{start}.") for key in keys))
    return next(fitting, "setting") if keys else "setting"
