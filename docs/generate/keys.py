"""The keys of an experiment's file: their page, and the table of docs/experiment.md."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from docs.generate.fields import Key, default_of, example_of, keys_of
from docs.generate.markdown import NOTE, flow, linked, table
from fredsim.config.data import OwnData, Text
from fredsim.config.experiment import Affects, Experiment, PluginChoice, TorchChoice
from fredsim.config.partition import Partition
from fredsim.config.schema.experiments import SweepKeys
from fredsim.show.catalogue.descriptions import constant_of, models_of
from fredsim.show.catalogue.listing import LISTINGS

__all__ = ["all_keys", "keys_page", "meaning_of", "with_key_table"]

BEGIN, END = "<!-- The keys, made by `python -m docs.generate`: -->", "<!-- End of the keys. -->"
#: For keys that name something: the kind of the names, and the page that explains them.
NAMES = {
    "data.name": ("datasets", "docs/models.md"),
    "model.name": ("models", "docs/models.md"),
}
#: The pages that list all values of a key.
PAGES = {
    "server": "servers.md",
    "compress": "compressors.md",
    "average": "averages.md",
    "dispatcher": "dispatchers.md",
    "dispatcher.push": "gates.md",
    "dispatcher.fetch": "gates.md",
    "clients.partition": "partitions.md",
    "clients.optimizer": "optimizers.md",
}
EFFECTS = {
    Affects.NOTHING: "nothing but figures",
    Affects.RECORD: "what the files say, but no number",
    Affects.TIME: "how the run is computed, and no bit of it",
    Affects.TIME | Affects.BITS_OF_MODULES: "how the run is computed, and the bits where the model is a PyTorch module",
    Affects.RECORD | Affects.TIME: "what is written, and no bit of the run",
}


#: Examples of keys that mean something only beside others.
EXAMPLES = {
    "data.terms": "data: {name: modular, p: 11, terms: 3}",
    "model.buffers of torch:…": 'model: {name: "torch:fredsim.zoo:vgg", buffers: last}',
    "clients.local_steps.fastest": "clients: {count: 8, batch_size: 4, sampling: iid, local_steps: {fastest: 9}}",
    "clients.local_steps.by": "clients: {count: 8, batch_size: 4, sampling: iid, local_steps: {fastest: 9, by: speed}}",
    "clients.local_steps.seconds": "clients: {count: 8, batch_size: 4, sampling: iid, local_steps: {seconds: 2.0}}",
    "stages.delay.forward": "stages: {cuts: [W2], delay: {forward: [3, 1]}}",
    "stages.delay.backward": "stages: {cuts: [W2], delay: {forward: [3, 1], backward: [1, 0]}}",
    "stages.correction": "stages: {cuts: [W2], delay: pipemare, correction: 0.135}",
    "stages.reschedule": "stages: {cuts: [W2], delay: pipemare, reschedule: 1000}",
    "evaluation.metrics.column": 'evaluation: {metrics: [{name: "my_metrics:unexplained", column: r2}]}',
    "evaluation.metrics.larger_is_better": 'evaluation: {metrics: [{name: "my_metrics:r2", larger_is_better: true}]}',
    "published.y": 'published: {source: "A paper, Figure 1", y: validation_loss, series: [{where: {seed: 0}, points: '
    "[[500, 0.3]]}]}",
    "figures.clients": "figures: [{name: work, kind: timeline, clients: 0-7}]",
    "figures.from": "figures: [{name: work, kind: timeline, from: 10.0}]",
    "select.error": "select: {best: seconds_to, over: server.lr, error: 0.05}",
}


#: Choices of which only the beginning of the name is known.
OPEN: dict[type[BaseModel], str] = {TorchChoice: "torch:…", Text: "text:…", OwnData: "python:…"}


@dataclass(frozen=True)
class Place:
    """A key, and the models around it as (key, model), the outermost first."""

    key: Key
    around: tuple[tuple[Key, type[BaseModel]], ...] = ()

    @property
    def choice(self) -> str:
        """The name of the model that has this key, if there is a choice of several models."""
        if not self.around:
            return ""
        model = self.around[-1][1]
        name = constant_of(model) or OPEN.get(model, "")
        return f"`{name}`" if name else ""

    def example(self) -> str:
        """Return an example of the key in YAML, with the keys that are required beside it."""
        choice = self.choice.strip("`")
        if found := EXAMPLES.get(f"{self.key.name} of {choice}", EXAMPLES.get(self.key.name)):
            return found
        value: Any = {self.key.name.rpartition(".")[2]: example_of(self.key.field)}
        for key, model in reversed(self.around):
            beside = {one.name: example_of(one.field) for one in keys_of(model) if one.field.is_required()}
            if constant := constant_of(model):
                beside = {"name": constant, **beside}
            elif model is TorchChoice:
                beside = {"name": "torch:fredsim.zoo:resnet"}
            written = {**beside, **value}
            value = {key.name.rpartition(".")[2]: [written] if get_origin(_first(key)) is list else written}
        return flow(value)[1:-1]


def _first(key: Key) -> Any:
    """Return the type of a key's value, if it is not null."""
    if get_origin(key.field.annotation) in {Union, types.UnionType}:
        return get_args(key.field.annotation)[0]
    return key.field.annotation


