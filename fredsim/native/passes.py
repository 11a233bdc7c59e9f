"""The forward and backward passes of one minibatch after the other, in a module's own memory of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from fredsim.native.backward import python_called
from fredsim.native.building import as_array
from fredsim.native.checks import Unchanged, nothing_again
from fredsim.native.losses import Each
from fredsim.native.model import TorchModel
from fredsim.native.own_loss import OwnLoss
from fredsim.native.params import OwnParams, channels_last
from fredsim.native.settings import seed_by
from fredsim.native.statistics import norms_alone
from fredsim.numerics.ops.draws import Draws
from fredsim.plugins.generators import generator_states

__all__ = ["DRAWS_IN_EVALUATION", "DRAWS_LATE", "Minibatches", "Passes"]

Array = NDArray[np.float32]
Arrays = Sequence[NDArray[Any]]
Tensors = dict[str, torch.Tensor]

#: What a module must not do that drew nothing for its first minibatch.
DRAWS_LATE = (
    "draws random numbers for some minibatches alone, and none for the first one, so they are not seeded; let it draw "
    "for each minibatch in training, and then use or leave what it has drawn"
)
DRAWS_IN_EVALUATION = "draws random numbers in evaluation; let it draw in training alone"


class Minibatches:
    """Samples (n, *shape) and their targets, from which minibatches are taken."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.channels_last = False  # whether images are stored that way
        self.put(x, y)

    def put(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Take other samples in place of these."""
        self._given = x, y
        self.x, self.y = channels_last(x) if self.channels_last else x, y
        #: The images as rows, if they are stored that way.
        self._rows = self.x.permute(0, 2, 3, 1).reshape(len(x), -1) if self.channels_last else None

    def store(self, *, innermost: bool) -> None:
        """Store images with the channels innermost, or as they were given."""
        self.channels_last = innermost
        self.put(*self._given)

    def take(self, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of samples in the memory format in which they are computed, and their targets."""
        y = self.y.index_select(0, samples)
        if self._rows is None:
            return self.x.index_select(0, samples), y
        channels, height, width = self.x.shape[1:]
        strides = self._rows.shape[1], 1, width * channels, channels
        rows = self._rows.index_select(0, samples)
        return rows.as_strided((len(samples), channels, height, width), strides), y


class Passes:
    """Computes gradients at parameters that become the module's own."""

    def __init__(self, model: TorchModel, train: Minibatches, losses_of: Each, mu: int) -> None:
        self.model, self.module, self.mu, self._train, self._losses_of = model, model.module, mu, train, losses_of
        self.own = OwnParams(model)
        self.draws = False  # whether the module draws random numbers in training
        self.unchanged, self._places = Unchanged(self.module, model.frozen_values), _places(self.module)
        self.twins: list[Passes] = []
        self._forward = ExitStack()  # what ends with the next forward pass
        #: Of those with the module and its copies, the one that draws: all draw from the same generators.
        self._turn, self._takes_turns = Lock(), False
        #: The memory of running statistics, the module that has each, and its name there.
        self._running = [_buffer(self.module, name) for name in model.running]
        #: Whether outputs in training may depend on them, as of norms that are not PyTorch's.
        self._reads_running = any(not type(owner).__module__.startswith("torch.") for _, owner, _ in self._running)
        self._begin: Sequence[torch.Tensor] | None = None  # those that a gradient begins with
        self.statistics: Arrays = ()  # those after the last forward pass
        self._shares = torch.full((mu,), 1 / mu, device=model.device)  # of samples in the mean loss

    def add_twin(self) -> Passes:
        """Return passes with a copy of the module, which compute the same minibatches.

        Raises what copy.deepcopy raises if the module cannot be copied.
        """
        found = Passes(self.model.twin(), self._train, self._losses_of, self.mu)
        found.own.store(innermost=self._train.channels_last)
        found.draws, found._turn, found._takes_turns = self.draws, self._turn, True
        self.twins.append(found)
        return found

    def leave_twins(self) -> None:
        """Know those with copies of the module no longer."""
        for twin in self.twins:
            self.model.twins.remove(twin.model)
        self.twins = []

    def kept_bytes(self, params: Array, rows: NDArray[np.int64]) -> int:
        """Return how many bytes the forward pass of a minibatch keeps for its backward pass."""
        found: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.layout == torch.strided:
                found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            self.one(params, rows)
        return sum(found.values())

    def calls_python_back(self, params: Array, rows: NDArray[np.int64]) -> bool:
        """Return whether PyTorch calls Python code in the backward pass of a minibatch (see `python_called`)."""
        self.own.copy(params)
        x, y = self._train.take(torch.from_numpy(rows))
        plain = torch.zeros(1, requires_grad=True)
        return not python_called(self.losses(x, y).sum(), self.own.values) <= python_called(plain.sum(), [plain])

    def logits(self, tensors: Tensors, x: torch.Tensor) -> Any:
        """Return the module's outputs for samples, at these parameters by name, or at its own if there are none."""
        if not tensors:
            return self.called(lambda: self.module(x))
        # With its tie_weights, PyTorch would not put back the parameters of a module that is used under two names.
        placed = {place: tensors[name] for place, name in self._places.items() if name in tensors}
        return self.called(lambda: functional_call(self.module, placed, (x,), tie_weights=False))

    def called(self, call: Callable[[], Any]) -> Any:
        """Return what the module returns, computed in the model's precision; logits of that are float32, too."""
        if self.model.precision == "float32":
            return call()
        with torch.autocast(self.model.device.type, torch.bfloat16, cache_enabled=False):
            found = call()
        return found.float() if isinstance(found, torch.Tensor) and found.dtype == torch.bfloat16 else found

    @contextmanager
    def drawing(self, draws: Draws | None) -> Iterator[None]:
        """Let a module that draws draw the numbers of one gradient in a `with` block; None: none.

        The generators are not put back (see TorchEngine.under_settings). Those of the module and its copies that draw
        in the forward pass alone take turns: another one draws once a copy's forward pass ends.
        """
        if not self.draws:
            yield
        elif draws is None:
            norms_alone(self.module)
            try:
                yield
            finally:
                self.module.train()
        else:
            with ExitStack() as ending:
                if self._takes_turns:
                    ending.enter_context(self._turn)
                    self._forward = ending
                seed_by(draws)
                yield

    @contextmanager
    def following(self, statistics: Arrays | None) -> Iterator[None]:
        """Let a module's running statistics begin at these in a `with` block; None: it has none."""
        if statistics is None:
            yield
            return
        self._begin = [torch.from_numpy(array) for array in statistics]
        for room, owner, name in self._running:
            owner._buffers[name] = room  # the module may have assigned another one
        torch._foreach_copy_([room for room, _, _ in self._running], self._begin)
        try:
            yield
        finally:
            self._begin = None

    def _begin_again(self, begin: Sequence[torch.Tensor]) -> None:
        """Let running statistics be these, in new memory: autograd may need what the forward pass has read."""
        rooms = [room for room, _, _ in self._running]
        copies = {id(room): value.to(room.device, copy=True) for room, value in zip(rooms, begin, strict=True)}
        for room, owner, name in self._running:
            owner._buffers[name] = copies[id(room)]  # one that norms share is one copy

    def gradient(self, params: Array, rows: NDArray[np.int64]) -> Array:
        """Return the mean gradient (P,) of a minibatch; see `one`."""
        found = np.empty(self.model.layout.size, np.float32)
        self.write_one(found, params, rows)
        return found

    def write_one(self, to: Array, params: Array, rows: NDArray[np.int64], backward: Array | None = None) -> Array:
        """Write the mean gradient of a minibatch to an array (P,); return the samples' losses (µ,). See `one`."""
        losses, found = self.one(params, rows, backward)
        self.own.write(found, to)
        return np.asarray(losses.detach().cpu())

    def one(
        self, params: Array, rows: NDArray[np.int64], backward: Array | None = None, *, stored: bool = False
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return the samples' losses (µ,) of a minibatch, and its mean gradient: a tensor for each parameter.

        The module's own parameters become `params`, and `backward` before the backward pass, if that has other ones.
        `stored`: the elements of `params` have the order of the module's memory.
        """
        samples = torch.from_numpy(rows)
        x, y = self._train.take(samples if self.model.device.type == "cpu" else samples.to(self.model.device))
        if backward is None:
            self.own.become(params, stored=stored)
        else:
            self.own.copy(params)
        version = self.own.version if self.own.by_views else 0
        losses, found = self.of(x, y, None if backward is None else partial(self.own.copy, backward))
        if self.own.by_views and self.own.version != version:
            raise self.model.refused(
                "changes its parameters in place in some forward passes, but did not in the first ones; change copies"
            )
        return losses, found

    def apart(
        self, params: Array, rows: NDArray[np.int64], *, stored: bool = False
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return what `one` does, in memory that the next passes leave as it is: a gradient may be a parameter."""
        losses, found = self.one(params, rows, stored=stored)
        return self.own.copied(losses), [self.own.copied(gradient) for gradient in found]

    def of(
        self, x: torch.Tensor, y: torch.Tensor, between: Callable[[], None] | None = None
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return the losses (µ,) of a minibatch at the module's own parameters, and the gradients of their mean.

        `between` is called between the forward and the backward pass.
        """
        losses = self.losses(x, y)
        if between is None:
            return losses, self._mean_gradients(losses)
        between()
        with nothing_again(self.model.refused):
            return losses, self._mean_gradients(losses)

    @contextmanager
    def nothing_drawn(self, said: str) -> Iterator[None]:
        """Raise ConfigError, which says `said`, if the module or its loss draws random numbers in a `with` block.

        Nothing else is to be computed there: others may draw as they like.
        """
        before = generator_states()
        yield
        if before != generator_states():
            loss = self.model.loss
            raise self.model.refused(f"{said}; or loss: {loss.name} draws" if isinstance(loss, OwnLoss) else said)

    def losses(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the losses (µ,) of a minibatch at the module's own parameters."""
        found = self._losses_of(self.logits({}, x), y)
        self._forward.close()
        if self._begin is not None:
            self.statistics = [as_array(owner._buffers[name]) for _, owner, name in self._running]
            if self._reads_running:  # perhaps again, on the way back
                self._begin_again(self._begin)
        return found

    def _mean_gradients(self, losses: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the gradients of the mean of samples' losses (µ,)."""
        if losses.dtype == torch.float32:  # as of losses.mean(), without its two passes
            return self.own.gradients(losses, self._shares)
        return self.own.gradients(losses.mean())


def _buffer(module: Any, name: str) -> tuple[Any, Any, str]:
    """Return a buffer of a module, the one of its modules that has it, and the buffer's name there."""
    path, _, attribute = name.rpartition(".")
    owner = module.get_submodule(path)
    return owner._buffers[attribute], owner, attribute


def _places(module: Any) -> dict[str, str]:
    """Return, by each place in a module that holds a parameter, the first name of that parameter."""
    first: dict[int, str] = {}
    found: dict[tuple[int, str], tuple[str, str]] = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        owner, _, attribute = name.rpartition(".")
        place = id(module.get_submodule(owner)), attribute
        found.setdefault(place, (name, first.setdefault(id(value), name)))
    return dict(found.values())
