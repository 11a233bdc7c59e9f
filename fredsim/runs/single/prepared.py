"""Prepares what a run needs before it can be simulated: data, model, length, rows' interval, shards."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.compute.graph_engine import BLOCK
from fredsim.compute.metrics import checked_columns
from fredsim.config.data import DataRead
from fredsim.config.experiment import Evaluation, Experiment
from fredsim.config.metrics import is_of_class
from fredsim.config.partition import Lists, PartitionChoice, make_shards
from fredsim.config.resolution import check_batch, for_each_run, placed
from fredsim.config.sweep.expansion import ResolvedRun
from fredsim.data.datasets import Dataset, data_root
from fredsim.data.kept import kept_with_data
from fredsim.data.partitions.shards import Shards
from fredsim.dispatchers.durations import LAST
from fredsim.errors import ConfigError, nearest, shown
from fredsim.networks.graph import Graph
from fredsim.networks.network import Network
from fredsim.networks.own_loss import ArrayLoss
from fredsim.numerics.streams import Streams
from fredsim.plugins.modules import folder_kept
from fredsim.runs.processes.isolation import note_opened
from fredsim.runs.single.opening import make_server
from fredsim.simulation.clients.stages import StagePlan
from fredsim.simulation.plugins.client_work import clients_at_work
from fredsim.simulation.schedule.length import Interval, Length
from fredsim.system.memory import memory_errors, refuse_beyond_memory

__all__ = [
    "ANYTHING",
    "Prepared",
    "Wanted",
    "assign_shards",
    "check_data",
    "first_losses",
    "first_outputs",
    "made_of_files",
    "model_files",
    "own_loss",
    "prepare",
]

MOST_NAMED = 20  # classes of which a message names the columns
TRIED = 4  # samples on which a user's own loss is tried
COPIES = 4  # of the parameters: the initial ones, the server's, the engine's, and those that are saved


@dataclass(frozen=True)
class Prepared:
    """A run's resolved experiment, data, model, length, and the interval at which rows are recorded.

    `shards` says which training rows each client has; None: all clients share all of them. `stages` are those of
    clients that are pipelines; None: clients are none. `metrics` are the columns of `evaluation.metrics`.
    """

    experiment: Experiment
    dataset: Dataset
    model: Network
    length: Length
    interval: Interval
    shards: Shards | None = None
    stages: StagePlan | None = None
    metrics: tuple[str, ...] = ()

    @property
    def model_files(self) -> dict[str, str]:
        """The SHA-256 of the files that a PyTorch module, or a user's class of data, is made from, by name."""
        return dict(self.dataset.files) | dict(self.model.files)


