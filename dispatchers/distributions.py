"""The distributions from which an experiment may draw times, by name; fredsim.numerics.distributions draws them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import Discriminator, Field, Tag

from fredsim.hyper import HyperParameters, Positive
from fredsim.numerics.arrays import Integers
from fredsim.numerics.distributions import Distribution

__all__ = ["KNOWN", "Distributions", "Drawn", "Noise", "Random", "Times", "one_of"]


class Random(HyperParameters):
    """Base of the distributions of a random variable X with a given mean."""

    mean: Positive = 1.0
    """The mean of X: in seconds if X is a time; 1 for a factor."""
    add: bool = False
    """For a task's noise only: true adds X, in seconds, to the client's own time; false multiplies that time by X."""

    def unit(self) -> Distribution:
        """Return the distribution that X is drawn from, before it is scaled."""
        raise NotImplementedError

    def scale(self, clients: Integers) -> Any:
        """Return the factors by which draws of `unit` are multiplied for these clients."""
        return self.mean


class Gamma(Random):
    """Gamma of shape 1/cv²."""

    name: Literal["gamma"]
    cv: Annotated[float, Field(ge=1e-3, le=10)]
    """The coefficient of variation, the standard deviation divided by the mean."""

    def unit(self) -> Distribution:
        """Return the gamma distribution of mean 1."""
        return Distribution("gamma", (1.0 / (self.cv * self.cv), self.cv * self.cv))


class Exponential(Random):
    """Exponential."""

    name: Literal["exponential"]

    def unit(self) -> Distribution:
        """Return the exponential distribution."""
        return Distribution("exponential")


class ShiftedExponential(Random):
    """A constant plus an exponential."""

    name: Literal["shifted_exponential"]
    shift: Annotated[float, Field(ge=0, lt=1)]
    """The share of the mean that is constant."""

    def unit(self) -> Distribution:
        """Return s + (1 − s)·E."""
        return Distribution("shifted_exponential", (self.shift,))


class Lognormal(Random):
    """Lognormal."""

    name: Literal["lognormal"]
    sigma: Annotated[float, Field(gt=0, le=10)]
    """The standard deviation of the logarithm."""

    def unit(self) -> Distribution:
        """Return the lognormal distribution of mean 1."""
        return Distribution("lognormal", (self.sigma,))


class Pareto(Random):
    """Pareto, whose tail falls as x^−α."""

    name: Literal["pareto"]
    alpha: Annotated[float, Field(gt=1, le=1000)]
    """The exponent of the tail; above 1, so that there is a mean."""

    def unit(self) -> Distribution:
        """Return the Pareto distribution of mean 1."""
        return Distribution("pareto", (self.alpha,))


class Uniform(Random):
    """Uniform on (1 ± spread) times the mean."""

    name: Literal["uniform"]
    spread: Annotated[float, Field(gt=0, le=1)]
    """How far a draw may be from the mean, as a share of it."""

    def unit(self) -> Distribution:
        """Return the uniform distribution around 1."""
        low, high = 1.0 - self.spread, 1.0 + self.spread
        return Distribution("uniform", (low, max(high, math.nextafter(low, 2.0))))  # a tiny spread is lost beside 1


class HalfNormal(HyperParameters):
    """The absolute value of a normal draw of this standard deviation."""

    name: Literal["half_normal"]
    sd: Positive | Literal["sqrt"] = 1.0
    """The standard deviation; `sqrt`: √(i + 1) for client i."""
    add: bool = False
    """For a task's noise only: true adds X, in seconds, to the client's own time; false multiplies that time by X."""

    def unit(self) -> Distribution:
        """Return |N(0, 1)|."""
        return Distribution("half_normal")

    def scale(self, clients: Integers) -> Any:
        """Return the standard deviations."""
        return np.sqrt(clients + 1.0) if self.sd == "sqrt" else self.sd


class Bernoulli(HyperParameters):
    """1, or with probability p another factor."""

    name: Literal["bernoulli"]
    p: Annotated[float, Field(ge=0, le=1)]
    """The probability of the factor."""
    factor: Annotated[float, Field(gt=0)]
    """The value of X with probability p; infinite (.inf): the task never ends."""
    add: bool = False
    """For a task's noise only: true adds X, in seconds, to the client's own time; false multiplies that time by X."""

    def unit(self) -> Distribution:
        """Return 1 or `factor`."""
        return Distribution("bernoulli", (self.p, self.factor))

    def scale(self, clients: Integers) -> Any:
        """Return 1."""
        return 1.0


Distributions = Gamma | Exponential | ShiftedExponential | Lognormal | Pareto | Uniform | HalfNormal | Bernoulli
KNOWN = ", ".join(get_args(kind.model_fields["name"].annotation)[0] for kind in get_args(Distributions))


def tag_of(value: Any) -> str:
    """Return the tag that tells pydantic which class of a union a value is for: its `name`, spelled as a class's."""
    if isinstance(value, list):
        return "List"
    if isinstance(value, float | int):
        return "Number"
    name = value.get("name", "") if isinstance(value, dict) else getattr(value, "name", value == "none" and value)
    return str(name).title().replace("_", "")


def one_of(known: str) -> Discriminator:
    """Return the discriminator that chooses a class by `tag_of`; its error names what is known."""
    return Discriminator(tag_of, custom_error_type="unknown", custom_error_message=f"must be {known}")


Drawn = (
    Annotated[Gamma, Tag("Gamma")]
    | Annotated[Exponential, Tag("Exponential")]
    | Annotated[ShiftedExponential, Tag("ShiftedExponential")]
    | Annotated[Lognormal, Tag("Lognormal")]
    | Annotated[Pareto, Tag("Pareto")]
    | Annotated[Uniform, Tag("Uniform")]
    | Annotated[HalfNormal, Tag("HalfNormal")]
    | Annotated[Bernoulli, Tag("Bernoulli")]
)
Times = Annotated[Annotated[Positive, Tag("Number")] | Drawn, one_of(f"seconds, or {{name: …}} of {KNOWN}")]
Noise = Annotated[Annotated[Literal["none"], Tag("None")] | Drawn, one_of(f"none, or {{name: …}} of {KNOWN}")]
