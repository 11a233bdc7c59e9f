"""The words of figures for the keys of an experiment and their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from typing import Any

from fredsim.config.registry import KNOWN
from fredsim.show.plots.numbers import given

__all__ = [
    "MOST_NOUNS",
    "NOUNS",
    "NO_NOISE",
    "SYMBOLS",
    "field_name",
    "head",
    "name_of",
    "noun",
    "owners",
    "part",
    "place",
    "said",
    "spoken",
    "value_name",
    "words",
]

SYMBOLS = {"clients.count": "λ", "clients.batch_size": "µ", "server.lr": "α"}
#: Names of fredsim's own parts that are two words.
TWO_WORDS = {name for names in KNOWN.values() for name in names if "_" in name} | {
    "two_class", "half_normal", "shifted_exponential", "inverse_power",
}  # fmt: skip
UNDERSCORED = re.compile(rf"(?<![\w.:])(?:{'|'.join(map(re.escape, sorted(TWO_WORDS)))})(?![\w.:])")
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
#: The field's words for keys, where these are not the key's last part.
FIELD = {
    "clients.count": "number of clients λ", "clients.batch_size": "minibatch size µ", "server.lr": "learning rate α",
    "server.inner.lr": "learning rate α", "server.server_lr": "server's learning rate",
    "clients.local_steps": "number of local steps",
    "clients.fraction": "share of clients in a round", "clients.prox": "weight of the proximal term",
    "clients.clip": "clipping norm",
    "server.aggregate": "number of gradients a round", "model.hidden": "hidden layers",
    "dispatcher.dropped_push": "dropped push", "dispatcher.name": "order of clients",
    "stages.delay": "delay of the pipeline",
}  # fmt: skip
#: Whose the other keys are, by their beginnings; the first that fits counts.
OWNERS = {
    "server": "server", "clients.partition": "partition", "clients.optimizer": "clients' optimizer",
    "clients": "clients", "dispatcher.push": "push gate", "dispatcher.fetch": "fetch gate",
    "dispatcher.compute": "compute time", "dispatcher": "dispatcher", "compress": "compressor", "average": "average",
    "stages": "pipeline", "model": "model", "data": "data", "loss": "loss", "problem": "problem",
}  # fmt: skip
#: What lines differ in, by the beginnings of keys, in the order of a sentence.
NOUNS = {
    "server.name": "server", "server.lr": "learning rate α", "server": "setting of the server",
    "clients.count": "number of clients λ", "clients.batch_size": "minibatch size µ",
    "clients.partition": "partition", "clients.optimizer": "clients' optimizer", "clients": "setting of the clients",
    "dispatcher.dropped_push": "handling of dropped pushes", "dispatcher.push": "push gate",
    "dispatcher.fetch": "fetch gate", "dispatcher.compute": "compute time", "dispatcher.name": "order of clients",
    "dispatcher": "dispatcher", "compress": "compressor", "average": "average", "stages.delay": "delay of the pipeline",
    "stages": "setting of the pipeline", "model": "model", "data": "data set", "seed": "seed",
}  # fmt: skip
GATES = ("push gate", "fetch gate")
MOST_NOUNS = 3  # the most of them that a question names
#: How a reader would say what labels have as a key and its value.
SAID = {
    r"aggregate (\d+)": r"\1 gradients a round", r"aggregate all": "all gradients of a round",
    r"local steps (\d+)": r"\1 local steps", "local steps fastest": "local steps by speed",
    "every 1": "every push", r"every (\d+)": r"every \1 pushes",
    r"noise ([a-z-]+)": r"\1 noise", r"seconds ([a-z-]+)": r"\1 compute time",
    "iid": "i.i.d.", "dirichlet": "dirichlet",
    "delay forward 0": "no delay", "delay one_step": "delay of one step",
    "delay pipedream": "PipeDream", "delay pipemare": "PipeMare",
}  # fmt: skip
#: Names of distributions in prose.
PROSE = {"pareto": "Pareto", "bernoulli": "Bernoulli", "dirichlet": "Dirichlet", "power": "power-law"}
#: How the keys of panels are written in their titles, which have no room for more.
HEADS = {
    "λ = ": "λ = {} clients", "µ = ": "minibatches of µ = {}", "α = ": "learning rate α = {}",
    "seconds ": "compute time {}",
}  # fmt: skip
ONE_CLIENT = "λ = 1 client"


def value_name(key: str, value: Any) -> str:
    """Return a value as figures show it: for a server, the name of its class."""
    known = KNOWN["server"].get(value) if key in {"server.name", "server.inner.name"} else None
    return known.__name__ if known else given(value)


def name_of(key: str) -> str:
    """Return the symbol of a key, or its last part in words."""
    return SYMBOLS.get(key, key.rpartition(".")[2].replace("_", " "))


def field_name(key: str) -> str:
    """Return what a key is called in the field, with its symbol; of others the last part, and whose it is."""
    if key in FIELD:
        return FIELD[key]
    above, _, last = key.rpartition(".")
    owner = next((of for start, of in OWNERS.items() if f"{above}.".startswith(f"{start}.")), "")
    if last == "name":
        return owner or name_of(above)
    return " of the ".join(filter(None, (last.replace("_", " "), owner)))


def spoken(text: str) -> str:
    """Return a name with hyphens in place of the underscores that the names of fredsim's own classes have."""
    return UNDERSCORED.sub(lambda found: found[0].replace("_", "-"), text)


def said(text: str) -> str:
    """Return the name of a line, or the title of a panel, as a reader would say it: Sync, 16 gradients a round."""
    parts = spoken(text).split(", ")
    for place, one in enumerate(parts):
        found = ((re.fullmatch(pattern, one), form) for pattern, form in SAID.items())
        form, match = next(((form, match) for match, form in found if match), ("", None))
        if match is not None:
            parts[place] = " ".join(PROSE.get(word, word) for word in match.expand(form).split(" "))
    return ", ".join(parts)


