"""The pages of servers, dispatchers and so on: idea, equations, hyper-parameters, sources, paths."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from docs.generate.fields import example_of, keys_of, tables
from docs.generate.formulas import display
from docs.generate.groups import GROUPS, facts, group_of, overview
from docs.generate.markdown import NOTE, flow, linked, one_line
from docs.generate.paths import PLAIN, supported_paths
from fredsim.config.partition import PARTITIONS
from fredsim.config.registry import KNOWN
from fredsim.errors import ConfigError
from fredsim.servers.schedules import SCHEDULES

__all__ = ["algorithm_pages", "changes_for", "example_for", "known"]

UP = "../"
#: For each kind: the heading and the introduction of its page, and the key that names one.
KINDS: dict[str, tuple[str, str, str]] = {
    "server": (
        "Servers",
        "A server is the update rule: what is made of a gradient that arrives. θ are its parameters, g is the "
        "gradient, α the learning rate `lr`, τ the staleness, λ the number of clients. *Departures* says where the "
        "code differs from the source. What is stored *flushed* becomes +0 where its magnitude is below 2⁻⁶² "
        "([why](../numerics.md#flush)). "
        "[own_server.md](../own_server.md) says how to write one.",
        "server",
    ),
    "dispatcher": (
        "Dispatchers",
        "A dispatcher says whose gradient arrives next, and, where it has a clock, when ([time.md](../time.md)). The "
        "keys `wait`, `push`, `fetch`, `dropped_push`, `replica` and `fred_timestamps` go with each of them "
        "([keys.md](keys.md)). [own_dispatcher.md](../own_dispatcher.md) and [own_clock.md](../own_clock.md) say how "
        "to write one.",
        "dispatcher",
    ),
    "gate": (
        "Gates",
        "A gate says whether one copy, pushed or fetched, passes. v is a server's moving deviation of each parameter's "
        "gradient, and v̄ its mean: the servers `fasgd` and `bfasgd` have it. The paths below are those of a gate on "
        "pushes; with a gate on fetches alone, `fused` serves, too. [own_gate.md](../own_gate.md) says how to write "
        "one.",
        "dispatcher.push` or `dispatcher.fetch",
    ),
    "compressor": (
        "Compressors",
        "A compressor makes a push smaller: g is the push of a client, tensor by tensor. "
        "[own_compressor.md](../own_compressor.md) says how to write one.",
        "compress",
    ),
    "average": (
        "Averages",
        "An average of any server's parameters, which evaluation then uses; training continues with the parameters "
        "themselves.",
        "average",
    ),
    "optimizer": (
        "Optimizers",
        "An optimizer takes the local steps of a client between a fetch and a push: x are the client's parameters, g "
        "is the gradient of its minibatch, α the optimizer's `lr`, or the server's. [clients.md](../clients.md) says "
        "what is pushed then, and how to write one.",
        "clients.optimizer",
    ),
    "schedule": (
        "Schedules",
        "A schedule says what the learning rate α is at the server's timestamp t, the number of its updates so far. "
        "Every server's `lr` takes one, but that of `averaged` with `mode: torch`, and so does the `lr` of a client's "
        "optimizer. It is formed in float64 and rounded to float32 once. "
        "[own_schedule.md](../own_schedule.md) says how to write one.",
        "server.lr",
    ),
    "partition": (
        "Partitions",
        "A partition says which training rows each client has. [shards.md](../shards.md) shows them side by side, and "
        "what Flower calls them.",
        "clients.partition",
    ),
}
ABOUT_PATHS = (
    "A run's path is the way in which it is computed; it changes how fast the run is, and nothing else: "
    "[performance.md](../performance.md). The paths below are those of a run with the defaults otherwise."
)
#: What stands above the tables to choose by.
CHOOSING: dict[str, tuple[str, ...]] = {
    "server": (
        "*Clients* says whether a client continues as soon as its push has arrived (*never wait*), may be told to "
        "start over, or waits for others. P is the number of parameters; what a server keeps is that of the example "
        "on its page; the sum of a batch of c arrays takes up to (1 + log₂ c) P. "
        "Which server is best depends on the machines and the data: "
        "[a comparison of 16 of them](../../results/reference/staleness/README.md) per gradient, "
        "[another](../../results/reference/time/README.md) per simulated second.",
    ),
}
PATHLESS = ("schedule", "partition")
#: Examples of hyper-parameters without a default, for which any number of the right type would say little.
EXAMPLES: dict[str, dict[str, Any]] = {
    "average_staleness": {"staleness": 7.0},
    "constant": {"base": 0.05},
    "step": {"base": 0.1, "every": 1000, "factor": 0.5},
    "exponential": {"kappa": 0.1, "base": 0.1, "factor": 0.999},
    "cosine": {"base": 0.1, "steps": 10000},
    "warmup": {"steps": 100, "then": {"name": "cosine", "base": 0.1, "steps": 9900}},
    "inverse_power": {"base": 0.1, "lambd": 0.0001},
    "dirichlet": {"alpha": 0.3},
    "pathological": {"classes": 2},
    "shards": {"per_client": 2},
    "every": {"k": 4},
    "soft_sync": {"n": 2},
    "scripted": {"order": [0, 1, 2, 3, 4, 5, 6, 7]},
    "trace": {"file": "results/quickstart/events.parquet"},
    "weighted": {"weights": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1]},
    "bandwidth_aware": {"c": 0.01},
    "budget": {"bytes": 1000.0},
    "top_k": {"k": 0.01},
    "ef21": {"inner": {"name": "top_k", "k": 0.01}},
    "lists": {"file": "rows.json"},
}


def known() -> dict[str, Mapping[str, Any]]:
    """Return the classes of each kind, by name."""
    found: dict[str, Mapping[str, Any]] = {"schedule": SCHEDULES, "partition": PARTITIONS}
    return {kind: KNOWN[kind] for kind in KNOWN} | found


def algorithm_pages() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each page: one for each kind, and one for each server and each dispatcher."""
    for kind, classes in known().items():
        heading, text, key = KINDS[kind]
        names = "" if kind in GROUPS else ": " + ", ".join(f"[`{name}`](#{name})" for name in classes)
        parts = [NOTE, f"# {heading}", text, f"Named by the key `{key}`{names}."]
        parts += [] if kind in PATHLESS or kind in GROUPS else [ABOUT_PATHS]
        if kind in GROUPS:
            examples = {name: example_for(name, found.Hyper) for name, found in classes.items()}
            parts += [*CHOOSING.get(kind, ()), *overview(kind, classes, examples)]
            for name, found in classes.items():
                yield f"{kind}s/{name}.md", _own_page(kind, name, found)
        else:
            for name, found in classes.items():
                parts += _section(kind, name, found)
        yield f"{kind}s.md", "\n\n".join(parts) + "\n"


