"""The interface of a network: what the program asks of it, whatever it consists of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fredsim.networks.layout import Layout
from fredsim.networks.own_loss import ArrayLoss
from fredsim.numerics.streams import Streams

if TYPE_CHECKING:  # operators, which are imported where a network is made
    from fredsim.networks.graph import Graph

__all__ = ["MeasuredBy", "Network", "Numerics"]

Numerics = Literal["portable", "native"]
MeasuredBy = Literal["error", "gap", "loss", "own"]


class Network(ABC):
    """A network. Its gradients are computed by an engine (fredsim.compute.engines).

    `portable` networks have a graph, and the same bits on every machine; `native` ones have none, and the arithmetic of
    the library that they are written in.
    """

    @property
    def layout(self) -> Layout:
        """The names and shapes of its parameters, in the order of the flat vector."""
        assert self.graph is not None  # else the network says it itself
        return self.graph.trained

    @property
    @abstractmethod
    def graph(self) -> Graph | None:
        """The operators that it consists of, and its loss; None if only a library of its own can compute it."""

    @abstractmethod
    def initial(self, streams: Streams) -> NDArray[np.float32]:
        """Return the initial parameters, float32 (P,)."""

    @property
    def values(self) -> NDArray[np.float32]:
        """The initial values of all tensors of the graph, also of those that are not trained, float32 (P,).

        Raises NotImplementedError if all are trained, and `initial` says it.
        """
        raise NotImplementedError

    @property
    def numerics(self) -> Numerics:
        """Whether its bits are those of the contract (docs/numerics.md), or those of a library on one machine."""
        return "native" if self.graph is None else "portable"

    @property
    def measured_by(self) -> MeasuredBy:
        """What tells how good its parameters are: the rate of wrong answers; f − f*; nothing but the loss; its own."""
        return "error" if self.graph is None else self.graph.loss.measured_by

    def statistics(self) -> list[NDArray[np.float32]]:
        """Return the running statistics that clients begin with, in the order of the graph's: means 0, variances 1."""
        graph = self.graph
        if graph is None or graph.running is None:
            return []
        means = {norm.mean for norm in graph.running.norms}
        return [np.full(shape, name not in means, np.float32) for name, shape in graph.statistics.tensors]

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of the files that it was made from, by name."""
        return {}

    @property
    def code(self) -> Mapping[str, str]:
        """The SHA-256 of the modules that a network read from a folder of results was made from; {} of others."""
        return {}

    @property
    def functions(self) -> Sequence[Callable[..., Any]]:
        """The user's functions that are called while it is trained."""
        loss = None if self.graph is None else self.graph.loss
        return [loss.called] if isinstance(loss, ArrayLoss) else []

    def kept(self) -> Mapping[str, Any]:
        """Return what it keeps from call to call besides its tensors, by name: what a user's module may have."""
        return {}

    @property
    def made(self) -> str:
        """The SHA-256 of what a user's factory and PyTorch have made of it; "" if the experiment says it all."""
        return ""

    def saved(self) -> dict[str, bytes]:
        """Return the contents, by name, of files for a run's folder, if its configuration alone does not say it all."""
        return {}

    def first_losses(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float32] | None:
        """Return the initial losses (n,) of samples x (n, …) with targets y (n, …), which are computed together.

        Nothing is drawn, and norms go by these samples. None if they cannot be computed so, or the network has a graph.
        """
        return None

    def remarks(self, x: NDArray[Any]) -> Iterator[str]:
        """Yield what about it was perhaps not meant; `x` (µ, …) are the samples of a minibatch."""
        yield from ()
