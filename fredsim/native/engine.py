"""The engine of PyTorch modules: gradients by autograd, or of several clients at once by torch.func's vmap.

The number of minibatches that vmap computes at once changes the bits. So it is fixed for a whole run, and a call with
fewer minibatches is padded. Thus a client's gradient depends only on its parameters and its minibatch.
"""

from __future__ import annotations

import os
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import grad, vmap

from fredsim.compute.engines import BackendOperations, Engine, FusedExecutor, Part, QueueExecutor
from fredsim.compute.graph_engine import OnOperations
from fredsim.compute.staged import EVALUATION_BATCH
from fredsim.compute.statistics import Statistics
from fredsim.compute.storage import Pool
from fredsim.data.datasets import Dataset, Split
from fredsim.errors import ConfigError, FredsimError, SimulationError
from fredsim.native.building import as_array, same
from fredsim.native.checks import Casts, check_gradient, check_hooks
from fredsim.native.concurrent import ConcurrentPasses, at_the_same_time
from fredsim.native.fused import TorchFusedExecutor
from fredsim.native.losses import check_broadcast, check_own, losses_of, outputs_problem, wrong_answers
from fredsim.native.model import TorchModel
from fredsim.native.own_loss import OwnLoss
from fredsim.native.passes import DRAWS_IN_EVALUATION, DRAWS_LATE, Minibatches, Passes
from fredsim.native.queue import TorchQueueExecutor
from fredsim.native.settings import deterministic, filling
from fredsim.native.statistics import forget
from fredsim.native.updates import Updates
from fredsim.networks.network import Network, Numerics
from fredsim.numerics.arrays import aligned, near
from fredsim.numerics.ops.draws import Draws, Keys
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.ops.losses.loss import Loss
from fredsim.numerics.rules import Rule
from fredsim.plugins.failures import failed_on, is_interrupt, message_of
from fredsim.plugins.generators import generator_states
from fredsim.plugins.seeding import generators_kept, seeded
from fredsim.system.heap import freed_memory_kept
from fredsim.system.limits import default_threads

__all__ = ["TorchEngine", "make_engine"]

Array = NDArray[np.float32]
Tensors = dict[str, torch.Tensor]

#: The draws with which a module is tried out.
FIRST = Draws(0, 0, 0)
#: The fewest samples of which a loss is tried out.
FEW = 4
OWN_STATISTICS = "each client has running statistics of its own"
#: How far gradients of images in two orders of memory may be apart, relative to the largest element.
FAR = 0.1


def make_engine(
    network: Network, dataset: Dataset, mu: int, threads: int | None, operations: BackendOperations
) -> Engine:
    """Return the engine of a network without a graph: PyTorch's."""
    assert isinstance(network, TorchModel)
    return TorchEngine(network, dataset, mu, threads, operations)


