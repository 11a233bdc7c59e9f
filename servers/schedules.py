"""Learning-rate schedules: α as a function of the timestamp, computed in float64 and rounded to float32 once.

A server's `lr` takes a number or one of these: lr: {name: inverse_power, base: 0.01, lambd: 1.0e-4, power: 0.75}.
t is the number of updates applied before this one, from 0. A user's own schedule is {name: "package.module:function",
...}, where function(t, **the other keys) returns α.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Discriminator, PrivateAttr, Tag, model_validator

from fredsim.errors import ConfigError, SimulationError
from fredsim.hyper import HyperParameters, NonNegative, Positive, PositiveInt
from fredsim.numerics.elementary import cos64, pow64
from fredsim.plugins.failures import described, is_interrupt, said, where_defined
from fredsim.plugins.modules import import_named, parameters_of

__all__ = ["SCHEDULES", "Rate", "rate_at"]


class Constant(HyperParameters):
    """α = base."""

    name: Literal["constant"]
    base: Positive
    """α."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        return self.base + np.zeros_like(t, np.float64)


class Step(HyperParameters):
    """α = base · factor^⌊t/every⌋."""

    name: Literal["step"]
    base: Positive
    """α at t = 0."""
    every: PositiveInt
    """The number of updates between two changes of α."""
    factor: Positive
    """What α is multiplied by at each change."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        return self.base * pow64(self.factor, t // self.every)


class Exponential(HyperParameters):
    """α = base · factor^(t/every)."""

    name: Literal["exponential"]
    base: Positive
    """α at t = 0."""
    factor: Positive
    """What α is multiplied by in `every` updates."""
    every: PositiveInt = 1
    """The number of updates in which α changes by `factor`."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        return self.base * pow64(self.factor, t / self.every)


class Cosine(HyperParameters):
    """α = final + ½ (base − final)(1 + cos(π t/steps)), final from t = steps on (Loshchilov and Hutter 2017)."""

    name: Literal["cosine"]
    base: Positive
    """α at t = 0."""
    steps: PositiveInt
    """The number of updates until α is `final`."""
    final: NonNegative = 0.0
    """α from then on."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        share = np.minimum(t / self.steps, 1.0)
        alpha = self.final + 0.5 * (self.base - self.final) * (1.0 + cos64(math.pi * share))
        return np.where(np.asarray(t) >= self.steps, self.final, alpha)


class InversePower(HyperParameters):
    """α = base · (1 + lambd·base·t)^−power (Xu 2011, arXiv:1107.2490)."""

    name: Literal["inverse_power"]
    base: Positive
    """α at t = 0."""
    lambd: NonNegative
    """How fast α falls."""
    power: NonNegative = 0.75
    """The power with which α falls."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        return self.base * pow64(1.0 + self.lambd * self.base * t, -self.power)


#: Those that may follow a warm-up.
PLAIN: dict[str, type[BaseModel]] = {
    "constant": Constant,
    "step": Step,
    "exponential": Exponential,
    "cosine": Cosine,
    "inverse_power": InversePower,
}


def _by_name(known: str) -> Discriminator:
    """Return what chooses a member of a union by its name; `known` is what a message says it may be."""
    return Discriminator(
        lambda value: _kind(value), custom_error_type="schedule", custom_error_message=f"should be a number, {known}"
    )


_Plain = (
    Annotated[Positive, Tag("float")]
    | Annotated[Constant, Tag("Constant")]
    | Annotated[Step, Tag("Step")]
    | Annotated[Exponential, Tag("Exponential")]
    | Annotated[Cosine, Tag("Cosine")]
    | Annotated[InversePower, Tag("InversePower")]
)


class Warmup(HyperParameters):
    """α = min(1, (t + 1)/steps) · a(max(0, t − steps)), where a is what follows (Goyal et al. 2017)."""

    name: Literal["warmup"]
    steps: PositiveInt
    """The number of updates in which α grows, by the same amount each."""
    then: Annotated[_Plain, _by_name(f"or one of the schedules {', '.join(PLAIN)}")]
    """What follows, a number or a schedule, whose t is counted from the end of the warm-up."""

    def __call__(self, t: Any) -> Any:
        """Return α."""
        return np.minimum((t + 1) / self.steps, 1.0) * rate_at(self.then, np.maximum(t - self.steps, 0))


