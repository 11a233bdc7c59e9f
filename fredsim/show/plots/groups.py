"""Which runs stand in which panel and make up which line: lines of the same label have one look in every panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fredsim.config.document import flatten
from fredsim.config.experiment import Affects, without
from fredsim.config.registry import KNOWN
from fredsim.errors import ConfigError, nearest
from fredsim.runs.results import Result

__all__ = ["CELL", "SYMBOLS", "Line", "Panel", "differences", "flat_config", "group", "labels", "value_name"]

# Okabe and Ito (2008): eight colours that people with any colour vision can tell apart; dashes repeat the distinction.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES = ("-", "--", "-.", ":")

SYMBOLS = {"clients.count": "λ", "clients.batch_size": "µ", "server.lr": "α"}
CELL = ("clients.count", "clients.batch_size")
#: What stands in no file.
ALL_SHARE = {"clients.partition.name": "iid", "clients.partition.shards": False}

Flat = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """Runs that are drawn as one, and how."""

    label: str
    colour: str
    dash: str
    runs: list[Result]


@dataclass(frozen=True)
class Panel:
    """Lines that share a pair of axes."""

    title: str
    lines: list[Line]

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of a table, which begins with the panel's title where it has one."""
        return {**({"panel": self.title} if self.title else {}), **values}


def labels(results: Sequence[Result]) -> list[str]:
    """Return a label a run: the server's name, and every other value in which the runs differ."""
    return _texts([flat_config(result) for result in results])


