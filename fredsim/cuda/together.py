"""Processes stretches of several runs side by side: in the same launches where these can do the work of several.

A stretch's windows are launched with those of the others: the first of each run together, then the second of each, and
so on. Runs whose engines are alike have launches in common: those of gradients are of the minibatches of all runs, and
those of a rule are of all runs with this rule, each with its own parameters. Runs with other networks, data or sizes of
minibatches have streams of their own, which the device computes at the same time. The bits of a run are those that it
has by itself, since no sum is of more than one minibatch, and each run's pushes are applied in its own order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fredsim.cuda.array import DeviceArray, empty, upload
from fredsim.cuda.launches import Launches, run_all
from fredsim.cuda.machines import machine
from fredsim.cuda.operations import APPLIED
from fredsim.cuda.queue import Processed, Stretch, process, upload_coefficients, upload_keys
from fredsim.numerics.arrays import Integers
from fredsim.numerics.ops.draws import Keys

__all__ = ["process_together"]


def process_together(stretches: Sequence[Stretch]) -> list[Processed | MemoryError]:
    """Process stretches of different runs; return what each gives by itself.

    It is a MemoryError for one that has no room beside what the other runs keep; some of it may be done then.
    """
    if len(stretches) == 1:
        return list(_one_by_one(stretches))
    groups = list(_alike(stretches))
    parts = [[stretches[number] for number in group] for group in groups]
    lanes = _lanes(parts)
    if lanes is not None:
        streams = machine().streams(len(lanes)) if len(lanes) > 1 else [0]
        run_all(machine(), [lane.launches for lane in lanes], streams)
    found: dict[int, Processed | MemoryError] = {}
    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        results = _one_by_one(part) if lanes is None else lanes[number].results()
        found |= dict(zip(group, results, strict=True))
        if lanes is None:
            part[0].executor.engine.shrink()  # so that the next ones have as much room
    return [found[number] for number in range(len(stretches))]


def _lanes(parts: Sequence[Sequence[Stretch]]) -> list[Lane] | None:
    """Return what processes each part's stretches together; None if there is no room for all that at once."""
    try:
        return [Lane(part) for part in parts]
    except MemoryError:  # nothing is launched yet, and one run needs less
        for stretch in chain.from_iterable(parts):
            stretch.executor.engine.shrink()
        return None


def _one_by_one(stretches: Sequence[Stretch]) -> Iterator[Processed | MemoryError]:
    """Yield what stretches that have launches in common give, each by itself, in the memory of one engine."""
    engine = stretches[0].executor.engine
    for stretch in stretches:
        try:
            yield process(stretch, engine)
        except MemoryError as error:
            yield type(error)(*error.args)  # without what its traceback keeps alive


def _alike(stretches: Sequence[Stretch]) -> Iterator[list[int]]:
    """Yield the numbers of stretches that have launches in common, those with the same rule one behind the other."""
    groups: list[tuple[object, list[int]]] = []
    for number, stretch in enumerate(stretches):
        engine, keys = stretch.executor.engine, stretch.keys
        key = engine.alike, keys.seed if engine.draws and keys is not None else None  # a launch has one seed
        group = next((group for known, group in groups if known == key), None)
        if group is None:
            groups.append((key, [number]))
        else:
            group.append(number)
    for _, group in groups:
        rules = [id(stretches[number].executor.kernels) for number in group]
        yield from _within(stretches, sorted(group, key=lambda n: rules.index(id(stretches[n].executor.kernels))))


def _within(stretches: Sequence[Stretch], group: list[int]) -> Iterator[list[int]]:
    """Yield a group in parts whose windows have at most as many minibatches as an engine can compute at once."""
    part: list[int] = []
    minibatches = 0
    for number in group:
        stretch = stretches[number]
        largest = max((end - begin for begin, end in stretch.windows), default=0)
        if part and minibatches + largest > stretch.executor.engine.most:
            yield part
            part, minibatches = [], 0
        part.append(number)
        minibatches += largest
    yield part


