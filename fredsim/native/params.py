"""A module's own parameters, which become what one client after the other holds, and their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.native.backward import usual_way
from fredsim.native.model import TorchModel
from fredsim.numerics.arrays import LINE

__all__ = ["OwnParams", "channels_last"]

Array = NDArray[np.float32]
Tensors = list[torch.Tensor]

#: The fewest elements of all parameters for which views of the larger ones take less time than copies: copies of fewer
#: are still in the cache when they are used, while what a client holds comes from farther away.
MANY = 1_500_000
#: The fewest elements of a parameter that may be a view.
LARGE = 4096
#: How many views of arrays are kept at most.
MOST_VIEWS = 8192


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return images or filters with their channels innermost in memory; others as they are."""
    if tensor.dim() != 4:
        return tensor
    room = torch.empty_like(tensor, memory_format=torch.channels_last)  # `contiguous` keeps strides of one channel
    return tensor if room.stride() == tensor.stride() else room.copy_(tensor)


class OwnParams:
    """The parameters of a module that are trained.

    They are copies in PyTorch's own memory. If `by_views`, large ones are views of the given array instead: with many
    of them, that takes less time. Libraries may choose their loops by a tensor's alignment, so the engine tries whether
    the bits are the same. Several engines may take turns with one module: each sets its parameters anew after another.
    """

    def __init__(self, model: TorchModel) -> None:
        named = dict(model.module.named_parameters())
        names = [name for name in named if name not in model.frozen]
        self.values = [named[name] for name in names]
        self.forget_gradients()  # which a user's factory may have left
        self._model, self._layout, self._device = model, model.layout, model.device
        self._way = usual_way(model.device)
        #: The memory in which they were made, not what another engine lets them view.
        self._first = self._rooms = [model.own_memory[name] for name in names]
        #: By an array's id, and whether it is in the order of the rooms: the array, and its parts.
        self._views: dict[tuple[int, bool], tuple[weakref.ref[Any], Tensors]] = {}
        self._large: list[int] = []  # which parameters may be views: those whose elements have the flat vector's order
        self._small: list[int] = []
        self.by_views, self._away = False, False
        self.store(innermost=False)

    def store(self, *, innermost: bool) -> None:
        """Store filters with their channels innermost, or as the module has made them."""
        self._rooms = [channels_last(room) if innermost else room for room in self._first]
        self._addresses = {room.untyped_storage().data_ptr() for room in self._rooms}
        self._away = True
        self.leave()
        many = self._layout.size >= MANY
        large = [
            many and room.numel() >= LARGE and room.is_contiguous() and room is first
            for room, first in zip(self._rooms, self._first, strict=True)
        ]
        self._large = [i for i, one in enumerate(large) if one]
        self._small = [i for i, one in enumerate(large) if not one]

    @property
    def formats(self) -> list[torch.memory_format]:
        """The memory format of each of them."""
        pairs = zip(self._rooms, self._first, strict=True)
        return [torch.contiguous_format if room is first else torch.channels_last for room, first in pairs]

    @property
    def may_view(self) -> bool:
        """Whether some of them are so large that they may be views."""
        return bool(self._large)

    def become(self, params: Array, *, stored: bool = False) -> None:
        """Let them have these values, (P,), which must stay until their gradients are computed.

        `stored`: the elements have the order that they have in the module's memory, not that of the flat vector.
        """
        if not self.by_views or not isinstance(params, np.ndarray) or params.ctypes.data % LINE:
            self.copy(params, stored=stored)
            return
        if self._model.set_by is not self:
            self.leave()
        parts = self._parts(params, stored=stored)
        for i in self._large:
            self.values[i].data = parts[i]
        if self._small:
            torch._foreach_copy_([self._rooms[i] for i in self._small], [parts[i] for i in self._small])
        self._away = True

    def copy(self, params: Array, *, stored: bool = False) -> None:
        """Let them have these values, (P,), in memory of their own, also between a forward and a backward pass."""
        self.leave()
        params, host = np.asarray(params), self._device.type == "cpu"  # they may be an array of another backend's
        parts = self._parts(params, stored=stored) if host else self.split(torch.from_numpy(params).to(self._device))
        # Not the parameters themselves: autograd would refuse weights that have changed since the forward pass.
        torch._foreach_copy_(self._rooms, parts)

    def fill(self, flat: torch.Tensor) -> None:
        """Write values, a tensor (P,), to all memory of their own, also to that in which the module has made them."""
        self.leave()
        for rooms in (self._rooms, self._first):
            torch._foreach_copy_(rooms, self.split(flat))

    def use(self, rooms: Tensors) -> None:
        """Let them be these tensors, of their own shapes."""
        for value, room in zip(self.values, rooms, strict=True):
            value.data = room
        self._away, self._model.set_by = True, self

    def forget_gradients(self) -> None:
        """Let them have no `grad`, to which a backward pass would add."""
        for value in self.values:
            value.grad = None

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor that is in memory of theirs; others as they are."""
        return tensor.clone() if tensor.untyped_storage().data_ptr() in self._addresses else tensor

    def split(self, flat: torch.Tensor) -> Tensors:
        """Return views of a flat tensor (P,), one for each parameter."""
        parts = zip(torch.split(flat, self._layout.sizes), self._layout.tensors, strict=True)
        return [part.view(shape) for part, (_, shape) in parts]

    def leave(self) -> None:
        """View no array any longer, nor what another engine has set."""
        if self._away or self._model.set_by is not self:
            for value, room in zip(self.values, self._rooms, strict=True):
                value.data = room
            self._away, self._model.set_by = False, self

    @property
    def version(self) -> int:
        """A number that grows when a module changes its parameters in place."""
        return sum(value._version for value in self.values)

    def gradients(self, of: torch.Tensor, weights: torch.Tensor | None = None) -> Sequence[torch.Tensor]:
        """Return the gradients of a number, or of the sum of a vector's elements times `weights`."""
        return self._way(of, self.values, weights)

    def write(
        self, gradients: Sequence[torch.Tensor], to: Array, numbers: Sequence[int] | None = None, *,
        stored: bool = False,
    ) -> None:  # fmt: skip
        """Write gradients, of all parameters or of those with these numbers, to their places in an array (P,)."""
        parts = self._parts(to, stored=stored)
        torch._foreach_copy_(parts if numbers is None else [parts[i] for i in numbers], gradients)

    def reorder(self, source: Array, target: Array, *, stored: bool) -> None:
        """Copy an array (P,) to another one, which is in the order of the module's memory if `stored`, else flat."""
        torch._foreach_copy_(self._parts(target, stored=stored), self._parts(source, stored=not stored))

    def _parts(self, flat: Array, *, stored: bool = False) -> Tensors:
        """Return views of an array (P,), one for each parameter, which are kept for as long as there is the array."""
        key = id(flat), stored
        if key in self._views:
            return self._views[key][1]
        itself = flat.view()
        parts = self.split(torch.from_numpy(itself))
        if stored:
            rooms = zip(parts, self._rooms, self.formats, strict=True)
            parts = [
                part if kind == torch.contiguous_format else part.view(-1).as_strided(room.shape, room.stride())
                for part, room, kind in rooms
            ]
        if itself.base is not flat:  # else they would keep the array, and so themselves
            if len(self._views) * len(self.values) >= MOST_VIEWS:
                self._views.clear()
            self._views[key] = weakref.ref(flat, lambda _: self._views.pop(key, None)), parts
        return parts
