"""The key `problem`: a class of the user's own in place of data and model."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from fredsim.config.document import Problems
from fredsim.config.models import NetworkChoice
from fredsim.config.registry import argument_problems
from fredsim.config.sections import PluginChoice
from fredsim.data.datasets import Dataset
from fredsim.hyper import Printable
from fredsim.native.own_loss import AnyLoss
from fredsim.networks.own_problem import Declared, OwnProblem, declared, find_problem

__all__ = ["ProblemChoice"]


class ProblemChoice(NetworkChoice, PluginChoice):  # the last says that it may have keys of any name
    """A class of your own, package.module:Class; other keys are its keyword arguments."""

    measured_by = "own"
    user_code = True

    name: Annotated[Printable, Field(pattern=":", examples=["my_problem:Valley"])]
    """The class, or a function that returns an object with its methods, as package.module:Class."""

    @property
    def declared(self) -> Declared:
        """What the class says of itself. Raises ConfigError if there is no such class."""
        return declared(self.name, find_problem(self.name))

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> OwnProblem:
        """Return the problem. Raises ConfigError, SimulationError."""
        return OwnProblem(self.name, self.hyper, seed)

    def problems(self) -> Problems:
        """Import the class; return what is wrong with its arguments."""
        found = find_problem(self.name)
        declared(self.name, found)
        return argument_problems(found, self.hyper)

    def columns(self, seed: int) -> tuple[str, ...]:
        """Return the columns that it adds, and `validation_loss` and `validation_error` if it has them.

        An object is made, and evaluated once. Raises ConfigError, SimulationError.
        """
        return _asked(self.name, repr(sorted(self.hyper.items())), seed, _Choice(self))[0]

    def larger_is_better(self, seed: int) -> tuple[str, ...]:
        """Return those of the columns of which more is better; it is asked as `columns` is."""
        return _asked(self.name, repr(sorted(self.hyper.items())), seed, _Choice(self))[1]


class _Choice:
    """A choice that is no part of a cache's key: the texts beside it are."""

    def __init__(self, choice: ProblemChoice) -> None:
        self.choice = choice

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Choice)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=16)
def _asked(name: str, hyper: str, seed: int, of: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    del name, hyper
    found = OwnProblem(of.choice.name, of.choice.hyper, seed)
    return found.all_columns, tuple(found.larger_is_better)
