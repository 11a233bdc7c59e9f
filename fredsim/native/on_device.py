"""The engine of PyTorch modules with the backend `cuda`: gradients are computed on the device, and stay there.

PyTorch and fredsim's own kernels use one context and one stream, so what either of them queues is done in order. What
clients hold is memory of fredsim's; of a window, it is copied to tensors of PyTorch's that stay where they are. From
these a CUDA graph computes the gradients of all its minibatches, side by side, and the server's rule reads them there.

On an emulated device all is the same, with PyTorch's tensors on the processor, but for the graphs.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fredsim.compute.engines import BackendOperations, Engine, QueueExecutor
from fredsim.compute.storage import Pool
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError
from fredsim.native.engine import FIRST, OWN_STATISTICS, TorchEngine
from fredsim.native.model import TorchModel
from fredsim.native.params import OwnParams
from fredsim.networks.network import Network
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.numerics.rules import Rule
from fredsim.plugins.failures import is_interrupt, message_of
from fredsim.plugins.generators import generator_states
from fredsim.plugins.state.fingerprints import fingerprint
from fredsim.system import notices
from fredsim.system.memory import uncollected

__all__ = ["DeviceOperations", "DeviceTorchEngine", "make_engine"]

Array = NDArray[np.float32]
Integers = NDArray[np.int64]

#: The most minibatches of a graph, and the most bytes that their values and errors take together, beyond the first.
MOST_LANES, MOST_BYTES = 8, 2**30
#: Gradients are a multiple of this many floats apart: a cache line of a device.
APART = 32
#: How far gradients of a graph may be from those without it, relative to the largest element: beyond rounding.
TOLERANCE = 1e-3


class DeviceOperations(BackendOperations, Protocol):
    """The operations of the backend `cuda`: fredsim.cuda.operations.CudaOperations."""

    @property
    def where(self) -> tuple[str, bool]:
        """The device's name, and whether it is emulated in this process's memory."""
        ...

    def empty(self, size: int) -> Any:
        """Return an array, float32 (size,), on the device, which has an `address`."""
        ...

    def array_of(self, array: Any) -> Any:
        """Return an array on the device; one on the host is copied there."""
        ...

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy `size` bytes from one address to another, in order with what is queued."""
        ...


MakeExecutor = Callable[["DeviceTorchEngine", Rule, Any, Sequence[Any], int], QueueExecutor]


def make_engine(
    network: Network,
    dataset: Dataset,
    mu: int,
    threads: int | None,
    operations: DeviceOperations,
    make_executor: MakeExecutor,
) -> Engine:
    """Return the engine of a network without a graph; where PyTorch cannot compute it on the device, the processor's.

    A note says why, then.
    """
    assert isinstance(network, TorchModel)
    emulated, asked = operations.where[1], network.device.type
    why = "this PyTorch finds no CUDA device; install a build of it for CUDA"
    if emulated or torch.cuda.is_available():
        try:
            network.move("cpu" if emulated else "cuda")
            return DeviceTorchEngine(network, dataset, mu, threads, operations, make_executor)
        except ConfigError as error:
            if asked == "cuda":
                raise
            why = str(error)
            network.move("cpu")
    engine = TorchEngine(network, dataset, mu, threads, operations)
    notices.note(f"the gradients of model.name: {network.name} are computed on the processor: {why}")
    return engine


class Lane:
    """Where the gradient of one minibatch of those in a window is computed; the addresses never change."""

    def __init__(self, own: OwnParams, grad: torch.Tensor, rows: torch.Tensor, losses: torch.Tensor) -> None:
        """Take the places for the gradient (P,), the samples' numbers, int64 (µ,), and their losses (µ,)."""
        self.grad, self.rows, self.losses = grad, rows, losses
        self.held = torch.empty_like(grad)
        self.parts, self.grads = own.split(self.held), own.split(grad)
        #: The module's parameters, which have the alignment of PyTorch's own tensors.
        self.params = [torch.empty(part.shape, device=part.device) for part in self.parts]