def differences(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return the dotted keys in which runs that have them differ, and their values."""
    flat = [flat_config(result) for result in results]
    differing = _differing(flat, present=True)
    found = {key: {repr(config[key]): config[key] for config in flat if key in config} for key in _keys(flat)}
    return {key: list(values.values()) for key, values in found.items() if key in differing}


def group(
    results: Sequence[Result],
    by: Sequence[str] | None,
    panel: Sequence[str] | None,
    along: str | None = None,
    usual: Sequence[str] = CELL,
) -> list[Panel]:
    """Return the panels of a figure.

    Args:
        results: the runs.
        by: the dotted keys whose values make a line; None: all in which the runs differ, but the seed.
        panel: those that make a panel; None: the `usual` ones, where they differ.
        along: the key whose values the x axis shows, which makes neither line nor panel.
        usual: keys, or the parts of an experiment that hold them; λ and µ.

    Raises ConfigError for a key that no run has.

    """
    flat = [flat_config(result) for result in results]
    for key in (*(by or ()), *(panel or ()), *([along] if along else [])):
        _check(key, flat)
    differing = _differing(flat)
    if panel is None:
        found = [key for key in _keys(flat) if any(f"{key}.".startswith(f"{one}.") for one in usual) and key != along]
        if usual != CELL:
            found = [key for key in found if key in _differing(flat, present=True)]
        panel = [key for key in found if differing & {*found} and key not in (by or ())]
    if by is None:
        said = {*panel, "seed", along} - {"server.name"}  # which tells whose the hyper-parameters are
        rest = [{key: value for key, value in config.items() if key not in said} for config in flat]
        texts = _texts(rest, named="server.name" not in (*panel, along))
    else:
        texts = [_joined(by, config) for config in flat]
    looks: dict[str, tuple[str, str]] = {}
    panels: dict[str, dict[str, Line]] = {}
    for result, config, text in zip(results, flat, texts, strict=True):
        title = _joined(panel, config)
        n = len(looks)
        colour, dash = looks.setdefault(text, (COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)]))
        panels.setdefault(title, {}).setdefault(text, Line(text, colour, dash, [])).runs.append(result)
    return [Panel(title, list(lines.values())) for title, lines in panels.items()]


def flat_config(result: Result) -> Flat:
    """Return a run's values under dotted keys, but those that change no curve."""
    flat = flatten({key: value for key, value in result.config.items() if key not in without(Affects.BITS)})
    return flat if "clients.partition.name" in flat else flat | ALL_SHARE


def _keys(flat: Sequence[Flat]) -> list[str]:
    return list(dict.fromkeys(key for config in flat for key in config))


def _check(key: str, flat: Sequence[Flat]) -> None:
    known = _keys(flat)
    if key not in known:
        differing = ", ".join(sorted(_differing(flat))) or "nothing"
        raise ConfigError(f"'{key}' is no key of these runs{nearest(key, known)} (they differ in: {differing})")


def _differing(flat: Sequence[Flat], *, present: bool = False) -> set[str]:
    """Return the keys whose values are not the same in all runs.

    With `present`: in all runs that have the key; a value that stands where others have a mapping differs from it.
    """
    values: dict[str, list[str]] = {}
    for config in flat:
        for key, value in config.items():
            values.setdefault(key, []).append(repr(value))
    differing = {key for key, found in values.items() if len(set(found)) > 1}
    if present:
        above = {key[:at] for key in values for at, letter in enumerate(key) if letter == "."}
        return differing | (above & values.keys())
    return differing | {key for key, found in values.items() if len(found) < len(flat)}


def _texts(flat: Sequence[Flat], *, named: bool = True) -> list[str]:
    """Return a text for each run: its server's name, and the values that tell it from the others.

    A server's own hyper-parameters tell it only from others of its kind. What others do not have at all, as the
    hyper-parameters of a gate that they lack, is left out where something else tells them apart. Not `named`: the
    server's name stands elsewhere.
    """
    order = _keys(flat)
    everywhere, among = _differing(flat), _differing(flat, present=True)
    servers: dict[str, list[Flat]] = {}
    for config in flat:
        servers.setdefault(config["server.name"], []).append(config)
    own = {name: (_differing(members), _differing(members, present=True)) for name, members in servers.items()}
    long, short = [], []
    for config in flat:
        keys, varied = (
            [key for key in order if key in config and key in (of_own if key.startswith("server.") else of_all)]
            for of_own, of_all in zip(own[config["server.name"]], (everywhere, among), strict=True)
        )
        name = [_text("server.name", config["server.name"])] if named else []
        texts = [[*name, *(_text(key, config[key]) for key in some)] for some in (keys, varied or keys[:1])]
        long.append(", ".join(texts[0]))
        short.append(", ".join(texts[1]))
    found = short if len(set(short)) == len(set(long)) else long
    return [text or ("others" if any(found) else "all runs") for text in found]


def _joined(keys: Sequence[str], config: Flat) -> str:
    """Return the texts of some values, each once; of a key that a run does not have, what stands in its place."""
    return ", ".join(dict.fromkeys(_text(*_instead(key, config)) for key in keys))


def _instead(key: str, config: Flat) -> tuple[str, Any]:
    """Return a key and its value; where there is none, what it holds, or the nearest around it that has something."""
    at = key
    while at:
        if at in config:
            return at, config[at]
        if f"{at}.name" in config:
            return f"{at}.name", config[f"{at}.name"]
        inner = [one.removeprefix(f"{at}.") for one in config if one.startswith(f"{at}.")]
        if inner:
            return at, inner[0].partition(".")[0]
        at = at.rpartition(".")[0]
    return key, "none"


def value_name(key: str, value: Any) -> str:
    """Return a value as figures show it: a server's name is that of its class."""
    known = KNOWN["server"].get(value) if key in {"server.name", "server.inner.name"} else None
    return known.__name__ if known else str(value)


def _text(key: str, value: Any) -> str:
    """Return a value with the key's symbol or last word; a dispatcher's name alone, or that of a server's class."""
    if key.endswith(".name"):
        return value_name(key, value)
    if key in SYMBOLS:
        return f"{SYMBOLS[key]} = {value}"
    *above, last = key.split(".")
    gate = f"{above[1]} " if above[:1] == ["dispatcher"] and len(above) > 1 else ""
    return f"{gate}{last} {value}"
