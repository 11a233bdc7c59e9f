"""What `fredsim cite` prints: BibTeX entries of what an experiment uses, each with a comment that says for what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from fredsim.config.clients import Clients, StepsBySpeed
from fredsim.config.experiment import Experiment
from fredsim.config.registry import KNOWN, Kind, find_class
from fredsim.config.stages import METHODS
from fredsim.config.sweep.expansion import Expansion, Source
from fredsim.data.own import PREFIXES
from fredsim.dispatchers.gates import spelled_out
from fredsim.errors import OutputError, visible
from fredsim.hyper import Configurable
from fredsim.plugins.modules import import_named
from fredsim.runs.folder.results import results_of
from fredsim.runs.single.opening import open_expansion
from fredsim.servers.schedules import SCHEDULES
from fredsim.show.catalogue.bibliography import NUMBER, bibliography, entries_of
from fredsim.show.catalogue.listing import LISTINGS, PUBLISHED_DATA, own_text
from fredsim.show.escaping import escape_latex
from fredsim.system.version import fredsim_version

__all__ = ["bibtex_of"]


class Cited(NamedTuple):
    """A part of an experiment, and its citation, which is empty if nobody knows it; `own`: it is a user's text."""

    part: str
    citation: str
    own: bool = False


DECAY = "Loshchilov and Hutter 2019, arXiv:1711.05101"


def bibtex_of(source: Source, overrides: Sequence[str] = ()) -> str:
    """Return BibTeX entries for everything that an experiment, or the runs in a folder of results, use.

    Raises ConfigError if the experiment is not valid.
    """
    expansion = open_expansion(source, overrides)
    versions = _versions(expansion)
    own = bibliography()["fredsim"].replace("VERSION", ", ".join(versions))
    entries = {"fredsim": own}
    uses: dict[str, dict[str, None]] = {"fredsim": {"fredsim": None}}
    unknown: dict[str, None] = {}
    for what, citation, is_own in _citations(expansion):
        if not citation:
            unknown[what] = None
        for key, (entry, about) in entries_of(citation, entries, own=is_own).items():
            entries[key] = entry
            uses.setdefault(key, {})[f"{what} ({about})" if about else what] = None
    parts = [f"% {_comment(', '.join(uses[key]))}\n{entry}\n" for key, entry in entries.items()]
    if unknown:
        parts.append(f"% No source is known of: {_comment(', '.join(unknown))}.\n")
    return "\n".join(parts)


def _comment(text: str) -> str:
    """Return a text for a comment: on one line, and without @, with which BibTeX would begin an entry."""
    return visible(" ".join(text.replace("@", "(at)").split()))


def _versions(expansion: Expansion) -> list[str]:
    """Return the versions of fredsim that computed the recorded runs; without such runs, the installed version."""
    recorded: dict[str, None] = {}
    if expansion.folder is not None:
        with suppress(OutputError):  # of a sweep only the tables may be left
            for run in results_of(expansion.folder):
                recorded[str(run.summary.get("versions", {}).get("fredsim", fredsim_version()))] = None
    return [escape_latex(one) for one in recorded] or [fredsim_version()]


def _citations(expansion: Expansion) -> Iterator[Cited]:
    """Yield each part of the experiments that was published, or that is not fredsim's own.

    The citation of a part whose source is unknown, such as a user's class, is empty.
    """
    for number in dict.fromkeys(NUMBER.findall(expansion.heading)):
        yield Cited(f"experiment {expansion.name}", f"arXiv:{number}")
    for run in expansion.runs:
        experiment = run.experiment
        if experiment.published is not None:
            yield Cited("published points", experiment.published.source.partition(";")[0], own=True)
        yield from _of_class("server", experiment.server.name, experiment.server.hyper)
        yield from _of_class("dispatcher", experiment.dispatcher.name, experiment.dispatcher.hyper)
        for gate in (experiment.dispatcher.push, experiment.dispatcher.fetch):
            yield from _of_class("gate", *spelled_out(gate))
        if experiment.compress is not None:
            yield from _of_class("compressor", experiment.compress.name, experiment.compress.hyper)
        if experiment.average is not None:
            yield from _of_class("average", experiment.average.name, experiment.average.hyper)
        yield from _of_clients(experiment.clients)
        if experiment.stages is not None:
            if isinstance(experiment.stages.delay, str):
                yield Cited(f"delay {experiment.stages.delay}", METHODS[experiment.stages.delay])
            if experiment.stages.correction is not None or experiment.stages.reschedule is not None:
                yield Cited("corrections for stages", METHODS["pipemare"])
        yield from _of_data(experiment)
        if experiment.loss is not None:
            yield from _of_own("loss", experiment.loss.name)
        for metric in experiment.evaluation.metrics:
            yield from _of_own("metric", metric.name)