@memory_errors()
@folder_kept()  # which a user's code may change
def prepare(experiment: Experiment, root: str | os.PathLike[str] | None, local_steps: int | None = None) -> Prepared:
    """Load the data, and make what depends on it. See fredsim.data.datasets.data_root for `root`.

    `local_steps`: how many steps clients take between two pushes, on which an epoch depends; None: as the experiment
    and its server say. Raises ConfigError, DataError, and SimulationError if a user's server breaks its contract.
    """
    data = experiment.data
    dataset = experiment.load(data_root(root))
    rows = {}
    if isinstance(data, DataRead):
        rows = {"train": len(dataset.train), "validation": len(dataset.validation)}
    experiment = experiment.model_copy(update={"data": data.model_copy(update=rows)})
    check_batch(experiment, len(dataset.train))
    metrics = _columns(experiment, dataset)
    model = experiment.network(dataset)
    _check_statistics(experiment, model, dataset)
    if (loss := own_loss(model)) is not None:
        loss.try_out(*first_outputs(model, dataset, experiment.seed))
    batches, steps = len(dataset.train) // experiment.clients.batch_size, 1
    if experiment.epochs or experiment.evaluation.unit == "epochs":
        steps = local_steps or _steps_of_epochs(experiment)
    iterations = -(-experiment.epochs * batches // steps) if experiment.epochs else experiment.iterations
    if iterations is not None and iterations >= 2**32:
        raise ConfigError(f"epochs is {experiment.epochs}; that is {iterations:,} iterations, and 2³² are too many")
    until = None if experiment.seconds is None else nanoseconds(experiment.seconds, "seconds")
    length = Length(iterations, experiment.updates, until)
    if model.graph is not None:
        _check_sizes(experiment, model.graph, length)
    interval = _interval(experiment.evaluation, batches, steps)
    stages = None if experiment.stages is None else StagePlan.of(experiment.stages, model.layout)
    if stages is not None and stages.two_vectors:
        _check_two_vectors(experiment)
    return Prepared(experiment, dataset, model, length, interval, assign_shards(experiment, dataset), stages, metrics)


def _check_sizes(experiment: Experiment, graph: Graph, length: Length) -> None:
    """Raise ConfigError, naming the key to lower, if a run needs more memory than the machine has.

    The parameters, and the minibatches that are computed together, are counted.
    """
    clients, size, inputs = experiment.clients, graph.layout.size, math.prod(graph.sample)
    if key := experiment.model.sized_by:
        of = f"{size:,} parameters, of {inputs:,} inputs and {math.prod(graph.shapes[-1]):,} classes, take"
        what = f"model.{key} is {shown(getattr(experiment.model, key))}; {of}"
        refuse_beyond_memory(COPIES * 4 * size, what, "make the model smaller")
    minibatch = 4 * (clients.batch_size * (inputs + graph.values) + size)
    of = "the samples, activations and gradient of one minibatch take"
    refuse_beyond_memory(minibatch, f"clients.batch_size is {clients.batch_size}; {of}", "lower it")
    at_work = clients_at_work(clients.count, clients.fraction)
    together = min(experiment.window or 1, at_work, length.events or at_work)
    refuse_beyond_memory(
        together * minibatch, f"window is {experiment.window}; {together:,} minibatches at once take", "lower it"
    )


def _columns(experiment: Experiment, dataset: Dataset) -> tuple[str, ...]:
    """Return the columns of `evaluation.metrics`. Raises ConfigError if the data lack what they, or `until`, need."""
    evaluation = experiment.evaluation
    columns = checked_columns([one.metric() for one in evaluation.metrics], dataset, test=evaluation.test)
    if experiment.until is not None and experiment.problem is None:
        goal = experiment.until.goal[0]
        _check_class(f"until.{goal}: is", goal, columns)
        _check_rows(f"until is of {goal}", goal, experiment, dataset)
    return columns


def _check_rows(asked: str, column: str, experiment: Experiment, dataset: Dataset) -> None:
    """Raise ConfigError if a column is always nan, as the data have no rows for it; `asked` says who asks for it."""
    part = "test" if column.startswith("test_") else "validation"
    if experiment.data.has_rows and column not in {"", "gap", "gradient_norm"} and not len(getattr(dataset, part)):
        remedy = "have some" if part == "test" else "give data.validation"
        raise ConfigError(f"{asked}, and data {experiment.data.name} has no rows for {part}: {remedy}")


def _check_class(asked: str, column: str, columns: Sequence[str]) -> None:
    """Raise ConfigError if a column is the error of a class that the data lack; `asked` says who asks for it."""
    if is_of_class(column) and column not in columns:
        known = [name for name in columns if is_of_class(name)]
        named = ", ".join(known) if len(known) <= MOST_NAMED else f"{known[0]}, {known[1]}, … {known[-1]}"
        what = "the error of a class that the data have not"
        raise ConfigError(f"{asked} {what}{nearest(column, known)} (known: {named})")


def _check_statistics(experiment: Experiment, network: Network, dataset: Dataset) -> None:
    """Raise ConfigError if samples that a batch norm sees together are one element a channel, which has no variance."""
    graph, clients, evaluation = network.graph, experiment.clients, experiment.evaluation
    size = clients.batch_size
    norms = [] if graph is None else graph.batch_norms
    if graph is None or all(math.prod(graph.shapes[node.inputs[0]][1:]) > 1 for node in norms):
        return
    if clients.clip_each_sample is not None and graph.running is None:
        what = "each sample is then computed alone, and a batch norm has one element a channel"
        remedy = "leave it out, or give clients.clip"
        raise ConfigError(f"clients.clip_each_sample is {clients.clip_each_sample:g}; {what}: {remedy}")
    if size < 2 and graph.running is not None:
        what = "a norm has one element a channel, and running variances need two"
        raise ConfigError(f"clients.batch_size is {size}; {what}: give 2, or leave model.buffers out")
    if size < 2:
        what = "a batch norm has one element a channel (PyTorch: Expected more than 1 value per channel)"
        raise ConfigError(f"clients.batch_size is {size}; {what}: give 2")
    alone = f"{BLOCK} at a time, the last by itself, one element a channel of a batch norm"
    if evaluation.gradient_norm and len(dataset.train) % BLOCK == 1:
        what = f"of which evaluation.gradient_norm takes {alone}"
        remedy = "have another number of rows (data.train), or leave gradient_norm out"
        raise ConfigError(f"data has {len(dataset.train):,} rows for training, {what}: {remedy}")
    evaluated = {"validation": dataset.validation, "test": dataset.test}
    if evaluation.per_client:
        evaluated["training"] = dataset.train
    for part, split in evaluated.items():
        if graph.running is None and len(split) % BLOCK == 1:
            remedy = "have another number of rows, or keep running statistics (model.buffers: averaged)"
            raise ConfigError(f"data has {len(split):,} rows for {part}, which are evaluated {alone}: {remedy}")


def own_loss(network: Network) -> ArrayLoss | None:
    """Return the user's own loss of a network that fredsim computes; None if it has another one."""
    loss = None if network.graph is None else network.graph.loss
    return loss if isinstance(loss, ArrayLoss) else None


def first_outputs(
    network: Network, dataset: Dataset, seed: int, rows: slice = slice(TRIED)
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Return the initial outputs of a network with a graph for the first training samples, and their targets."""
    graph = network.graph
    assert graph is not None
    params = network.values if graph.frozen else network.initial(Streams(seed))
    x = np.asarray(dataset.train.x[rows])
    return graph.forward(params, x.reshape(len(x), *graph.sample)).output, np.asarray(dataset.train.y[rows])


def first_losses(prepared: Prepared, rows: slice) -> NDArray[np.float32] | None:
    """Return the initial losses of training samples, computed together; None if that fails. See Network.first_losses.

    The experiment is none of a problem of the user's own.
    """
    model, dataset, seed = prepared.model, prepared.dataset, prepared.experiment.seed
    if model.graph is None:
        return model.first_losses(np.asarray(dataset.train.x[rows]), np.asarray(dataset.train.y[rows]))
    output, y = first_outputs(model, dataset, seed, rows)
    found: NDArray[np.float32] = model.graph.loss.losses(output, y).each
    return found


def _check_two_vectors(experiment: Experiment) -> None:
    """Raise ConfigError if backward passes cannot have other parameters than forward passes."""
    if experiment.problem is not None:
        why = "a problem's class computes both passes with the same parameters"
        remedy = "give a delay with weight stashing, such as pipedream"
    elif getattr(experiment.model, "precision", "float32") != "float32":
        why = "of other precisions PyTorch's backward pass takes what the forward pass has made of the parameters"
        remedy = "leave model.precision out, or give a delay with weight stashing, such as pipedream"
    elif experiment.backend == "cuda":
        why, remedy = "the backend cuda computes both passes with the same parameters", "give backend: numba"
    else:
        return
    assert experiment.stages is not None
    delay = experiment.stages.delay
    given = delay if isinstance(delay, str) else delay.model_dump()
    raise ConfigError(f"stages.delay is {given}; {why}: {remedy}")


def made_of_files(experiment: Experiment) -> bool:
    """Return whether its model or data may be made from files that only its preparation names."""
    return experiment.model.has_files or experiment.data.user_code


def _steps_of_epochs(experiment: Experiment) -> int:
    """Return how many local steps clients take. Raises ConfigError if they differ, so that an epoch has no length."""
    work = make_server(experiment)[1].work
    if work.varied is not None:
        key = f"epochs is {experiment.epochs}" if experiment.epochs else "evaluation.unit is epochs"
        raise ConfigError(f"{key}; clients.local_steps differ, so that iterations are no passes: give iterations")
    return work.steps


def model_files(experiment: Experiment, root: str | os.PathLike[str] | None) -> dict[str, str]:
    """Return the SHA-256 of the files that a model or data are made from now, by name; raise as `prepare` does."""
    if not made_of_files(experiment):
        return {}
    note_opened(experiment)
    return prepare(experiment, root).model_files


class Wanted(NamedTuple):
    """What the process that does a run must have like the one that started the sweep; None is not compared."""

    code: Mapping[str, str] | None = None
    """The SHA-256 of the user's modules that the run uses."""
    files: Mapping[str, str] | None = None
    """The SHA-256 of the files that its model or data are made from, by name."""
    data: str | None = None
    """The digest of its data."""


ANYTHING = Wanted()


def check_data(
    runs: Sequence[ResolvedRun], root: str | os.PathLike[str] | None, best: str = "", *, elsewhere: bool = False
) -> list[Wanted]:
    """Return what each run is made from here, but for code; of its data only if it is done `elsewhere`.

    Raises ConfigError, with file and line, or DataError if the data of a run is missing or does not fit it. `best` is
    the column by which one of the runs is chosen, if one is.
    """

    def check(run: ResolvedRun) -> Wanted:
        note_opened(run.experiment)
        with placed(run.place):
            prepared = prepare(run.experiment, root)
            if run.experiment.problem is None:
                _check_class(f"select.best: is {best!r},", best, prepared.metrics)
                _check_rows(f"select.best: is {best!r}", best, prepared.experiment, prepared.dataset)
            return Wanted(files=prepared.model_files, data=prepared.dataset.digest if elsewhere else None)

    return for_each_run(runs, check, lambda run: run.label)


def assign_shards(experiment: Experiment, dataset: Dataset) -> Shards | None:
    """Return which training rows each client has; None if all share them. Raises ConfigError, DataError."""
    clients = experiment.clients
    assign = _assign if isinstance(clients.partition, Lists) else _assign_once  # a file may have changed
    return assign(clients.partition, dataset, clients.count, experiment.seed)


def _assign(partition: PartitionChoice, dataset: Dataset, clients: int, seed: int) -> Shards | None:
    return make_shards(partition, dataset.train.y, clients, seed)


#: The runs of a sweep share shards: making them takes longer than any other check before the first run.
_assign_once = kept_with_data(16)(_assign)


def _interval(evaluation: Evaluation, batches: int, steps: int) -> Interval:
    """Return the interval at which rows are recorded; an epoch is `batches` minibatches, an iteration `steps`."""
    if evaluation.unit == "seconds":
        return Interval(nanoseconds(evaluation.every, "evaluation.every"), "nanoseconds")
    every = int(evaluation.every)
    if evaluation.unit == "epochs":
        return Interval(every * batches, "iterations", steps)
    return Interval(every, "updates" if evaluation.unit == "updates" else "iterations")


def nanoseconds(seconds: float, key: str) -> int:
    """Return seconds as nanoseconds, rounded. Raises ConfigError if that is below 1, or more than a clock can count."""
    found = round(seconds * 1e9)
    if not 0 < found < LAST:
        raise ConfigError(f"{key} is {seconds:g} seconds; the clock counts from 1e-9 to {LAST / 1e9:.0f}")
    return found
