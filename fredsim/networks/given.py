"""Networks whose initial parameters are given: captured ones, and any network that starts from a file of weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.networks.graph import Graph
from fredsim.networks.network import Network
from fredsim.numerics.arrays import Array
from fredsim.numerics.streams import Streams
from fredsim.system.files import content_digest, read_bytes
from fredsim.system.tensor_files import parse_tensors

__all__ = ["GivenNetwork", "Weights", "frozen_names", "given_network", "listed", "read_weights"]

MOST_NAMES = 3  # that a message lists


class GivenNetwork(Network):
    """A graph and the initial values of all of its tensors, float32 (P,), of which those in graph.frozen stay.

    `files` has the SHA-256 of the files that these come from, by name.
    """

    def __init__(self, graph: Graph, initial: Array, files: Mapping[str, str] | None = None) -> None:
        self._graph, self._initial, self._files = graph, initial, dict(files or {})

    @property
    def graph(self) -> Graph:
        """The graph."""
        return self._graph

    @property
    def values(self) -> Array:
        """The initial values of all tensors."""
        return self._initial

    @property
    def files(self) -> Mapping[str, str]:
        """The SHA-256 of the files that the initial values come from, by name."""
        return self._files

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters of the tensors that are trained, float32 (P,)."""
        return self._graph.part_of(self._initial)


def given_network(network: Network, seed: int, initial: str | None, trainable: str | Sequence[str] | None) -> Network:
    """Return a network with a graph that starts from the weights of a file, or of which only some tensors are trained.

    `initial` is the file's path, None for the network's own initial parameters; `trainable` as in `frozen_names`.
    Raises ConfigError.
    """
    if initial is None and trainable is None:
        return network
    assert network.graph is not None
    graph, values, files = network.graph, network.initial(Streams(seed)), dict[str, str]()
    if initial is not None:
        weights = read_weights(initial)
        weights.put(graph.layout.split(values))
        files = dict(weights.files)
    frozen = frozen_names([name for name, _ in graph.layout.tensors], trainable)
    return GivenNetwork(replace(graph, frozen=frozen), values, files)


class Weights:
    """Tensors of a file, by name; `files` has its SHA-256."""

    def __init__(self, path: str, tensors: Mapping[str, NDArray[np.generic]], files: Mapping[str, str]) -> None:
        self.path, self.tensors, self.files = path, tensors, files

    def put(self, views: Mapping[str, Array], others: Mapping[str, NDArray[np.generic]] | None = None) -> None:
        """Write the tensors into views of a network's own, all of which they must be.

        `others` are further ones of a module, such as buffers and second names, which a file may have. Raises
        ConfigError, which names the first tensor that is missing, that the network lacks, or that has another shape or
        type.
        """
        known = {**(others or {}), **views}
        factory = "; let the factory load a file of which it uses a part" if others is not None else ""
        if missing := [name for name in views if name not in self.tensors]:
            what = f"lacks {listed(missing)}; a file of weights has all of the network's tensors"
            raise self._refused(f"{what}{factory}")
        if odd := [name for name in self.tensors if name not in known]:
            raise self._refused(f"has {listed(odd)}, which the network lacks; it has {listed(list(views))}{factory}")
        for name, given in self.tensors.items():
            own = known[name]
            if given.shape != own.shape or given.dtype != own.dtype:
                wanted = f"in the network it is {own.dtype} {own.shape}"
                raise self._refused(f"has {name!r} as {given.dtype} {given.shape}; {wanted}")
            if given.dtype.kind == "f" and not np.isfinite(given).all():
                raise self._refused(f"has numbers in {name!r} that are not finite")
            own[...] = given

    def _refused(self, what: str) -> ConfigError:
        return ConfigError(f"model.initial: {self.path} {what}")


def read_weights(path: str) -> Weights:
    """Return the tensors of a file in the safetensors format. Raises ConfigError if it cannot be read."""
    try:
        tensors, digest = parse_tensors(read_bytes(path, follow=True)), content_digest(path)
    except OSError as error:
        raise ConfigError(
            f"model.initial: {path} cannot be read ({error.strerror or error}); give a file of weights, .safetensors"
        ) from None
    except ValueError as error:
        raise ConfigError(f"model.initial: {path}: {error}; give a file of float32 weights, .safetensors") from None
    below = os.path.relpath(path) if os.path.abspath(path).startswith(os.path.join(os.getcwd(), "")) else path
    name = os.path.basename(path) if below == path and os.path.isabs(path) else below
    return Weights(path, tensors, {name.replace(os.sep, "/"): str(digest)})


def frozen_names(names: Iterable[str], trainable: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return which tensors are not trained: those whose name no pattern of `trainable` fits; () for None.

    Raises ConfigError for a pattern that fits no name.
    """
    if trainable is None:
        return ()
    names, patterns = list(names), [trainable] if isinstance(trainable, str) else list(trainable)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(f"model.trainable: {pattern!r} fits no tensor of the network; it has {listed(names)}")
    return tuple(name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns))


def listed(names: Sequence[str]) -> str:
    """Return a few names, and how many more there are."""
    shown = ", ".join(map(repr, names[:MOST_NAMES]))
    return f"{shown} and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else shown
