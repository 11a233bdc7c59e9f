"""Tells the user, once per command, what is probably a mistake in an experiment, its data or its results.

Nothing here is an error, changes a bit, or is recorded: each remark is a FredsimWarning (fredsim.system.notices).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fredsim.config.data import AnyData, Data
from fredsim.config.document import flatten
from fredsim.config.experiment import Experiment
from fredsim.config.losses import OwnLossChoice
from fredsim.config.sweep.expansion import Expansion, ResolvedRun
from fredsim.data.datasets import data_root
from fredsim.data.kept import kept_with_data
from fredsim.data.remarks import about_channels, about_images, about_labels, about_samples
from fredsim.dispatchers.base import DONE, STAGES
from fredsim.dispatchers.trace_file import COLUMNS, has_stages, recorded_staleness, survey
from fredsim.errors import FredsimError, nearest, shown, warn
from fredsim.numerics.arrays import near
from fredsim.runs.folder.result import Result
from fredsim.runs.folder.results import Results
from fredsim.runs.single.prepared import Prepared, first_losses, first_outputs, own_loss, prepare
from fredsim.simulation.schedule.event_log import EVENTS

__all__ = ["remark_after", "remark_before", "runs_at_chance"]

#: The parts of an experiment whose numbers are computed with in float32.
IN_FLOAT32 = ("server", "compress", "average", "data", "model", "clients.optimizer", "clients.prox", "clients.clip",
              "clients.clip_each_sample", "clients.noise")  # fmt: skip
OF_IMAGES = ("lenet", "resnet", "vgg")  # the models whose first axis is that of the channels
CHANCE = 0.95  # of the error of always giving the most frequent label: by luck, what learned nothing may have less
FEW, TOLERANCE = 4, 1e-3  # samples that are computed together and alone, and how far their losses may be apart
MOST_NAMED = 3  # the most runs that a remark names


def remark_before(runs: Sequence[ResolvedRun], root: str | os.PathLike[str] | None) -> None:
    """Warn of what is probably a mistake in experiments and their data."""
    seen: set[str] = set()

    def warn_once(of: Any, remarks: Iterable[str]) -> None:
        """Warn of what there is to remark, unless the same has been looked at for an earlier run."""
        if (key := json.dumps(of, sort_keys=True)) in seen:
            return
        seen.add(key)
        with suppress(FredsimError, MemoryError):  # the run itself says what is wrong
            for text in remarks:
                if text not in seen:
                    seen.add(text)
                    warn(text)

    for run in runs:
        experiment, data, plain = run.experiment, run.experiment.data, run.experiment.plain()
        warn_once(plain, (*_about_numbers(plain), *_about_trace(experiment)))
        if isinstance(data, Data):
            warn_once(["data", plain["data"], experiment.model.name], _about_data(experiment, data, root))
        if experiment.evaluation.test:
            warn_once(["test", plain["data"]], _about_test(experiment, root))
        own = experiment.model.user_code or isinstance(experiment.loss, OwnLossChoice)
        if own and experiment.problem is None:  # there is nothing to say of a problem
            parts, clients = [plain.get(part) for part in ("data", "model", "loss")], experiment.clients
            warn_once([*parts, clients.batch_size, clients.clip_each_sample], _about_own(experiment, root))


def _about_test(experiment: Experiment, root: str | os.PathLike[str] | None) -> Iterator[str]:
    """Yield a remark if there are no rows for the columns that are asked for."""
    if not len(experiment.load(data_root(root)).test):
        what = f"evaluation.test is true, and data {experiment.data.name} has no rows to test on"
        yield f"{what}: test_loss and test_error are nan in every row; leave it out"


def _about_own(experiment: Experiment, root: str | os.PathLike[str] | None) -> Iterator[str]:
    """Yield remarks on a model and a loss, of which one at least is the user's own."""
    prepared = prepare(experiment, root)
    yield from prepared.model.remarks(prepared.dataset.train.x[: experiment.clients.batch_size])
    if (loss := own_loss(prepared.model)) is not None:
        yield from loss.remarks(*first_outputs(prepared.model, prepared.dataset, experiment.seed))
    if experiment.clients.clip_each_sample is not None:
        yield from _about_single_samples(experiment.clients.clip_each_sample, prepared)


