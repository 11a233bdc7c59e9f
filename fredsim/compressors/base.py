"""The contract of a compressor, and a base of those that compress each tensor separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fredsim.hyper import Configurable
from fredsim.networks.layout import Layout
from fredsim.numerics.arrays import Array
from fredsim.numerics.given_arrays import readable
from fredsim.numerics.operations import NumpyOperations, Operations
from fredsim.numerics.streams import Stream, Streams

__all__ = ["Compressor", "PerTensor", "Remembering"]


def _converted(method: Callable[..., tuple[Array, int]]) -> Callable[..., tuple[Array, int]]:
    """Return `compress` of a class of fredsim's, which a user's class may call with any array of P numbers."""

    @wraps(method)
    def compress(self: Compressor, push: Any, client: int, step: int) -> tuple[Array, int]:
        push = push if self._built_in else readable(push, self._layout.size, "push")
        return method(self, push, client, step)

    return compress


class Compressor(Configurable):
    """Compresses a push: returns what the server decodes, and the bytes sent. It may keep a memory for each client."""

    _converters = {"compress": _converted, "memoryless": _converted}  # noqa: RUF012

    idea: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    #: Whether each client keeps an array (P,) of what it has not sent.
    keeps_residual: ClassVar[bool] = False
    #: Whether it takes arrays of the backend, which may be on a device; any other compressor gets NumPy arrays.
    on_device: ClassVar[bool] = False
    #: The operations that it computes with; a run replaces these by its backend's.
    operations: Operations = NumpyOperations()

    def init(self, layout: Layout, streams: Streams) -> None:
        """Start with an empty memory; `layout` names the tensors of a push."""
        self._layout = layout
        self._streams = streams

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Return what the server decodes from a client's push (P,) at iteration `step`, a new array, and its bytes."""
        raise NotImplementedError

    def memoryless(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Return what `compress` would return with an empty memory, and leave the memory unchanged."""
        return self.compress(push, client, step)


class Remembering(Compressor):
    """Base of compressors that keep an array of each client from push to push.

    What is kept is of the pushes that arrive: one that is cancelled on its way leaves it as it was before.
    """

    keeps_residual = True
    #: Whether a push may be cancelled after it was compressed; set before the run.
    may_cancel: bool = False
    state_names = ("_residuals", "_before")

    def init(self, layout: Layout, streams: Streams) -> None:
        """Start with nothing kept of any client."""
        super().init(layout, streams)
        self._residuals: dict[int, Array] = {}
        self._before: dict[int, Array | None] = {}  # what was kept before the client's last push, if may_cancel

    def keep(self, client: int, array: Array) -> None:
        """Keep an array (P,) of a client, in the place of the one before."""
        if self.may_cancel:
            self._before[client] = self._residuals.get(client)
        self._residuals[client] = array

    def cancelled(self, client: int) -> None:
        """Take back what the client's last push changed, since it never arrives."""
        before = self._before.pop(client, None)
        self._residuals.pop(client, None)
        if before is not None:
            self._residuals[client] = before


class PerTensor(Compressor):
    """Base of compressors that compress each tensor separately."""

    #: Whether `compress_tensor` needs a random word for each element.
    needs_words = False

    def compress(self, push: Array, client: int, step: int) -> tuple[Array, int]:
        """Compress a push (P,), tensor by tensor; return what the server decodes, and the bytes."""
        out = np.empty_like(push)
        words = self._streams.run_of_words(Stream.COMPRESSION, push.size, step, client) if self.needs_words else None
        size = 0
        with np.errstate(all="ignore"):
            for at in self._layout.slices.values():
                out[at], count = self.compress_tensor(push[at], words[at] if words is not None else NO_WORDS)
                size += count
        return out, size

    def compress_tensor(self, g: Array, words: NDArray[np.uint32]) -> tuple[Array, int]:
        """Compress a flat tensor (n,); return what is decoded, and its bytes.

        `words` are random ones, (n,), or (0,) unless `needs_words`.
        """
        raise NotImplementedError


NO_WORDS = np.empty(0, np.uint32)