def _own_page(kind: str, name: str, found: Any) -> str:
    """Return the page of a server or a dispatcher."""
    title, *parts = _section(kind, name, found)
    group = group_of(kind, name)
    anchor = re.sub(r"[^\w\- ]", "", group.heading.lower()).replace(" ", "-")
    others = [f"[`{other}`]({kind}s/{other}.md)" for other in group.phrases if other != name]
    lines = [f"- Group: [{group.heading}]({kind}s.md#{anchor}){', with ' + ', '.join(others) if others else ''}"]
    if kind == "server":
        known_facts = facts(found, example_for(name, found.Hyper))
        lines += [
            f"- Staleness: {group.phrases[name]}",
            f"- Clients: {known_facts['clients']}",
            f"- Keeps, beside the P parameters θ: {known_facts['keeps']}",
        ]
    text = "\n\n".join([title.removeprefix("#"), parts[0], "\n".join(lines), *parts[1:]]) + "\n"
    return f"{NOTE}\n\n" + re.sub(r"\]\((?![\w+.-]+://|#)", "](../", text)


def _section(kind: str, name: str, found: Any) -> Iterator[str]:
    """Yield the paragraphs of the section about one name."""
    model: type[BaseModel] = getattr(found, "Hyper", found)
    yield f"## `{name}`"
    described = inspect.cleandoc(
        (found if kind in {"schedule", "partition"} else sys.modules[found.__module__]).__doc__ or ""
    )
    idea = getattr(found, "idea", "")
    if idea and not described.lower().startswith(idea.lower()):
        yield f"*{idea[0].upper()}{idea[1:]}.*"
    yield from _documented(described, schedule=kind == "schedule")
    example = example_for(name, model)
    yield f"```yaml\n{_as_written(kind, name, example)}\n```"
    if text := tables(model, UP):
        yield text
    if citation := one_line(getattr(found, "citation", "")):
        yield f"Source: {linked(citation, UP)}."
    if kind not in PATHLESS and name not in {"trace", "lists"}:
        try:
            what = f"[Paths]({UP}performance.md)" if kind in GROUPS else "Paths"
            yield f"{what}: {supported_paths(changes_for(kind, name, example))}."
        except ConfigError as error:
            what = "give what it requires an example, Field(examples=[…]), or a line in EXAMPLES of docs/generate"
            raise ConfigError(f"the page of {kind} {name}: {flow(example)} is refused: {error}; {what}") from None