def _about_single_samples(limit: float, prepared: Prepared) -> Iterator[str]:
    """Yield a remark if a sample that is computed alone has another loss than beside others."""
    count = min(FEW, prepared.experiment.clients.batch_size, len(prepared.dataset.train))
    together = first_losses(prepared, slice(count))
    if together is None:
        return
    for i in range(count):
        alone = first_losses(prepared, slice(i, i + 1))
        if alone is None or near(alone, together[i : i + 1], TOLERANCE):
            continue
        key = f"clients.clip_each_sample is {limit:g}, so that each sample is computed alone"
        what = f"sample {i} has the loss {alone[0]:.3g} then, and {together[i]:.3g} beside {count - 1} others"
        yield f"{key}: {what}; let no samples meet, as in a batch norm or a loss of pairs, or give clients.clip"
        return


def _about_numbers(plain: Mapping[str, Any]) -> Iterator[str]:
    """Yield remarks on numbers that are something else in float32 than they are meant to be."""
    beginnings = tuple(f"{part}." for part in IN_FLOAT32)
    parts = {part: plain[part] for part in (*IN_FLOAT32, "clients") if isinstance(plain.get(part), dict)}
    for key, value in flatten(parts).items():
        if f"{key}.".startswith(beginnings):
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, float) and (rounded := _lost(number)):
                    remedy = "give a number that float32 can tell from it, or that number"
                    yield f"{key} is {number!r}, which is {rounded} in float32, with which runs compute; {remedy}"


def _lost(number: float) -> str:
    """Return what a number is in float32 if it is 0, 1 or infinite there alone; else an empty text."""
    with np.errstate(all="ignore"):
        found = float(np.float32(number))
    return f"{found:g}" if found != number and (found in {0.0, 1.0} or np.isinf(found)) else ""


def _about_trace(experiment: Experiment) -> Iterator[str]:
    """Yield a remark on a trace's columns that are not used."""
    if experiment.dispatcher.name == "trace":
        file = experiment.dispatcher.hyper["file"]
        found = survey(file, experiment.clients.count)
        names, span = found.names, found.last - found.first
        if found.timed and found.first > 10 * span > 0:
            begin, rest = (f"{time / 1e9:g}" for time in (found.first, span))
            yield f"{file}: its first time is {begin} s, and all others follow within {rest} s; subtract the first time"
        if (some := [name for name in STAGES[:3] if name in names]) and not has_stages(names):
            needed = f"the times of tasks take {', '.join(STAGES[:3])}, and time or time_ns"
            yield f"{file}: {', '.join(some)} {'is' if len(some) == 1 else 'are'} not used: {needed}"
        if len(alone := [name for name in DONE if name in names]) == 1:
            yield f"{file}: {alone[0]} is not used: which gradients were done takes {' and '.join(DONE)}"
        if unknown := sorted(names.difference(COLUMNS, EVENTS)):
            named = ", ".join(shown(name) for name in unknown[:MOST_NAMED])
            more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
            hint = nearest(unknown[0], COLUMNS)
            yield f"{file}: a trace has no column {named}{more}, which is not used{hint} (known: {', '.join(COLUMNS)})"


def _about_data(experiment: Experiment, data: Data, root: str | os.PathLike[str] | None) -> Iterator[str]:
    """Yield remarks on a data set that is read; those on its samples only if it is the user's."""
    found = data.model_copy(update={"normalize": None}).load(data_root(root), experiment.seed, experiment.targets)
    if found.train.unfit or (experiment.loss is not None and experiment.loss.made.targets != "classes"):
        found = replace(found, classes=0)
    yield from about_labels(data.name, found)
    if data.name.startswith("npz:"):
        scaled = data.normalize is not None or not experiment.model.wants_small_samples
        yield from about_samples(data.name, found, scaled=scaled)
    if data.normalize is not None:
        numbers = max(np.size(data.normalize.mean), np.size(data.normalize.std))
        yield from about_channels(data.name, found.shape, numbers)
    augment, model = data.augment, experiment.model.name
    if augment is not None and (augment.flip or augment.crop):
        yield from about_images(data.name, found.shape, "data.augment")
    elif model in OF_IMAGES:
        yield from about_images(data.name, found.shape, f"model.name {model}")