def _of_own(part: str, name: str) -> Iterator[Cited]:
    """Yield a function or class of the user's own, with its attribute `citation`; nothing if the name is fredsim's."""
    if ":" in name:
        found = import_named(name.removeprefix("torch:").removeprefix("python:"), "package.module:Class")
        yield Cited(f"{part} {name}", own_text(found, "citation"), own=True)


def _of_clients(clients: Clients) -> Iterator[Cited]:
    """Yield what clients do besides SGD."""
    if clients.optimizer is not None:
        yield from _of_class("optimizer", clients.optimizer.name, clients.optimizer.hyper)
    if clients.prox:
        paper = "Li et al. 2020, Federated optimization in heterogeneous networks, arXiv:1812.06127"
        yield Cited("proximal term", paper)
    if clients.control_variates:
        yield Cited("control variates", "Karimireddy et al. 2020, SCAFFOLD, arXiv:1910.06378")
    if clients.clip_each_sample:
        yield Cited("clipped samples", "Abadi et al. 2016, Deep learning with differential privacy, arXiv:1607.00133")
    if isinstance(clients.local_steps, StepsBySpeed):
        yield Cited("local steps by speed", "Liu et al. 2024, arXiv:2401.09135")
    if clients.fraction < 1:
        yield Cited("fraction of clients", "McMahan et al. 2017, arXiv:1602.05629")


def _of_class(kind: Kind, name: str, hyper: Mapping[str, Any]) -> Iterator[Cited]:
    """Yield a class, the classes within it, its schedule, and its weight decay."""
    cls = find_class(kind, name)
    citation = own_text(cls, "citation")
    if citation or name not in KNOWN[kind]:
        yield Cited(f"{kind} {name}", citation, own=name not in KNOWN[kind])
    inner, rate = hyper.get("inner"), hyper.get("lr")
    if isinstance(inner, Mapping) and "name" in inner:
        yield from _of_class(kind, str(inner["name"]), inner)
    while isinstance(rate, Mapping) and rate.get("name") in SCHEDULES:
        found = re.search(r"\(([A-Z][^()]*\b\d{4}\b[^()]*)\)", SCHEDULES[str(rate["name"])].__doc__ or "")
        if found:
            yield Cited(f"schedule {rate['name']}", found[1])
        rate = rate.get("then")
    if isinstance(rate, Mapping) and issubclass(cls, Configurable):  # a plain class takes it as it is
        yield from _of_own("schedule", str(rate["name"]))
    if name in KNOWN[kind] and hyper.get("weight_decay"):
        yield Cited("weight decay", DECAY)


def _of_data(experiment: Experiment) -> Iterator[Cited]:
    """Yield the data, its partition and the model, or a problem."""
    if experiment.problem is not None:
        yield from _of_own("problem", experiment.problem.name)
        return
    data, model = experiment.data.name, experiment.model.name
    known = LISTINGS["datasets"]().get(data)
    citation = PUBLISHED_DATA.get(data, known.citation if known else "")
    if data.startswith(PREFIXES):
        yield from _of_own("data", data)
    elif citation or not known:
        yield Cited(f"data {data}", citation)
    augment = getattr(experiment.data, "augment", None)
    if augment is not None and augment.function is not None:
        yield from _of_own("augmentation", augment.function)
    partition = experiment.clients.partition
    if partition.citation:
        yield Cited(f"partition {getattr(partition, 'name', '')}", partition.citation)
    entry = LISTINGS["models"]().get(model)
    if entry is None:
        yield from _of_own("model", model)
    elif entry.citation:
        yield Cited(f"model {model}", entry.citation)
