"""Groups runs into lines and panels. Lines with the same label have the same colour and dash in every panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle
from typing import Any

from fredsim.config.document import flatten
from fredsim.config.experiment import with_defaults
from fredsim.errors import ConfigError, nearest, visible
from fredsim.runs.folder.results import Result
from fredsim.show.colours import PALETTE
from fredsim.show.distinct import of_bits
from fredsim.show.plots.words import NO_NOISE, owners, words

__all__ = [
    "DASHES", "Flat", "Line", "Panel", "by_run", "defaults_of", "differences", "differing_keys", "filled",
    "flat_config", "group", "labels", "single_panel",
]  # fmt: skip

DASHES = ("-", "--", "-.", ":")  # those of the lines after the first eight

PANEL_KEYS = ("clients.count", "clients.batch_size")
#: The partition of configurations that have none: all clients share all rows.
SHARED_ROWS = {"clients.partition.name": "iid", "clients.partition.shards": False}

#: What a run may have beside its rows, which changes no bit of it.
RECORDED = ("probe", "per_tensor", "events", "published")

Flat = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """Runs that are drawn as one line, and its style."""

    label: str
    colour: str
    dash: str
    runs: list[Result]


@dataclass(frozen=True)
class Panel:
    """Lines that share axes; `parts`: the texts of which the title consists, one for each key that makes panels."""

    title: str
    lines: list[Line]
    parts: tuple[str, ...] = ()

    @property
    def runs(self) -> list[Result]:
        """The runs of all lines."""
        return [run for line in self.lines for run in line.runs]

    def row(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of a table, which begins with the panel's title, if it has one."""
        return {**({"panel": self.title} if self.title else {}), **values}


def labels(results: Sequence[Result]) -> list[str]:
    """Return one label per run: the server's name, and every other value in which the runs differ."""
    return _run_labels([flat_config(result) for result in results])


def by_run(results: Sequence[Result]) -> list[Panel]:
    """Return a panel for each run; if there are several, a panel has the run's label as title."""
    several = len(results) > 1
    return [
        Panel(label if several else "", [Line(label, PALETTE[0], DASHES[0], [run])])
        for run, label in zip(results, labels(results), strict=True)
    ]


def single_panel(results: Sequence[Result], names: Sequence[str]) -> Panel:
    """Return a single panel with one line per run, named by `names`."""
    looks = zip(zip(results, names, strict=True), cycle(PALETTE), cycle(DASHES), strict=False)
    return Panel("", [Line(name, colour, dash, [run]) for (run, name), colour, dash in looks])


def differences(results: Sequence[Result]) -> dict[str, list[Any]]:
    """Return the dotted keys in which those runs differ that have the key, each with its values (`filled`)."""
    flat = filled(results)
    differing = differing_keys(flat, present=True)
    found = {key: {repr(config[key]): config[key] for config in flat if key in config} for key in _keys(flat)}
    return {key: list(values.values()) for key, values in found.items() if key in differing}