def remark_after(expansion: Expansion, loaded: Result | Results, root: str | os.PathLike[str] | None) -> None:
    """Warn of runs that ended as they should, but with results that show a probable mistake.

    If data or files are gone or damaged, which is no matter of remarks, there are none.
    """
    with suppress(FredsimError, OSError, MemoryError):
        ended = [loaded] if isinstance(loaded, Result) else list(loaded)
        pairs = _finished(expansion, ended)
        at_chance = [result for result, experiment in pairs if _is_at_chance(result, experiment, root)]
        # Of a choice among hyper-parameters, some are meant to fail.
        if at_chance and (expansion.selection is None or len(at_chance) == len(ended)):
            warn(_chance_text(at_chance, of=len(ended)))
        for result, experiment in pairs:
            for text in _about_staleness(result, experiment):
                warn(text)


def _finished(expansion: Expansion, results: Sequence[Result]) -> list[tuple[Result, Experiment]]:
    """Return those of an expansion's results that finished, each with its experiment."""
    by_name = {run.folder_name: run.experiment for run in expansion.runs}
    only = expansion.runs[0].experiment
    return [(result, by_name.get(result.folder.name, only)) for result in results if result.ending == "finished"]


def runs_at_chance(
    expansion: Expansion, results: Sequence[Result], root: str | os.PathLike[str] | None
) -> list[Result]:
    """Return the results of an expansion's runs that finished, and learned nothing; none if the data is gone."""
    with suppress(FredsimError, OSError, MemoryError):
        pairs = _finished(expansion, results)
        return [result for result, experiment in pairs if _is_at_chance(result, experiment, root)]
    return []


def _is_at_chance(result: Result, experiment: Experiment, root: str | os.PathLike[str] | None) -> bool:
    """Return whether the final error is no less than that of always giving the most frequent label."""
    error = result.summary["validation_error"]
    if error is None or experiment.problem is not None:
        return False
    data, loss = experiment.data, experiment.loss
    if loss is not None and (loss.made.targets != "classes" or loss.wanted().ignored is not None):
        return False
    return bool(error >= CHANCE * _error_of_one_label(type(data), data.model_dump_json(), data_root(root)) > 0)


@kept_with_data(4)
def _error_of_one_label(kind: type[AnyData], data: str, root: Path) -> float:
    """Return the validation error of always giving the most frequent label; 0 without validation rows."""
    found = kind.model_validate_json(data).load(root, 0)
    labels = np.asarray(found.validation.y)
    labels = labels[labels != found.ignored]
    return float(1 - np.bincount(labels).max() / len(labels)) if len(labels) else 0.0


def _chance_text(results: Sequence[Result], of: int) -> str:
    names = ", ".join(str(result.folder) for result in results[:MOST_NAMED])
    more = f" and {len(results) - MOST_NAMED} more" if len(results) > MOST_NAMED else ""
    errors = sorted(result.summary["validation_error"] for result in results)
    error = f"{errors[0]:.4f}" + (f" to {errors[-1]:.4f}" if errors[-1] > errors[0] else "")
    who = f"{names}{more}" if of == 1 else f"{len(results)} of {of} runs ({names}{more})"
    what = f"ended with the validation error {error}, about that of always giving one label"
    remedy = "what learned nothing may need another learning rate, more iterations, or other data"
    if not any(result.summary["updates"] for result in results):
        remedy = "the server made no update: what it waits for did not come (evaluation.per_client says who has pushed)"
    return f"{who}: {what}; {remedy}"


def _about_staleness(result: Result, experiment: Experiment) -> Iterator[str]:
    """Yield a remark if a trace's column `staleness` is not what the run had: the order says otherwise."""
    choice, count = experiment.dispatcher, result.summary["iterations"]
    if choice.name != "trace" or not choice.hyper["check"]:
        return
    file = choice.hyper["file"]
    wanted = recorded_staleness(file, survey(file, experiment.clients.count), count)
    table = result.staleness
    had = np.repeat(table["staleness"].to_numpy(np.int64), table["count"].to_numpy(np.int64))  # no rows have no type
    if wanted is not None and len(wanted) == len(had) and (np.sort(wanted) != had).any():
        means = f"{np.mean(wanted):.6g} on average, and in the run {np.mean(had):.6g}"
        what = f"its column staleness is {means}: it does not fit the order of arrivals and the server"
        yield f"{file}: {what}, which decide; correct it, or leave it out"
