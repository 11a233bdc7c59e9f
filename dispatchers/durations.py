"""How long a client's task takes: models from the literature, drawn exactly, as int64 nanoseconds.

A gradient of client i takes t_i · X, or t_i + X if the noise is to be added; t_i is the client's own time, X is drawn
for each task from (seed, client, task number), independently of all other draws. A task of k local steps takes k times
as long, with a single draw. The time is computed in float64 and rounded once, half to even, to whole nanoseconds, 1 at
least. A task that would take longer than the limit, if there is one, is given up after that time.

- t_i a number, a list, (i + 1)^a (Mishchenko et al. 2022, arXiv:2206.07638; Tyurin and Richtárik 2023,
  arXiv:2305.12387), drawn from a distribution, or `factor` times longer for a share of the clients.
- X gamma with coefficient of variation cv (DANA, arXiv:1907.11612), exponential or shifted exponential (Dutta et al.
  2018, arXiv:1803.01113), lognormal, Pareto, uniform, half normal (the code of Ringmaster ASGD, where it is added), or
  1 and with some probability `factor` (MindFlayer SGD, arXiv:2410.04285), which may be infinite: that task never ends.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, Tag, model_serializer

from fredsim.dispatchers.distributions import KNOWN, Distributions, Drawn, Noise, one_of
from fredsim.dispatchers.local_steps import TaskSteps, VariedSteps
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters, Positive
from fredsim.numerics.arrays import Floats, Integers
from fredsim.numerics.distributions import Draw
from fredsim.numerics.elementary import pow64
from fredsim.numerics.streams import Stream, Streams

__all__ = [
    "LAST",
    "MOST_AHEAD",
    "NEVER",
    "Compute",
    "Draws",
    "TaskDurations",
    "TaskTime",
    "as_nanoseconds",
    "check_each",
    "check_not_added",
    "check_own_times",
    "check_times",
]


class TaskTime(Protocol):
    """How long tasks take, in nanoseconds; NEVER for one that never ends."""

    def __call__(self, clients: Integers, numbers: Integers) -> Integers:
        """Return the times of n tasks, given by their clients and numbers, int64 (n,) each."""
        ...

    def of(self, client: int, number: int) -> int:
        """Return the time of one task."""
        ...


#: The end of the clock, 146 years: sums of two such times fit int64.
LAST = 2**62
#: The time of an event that never happens.
NEVER = LAST
#: The most tasks that are drawn at once: intermediate values take some 100 bytes each.
TOGETHER = 2**17
AHEAD = 32  # the most tasks of one client that are drawn together, where tasks begin one by one
MOST_AHEAD = 2**18  # the most tasks, or periods of outages, of all clients that are drawn so
#: The first element of a draw's counter, by the purpose of the draw.
TASK, MACHINE, UP, DOWN = 0, 8, 16, 24


class Power(HyperParameters):
    """t_i = base · (i + 1)^exponent."""

    name: Literal["power"]
    base: Positive = 1.0
    """The time of client 0, in seconds."""
    exponent: Annotated[float, Field(ge=-10, le=10)] = 0.5
    """The exponent; ½ and 1 are usual."""


class TwoClasses(HyperParameters):
    """A share of the clients always takes `factor` times as long as the others."""

    name: Literal["two_class"]
    base: Positive = 1.0
    """The time of the other clients, in seconds."""
    share: Annotated[float, Field(ge=0, le=1)]
    """The share of the slow clients, which are drawn at random; their number is rounded, half up."""
    factor: Positive
    """How many times longer they take."""


OwnTimes = Annotated[
    Annotated[Positive, Tag("Number")]
    | Annotated[list[Positive], Tag("List")]
    | Annotated[Power, Tag("Power")]
    | Annotated[TwoClasses, Tag("TwoClass")]
    | Drawn,
    one_of(f"seconds, a list of them, or {{name: …}} of power, two_class, {KNOWN}"),
]


class Compute(HyperParameters):
    """How long a gradient takes: a time for each client, and noise drawn for each task.

    A task of k local steps takes k times as long.
    """

    seconds: OwnTimes = 1.0
    """The clients' own times: a number, a list by client, or {name: power, two_class, or a distribution}."""
    noise: Noise = "none"
    """The noise of each task: none, or {name: a distribution}, which multiplies the time or, with `add: true`, adds."""
    limit: Positive | list[Positive] | None = None
    """A task is given up after so many seconds, and its client begins the next: a number, a list by client; or null."""

    @model_serializer(mode="wrap")
    def leave_out(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out `limit`, a later key, if it is null, so that earlier configurations keep their digests."""
        data: dict[str, Any] = handler(self)
        if self.limit is None:
            del data["limit"]
        return data


class Draws:
    """Random draws of a run's times, each determined by its purpose, its client and its number alone."""

    def __init__(self, streams: Streams, draw: Draw) -> None:
        self._streams, self._draw = streams, draw

    def draw(self, found: Distributions, purpose: int, clients: Integers, numbers: Integers) -> Floats:
        """Return draws (n,) of a distribution, in seconds or as factors, by client and number (n,)."""
        units = self._draw(found.unit(), self._streams, Stream.TIME, numbers, clients, purpose)
        scaled: Floats = units * found.scale(clients)
        return scaled

    def keys(self, clients: int) -> NDArray[np.uint64]:
        """Return a random 64-bit key for each client, by which some of them are chosen."""
        ids = np.arange(clients)
        high, low = (self._streams.words(Stream.TIME, MACHINE + i, 0, ids).astype(np.uint64) for i in range(2))
        return high << np.uint64(32) | low


class TaskDurations:
    """How long each task of each client takes."""

    def __init__(self, compute: Compute, clients: int, draws: Draws) -> None:
        self._noise, self._draws, self._clients = compute.noise, draws, clients
        self._own = own_times(compute.seconds, clients, draws)
        self._limit = None if compute.limit is None else np.broadcast_to(as_nanoseconds(compute.limit), clients)
        self.set_steps(1)

    def set_steps(self, steps: int | VariedSteps) -> None:
        """Set how many gradients a task has."""
        clients = self._clients
        self.task_steps: TaskSteps | None = None  # how many gradients tasks have, if they differ
        self._steps: Any = 1
        singles = _means(self._own, self._noise, clients, 1)
        if isinstance(steps, VariedSteps):
            self._nanoseconds, self._fixed = self._own * 1e9, self._fixed_times(self._own)
            self.task_steps = TaskSteps(steps, singles, self._takes)
        count: Any = steps  # of each task; where it differs from task to task, 1, and `_takes` multiplies
        if self.task_steps is not None:
            count = 1 if self.task_steps.of_client is None else self.task_steps.of_client
        own = self._own * count
        self.means = _means(own, self._noise, clients, count)  # seconds, float64 (λ,) or ()
        if isinstance(steps, VariedSteps) and steps.seconds is not None:
            self.means = singles * np.maximum(np.floor(steps.seconds / singles), 1.0)
        if self._limit is not None:
            self.means = np.minimum(self.means, self._limit / 1e9)
        # Roughly how many tasks all clients together do in a second.
        self.rate = float(np.sum(1.0 / self.means)) if self.means.ndim else clients / float(self.means)
        self._steps, self._nanoseconds, self._fixed = count, own * 1e9, self._fixed_times(own)
        #: By client, the number of a task, and how long this and the client's next few tasks take; see `of`.
        self._drawn: dict[int, tuple[int, list[int]]] = {}
        self._together = max(1, min(AHEAD, MOST_AHEAD // clients))

    def _fixed_times(self, own: Floats) -> Integers | None:
        return as_nanoseconds(own) if self._noise == "none" else None

    def __call__(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how long these clients spend on these tasks, int64 (n,) nanoseconds; NEVER for one that never ends."""
        takes = self._whole(clients, numbers)
        return takes if self._limit is None else np.minimum(takes, self._limit[clients])

    def of(self, client: int, number: int) -> int:
        """Return how long one task takes. The client's next few are drawn with it: one draw costs as much as many."""
        first, takes = self._drawn.get(client, (0, []))
        if not first <= number < first + len(takes):
            numbers = np.arange(number, number + self._together)
            first, takes = number, self(np.full(self._together, client), numbers).tolist()
            self._drawn[client] = first, takes
        return takes[number - first]

    def given_up(self, clients: Integers, numbers: Integers) -> Integers:
        """Return 1 for each task that is given up because it would take longer than the limit, else 0; (n,)."""
        assert self._limit is not None
        return (self._whole(clients, numbers) > self._limit[clients]).astype(np.int64)

    def _whole(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how long these tasks take if none is given up, int64 (n,) nanoseconds."""
        takes = self._takes(clients, numbers)
        if self.task_steps is None or self.task_steps.of_client is not None:
            return takes
        return np.where(takes < NEVER, takes * self.task_steps(clients, numbers), NEVER)

    def _takes(self, clients: Integers, numbers: Integers) -> Integers:
        """Return how long these tasks take, or their single gradients if their number differs from task to task."""
        if self._fixed is not None:
            return self._fixed[clients] if self._fixed.ndim else np.full(len(clients), self._fixed)
        if len(clients) > TOGETHER:
            parts = [slice(begin, begin + TOGETHER) for begin in range(0, len(clients), TOGETHER)]
            return np.concatenate([self._takes(clients[part], numbers[part]) for part in parts])
        noise = self._noise
        assert noise != "none"
        drawn = self._draws.draw(noise, TASK, clients, numbers)
        own = self._nanoseconds[clients] if np.ndim(self._nanoseconds) else self._nanoseconds
        steps = self._steps[clients] if np.ndim(self._steps) else self._steps
        return rounded(own + drawn * 1e9 * steps if noise.add else own * drawn)


def _means(own: Floats, noise: Noise, clients: int, steps: Any) -> Floats:
    """Return the mean times in seconds, float64 (λ,), or () if all are equal; tasks that never end are left out."""
    if noise != "none":
        unit = noise.unit().mean
        mean = noise.scale(np.arange(clients)) * (unit if unit < np.inf else 1.0)
        own = own + mean * steps if noise.add else own * mean
    return np.clip(own, 1e-9, LAST / 1e9)


def own_times(seconds: Any, clients: int, draws: Draws) -> Floats:
    """Return the clients' own times in seconds, float64 (λ,), or () if all are equal."""
    if isinstance(seconds, float | int | list):
        return np.array(seconds, np.float64)
    ids = np.arange(clients)
    if isinstance(seconds, Power):
        exact = {1.0: ids + 1.0, 0.5: np.sqrt(ids + 1.0)}  # the usual exponents, rounded as IEEE 754 says
        powers = exact.get(seconds.exponent)
        return seconds.base * (pow64(ids + 1.0, seconds.exponent) if powers is None else powers)
    if isinstance(seconds, TwoClasses):
        slow = np.argsort(draws.keys(clients), kind="stable")[: int(seconds.share * clients + 0.5)]
        times = np.full(clients, seconds.base)
        times[slow] = seconds.base * seconds.factor
        return times
    return draws.draw(seconds, MACHINE, ids, np.zeros(clients, np.int64))


def rounded(nanoseconds: Any) -> Integers:
    """Return times as int64, rounded half to even, 1 at least; NEVER for those beyond the clock's end."""
    whole = np.rint(nanoseconds)
    late = ~(whole < LAST)
    return np.where(late, NEVER, np.maximum(np.where(late, 0.0, whole), 1.0).astype(np.int64))


def as_nanoseconds(seconds: Any) -> Integers:
    """Return seconds as int64 nanoseconds, 1 at least; NEVER for those beyond the clock's end."""
    return rounded(np.asarray(seconds, np.float64) * 1e9)


def check_each(value: Any, clients: int, key: str) -> None:
    """Raise ConfigError, naming the key, if a list does not have one value per client."""
    if isinstance(value, list) and len(value) != clients:
        raise ConfigError(f"{key} has {len(value)} values; give one per client, {clients} (clients.count)")


def check_times(value: Any, clients: int, key: str) -> None:
    """Raise ConfigError, naming the key, if a list does not have one value per client, or if seconds exceed the clock.

    Of a distribution the mean is checked, or the standard deviation, whichever it is scaled by.
    """
    check_each(value, clients, key)
    for name in ("mean", "sd"):
        if isinstance(value, HyperParameters) and (scale := getattr(value, name, None)) is not None:
            value, key = scale, f"{key}.{name}"
    longest = max(value) if isinstance(value, list) else value
    if isinstance(longest, float | int) and longest * 1e9 >= LAST:
        raise ConfigError(f"{key} is {longest:g} seconds; the clock ends after {LAST / 1e9:.0f}: give shorter times")


def check_not_added(value: Any, key: str) -> None:
    """Raise ConfigError, naming the key, for a distribution that is to be added to something, as only noise is."""
    if getattr(value, "add", False):
        raise ConfigError(f"{key}.add is true; only noise (dispatcher.compute.noise) is added to a time: leave it out")


def check_own_times(seconds: OwnTimes, clients: int, steps: int | VariedSteps = 1) -> None:
    """Raise ConfigError as `check_times` and `check_not_added` do, also if a task of these steps is too long."""
    key = "dispatcher.compute.seconds"
    check_not_added(seconds, key)
    check_each(seconds, clients, key)
    own: list[float] = []
    if isinstance(seconds, Power):
        own = [seconds.base, seconds.base * float(clients) ** seconds.exponent]
    elif isinstance(seconds, TwoClasses):
        own = [seconds.base, seconds.base * seconds.factor]
    elif isinstance(seconds, float | int | list):
        own = seconds if isinstance(seconds, list) else [seconds]
    check_times(max(own) if own else seconds, clients, key)
    longest, count = (max, steps) if isinstance(steps, int) else (min, steps.fastest or 1)  # slower clients take fewer
    if own and count > 1:
        check_times(longest(own) * count, clients, f"{key} of a task of {count} local steps")