def all_keys() -> Iterator[Place]:
    """Yield every key of an experiment's file, except those of partitions and of classes chosen by name."""
    for key in [*keys_of(Experiment), *keys_of(SweepKeys)]:
        yield Place(key)
        yield from _below(key, ())


def _below(key: Key, around: tuple[tuple[Key, type[BaseModel]], ...]) -> Iterator[Place]:
    for model in models_of(key.field.annotation):
        if issubclass(model, Partition) or model is PluginChoice:
            continue
        within = (*around, (key, model))
        for inner in keys_of(model, f"{key.name}."):
            if not (model in OPEN and inner.name.endswith(".name")):
                yield Place(inner, within)
                yield from _below(inner, within)


def keys_page() -> str:
    """Return the page of every key."""
    parts = [
        NOTE,
        "# The keys of an experiment",
        "Every key of an experiment's file. [experiment.md](../experiment.md) is shorter, and says what a client does; "
        "`fredsim schema` prints the same for editors ([editors.md](../editors.md)). A value that a sweep varies is "
        "named by its dotted key: `clients.count`.",
    ]
    for place in all_keys():
        key = place.key
        of = f" of {place.choice}" if place.choice else ""
        parts.append(f"{'###' if place.around else '##'} `{key.name}`{of}")
        parts.append(linked(meaning_of(key), "../"))
        facts = [f"- Values: {_values(key)}", f"- Default: {default_of(key.field)}", f"- Example: `{place.example()}`"]
        if effects := _effects(key):
            facts.append(f"- A change of it changes {effects}.")
        parts.append("\n".join(facts))
    return "\n\n".join(parts) + "\n"


def meaning_of(key: Key) -> str:
    """Return the meaning of a key: its docstring, or the list of names, for a key that names something."""
    if key.meaning or key.name not in NAMES:
        return key.meaning
    kind, page = NAMES[key.name]
    names = ", ".join(f"`{name}`" for name in LISTINGS[kind]())
    return f"Which one: {names} ({page})."


def _values(key: Key) -> str:
    page = PAGES.get(key.name)
    return f"[{page}]({page}) has them all" if page else key.values


def _effects(key: Key) -> str:
    marks = [mark for mark in key.field.metadata if isinstance(mark, Affects)]
    return EFFECTS.get(marks[0], "") if marks else ""


def with_key_table(page: str) -> str:
    """Return docs/experiment.md with its table of keys generated again."""
    rows = []
    for key in [*keys_of(Experiment), *keys_of(SweepKeys)]:
        inner = _shown_below(key)
        if not inner:
            rows.append(_row(key))
        rows += map(_row, inner)
    text = table(("key", "default", "meaning"), rows)
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:begin]}\n\n{text}\n\n{page[end:]}"


def _shown_below(key: Key) -> list[Key]:
    """Return the keys that are shown instead of a block, if the block is always there; otherwise an empty list."""
    models = models_of(key.field.annotation)
    if not models or type(None) in getattr(key.field.annotation, "__args__", ()) or key.name == "server":
        return []
    below = keys_of(models[0], f"{key.name}.")
    return [key, *below] if len(models) > 1 and key.name != "clients" else below


def _row(key: Key) -> tuple[str, str, str]:
    default = "" if key.field.is_required() else default_of(key.field).strip("`")
    return f"`{key.name}`", "" if default == "null" else default, linked(meaning_of(key), "")