def _documented(text: str, *, schedule: bool = False) -> Iterator[str]:
    """Yield the paragraphs of a docstring, with its formulas as mathematics."""
    if schedule and (formula := re.match(r"(α = .*?)(?:, (?=final from)| \((?=[A-Z])|\.$)", text)):
        yield _formula([formula[1]])
        rest = text[formula.end(1) :].lstrip(" ,.")
        if rest:
            yield linked(rest, UP)
        return
    for part in re.split(r"\n\s*\n", text):
        lines = part.splitlines()
        while lines:
            indented = lines[0].startswith("    ")
            count = next((n for n, line in enumerate(lines) if line.startswith("    ") != indented), len(lines))
            block, lines = lines[:count], lines[count:]
            if indented:
                yield _formula(block)
            else:
                yield linked(re.sub(r"^(Departures)([:.])", r"**\1\2**", "\n".join(block)), UP)


def _formula(lines: list[str]) -> str:
    found = display(lines)
    return f"```math\n{found}\n```" if found else "```text\n" + inspect.cleandoc("\n".join(lines)) + "\n```"


def example_for(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return examples of the hyper-parameters that must be given, and of `lr`, by name."""
    needed = {key.name: key.field for key in keys_of(model) if key.field.is_required() or key.name == "lr"}
    given = {"lr": 0.01, **EXAMPLES.get(name, {})}
    return {key: given.get(key, example_of(field)) for key, field in needed.items()}


def changes_for(kind: str, name: str, example: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of an experiment that use it."""
    if kind == "gate":
        return {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"push": {name: example}}}
    if kind == "optimizer":
        return {"clients": {**PLAIN["clients"], "optimizer": {"name": name, **example}}}
    key = {"compressor": "compress", "partition": "clients"}.get(kind, kind)
    return {key: {"name": name, **example}}


def _as_written(kind: str, name: str, example: dict[str, Any]) -> str:
    """Return the YAML that uses it."""
    value: Any = {"name": name, **example}
    if kind == "gate":
        return f"dispatcher: {flow({'push': {name: example} if example else name})}"
    if kind == "schedule":
        return f"server: {flow({'name': 'asgd', 'lr': value})}"
    if kind in {"partition", "optimizer"}:
        return f"clients: {flow({'count': 8, 'batch_size': 4, kind: value})}"
    return f"{'compress' if kind == 'compressor' else kind}: {flow(value)}"