class TorchEngine(OnOperations):
    """Computes gradients and evaluates with PyTorch; the operations on whole arrays are those of another backend."""

    numerics: Numerics = "native"
    why_whole = "a PyTorch module forms whole gradients"
    keeps_passes = False
    packages: Sequence[str] = ("torch",)

    def __init__(
        self, model: TorchModel, dataset: Dataset, mu: int, threads: int | None, operations: BackendOperations
    ) -> None:
        """Try the module on the first minibatch of µ samples; `threads` None means one thread per processor.

        Raises ConfigError if the module cannot be trained, or does not give the same bits twice.
        """
        super().__init__(operations)
        self._model, self._module, self._device = model, model.module, model.device
        self._dataset, self._mu = dataset, mu
        self.threads, self._threads_before = threads or default_threads(), torch.get_num_threads()
        self._filling_before = torch.utils.deterministic.fill_uninitialized_memory
        self.seconds = 0.0  # spent in PyTorch, not counting the operations
        self.device_name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else None
        if self._device.type == "cuda":  # cuBLAS reads this when it starts, and is not deterministic without it
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        self._its_loss = CrossEntropy(ignored=dataset.ignored) if model.loss is None else model.loss
        self._losses_of, self._answers = losses_of(self._its_loss), wrong_answers(self._its_loss)
        self._grads: Array = np.empty((0, model.layout.size), np.float32)
        self._each_grad: list[Array] = []  # its rows
        self._gradient = grad(self._loss, has_aux=True)
        self.width, self._why_alone = 1, ""  # how many minibatches vmap computes at once; why they are computed alone
        #: What computes the passes of several clients at the same time, each as if there were no other.
        self.concurrent: ConcurrentPasses | None = None
        self._most, self._threads_of_pass = 1, self.threads  # how many at most, and the threads of each
        #: Backward passes read the module's own parameters, but those of bfloat16 what the forward pass has cast.
        self.two_vectors = model.precision == "float32"
        self.statistics = self._tracked()
        self._train = Minibatches(*self._samples(dataset.train))
        self._passes = Passes(model, self._train, self._losses_of, mu)
        self._own = self._passes.own
        #: Whether the module has its parameters as attributes alone, so that it can be evaluated with others in these.
        self._by_attributes = True
        self._make_room()
        self._settings = ExitStack()
        try:
            if self._device.type == "cpu":
                self._settings.enter_context(freed_memory_kept())
            self._try_out()
        except BaseException:
            self._put_settings_back()
            raise
        self.queues = self._device.type == "cpu" and hasattr(operations, "rule_in_parts")
        if self.queues and not self.keyed:
            self.why_whole = ""

    def _make_room(self) -> None:
        """Allocate what gradients need; here nothing."""

    def _tracked(self) -> Statistics | None:
        """Return the clients' running statistics, if the model says what the server does with them."""
        model = self._model
        if model.buffers is None:
            return None
        if not model.running:
            raise model.refused(f"keeps no running statistics, and buffers is {model.buffers}; leave buffers out")
        if model.buffers == "local":
            forget(self._module)
            return None
        return Statistics([as_array(value) for value in model.running.values()], model.buffers)

    def _statistics_of(self, keys: Keys | None, b: int) -> Sequence[NDArray[Any]] | None:
        """Return the running statistics with which gradient b begins: its client's, or those that are evaluated."""
        statistics: Statistics | None = self.statistics
        if statistics is None:
            return None
        if keys is None or not keys.counted:
            return statistics.served()
        return statistics.of(int(keys.clients[b]))

    @property
    def keyed(self) -> bool:
        """Whether a gradient depends on its key: for what the module draws, or for its client's running statistics."""
        return self.draws or self.statistics is not None

    @contextmanager
    def beginning(self, passes: Passes, keys: Keys | None, b: int) -> Iterator[None]:
        """Let passes compute gradient b in a `with` block with what belongs to its key."""
        with passes.drawing(keys and keys.one(b)), passes.following(self._statistics_of(keys, b)):
            yield

    def computed(self, keys: Keys | None, b: int, statistics: Sequence[NDArray[Any]], *, arrived: bool = False) -> None:
        """Note the running statistics after gradient b; `arrived`: its push is at the server now."""
        if self.statistics is None or keys is None or not keys.counted:
            return
        client = int(keys.clients[b])
        self.statistics.computed(client, statistics)
        if arrived:
            self.statistics.arrived(client, reached=True)

    def fix_window(self, wanted: int | None, clients: int, nbytes: int = 0) -> int:
        """Choose how many minibatches are computed at once, for the whole run, and return that number.

        If it is `wanted`, so many are computed by vmap; by default, by threads (see `concurrent`), which changes no
        bit. It is 1 if vmap fails, or if a gradient's bits depend on its place among the others.
        """
        self.width = min(wanted or 1, clients)
        self._why_alone = self._why_no_vmap() if self.width > 1 else "no more are taken at once"
        if self._why_alone:
            self.width = 1
        self._end_concurrent()
        self._most, self._threads_of_pass = 1, self.threads
        if wanted is None:
            with self.under_settings(ConfigError):
                statistics = self.statistics and self.statistics.initial
                found, self._why_alone = at_the_same_time(self._passes, clients, self.threads, statistics)
            if found is not None:
                self.concurrent, self._most, self._threads_of_pass = found, found.most, found.threads
                if found.at_once == 1:
                    self._end_concurrent()
                if hasattr(self._operations, "do_alone"):
                    self._operations.do_alone()  # PyTorch's other threads would wait for more of it for a while
        return self.width if self.concurrent is None else self.concurrent.at_once

    def _end_concurrent(self) -> None:
        if self.concurrent is not None:
            self.concurrent.close()
            self.concurrent = None
        self._passes.leave_twins()

    def fused_executor(self, rule: Rule, arrays: Sequence[Array], watched: str, window: int) -> FusedExecutor:
        """Return an executor that applies a rule to the tensors that autograd returns; see Engine."""
        del watched  # its mean is computed from the whole array
        return TorchFusedExecutor(self, self._updates(rule, arrays), self._mu, window)

    def queue_executor(self, rule: Rule, params: Any, arrays: Sequence[Any], places: int, pool: Pool) -> QueueExecutor:
        """Return an executor that applies a rule to the tensors that autograd returns; see Engine."""
        servers: list[Array] = [params, *arrays]
        stored = self.width == 1 and torch.channels_last in self._own.formats
        own = [aligned(len(array)) for array in servers] if stored else servers

        def copy_all(sources: Sequence[Array], targets: Sequence[Array], *, to_stored: bool) -> None:
            for source, target in zip(sources, targets, strict=True) if stored else ():
                self._own.reorder(source, target, stored=to_stored)

        copy_all(servers, own, to_stored=True)
        updates = self._updates(rule, own, stored=stored)
        return TorchQueueExecutor(self, updates, own[0], places, pool, partial(copy_all, own, servers, to_stored=False))

    def _updates(self, rule: Rule, arrays: Sequence[Array], *, stored: bool = False) -> Updates:
        layout = self._model.layout
        update = cast(Any, self._operations).rule_in_parts(rule, arrays, layout.sizes)
        return Updates(self._passes, update, layout, stored=stored)

    @property
    def draws(self) -> bool:
        """Whether the module draws random numbers in training."""
        return self._passes.draws

    def facts(self) -> dict[str, Any]:
        """Return the entries of summary.json that say what the bits depend on besides experiment, threads, versions."""
        how = self._why_alone and f"one client after the other: {self._why_alone}"
        if self._most > 1:
            threads = f"{self._threads_of_pass} thread{'s' * (self._threads_of_pass > 1)}"
            how = f"each client on {threads}, {self._most} at the same time"
        files = {"model_files": self._model.files} if self._model.files else {}
        return {"numerics": self.numerics, "vmap": how or f"{self.width} clients at once", **files}

    def gradients(
        self, held: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute as many minibatches at once as `fix_window` chose; by vmap, the last call repeats its last one."""
        if self.width == 1:
            return self._gradients_of_each(held, None, rows, keys)
        self._allocate(len(rows))
        losses = np.empty(rows.shape, np.float32)
        with self.computing():
            for begin in range(0, len(rows), self.width):
                end = min(begin + self.width, len(rows))
                chosen = np.minimum(np.arange(begin, begin + self.width), end - 1)
                found, its_losses = self._compute([held[i] for i in chosen], rows[chosen])
                self._grads[begin:end] = found[: end - begin]
                losses[begin:end] = its_losses[: end - begin]
        return self._grads[: len(rows)], losses

    def gradients_at_two(
        self, forward: Sequence[Array], backward: Sequence[Array], rows: NDArray[np.int64], keys: Keys | None = None
    ) -> tuple[Array, Array]:
        """Compute gradients whose forward and backward passes have different parameters; see Engine."""
        return self._gradients_of_each(forward, backward, rows, keys)

    def _gradients_of_each(
        self, held: Sequence[Array], backward: Sequence[Array] | None, rows: NDArray[np.int64], keys: Keys | None
    ) -> tuple[Array, Array]:
        """Compute one minibatch after the other, or several at the same time."""
        self._allocate(len(rows))
        losses = np.empty(rows.shape, np.float32)

        def compute(passes: Passes, b: int) -> Sequence[NDArray[Any]]:
            with self.beginning(passes, keys, b):
                losses[b] = passes.write_one(
                    self._each_grad[b], held[b], rows[b], None if backward is None else backward[b]
                )
            return passes.statistics

        def note(b: int, statistics: Sequence[NDArray[Any]]) -> bool:
            self.computed(keys, b, statistics)
            return True

        with self.computing():
            if self.concurrent is not None:
                self.concurrent.run([0] * len(rows), compute, note)
            else:
                for b in range(len(rows)):
                    note(b, compute(self._passes, b))
        return self._grads[: len(rows)], losses

    @contextmanager
    def computing(self, *, alone: bool = True) -> Iterator[None]:
        """Compute gradients in a `with` block; `alone`: and nothing else that may draw random numbers."""
        with (
            self.under_settings(SimulationError, self._threads_of_pass if self.concurrent is None else None),
            self.nothing_drawn() if alone else nullcontext(),
        ):
            yield

    def nothing_drawn(self) -> AbstractContextManager[None]:
        """Raise ConfigError in a `with` block if the module draws, though it does not for its first minibatch."""
        return nullcontext() if self.draws else self._passes.nothing_drawn(DRAWS_LATE)

    def _allocate(self, count: int) -> None:
        """Have room for so many gradients."""
        if count > len(self._grads):
            self._grads = aligned(count, self._model.layout.size)
            self._each_grad = list(self._grads)

    def drawing(self, draws: Draws | None) -> AbstractContextManager[None]:
        """Let a module that draws draw the numbers of one gradient in a `with` block; None: none."""
        return self._passes.drawing(draws)

    def samples_changed(self) -> None:
        """Take the training samples from the data set again."""
        self._train.put(*self._samples(self._dataset.train))

    def outcomes(self, params: Array, part: Part) -> tuple[Array, NDArray[np.float64]]:
        """Evaluate in the module's evaluation mode."""
        split: Split = getattr(self._dataset, part)
        losses, wrong = np.empty(len(split), np.float32), np.full(len(split), np.nan)
        for some, logits, y in self._evaluated(params, split):
            with (
                self.under_settings(SimulationError), torch.no_grad(), self._passes.nothing_drawn(DRAWS_IN_EVALUATION)
            ):  # fmt: skip
                losses[some] = self._losses_of(logits, y).detach().cpu().numpy()
            if self._answers is not None:
                wrong[some] = self._wrong(self._answers, logits.cpu().numpy(), split.y[some])
        return losses, wrong

    def outputs(self, params: Array, part: Part) -> Iterator[tuple[slice, Array]]:
        """Yield the outputs in the module's evaluation mode, in blocks; see Engine."""
        for some, output, _ in self._evaluated(params, getattr(self._dataset, part)):
            yield some, output.float().cpu().numpy()

    def _evaluated(self, params: Array, split: Split) -> Iterator[tuple[slice, Any, Any]]:
        """Yield which samples are evaluated at once, the module's outputs for them, and their targets."""
        if len(split) == 0:
            return
        x, y = self._samples(split)
        batches: list[slice] | None = None
        served, undrawn = self._statistics_of(None, 0), partial(self._passes.nothing_drawn, DRAWS_IN_EVALUATION)
        while batches is None or batches:
            with self.under_settings(SimulationError), self._evaluating(served), undrawn():
                batches = self._evaluation_batches(params, x) if batches is None else batches
                some = batches.pop(0)
                # A module may write into what it is given.
                output = self._passes.logits(self._given(params), x[some].clone())
                # It may also be differentiated, or a view of negated numbers, neither of which NumPy takes.
                output = output.detach().resolve_neg()
            yield some, output, y[some]
        each = (self._passes, *self._passes.twins)
        if changed := next(filter(None, (one.unchanged.changed(self._may_change) for one in each)), ""):
            raise SimulationError(
                f"model.name: {self._model.name} has changed its {changed} since the run began, which no client "
                "pushes; keep what is not trained as it is"
            )

    def _given(self, params: Array) -> Tensors:
        """Return parameters to evaluate with, copies; none if the module gets them in its own memory.

        They are anew for each block: the module may write into them, and gradients may be computed between two blocks.
        It may also take gradients by them.
        """
        if self._by_attributes:
            return {name: value.requires_grad_() for name, value in self._tensors([params]).items()}
        self._own.fill(self._flat([params])[0])
        return {}

    @contextmanager
    def _evaluating(self, served: Sequence[NDArray[Any]] | None) -> Iterator[None]:
        """Let the module compute in evaluation in a `with` block, by these running statistics if there are any."""
        with torch.no_grad(), self._passes.following(served):
            self._module.eval()
            try:
                yield
            finally:
                self._module.train()

    @property
    def _may_change(self) -> Container[str]:
        """The buffers that training may change."""
        return () if self.statistics is None else self._model.running

    def _evaluation_batches(self, params: Array, x: torch.Tensor) -> list[slice]:
        """Return which samples are evaluated at once; a last one is added to those before it if it cannot be alone.

        The module is in evaluation mode. Batch normalization without running statistics needs several values.
        """
        begins = [*range(0, len(x), EVALUATION_BATCH)]
        if len(begins) > 1 and len(x) % EVALUATION_BATCH == 1:
            try:
                self._passes.logits(self._given(params), x[-1:].clone())
            except BaseException as error:  # of any type: the module is the user's
                if is_interrupt(error):
                    raise
                del begins[-1]
        return [slice(begin, end) for begin, end in pairwise([*begins, len(x)])]

    def close(self) -> None:
        """End the threads of the operations; give PyTorch the settings that it had."""
        self._end_concurrent()
        self._put_settings_back()
        self._own.leave()
        self._operations.close()

    def _put_settings_back(self) -> None:
        torch.set_num_threads(self._threads_before)
        torch.utils.deterministic.fill_uninitialized_memory = self._filling_before
        self._settings.close()

    def _samples(self, split: Split) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = torch.from_numpy(split.x).reshape(len(split), *self._model.shape), torch.from_numpy(split.y)
        y = y if y.is_floating_point() else y.long()
        return (x if x.is_floating_point() else x.long()).to(self._device), y.to(self._device)

    @staticmethod
    def _wrong(answers: Loss, outputs: Array, y: NDArray[Any]) -> NDArray[Any] | None:
        """Return whether each sample's answer is wrong; of a sequence the share of places that count."""
        if isinstance(answers, CrossEntropy) and y.ndim == 1 and answers.ignored is None:
            wrong: NDArray[Any] = outputs.argmax(axis=1) != y
            return wrong
        return answers.wrong(outputs, y)

    def _loss(self, tensors: Tensors, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        losses = self._losses_of(self._passes.logits(tensors, x), y)
        return losses.mean(), losses

    def _tensors(self, held: Sequence[Array]) -> Tensors:
        """Return the parameters of minibatches by name; if there are several, stacked along the first axis.

        Each tensor is a copy with the alignment of PyTorch's own tensors, because libraries choose their loops, and so
        the bits, by alignment.
        """
        flat = self._flat(held)
        parts = torch.split(flat, self._model.layout.sizes, dim=1)
        several = (len(held),) if len(held) > 1 else ()
        return {
            name: part.reshape((*several, *shape)).clone(memory_format=torch.contiguous_format)
            for (name, shape), part in zip(self._model.layout.tensors, parts, strict=True)
        }

    def _flat(self, held: Sequence[Array]) -> torch.Tensor:
        """Return parameters of minibatches, (B, P), where they are computed."""
        return torch.stack([torch.from_numpy(np.ascontiguousarray(params)) for params in held]).to(self._device)

    def _choose_format(self, rows: NDArray[np.int64]) -> None:
        """Store images with the channels innermost if the module computes these, and its filters; its `view`s may not.

        On a CPU it takes less time. One that reads memory by its strides (as_strided) computes something else of them.
        """
        images = self._train.x.dim() == 4 and any(isinstance(part, torch.nn.Conv2d) for part in self._module.modules())
        if self._device.type != "cpu" or not images:
            return
        expected = self._gradient_without_draws(rows)  # dropout draws in the order of memory
        self._store(innermost=True)
        try:
            self._try_gradient(rows)
            found = self._gradient_without_draws(rows)
            takes = expected is None or found is None or near(found, expected, FAR)
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            takes = False
        if not takes:
            self._store(innermost=False)

    def _store(self, *, innermost: bool) -> None:
        """Store images and filters with their channels innermost, or as they are given."""
        self._train.store(innermost=innermost)
        self._own.store(innermost=innermost)

    def _gradient_without_draws(self, rows: NDArray[np.int64]) -> Array | None:
        """Return the gradient (P,) of a minibatch where nothing is drawn; None if the module fails there."""
        try:
            return self._try_gradient(rows, draws=None)
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            return None

    def _choose_memory(self, rows: NDArray[np.int64]) -> None:
        """Compute in the module's own memory of its parameters if what is computed elsewhere depends on that, too."""
        moved = self._model.initial_params * np.float32(1 + 1 / 64)
        elsewhere = partial(self._try_gradient, rows, moved)
        if self._train.channels_last and self._reads_own_memory(lambda: torch.from_numpy(elsewhere())):
            self._store(innermost=False)

        def evaluated() -> torch.Tensor:
            with self._evaluating(self._statistics_of(None, 0)):
                found: torch.Tensor = self._passes.logits(self._given(moved), self._first())
            return found.clone()  # the next one may be in the same memory

        self._by_attributes = not self._reads_own_memory(evaluated)

    def _reads_own_memory(self, compute: Callable[[], torch.Tensor]) -> bool:
        """Return whether a result depends on what is in the module's own memory of its parameters.

        The function computes with the same values elsewhere. A module may reach the own ones by other ways than its
        attributes: a list of parameters, a functools.partial, a `weight.data` that it keeps.
        """
        start, found = self._flat([self._model.initial_params])[0], []
        for shift in (1, 0):
            self._own.fill(start + shift)
            found.append(compute())
        return not same(*found)

    def _choose_views(self, rows: NDArray[np.int64]) -> None:
        """Let parameters be views of what clients hold if gradients have the bits of copies, and nothing is written."""
        if self._device.type != "cpu" or not self._own.may_view:
            return
        held = aligned(self._model.layout.size)
        try:
            for scale, shift in ((1 + 1 / 64, 0), (64, 1)):  # others than at the beginning; some that a limit changes
                held[...] = self._model.initial_params * np.float32(scale) + np.float32(shift)
                before, version = held.copy(), self._own.version
                self._own.by_views = True  # first: what else reads the memory of the copies finds other values there
                viewed = self._try_gradient(rows, held)
                written = held.tobytes() != before.tobytes() or self._own.version != version
                self._own.by_views = False
                self._own.by_views = not written and viewed.tobytes() == self._try_gradient(rows, before).tobytes()
                if not self._own.by_views:
                    break
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            self._own.by_views = False
        self._own.copy(self._model.initial_params)

    def _compute(self, held: Sequence[Array], rows: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return the mean gradients (B, P) and the losses (B, µ) of minibatches, computed at once."""
        samples = torch.from_numpy(rows).to(self._device)
        found, losses = vmap(self._gradient)(self._tensors(held), self._train.x[samples], self._train.y[samples])
        flat = torch.cat([part.reshape(len(held), -1) for part in found.values()], dim=1)
        return flat.cpu().numpy(), losses.reshape(len(held), -1).cpu().numpy()

    def _try_gradient(self, rows: NDArray[np.int64], params: Array | None = None, draws: Draws | None = FIRST) -> Array:
        """Return the gradient (P,) of a minibatch at these parameters (P,), or at the initial ones; see `drawing`."""
        with self.drawing(draws), self._passes.following(self._statistics_of(None, 0)):
            return self._passes.gradient(self._model.initial_params if params is None else params, rows[0])

    @contextmanager
    def under_settings(self, kind: type[FredsimError], threads: int | None = None) -> Iterator[None]:
        """Run a `with` block under deterministic settings, and time it; exceptions of the module become `kind`.

        PyTorch keeps the number of threads, by default the engine's, and what it does with new memory, until `close`:
        setting them takes time. The random generators that all share are put back if the module draws.
        """
        begin, threads = time.perf_counter(), threads or self.threads
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.utils.deterministic.fill_uninitialized_memory:
            torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            with deterministic(threads, self._device.type), generators_kept() if self.draws else nullcontext():
                yield
        except FredsimError:
            raise
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            raise kind(f"model.name: {self._model.name} {self._explained(error)}") from error
        finally:
            self.seconds += time.perf_counter() - begin

    def _try_out(self) -> None:
        """Raise ConfigError if the module is not a classifier, or its bits depend on more than the experiment."""
        model, module, rows = self._model, self._module, np.arange(self._mu)[None]
        with self.under_settings(ConfigError), torch.no_grad():
            for training in (False, True):
                module.train(training)
                with seeded(0):
                    self._try_forward(self._first(), "training" if training else "evaluation")
        model.check_calls()
        with self.under_settings(ConfigError), seeded(0):
            output = module(self._first())
            check_own(self._its_loss, output, self._train.y[: self._mu])
            self._check_broadcast()
        with self.under_settings(ConfigError), seeded(0):
            check_hooks(module, model.refused)
            self._choose_format(rows)
            before, found = generator_states(), self._try_gradient(rows)
            if before != generator_states():  # on the way back
                self._passes.draws = True
                found = self._try_gradient(rows)
            with filling():  # the second is another one if memory is read unwritten
                again = self._try_gradient(rows)
            if found.tobytes() != again.tobytes():
                raise model.refused(
                    "gives two gradients for one minibatch; it must compute the same every time, but for what it draws "
                    "from the generators of torch, np.random and random"
                )
            beyond_rounding = 1e-3 if model.precision == "float32" else 0.1
            self._own.copy(model.initial_params)  # the passes before may have written into them
            with self.drawing(FIRST), self._passes.following(self._statistics_of(None, 0)):
                check_gradient(module, self._whole_loss, found, model.refused, beyond_rounding)
            self._choose_memory(rows)
            self._choose_views(rows)

    def _check_broadcast(self) -> None:
        """Raise ConfigError if a user's own loss broadcasts some outputs and targets, as evaluation computes them."""
        if isinstance(self._its_loss, OwnLoss):
            few = max(self._mu, FEW)
            with torch.no_grad():
                self._module.eval()
                try:
                    outputs = self._passes.called(lambda: self._module(self._first(few)))
                    check_broadcast(self._its_loss, outputs, self._train.y[:few])
                finally:
                    self._module.train()

    def _first(self, count: int | None = None) -> torch.Tensor:
        """Return a copy of the first minibatch's samples, or of so many, into which a module may write."""
        return self._train.x[: self._mu if count is None else count].clone()

    def _whole_loss(self) -> torch.Tensor:
        """Return the mean loss of the first minibatch at the module's own parameters."""
        return self._passes.losses(self._first(), self._train.y[: self._mu]).mean()

    def _try_forward(self, x: torch.Tensor, mode: str) -> None:
        """Raise ConfigError if the module does not give logits of the samples x, or does something else, too."""
        model, module = self._model, self._module
        random, casts = generator_states(), Casts(x.clone())
        try:
            with casts:
                logits = self._passes.called(lambda: module(x))
        finally:
            self._check_casts(casts)  # this says more than an error that follows from it
        if expected := outputs_problem(self._its_loss, logits, self._train.y[: self._mu], self._dataset.classes):
            is_tensor = isinstance(logits, torch.Tensor)
            found = f"{logits.dtype} {tuple(logits.shape)}" if is_tensor else type(logits).__name__
            raise model.refused(f"maps samples of shape {tuple(x.shape)} to {found}; it must give {expected}")
        if changed := self._passes.unchanged.changed(self._may_change):
            raise model.refused(
                f"changes its {changed} in {mode}, which no client pushes; for BatchNorm give model.buffers: "
                "local, averaged or last, or track_running_stats=False, or use GroupNorm"
            )
        if random != generator_states():
            if mode == "evaluation":
                raise model.refused(DRAWS_IN_EVALUATION)
            self._passes.draws = True

    def _check_casts(self, casts: Casts) -> None:
        """Raise ConfigError if tokens are 0 because fredsim has divided them."""
        if problem := casts.problem(self._dataset.train.divisor):
            raise self._model.refused(problem)

    def _why_no_vmap(self) -> str:
        """Try vmap with two orders of the clients; return why it cannot be used, or an empty text."""
        if self.draws:
            return "it draws random numbers"
        if self.statistics is not None:
            return OWN_STATISTICS
        others = "it computes with parameters that are not its attributes"
        if not self._by_attributes:
            return others
        width, start = self.width, self._model.initial_params
        held = [start * np.float32(1 + i / 64) for i in range(width)]
        rows = np.arange(width * self._mu).reshape(width, -1) % len(self._dataset.train)
        try:
            with deterministic(self.threads, self._device.type), warnings.catch_warnings():
                # PyTorch warns if vmap computes the minibatches one after the other.
                warnings.filterwarnings("error", "There is a performance drop")
                grads, _ = self._compute(held, rows)
                turned, _ = self._compute(held[1:] + held[:1], np.roll(rows, -1, axis=0))
                elsewhere = self._reads_own_memory(lambda: torch.from_numpy(self._compute(held, rows)[0]))
        except BaseException as error:  # of any type: the module is the user's
            if is_interrupt(error):
                raise
            return textwrap.shorten(f"under vmap it {self._explained(error)}", 200, placeholder=" …")
        if np.roll(grads, -1, axis=0).tobytes() != turned.tobytes():
            return "under vmap a gradient depends on its place among the others"
        return others if elsewhere else ""

    def _explained(self, error: BaseException) -> str:
        """Return the part of an error message that says what the module did wrong."""
        text, device = message_of(error).partition("\n")[0], self._device.type
        found = re.match(r"(\S+) does not have a deterministic implementation", text)
        if found:
            return f"uses the operator {found[1]}, which is not deterministic on {device}; use another in its place"
        remedy = "; evaluation has no gradients: let it take those of its own within torch.enable_grad()"
        return failed_on(self._model.shape, error) + remedy * ("does not require grad" in text)