class Lane:
    """Stretches of R runs with launches in common. Of n pushes of all, the order is by window, in it by run."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        """Upload what the launches read, and add them."""
        self._stretches, runs = stretches, len(stretches)
        sizes = [len(stretch.held) for stretch in stretches]
        #: Where each run's pushes begin if they are one run behind the other.
        self._starts = np.cumsum([0, *sizes])
        counts = _counts([stretch.windows for stretch in stretches])
        windows = [np.repeat(np.arange(len(counts)), of_run) for of_run in counts.T]
        keys = np.concatenate([window * runs + run for run, window in enumerate(windows)])
        self._order = np.argsort(keys, kind="stable")
        self._n, self._counts = len(self._order), counts
        #: Where the pushes of each window and run begin, (windows · runs + 1,).
        begins = np.cumsum([0, *counts.ravel()])
        self._window = begins[:-1:runs]
        self._begins = upload(begins, np.int32)
        self.launches = Launches(machine(), len(counts))
        self._kept: list[DeviceArray | None] = []  # alive until all is done
        self._add()

    def _ordered(self, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the runs' values of pushes in the order of the launches."""
        return np.concatenate(values)[self._order]

    def _add(self) -> None:
        """Add the gradients of all runs' minibatches, and the rules' kernels."""
        stretches, begin, batches = self._stretches, self._window, self._counts.sum(axis=1)
        engine, mu = stretches[0].executor.engine, stretches[0].rows.shape[1]
        engine.allocate(int(batches.max(initial=1)))
        sources = upload(self._ordered([s.executor.places.addresses(s.held) for s in stretches]), np.int64)
        self._targets = upload(self._ordered([s.executor.places.addresses(s.kept) for s in stretches]), np.int64)
        samples = upload(self._ordered([s.rows for s in stretches]), np.int32)
        self._losses = empty(samples.shape)
        self._diverged_at = upload(np.full(len(stretches), self._n), np.int32)
        rows = samples.address + 4 * mu * begin
        drawn, of_keys = upload_keys(engine, self._keys(), begin)
        self._kept += [sources, samples, drawn]
        engine.add_passes(
            self.launches, batches, held=sources.address + 8 * begin, rows=rows,
            losses=self._losses.address + 4 * mu * begin, **of_keys,
        )  # fmt: skip
        size, gradients = stretches[0].executor.arrays[0].size, {}
        if engine.strips(rows) is None:
            formed = engine.add_gradients(self.launches, batches, rows)
            gradients = {"gradients": formed, "size": size, "stride": engine.stride}
        first = 0
        while first < len(stretches):
            executor = stretches[first].executor
            end = first + sum(s.executor.kernels is executor.kernels for s in stretches)
            found = engine.strips(rows, executor.tall)  # by the engine that has computed the passes
            blocks, fields = (found[0], {"minibatches": found[1]}) if found else (-(-size // APPLIED), gradients)
            self._add_rule(blocks, fields, first, end)
            first = end

    def _add_rule(self, blocks: int, fields: dict[str, Any], first: int, end: int) -> None:
        """Add the kernel of the rule that the runs from `first` to `end` have."""
        stretches = self._stretches[first:end]
        executors = [stretch.executor for stretch in stretches]
        arrays = upload([[array.address for array in executor.arrays] for executor in executors], np.int64)
        each = stretches[0].coefficients.shape[1]
        coefficients = np.zeros((self._n, each), np.float32)
        pushes = slice(self._starts[first], self._starts[end])
        coefficients[self.place[pushes]] = np.concatenate([stretch.coefficients for stretch in stretches])
        numbers = upload_coefficients(coefficients, self._n)
        self._kept += [arrays, numbers]
        runs, kernel = self._counts.shape[1], executors[0].kernels[f"{executors[0].kernel}_runs"]
        self.launches.add(
            kernel, (blocks, end - first, 1), self._counts[:, first:end].any(axis=1),
            arrays=arrays.address, coefficients=numbers.address, targets=self._targets.address,
            begins=self._begins.address + 4 * (runs * np.arange(len(self._counts)) + first),
            diverged_at=self._diverged_at.address + 4 * first, window=self._window, **fields,
        )  # fmt: skip

    @property
    def place(self) -> Integers:
        """Where each push is in the order of the launches, (n,), one run behind the other."""
        place = np.empty(self._n, np.int64)
        place[self._order] = np.arange(self._n)
        return place

    def _keys(self) -> Keys | None:
        """Return what the random numbers of all runs' pushes depend on, in the order of the launches."""
        known = [stretch.keys for stretch in self._stretches if stretch.keys is not None]
        if len(known) < len(self._stretches):
            return None
        clients, numbers = (
            self._ordered([keys.clients for keys in known]),
            self._ordered([keys.numbers for keys in known]),
        )
        return Keys(known[0].seed, clients, numbers)

    def results(self) -> Iterator[Processed]:
        """Wait for the launches; yield each run's losses, and the first of its events after which θ is not finite."""
        losses, diverged_at = np.asarray(self._losses), np.asarray(self._diverged_at).tolist()
        place, starts = self.place, self._starts.tolist()
        for run, (start, end) in enumerate(pairwise(starts)):
            at = diverged_at[run]
            yield losses[place[start:end]], (int(self._order[at]) if at < self._n else end) - start


def _counts(several: Sequence[Sequence[tuple[int, int]]]) -> Integers:
    """Return how many pushes each window of each run has, (windows, runs): 0 where a run has no more windows."""
    counts = np.zeros((max(map(len, several)), len(several)), np.int64)
    for run, windows in enumerate(several):
        begin, end = np.array(windows, np.int64).reshape(-1, 2).T
        counts[: len(windows), run] = end - begin
    return counts