class DeviceTorchEngine(TorchEngine):
    """Computes gradients and evaluates with PyTorch on a device, where what clients hold and the server's state are."""

    def __init__(
        self,
        model: TorchModel,
        dataset: Dataset,
        mu: int,
        threads: int | None,
        operations: DeviceOperations,
        make_executor: MakeExecutor,
    ) -> None:
        """Try the module, and capture its CUDA graphs; see TorchEngine."""
        self._here, self._make_executor = operations, make_executor
        name, self._emulated = operations.where
        self._graphs: list[Any] = []  # of 1, 2, … minibatches
        self._why_no_graph = "the device is emulated" if self._emulated else ""
        self._prepared = False
        self._resident: dict[int, tuple[Split, torch.Tensor, torch.Tensor]] = {}  # by a split's id
        super().__init__(model, dataset, mu, threads, operations)
        self.device_name, self.seconds = name, float("nan")
        self.two_vectors = False
        self.queues = self.statistics is None
        self.why_whole = OWN_STATISTICS if self.statistics else ""
        self._prepare()

    def _make_room(self) -> None:
        """Allocate one lane."""
        self.stride = -(-self._model.layout.size // APART) * APART
        self._make_lanes(1)
        self._kept_attributes = self._attributes()

    def _make_lanes(self, count: int) -> None:
        """Allocate so many lanes anew, whose gradients, samples and losses lie one behind the other."""
        size = self._model.layout.size
        self._grads_of_lanes = torch.zeros(count, self.stride, device=self._device)
        self._rows = torch.zeros(count, self._mu, dtype=torch.int64, device=self._device)
        self._losses = torch.zeros(count, self._mu, device=self._device)
        self.grads = self._grads_of_lanes.data_ptr()
        each = zip(self._grads_of_lanes, self._rows, self._losses, strict=True)
        self._lanes = [Lane(self._own, grad[:size], rows, losses) for grad, rows, losses in each]

    def _attributes(self) -> dict[str, str]:
        return {name: fingerprint(value) for name, value in self._model.kept().items()}

    # Which is computed at once

    def fix_window(self, wanted: int | None, clients: int, nbytes: int = 0) -> int:
        """Return how many minibatches are computed at once, which changes no bit here."""
        self.width = min(wanted or MOST_LANES, clients, len(self._lanes))
        return self.width

    def facts(self) -> dict[str, Any]:
        """Return the entries of summary.json that say what the bits depend on besides experiment, device, versions."""
        how = "one client after the other"
        if self._graphs:
            most = min(self.width, len(self._graphs))
            how = f"{how}, by a CUDA graph" if most == 1 else f"up to {most} clients at once, by CUDA graphs"
        else:
            how += f", without a CUDA graph: {self._why_no_graph}"
        return super().facts() | {"vmap": how}

    # Gradients

    def gradients(self, held: Sequence[Any], rows: Integers, keys: Keys | None = None) -> tuple[Any, Array]:
        """Compute the gradients of several minibatches at once; they stay on the device. See Engine."""
        count, size = len(rows), 4 * self._model.layout.size
        arrays = [self._here.array_of(params) for params in held]
        grads = [self._here.empty(size // 4) for _ in range(count)]
        losses = np.empty(rows.shape, np.float32)
        addresses = np.array([array.address for array in arrays], np.int64)
        given = torch.from_numpy(np.ascontiguousarray(rows, np.int64)).to(self._device)
        found = torch.empty(rows.shape, dtype=torch.float32, device=self._device)
        with self.computing():
            for begin in range(0, count, len(self._lanes)):
                some = slice(begin, min(begin + len(self._lanes), count))
                at = begin * self._mu
                self.compute(
                    addresses[some], given.data_ptr() + 8 * at, found.data_ptr() + 4 * at, keys and keys.part(some)
                )
                for lane, grad in zip(self._lanes, grads[some], strict=False):
                    self._here.copy(lane.grad.data_ptr(), grad.address, size)
            losses[...] = found.cpu().numpy()
        return grads, losses

    def queue_executor(self, rule: Rule, params: Any, arrays: Sequence[Any], places: int, pool: Pool) -> QueueExecutor:
        """Return an executor that applies the rule in place to the server's arrays; see Engine."""
        del pool  # a window's parameters are read by their addresses
        return self._make_executor(self, rule, params, arrays, places)

    def compute(self, held: Integers, rows: int, losses: int, keys: Keys | None) -> None:
        """Queue the gradients of a window of B minibatches, as many as there are lanes at most.

        `held` are the addresses of parameters (B,), `rows` that of samples, int64 (B, µ), and `losses` that of where
        the losses go, float32 (B, µ).
        """
        count, size, copy = len(held), 4 * self._model.layout.size, self._here.copy
        if not self._prepared:
            self._prepare()
        lanes = self._lanes[:count]
        for lane, source in zip(lanes, held.tolist(), strict=True):
            copy(source, lane.held.data_ptr(), size)
        copy(rows, self._rows.data_ptr(), 8 * self._mu * count)
        if self._graphs and not self.draws:
            self._graphs[count - 1].replay()
        else:
            for b, lane in enumerate(lanes):
                with self.beginning(self._passes, keys, b):
                    if self._graphs and keys is not None:  # there is one lane, since a graph has one generator
                        self._graphs[0].replay()
                    else:
                        self._pass(lane)
                self.computed(keys, b, self._passes.statistics)
        copy(self._losses.data_ptr(), losses, 4 * self._mu * count)

    def _give(self, lane: Lane, params: Any, rows: Integers) -> None:
        """Let a lane have parameters and samples."""
        lane.held.copy_(self._flat([params])[0])
        lane.rows.copy_(torch.from_numpy(np.ascontiguousarray(rows, np.int64)))

    def _pass(self, lane: Lane) -> None:
        """Queue the gradient of a lane."""
        torch._foreach_copy_(lane.params, lane.parts)
        self._own.use(lane.params)
        losses, found = self._passes.of(*self._train.take(lane.rows))
        torch._foreach_copy_(lane.grads, found)
        lane.losses.copy_(losses.detach())

    # CUDA graphs

    def _prepare(self) -> None:
        """Add lanes, as many as pay, and capture a graph for each number of minibatches, if that can be done."""
        self._graphs, self._prepared = [], True
        if self._emulated:
            self._make_lanes(self._count_lanes(0))
            return
        self._why_no_graph = self._obstacle()
        if self._why_no_graph:
            return
        gc.collect()
        with self.computing(), uncollected():  # else memory of the device would be freed while a graph is captured
            torch.cuda.synchronize()
            stream = torch.cuda.current_stream()  # PyTorch stays on another one where capturing fails
            try:
                self._make_lanes(self._count_lanes(self._bytes_of_values()))
                with self.drawing(FIRST):
                    self._capture()
                self._why_no_graph = self._check_graphs()
            except BaseException as error:  # of any type: the module is the user's
                if is_interrupt(error):
                    raise
                self._why_no_graph = f"capturing fails ({message_of(error).partition(chr(10))[0][:120]})"
            finally:
                torch.cuda.set_stream(stream)
            if self._why_no_graph:
                self._graphs = []
            torch.cuda.synchronize()

    def _obstacle(self) -> str:
        """Return why no graph is captured, as far as that is known before; "" if it is not."""
        if self.statistics is not None:
            return OWN_STATISTICS
        if self._attributes() != self._kept_attributes:
            return "it changes attributes of its own"
        if self.draws and self._draws_on_host():
            return "it draws random numbers on the host"
        return self._waits()

    def _draws_on_host(self) -> bool:
        """Return whether other random numbers than those of the device matter to a gradient."""
        with self.computing(), self.drawing(FIRST):
            self._give(self._lanes[0], self._model.initial_params, np.arange(self._mu))
            before = generator_states()
            self._pass(self._lanes[0])
            after = generator_states()
        return any(after[name] != state for name, state in before.items() if not name.startswith("cuda"))

    def _waits(self) -> str:
        """Return whether a gradient waits for the device, as values that decide on what is computed do."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that this way to find out is new
            try:
                with self.computing(), self.drawing(FIRST):
                    self._give(self._lanes[0], self._model.initial_params, np.arange(self._mu))
                    torch.cuda.set_sync_debug_mode("error")
                    try:
                        self._pass(self._lanes[0])
                    finally:
                        torch.cuda.set_sync_debug_mode(mode)
            except BaseException as error:  # of any type: the module is the user's
                if is_interrupt(error):
                    raise
                return "it waits for values of the device, such as by .item()"
        return ""

    def _bytes_of_values(self) -> int:
        """Return the most bytes that the values and errors of a minibatch take."""
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with self.drawing(FIRST):
            self._pass(self._lanes[0])
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)

    def _count_lanes(self, values: int) -> int:
        """Return how many minibatches are computed side by side, of which each has values of so many bytes."""
        if self.draws:  # a graph has one generator
            return 1
        each = values + 3 * 4 * self.stride  # with parameters, twice, and gradients
        return max(1, min(MOST_LANES, MOST_BYTES // each))

    def _capture(self) -> None:
        """Capture the graphs of 1, 2, … minibatches; those of one graph are side by side."""
        streams = [torch.cuda.Stream() for _ in self._lanes]
        self._give_all()
        torch.cuda.synchronize()
        for lane, stream in zip(self._lanes, streams, strict=True):  # libraries allocate what they need the first times
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._pass(lane)
        torch.cuda.synchronize()
        pool = None
        for count in range(1, len(self._lanes) + 1):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=streams[0]):
                for lane, stream in zip(self._lanes[1:count], streams[1:count], strict=True):
                    stream.wait_stream(streams[0])
                    with torch.cuda.stream(stream):
                        self._pass(lane)
                self._pass(self._lanes[0])
                for stream in streams[1:count]:
                    streams[0].wait_stream(stream)
            pool = graph.pool()
            self._graphs.append(graph)

    def _give_all(self) -> None:
        """Give each lane other parameters and samples."""
        start, n = self._model.initial_params, len(self._dataset.train)
        for number, lane in enumerate(self._lanes):
            rows = (np.arange(self._mu) + number * self._mu) % n
            self._give(lane, start * np.float32(1 + number / 64), rows)

    def _check_graphs(self) -> str:
        """Compare the gradients of all graphs with each other, bit for bit, and with those without; return what is odd.

        A graph of too many minibatches, of which one has other bits, is left out, and so are larger ones.
        """
        expected, alone = [], []
        self._give_all()
        for lane in self._lanes:
            with self.drawing(FIRST):
                self._pass(lane)
            expected.append(_copied(lane.grad))
            first = self._lanes[0]
            self._give_all()
            first.held.copy_(lane.held)
            first.rows.copy_(lane.rows)
            with self.drawing(FIRST):
                self._graphs[0].replay()
            alone.append(_copied(first.grad))
        for one, other in zip(alone, expected, strict=True):
            largest = np.abs(other[np.isfinite(other)]).max(initial=0)
            if not np.allclose(one, other, TOLERANCE, TOLERANCE * largest, equal_nan=True):
                return "captured, it computes another gradient"
        for count in range(2, len(self._graphs) + 1):
            self._give_all()
            self._graphs[count - 1].replay()
            found = [_copied(lane.grad) for lane in self._lanes[:count]]
            if any(one.tobytes() != other.tobytes() for one, other in zip(found, alone, strict=False)):
                del self._graphs[count - 1 :], self._lanes[count - 1 :]  # the others stay where they are
                break
        return ""

    # What TorchEngine does in another way on the host

    def samples_changed(self) -> None:
        """Take samples from the data set again; those to train on stay where graphs read them if there are as many."""
        self._resident.clear()
        x, y = self._samples(self._dataset.train)
        if x.shape == self._train.x.shape:
            self._train.x.copy_(x)
            self._train.y.copy_(y)
        else:
            self._train.put(x, y)
            self._prepared = False

    def _samples(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples and targets on the device, where they stay until they change."""
        if id(split) not in self._resident:
            x, y = super()._samples(split)
            if self._emulated:  # not the data set's own memory
                x, y = x.clone(), y.clone()
            self._resident[id(split)] = split, x, y
        return self._resident[id(split)][1:]

    def _flat(self, held: Sequence[Any]) -> torch.Tensor:
        """Return parameters of minibatches, (B, P), from where they are."""
        flat = torch.empty(len(held), self._model.layout.size, device=self._device)
        for room, params in zip(flat, held, strict=True):
            array = self._here.array_of(params)
            self._here.copy(array.address, room.data_ptr(), 4 * room.numel())
        return flat

    def _try_gradient(self, rows: Integers, params: Any = None, draws: Draws | None = FIRST) -> Array:
        """Return the gradient (P,) of a minibatch, without a graph, on the host; see `drawing`."""
        lane = self._lanes[0]
        self._give(lane, self._model.initial_params if params is None else params, rows[0])
        with self.drawing(draws), self._passes.following(self._statistics_of(None, 0)):
            self._pass(lane)
        return _copied(lane.grad)

    def _choose_format(self, rows: Integers) -> None:
        """Leave images as they are."""

    def _choose_views(self, rows: Integers) -> None:
        """Leave parameters where graphs find them. Raises ConfigError if the module computes with others, too."""
        moved = self._model.initial_params * np.float32(1 + 1 / 64)
        if self._reads_own_memory(lambda: torch.from_numpy(self._try_gradient(rows, moved))):
            raise self._model.refused(
                "computes with a parameter's memory that it keeps by another name, such as weight.data; keep the "
                "parameter itself"
            )


def _copied(tensor: torch.Tensor) -> Array:
    """Return a copy of a tensor on the host."""
    found: Array = tensor.cpu().numpy().copy()
    return found