def group(
    results: Sequence[Result],
    by: Sequence[str] | None,
    panel: Sequence[str] | None,
    along: str | None = None,
    default_panels: Sequence[str] = PANEL_KEYS,
    shows: str = "probe",
) -> list[Panel]:
    """Return the panels of a figure.

    Args:
        results: the runs; those that differ in nothing that changes a bit, and have the same bits, count once.
        by: dotted keys; runs with the same values of these keys make a line. None: all keys that differ, except seed.
        panel: dotted keys that make a panel in the same way; None: the `default_panels`, if they differ.
        along: the key of the x axis, which makes neither a line nor a panel.
        default_panels: keys, or sections of an experiment whose keys all count; by default λ and µ.
        shows: what is shown that not all runs have recorded: one of RECORDED; by default what a report shows.

    Raises ConfigError for a key that no run has.

    """
    results = _once(results, shows)
    flat = [flat_config(result) for result in results]
    known = _keys(flat)
    for key in (*(by or ()), *(panel or ()), *([along] if along else [])):
        if key not in known:
            differ = ", ".join(sorted(differing_keys(flat))) or "nothing"
            raise ConfigError(f"'{key}' is no key of these runs{nearest(key, known)} (they differ in: {differ})")
    differing = differing_keys(flat)
    if panel is None:
        within = tuple(f"{part}." for part in default_panels)
        keys = [key for key in known if key != along and f"{key}.".startswith(within)]
        if default_panels != PANEL_KEYS:
            keys = [key for key in keys if key in differing_keys(flat, present=True)]
        if all("problem" in result.config for result in results):  # it has no minibatches
            keys = [key for key in keys if key != "clients.batch_size"]
        panel = [key for key in keys if key not in (by or ())] if differing & {*keys} else []
    if by is None:
        elsewhere = {*panel, "seed", along} - {"server.name"}  # kept: it says whose the hyper-parameters are
        rest = [{key: value for key, value in config.items() if key not in elsewhere} for config in flat]
        texts = _run_labels(rest, named="server.name" not in (*panel, along))
    else:
        texts = _labelled([dict(_nearest_key(key, config) for key in by) for config in flat])
    looks: dict[str, tuple[str, str]] = {}
    panels: dict[str, dict[str, Line]] = {}
    parts: dict[str, tuple[str, ...]] = {}
    found = [[_nearest_key(key, config) for key in panel] for config in flat]
    whose = _whose([*map(dict, found)])
    for result, text, pairs in zip(results, texts, found, strict=True):
        title = _text(dict(pairs), whose)
        parts.setdefault(title, tuple(_text(dict([pair]), whose) for pair in pairs))
        n = len(looks)
        colour, dash = looks.setdefault(text, (PALETTE[n % len(PALETTE)], DASHES[n // len(PALETTE) % len(DASHES)]))
        panels.setdefault(title, {}).setdefault(text, Line(text, colour, dash, [])).runs.append(result)
    return [Panel(title, list(lines.values()), parts[title]) for title, lines in panels.items()]


def flat_config(result: Result) -> Flat:
    """Return a run's configuration under dotted keys, without keys that affect no bit."""
    flat = flatten(of_bits(result))
    return flat if "clients.partition.name" in flat else flat | SHARED_ROWS


def filled(results: Sequence[Result]) -> list[Flat]:
    """Return each run's `flat_config`, also with the defaults of keys that it leaves out and another run has."""
    flat = [flat_config(result) for result in results]
    keys = {*_keys(flat)}
    return [
        {**config, **{key: value for key, value in defaults_of(result).items() if key in keys - config.keys()}}
        for result, config in zip(results, flat, strict=True)
    ]


def defaults_of(result: Result) -> Flat:
    """Return a run's configuration under dotted keys, also those that it leaves out for their defaults but null."""
    return {key: value for key, value in flatten(with_defaults(result.config)).items() if value is not None}


def _once(results: Sequence[Result], shows: str = "probe") -> list[Result]:
    """Return the runs without those that are another one on another backend or other threads: no further seeds.

    Of such runs remains the first of those that have recorded what is shown, or else the most (`shows` as in `group`).
    """
    kept: dict[object, Result] = {}
    for result in results:
        same = (repr(flat_config(result)), result.summary["digest"]) if result.has_ended else id(result)
        kept[same] = max(kept.get(same, result), result, key=lambda run: _recorded(run, shows))
    return list(kept.values())


def _recorded(result: Result, shows: str) -> tuple[bool, int]:
    """Return whether a run has recorded what is shown, and how much it has of what changes no bit."""
    probe = result.config.get("probe") or {}
    has = {key: bool(result.config.get(key)) for key in RECORDED} | {"per_tensor": bool(probe.get("per_tensor"))}
    return has.get(shows, False), sum(has.values())


def _keys(flat: Sequence[Flat]) -> list[str]:
    return list(dict.fromkeys(key for config in flat for key in config))


def differing_keys(flat: Sequence[Flat], *, present: bool = False) -> set[str]:
    """Return the keys whose values differ between runs.

    A run without a key differs from those that have it; with `present`, only if it has a mapping in place of a value.
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


def _run_labels(flat: Sequence[Flat], *, named: bool = True) -> list[str]:
    """Return one label per run: its server's name (if `named`), and the values in which it differs from other runs.

    A server's hyper-parameters are compared only among runs of that server. Keys that only some runs have, such as
    hyper-parameters of a gate, are left out if the labels differ without them. A run that has a mapping where others
    have a value, such as a gate where others have `always`, is named by what is in it.
    """
    order = _keys(flat)
    everywhere, among = differing_keys(flat), differing_keys(flat, present=True)
    servers: dict[str, list[Flat]] = {}
    for config in flat:
        servers.setdefault(config["server.name"], []).append(config)
    own = {name: (differing_keys(members), differing_keys(members, present=True)) for name, members in servers.items()}
    long: list[dict[str, Any]] = []
    short: list[dict[str, Any]] = []
    for config in flat:
        keys, varied = (
            [key for key in order if key in (of_own if key.startswith("server.") else of_all)]
            for of_own, of_all in zip(own[config["server.name"]], (everywhere, among), strict=True)
        )
        name = {"server.name": config["server.name"]} if named else {}
        whole_row = {key: config[key] for key in keys if key in config}
        long.append(name | whole_row)
        short.append(name | (_with_inner(varied, config) or dict([*whole_row.items()][:1])))
    whole, found = _labelled(long), _labelled(short)
    found = found if len(set(found)) == len(set(whole)) else whole
    return [text or ("others" if any(found) else "all runs") for text in found]


def _with_inner(keys: Sequence[str], config: Flat) -> dict[str, Any]:
    """Return the values of these keys; of a key that has a mapping, of which none of them is a part, what is in it."""
    found: dict[str, Any] = {}
    for key in keys:
        inner = [one for one in config if one.startswith(f"{key}.")]
        if key in config:
            found[key] = config[key]
        elif inner and not any(one in keys for one in inner):
            found.update([_nearest_key(key, config)])
    return found


def _labelled(rows: Sequence[Flat]) -> list[str]:
    """Return the values of each row as one text, in which keys are told apart that have the same words."""
    whose = _whose(rows)
    return [_text(row, whose) for row in rows]


def _whose(rows: Sequence[Flat]) -> dict[str, str]:
    """Return what stands before the words of those keys that would be taken for another one of the same row.

    If different rows have the same text even so, also before those that would be taken for one of another row.
    """
    texts: dict[str, set[str]] = {}
    for row in rows:
        for key, value in row.items():
            if value is not None:
                texts.setdefault(key, set()).add(words(key, value))
    pairs = {frozenset(pair) for keys in {(*row,) for row in rows} for pair in combinations(keys, 2)}
    found = owners(texts, pairs)
    different = {repr(_shown(row)) for row in rows}
    return found if len({_text(row, found) for row in rows}) == len(different) else owners(texts)


def _shown(values: Flat) -> Flat:
    """Return values without null and no noise, unless there is nothing else."""
    return {key: value for key, value in values.items() if value is not None and (key, value) != NO_NOISE} or values


def _text(values: Flat, whose: Mapping[str, str]) -> str:
    """Return those of these values that are shown as one text; `whose`: what stands before the words of a key."""
    told = (" ".join(filter(None, (whose.get(key), words(key, value)))) for key, value in _shown(values).items())
    return ", ".join(dict.fromkeys(map(visible, told)))


def _nearest_key(key: str, config: Flat) -> tuple[str, Any]:
    """Return a key and its value; without a value, the first key within it, else the nearest one around it.

    If there is nothing else within a key, it is shown with its value: `forward 0`.
    """
    at = key
    while at:
        if at in config:
            return at, config[at]
        if f"{at}.name" in config:
            return f"{at}.name", config[f"{at}.name"]
        inner = [one.removeprefix(f"{at}.") for one in config if one.startswith(f"{at}.")]
        if inner and at == key:
            known = [one for one in inner if config[f"{at}.{one}"] is not None]
            alone = len(known) == 1 and not isinstance(config[f"{at}.{known[0]}"], bool)
            return at, words(known[0], config[f"{at}.{known[0]}"]) if alone else inner[0].partition(".")[0]
        if len({one.partition(".")[0] for one in inner}) == 1:  # {NAME: …}, such as another gate
            return at, inner[0].partition(".")[0]
        at = at.rpartition(".")[0]
    return key, "none" if key.endswith(".name") else None