@dataclass
class _Earlier:
    """How often a user's function was called, and what the first calls returned, by t; two schedules may differ so."""

    calls: Iterator[int] = field(default_factory=count, compare=False)
    values: dict[int, float] = field(default_factory=dict, compare=False)


class OwnSchedule(BaseModel):
    """A user's function of t, given by its name."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    _function: Callable[..., Any] = PrivateAttr()
    _earlier: _Earlier = PrivateAttr(default_factory=lambda: _Earlier())

    @model_validator(mode="after")
    def check(self) -> OwnSchedule:
        """Find the function and call it once, so that a mistake shows before the run."""
        try:
            self._function = self._found()
            try:
                if parameters_of(self._function) is not None:  # else the calls below show whether it can be called
                    inspect.signature(self._function).bind(0, **(self.model_extra or {}))
            except TypeError as error:
                raise self._failed(f"cannot be called: {error}{where_defined(self._function)}; {REMEDY}") from None
            for t in (0, 1, 0):
                self(t)
        except SimulationError as error:
            raise ValueError(str(error)) from None
        return self

    def __call__(self, t: int) -> float:
        """Return α. Raises SimulationError if the function fails, or does not return a number ≥ 0.

        Some calls are repeated later, since the function must always return the same for the same t.
        """
        value, earlier = self._called(t), self._earlier
        number = next(earlier.calls)
        if number < 4 or number % 64 == 0:
            for before, found in earlier.values.items():
                if found != (again := self._called(before)):
                    what = f"gives {found} at t = {before}, and {again} the second time"
                    raise self._failed(f"{what}; let it depend on t and its own keys alone")
            if number < 4:
                earlier.values[t] = value
        return value

    def _called(self, t: int) -> float:
        try:
            with np.errstate(all="ignore"):
                given = self._function(t, **(self.model_extra or {}))
        except BaseException as error:  # sys.exit, too
            if is_interrupt(error):
                raise
            raise self._failed(f"failed at t = {t}: {described(error)}") from None
        value = math.nan
        with suppress(Exception):  # of None, of an array of several, or by a class of the user's
            value = float("nan" if isinstance(given, str | bytes) else given)
        if not 0 <= value < math.inf:
            raise self._failed(f"gives {said(given)} at t = {t}; a learning rate is a number ≥ 0")
        return value

    def _found(self) -> Callable[..., Any]:
        try:
            found: Callable[..., Any] = import_named(self.name, "package.module:function")
        except ConfigError as error:
            raise self._failed(f"cannot be had: {error}; {REMEDY}") from None
        return found

    def _failed(self, what: str) -> SimulationError:
        return SimulationError(f"the schedule {self.name} {what}")


REMEDY = "name a function of t and the other keys, as package.module:function"


SCHEDULES: dict[str, type[BaseModel]] = {**PLAIN, "warmup": Warmup}


def _kind(value: Any) -> str:
    if not isinstance(value, dict | BaseModel) and not (isinstance(value, str) and value in SCHEDULES):
        return "float"
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return "unknown"
    return "OwnSchedule" if ":" in name else SCHEDULES[name].__name__ if name in SCHEDULES else "unknown"


#: A learning rate: a positive number, or a schedule.
Rate = Annotated[
    _Plain | Annotated[Warmup, Tag("Warmup")] | Annotated[OwnSchedule, Tag("OwnSchedule")],
    _by_name(f"one of the schedules {', '.join(SCHEDULES)}, or module:function"),
]


def rate_at(rate: Any, t: Any) -> Any:
    """Return α at timestamp t, in float64: a float, or an array for an array of timestamps."""
    if type(t) is int or np.ndim(t) == 0:
        return float(rate(t)) if callable(rate) else float(rate)
    if not callable(rate):
        return np.full(np.shape(t), rate, np.float64)
    return np.array([rate(int(one)) for one in t], np.float64) if isinstance(rate, OwnSchedule) else rate(t)
