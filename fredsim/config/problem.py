"""The key `problem`: a class of the user's own in place of data and model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fredsim.config.document import Problems
from fredsim.config.models import NetworkChoice
from fredsim.config.registry import argument_problems
from fredsim.config.sections import PluginChoice
from fredsim.data.datasets import Dataset
from fredsim.hyper import Printable
from fredsim.native.own_loss import AnyLoss

if TYPE_CHECKING:  # NumPy's generators, which few experiments need
    from fredsim.networks.own_problem import Declared, OwnProblem

__all__ = ["ProblemChoice"]


KEPT = 16  # problems

#: What was asked, by class, name, arguments and seed; a notebook may define another class of the same name. Each keeps
#: its class alive, so that the id stays its own.
_known: dict[tuple[int, str, str, int], tuple[Any, tuple[tuple[str, ...], tuple[str, ...]]]] = {}


class ProblemChoice(NetworkChoice, PluginChoice):  # the last says that it may have keys of any name
    """A class of your own, package.module:Class; other keys are its keyword arguments."""

    measured_by = "own"
    user_code = True

    name: Annotated[Printable, Field(pattern=":", examples=["my_problem:Valley"])]
    """The class, or a function that returns an object with its methods, as package.module:Class."""

    @property
    def declared(self) -> Declared:
        """What the class says of itself. Raises ConfigError if there is no such class."""
        from fredsim.networks.own_problem import declared, find_problem

        return declared(self.name, find_problem(self.name))

    def network(self, dataset: Dataset, seed: int, loss: AnyLoss | None = None) -> OwnProblem:
        """Return the problem. Raises ConfigError, SimulationError."""
        from fredsim.networks.own_problem import OwnProblem

        return OwnProblem(self.name, self.hyper, seed)

    def problems(self) -> Problems:
        """Import the class; return what is wrong with its arguments."""
        from fredsim.networks.own_problem import declared, find_problem

        found = find_problem(self.name)
        declared(self.name, found)
        return argument_problems(found, self.hyper)

    def columns(self, seed: int) -> tuple[str, ...]:
        """Return the columns that it adds, and `validation_loss` and `validation_error` if it has them.

        An object is made, and evaluated once. Raises ConfigError, SimulationError.
        """
        return self._asked(seed)[0]

    def larger_is_better(self, seed: int) -> tuple[str, ...]:
        """Return those of the columns of which more is better; it is asked as `columns` is."""
        return self._asked(seed)[1]

    def _asked(self, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        from fredsim.networks.own_problem import OwnProblem, find_problem

        cls = find_problem(self.name)
        key = id(cls), self.name, repr(sorted(self.hyper.items())), seed
        if key not in _known:
            found = OwnProblem(self.name, self.hyper, seed)
            if len(_known) >= KEPT:
                _known.pop(next(iter(_known)))
            _known[key] = cls, (found.all_columns, tuple(found.larger_is_better))
        return _known[key][1]
