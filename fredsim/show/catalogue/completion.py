"""What a shell offers for an argument or an option that was begun: names, keys, columns. It imports no models.

Typer calls these functions while the user waits, so they read names.json and, for the names that an experiment uses,
its file. A mistake in what was typed so far offers less, and is no error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import typer

from fredsim.config.figures.options import KINDS, SHARES, STYLES, X, Y
from fredsim.config.shipped import shipped
from fredsim.errors import FredsimError
from fredsim.show.catalogue.names import Known, keys_of_experiments, keys_of_name, names_by_kind

__all__ = [
    "backends", "columns", "datasets", "experiments", "kinds", "listed", "of_experiment", "papers", "servers",
    "settings", "styles", "targets", "units",
]  # fmt: skip

Offer = tuple[str, str]
"""A word that completes what was begun, and its meaning."""

#: The kind of names that a key's `name` has.
KIND_OF = {
    "server": "servers",
    "dispatcher": "dispatchers",
    "compress": "compressors",
    "average": "averages",
    "clients.optimizer": "optimizers",
    "model": "models",
    "data": "datasets",
    "clients.partition": "partitions",
}
PLAIN = re.compile(r"[\w./:+-]+")  # a word that a shell takes as it is
#: Names of files and columns may be somebody else's. Shells put a word on the command line as it is, and zsh evaluates
#: it before: nothing is offered that has a letter which means something to a shell.
SAFE = re.compile(r"[\w./:+=@%,-]+")
MOST_LETTERS = 100_000  # the longest first line of a metrics.csv that is read


def _among(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what offers some words."""

    def offer(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return offer


def _of_kind(kind: str) -> Callable[[str], list[Offer]]:
    """Return what offers the names of a kind, except patterns such as npz:PATH."""

    def offer(incomplete: str) -> list[Offer]:
        known = names_by_kind()[kind].items()
        return _offered([(name, idea) for name, idea in known if name.isidentifier()], incomplete)

    return offer


kinds = _among(lambda: KINDS)
styles = _among(lambda: STYLES)
targets = _among(lambda: ("tensorboard", "mlflow"))
papers = _among(lambda: sorted({name.partition("/")[0] for name in shipped() if "/" in name}))
servers, datasets = _of_kind("servers"), _of_kind("datasets")


def backends(incomplete: str) -> list[str]:
    """Offer the backends."""
    from fredsim.config.choices import Backend

    return _among(lambda: get_args(Backend))(incomplete)


def units(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer what an x axis may be: a unit or, for ends, a share or a key of the experiments."""
    if ctx.params.get("kind") != "ends":
        return _offered(X.items(), incomplete)
    shares = [(share, f"the share of {share} that passed") for share in SHARES]
    return _offered([*X.items(), *shares, *_keys_of_runs(ctx)], incomplete)


def columns(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the columns that a y axis may be: the usual ones, and those that the runs have."""
    own = {name: "" for folder in _folders(ctx) for name in _columns_in(Path(folder))}
    return _offered((own | Y).items(), incomplete)


def of_experiment(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer the keys by which runs may be grouped."""
    return _offered(_keys_of_runs(ctx), incomplete)


def experiments(incomplete: str) -> list[Offer]:
    """Offer the experiments that come with fredsim, and files here."""
    start = incomplete[: incomplete.rfind("/") + 1]  # as it was typed: also ./ and //
    found: list[str] = []
    with suppress(OSError):
        for path in Path(start).iterdir():
            if path.is_dir() and not path.name.startswith("."):
                found.append(f"{start}{path.name}/")
            if path.suffix in {".yaml", ".yml"}:
                found.append(f"{start}{path.name}")
    return _offered([*((name, "") for name in sorted(found)), *names_by_kind()["experiments"].items()], incomplete)


def listed(incomplete: str) -> list[Offer]:
    """Offer what `fredsim list` can explain: kinds and names."""
    known = names_by_kind()
    names = {name: idea for entries in known.values() for name, idea in entries.items() if PLAIN.fullmatch(name)}
    return _offered([*((kind, f"all {kind}") for kind in known), *names.items()], incomplete)


def settings(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """Offer KEY=VALUE: keys and, after a key, its values. Bash takes KEY, = and VALUE as three words."""
    before = _texts(ctx)
    if before and "=" not in before[-1].rstrip("="):  # bash has cut a word at its =
        return _offered(_values(ctx, before[-1].rstrip("=")), incomplete)
    key, equals, _ = incomplete.partition("=")
    if equals:
        return _offered([(f"{key}={value}", idea) for value, idea in _values(ctx, key)], incomplete)
    keys = _offered(_keys(ctx), key)
    if len(keys) != 1:
        return keys
    # A second offer, so that the shell adds no space after the =.
    ((only, idea),) = keys
    return [(f"{only}=", idea), *((f"{only}={value}", said) for value, said in _values(ctx, only))]


def _texts(ctx: typer.Context) -> list[str]:
    """Return the overrides that were given before, each KEY=VALUE in one piece."""
    found: list[str] = []
    for text in ctx.params.get("overrides") or ctx.params.get("where") or ():
        if found and (text == "=" or found[-1].endswith("=")):
            found[-1] += text
        else:
            found.append(text)
    return found


def _keys(ctx: typer.Context) -> list[Offer]:
    """Return the dotted keys of an experiment with their meanings, for each class that it uses its hyper-parameters."""
    known = {key: meaning for key, (meaning, _) in keys_of_experiments().items()}
    for section, kind in KIND_OF.items():
        known |= {f"{section}.{key}": meaning for key, (meaning, _) in _hyper(ctx, section).items()}
        known[f"{section}.name"] = f"Which of the {kind}."
    return sorted(known.items())


def _keys_of_runs(ctx: typer.Context) -> list[Offer]:
    """Return those keys that runs of a sweep may differ in."""
    others = ("cases", "figures", "name", "overrides", "published", "select", "sweep")
    return [(key, meaning) for key, meaning in _keys(ctx) if key.partition(".")[0] not in others]


def _folders(ctx: typer.Context) -> list[str]:
    """Return the folders of results that were given; Click leaves them in `args` while an option has no value yet."""
    return [str(folder) for folder in ctx.params.get("folders") or ctx.args]


def _hyper(ctx: typer.Context, section: str) -> dict[str, Known]:
    """Return the hyper-parameters of the classes that an experiment's section may name."""
    kind = KIND_OF[section]
    chosen = [*_chosen(ctx, section)] or [*names_by_kind()[kind]]
    return {key: known for name in chosen for key, known in keys_of_name(kind, name).items()}


def _values(ctx: typer.Context, key: str) -> list[Offer]:
    """Return values of a key, with their meanings."""
    section, _, last = key.rpartition(".")
    if last == "name" and section in KIND_OF:
        return [(name, idea) for name, idea in names_by_kind()[KIND_OF[section]].items() if PLAIN.fullmatch(name)]
    if key in {"dispatcher.push", "dispatcher.fetch", "clients.partition"}:
        return [*names_by_kind()["partitions" if last == "partition" else "gates"].items()]
    known = _hyper(ctx, section) if section in KIND_OF else {}
    meaning, values = known.get(last) or keys_of_experiments().get(key, ("", []))
    given = [str(value) for value in _given(_data(ctx), key) if isinstance(value, int | float | str)]
    offered = values if values[:1] == ["false"] else dict.fromkeys([*given, *values])
    return [(value, meaning) for value in offered if PLAIN.fullmatch(value)]


def _given(data: Mapping[str, Any], key: str) -> list[Any]:
    """Return the values that an experiment gives a dotted key, in its sweep or as it is."""
    swept = _list(_mapping(data.get("sweep")).get(key))
    value: Any = data
    for part in key.split("."):
        value = _mapping(value).get(part)
    return swept or [value]


def _chosen(ctx: typer.Context, section: str) -> Iterator[str]:
    """Yield the names that an experiment gives a section, by overrides or else in its file."""
    for text in reversed(_texts(ctx)):
        if found := re.match(rf"{section}(?:\.name=|=\{{name: *)(\w+)", text):
            yield found[1]
            return
    data = _data(ctx)
    axes = [data, *filter(_mapping, _list(data.get("cases")))]
    axes += [{key: value} for key, values in _mapping(data.get("sweep")).items() for value in _list(values)]
    for one in axes:
        for value in (_mapping(one.get(section)).get("name"), one.get(f"{section}.name")):
            if isinstance(value, str):
                yield value


def _data(ctx: typer.Context) -> dict[str, Any]:
    """Return the content of the experiment's file, or of the first folder's; nothing if it cannot be read."""
    from fredsim.config.document import read_document

    given = ctx.params.get("file") or next(iter(_folders(ctx)), None)
    if given is None:
        return {}
    path = Path(given)
    with suppress(FredsimError, OSError):
        known = shipped().get(path.with_suffix("").as_posix())
        inside = [path / name for name in ("sweep.yaml", "config.yaml")]
        found = next((file for file in (path, *inside) if file.is_file()), known)
        return {} if found is None else read_document(found).data
    return {}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _columns_in(folder: Path) -> list[str]:
    """Return the columns of numbers in the first metrics.csv in a folder of results."""
    import csv

    from fredsim.system.files import open_regular

    with suppress(OSError, UnicodeDecodeError, csv.Error):
        for path in (folder / "metrics.csv", *sorted(folder.glob("*/metrics.csv"))[:1]):
            if path.is_file():
                with open_regular(path) as file:
                    line = file.readline(MOST_LETTERS).decode()
                return [name for names in csv.reader([line]) for name in names if name != "digest"]
    return []


def _offered(offers: Iterable[Offer], incomplete: str) -> list[Offer]:
    return [(word, idea) for word, idea in offers if word.startswith(incomplete) and SAFE.fullmatch(word)]