def head(title: str) -> str:
    """Return the title of a panel, or a part of it, with the field's words beside symbols: λ = 32 clients."""
    parts = said(title).split(", ")
    for place, text in enumerate(parts):
        start = next((start for start in HEADS if text.startswith(start)), "")
        value = text.removeprefix(start)
        unit = " s" if start == "seconds " and value.replace(".", "", 1).isdigit() else ""
        parts[place] = HEADS[start].format(value) + unit if start else text
    return ", ".join(ONE_CLIENT if text == f"{ONE_CLIENT}s" else text for text in parts)


def words(key: str, value: Any) -> str:
    """Return a value with the key's symbol or last part before it; for a key `….name`, the value alone.

    Two parts of a clock can have the same distribution, so the name of the part is put before that of a distribution.
    The words of a list, or of a text with commas, have no comma with a space: that stands between the parts of a label.
    """
    return re.sub(r",\s+", ",", _words(key, value))


def _words(key: str, value: Any) -> str:
    if key == "average.name":
        return "no average" if value in {None, "none"} else f"{value} average"
    gate, name = _stem(key)
    if key.endswith(".name"):
        return f"{name} {value}" if name else value_name(key, value)
    if isinstance(value, bool | None) and (key, value) in WORDS:
        return WORDS[key, value]
    if value is None or value is False or (key, value) == NO_NOISE:
        return f"{gate}no {name}"
    if value is True:
        return f"{gate}{name}"
    text = f"'{value}'" if isinstance(value, str) and _is_number(value) else given(value)  # '1' is another value than 1
    return f"{SYMBOLS[key]} = {text}" if key in SYMBOLS else f"{gate}{name} {text}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _stem(key: str) -> tuple[str, str]:
    """Return what `words` puts before the values of a key: the gate that it is of, and its name; of a name nothing."""
    *above, last = key.removeprefix("dispatcher.compute.").split(".")
    if last == "name":
        return "", above[0] if key.startswith("dispatcher.compute.") else ""
    return (f"{above[1]} " if above[:1] == ["dispatcher"] and len(above) > 1 else ""), last.replace("_", " ")


def owners(texts: Mapping[str, Set[str]], pairs: Set[Set[str]] | None = None) -> dict[str, str]:
    """Return what tells keys apart that `words` calls the same, by key: the nearest parts of the key above its last.

    `texts`: the words of each key's values. Names, such as those of optimizers, are the same only if a value is.
    `pairs`: which keys are to be told from each other; None: all.
    """
    found: dict[str, str] = {}
    for key, own in texts.items():
        same = [other for other, more in texts.items() if _alike(key, other) and (any(_stem(key)) or own & more)]
        same = [other for other in same if pairs is None or {key, other} in pairs]
        above = key.split(".")[:-1]
        for count in range(1, len(above) + 1) if same else ():
            found[key] = " ".join(above[-count:]).replace("_", " ")
            if not any(other.split(".")[-count - 1 : -1] == above[-count:] for other in same):
                break
    return found


def _alike(key: str, other: str) -> bool:
    """Return whether two keys have the same words before their values, though neither is a part of the other.

    Those of a server have its name in every label.
    """
    if key in SYMBOLS or other in SYMBOLS or "server.name" in {key, other}:
        return False
    within = f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")
    return not within and _stem(key) == _stem(other)


def noun(keys: Set[str], within: Set[str] = frozenset(), *, switch: bool = False) -> str:
    """Return what lines differ in that differ in these keys, such as `server`, for a question that begins with Which.

    A server's own hyper-parameters count as part of it where its name differs, too, and a dispatcher's; but the
    learning rate is named if lines of the same server differ in it, as in all keys of `within`. The delay of a pipeline
    stands for all of its settings. `switch`: the values are true and false.
    """
    if "server.name" in keys:
        keys = {key for key in keys if not key.startswith("server.")} | {"server.name"} | ({"server.lr"} & within)
    if "dispatcher.name" in keys:
        keys = {key for key in keys if part(key) != "dispatcher"}
    if "stages.delay" in keys:
        keys = {key for key in keys if part(key) != "stages"}
    parts: dict[str, set[str]] = {}
    for key in keys:
        parts.setdefault(part(key), set()).add(key)
    if len(keys) == 1:
        (key,), (start,) = keys, parts
        if key.startswith("server.lr."):
            return "learning-rate schedule"
        whole = (key == start and start in NOUNS) or key.endswith(".name")
        if whole or start in {"dispatcher.push", "dispatcher.fetch", "data"}:
            return NOUNS.get(start) or field_name(start)
        return f"choice of {field_name(key)}" if switch else field_name(key)
    found = dict.fromkeys(NOUNS.get(start) or field_name(start) for start in sorted(parts, key=place))
    if set(GATES) <= found.keys():
        found = {("pair of gates" if name == GATES[0] else name): None for name in found if name != GATES[1]}
    some, more = [*found][:MOST_NOUNS], len(found) > MOST_NOUNS
    if len(some) < 2:
        return some[0] if some else "setting"
    return f"{', '.join(some)} and more" if more else f"{', '.join(some[:-1])} and {some[-1]}"


def part(key: str) -> str:
    """Return the part of an experiment that a key belongs to, by which a question names it."""
    return next((start for start in NOUNS if f"{key}.".startswith(f"{start}.")), key)


def place(key: str) -> int:
    """Return the place of a key's part in a sentence."""
    return [*NOUNS].index(part(key)) if part(key) in NOUNS else len(NOUNS)
