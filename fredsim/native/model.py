"""A user's PyTorch module as a model: its factory, imported by name, and its parameters as one flat vector."""

from __future__ import annotations

import copy
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fredsim.errors import ConfigError
from fredsim.native.own_loss import AnyLoss, OwnLoss
from fredsim.native.own_loss import find_function as own_function
from fredsim.networks.given import read_weights
from fredsim.networks.layout import Layout
from fredsim.networks.network import MeasuredBy, Network
from fredsim.numerics.ops.losses.cross_entropy import CrossEntropy
from fredsim.numerics.streams import Streams
from fredsim.plugins.failures import is_interrupt
from fredsim.plugins.modules import check_torch, import_callable, parameters_of
from fredsim.plugins.seeding import seeded
from fredsim.plugins.state.fingerprints import fingerprint

__all__ = ["TorchModel", "TorchOptions", "data_arguments", "find_factory"]

Array = NDArray[np.float32]
Factory = Callable[..., Any]


def find_factory(name: str) -> Factory:
    """Return the factory that a name `torch:package.module:factory` refers to.

    Raises ConfigError if there is no such factory, it cannot be called, or PyTorch cannot be imported.
    """
    check_torch("model.name", name)
    with seeded(0):  # a module may draw something when it is imported: the same in each process, for all seeds
        return import_callable(
            name, "torch:package.module:factory", "model.name", "a function or a class", prefix="torch:"
        )


def data_arguments(factory: Factory) -> set[str]:
    """Return which of the arguments `classes` and `shape` a factory takes; their values come from the data set."""
    return {"classes", "shape"} & (parameters_of(factory) or {}).keys()


class TorchOptions(NamedTuple):
    """What is done with the module that a factory returns.

    Attributes:
        initial: the path of a file of weights that are loaded into it; None: it stays as it is.
        trainable: patterns of the names of the parameters that are trained; None: those with requires_grad.
        precision: the type in which PyTorch computes; others than float32 by torch.autocast.
        buffers: what is evaluated with in place of running statistics that no client pushes; None: these are refused.

    """

    initial: str | None = None
    trainable: str | Sequence[str] | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    buffers: Literal["local", "averaged", "last"] | None = None


class TorchModel(Network):
    """A module that maps a minibatch of samples, float32 (n, *shape), to outputs (n, …) of `classes` numbers.

    `loss` compares them with targets; None: cross-entropy, which takes outputs as logits. The flat vector
    holds its parameters in the order of `named_parameters`, under these names.
    """

    #: Why fredsim does not compute it itself, if it has tried.
    why_native = ""
    #: Of a twin, the fingerprints that its module's attributes had at first.
    first: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        hyper: Mapping[str, Any],
        device: Literal["cpu", "cuda"],
        shape: tuple[int, ...],
        classes: int,
        seed: int,
        loss: AnyLoss | None = None,
        options: TorchOptions = TorchOptions(),  # noqa: B008  it never changes
    ) -> None:
        """Build the module; the run starts from the module's own initialization under `torch.manual_seed(seed)`.

        Python's and NumPy's generators are seeded, too. Raises ConfigError if the factory fails, or does not return a
        module that can be trained here.
        """
        factory = find_factory(name)
        import torch

        from fredsim.native.building import build, check_shared, freeze, load_weights
        from fredsim.native.statistics import running_names

        self.name, self.shape, self.classes, self.loss, self._factory = name, shape, classes, loss, factory
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("model.device is cuda; PyTorch finds no CUDA device here; give cpu, or leave device out")
        if device == "cuda":
            torch.cuda.init()  # before its generators are seeded
        self.device = torch.device(device)
        arguments = {key: {"classes": classes, "shape": shape}[key] for key in data_arguments(factory)} | dict(hyper)
        module, built = build(factory, arguments, device, seed, self.refused)
        self._built, self._files = built, built.files
        check_shared(module, built.shared, options.initial, options.trainable, self.refused)
        if options.initial is not None:
            weights = read_weights(options.initial)
            load_weights(module, weights, self.refused)
            self._files = self._files | dict(weights.files)
        self.frozen = freeze(module, options.trainable, self.refused)
        self.precision, self.buffers = options.precision, options.buffers
        names = running_names(module)
        #: The running statistics with which clients begin, by the names of the buffers.
        self.running = {key: value.clone() for key, value in module.named_buffers() if key in names}
        parts = {key: value.detach().cpu().reshape(-1) for key, value in module.named_parameters()}
        self._values: Array = torch.cat(list(parts.values())).numpy()
        each = torch.split(torch.from_numpy(self._values), [part.numel() for part in parts.values()])
        shapes = {key: value.shape for key, value in module.named_parameters()}
        #: The values of parameters that are not trained, by name.
        self.frozen_values = {
            key: part.view(shapes[key]) for key, part in zip(parts, each, strict=True) if key in self.frozen
        }
        self.initial_params: Array = torch.cat([part for key, part in parts.items() if key not in self.frozen]).numpy()
        self.module, self._made_on = module.to(self.device), device
        #: Where the values of each parameter are, until an engine sets its data; and which engine's did so last.
        self.own_memory = self._made_in = {key: value.data for key, value in module.named_parameters()}
        self.set_by: object = None
        self.twins: list[TorchModel] = []  # with copies of the module
        #: Equal for modules of the same factory, arguments, seed and files, which compute the same.
        self.identity = (
            id(factory), repr(sorted(arguments.items())), seed, self.frozen, tuple(sorted(self._files.items()))
        )  # fmt: skip

    def move(self, device: str) -> None:
        """Move the module to a device of PyTorch's."""
        import torch

        if self.device.type == device:
            return
        self.device = torch.device(device)
        self.module.to(self.device)
        if device == self._made_on:  # the module may know that memory by other names, too
            for key, value in self.module.named_parameters():
                value.data = self._made_in[key].copy_(value.data)
        self.own_memory = {key: value.data for key, value in self.module.named_parameters()}

    def twin(self) -> TorchModel:
        """Return a model with a copy of the module, in memory of its own.

        Raises what copy.deepcopy raises if the module cannot be copied.
        """
        found = copy.copy(self)
        found.module, found.twins = copy.deepcopy(self.module), []
        found.own_memory = {key: value.clone() for key, value in self.own_memory.items()}
        found.first = defaultdict(str, {key: fingerprint(value) for key, value in found._attributes().items()})
        self.twins.append(found)
        return found

    @cached_property
    def layout(self) -> Layout:
        """The own names and shapes of the parameters that are trained."""
        named = self.module.named_parameters()
        return Layout(tuple((key, tuple(value.shape)) for key, value in named if key not in self.frozen))

    @property
    def values(self) -> Array:
        """The initial values of all parameters, float32 (P,)."""
        return self._values

    @property
    def graph(self) -> None:
        """None: only PyTorch can compute it."""

    @property
    def measured_by(self) -> MeasuredBy:
        """What its loss says: the rate of wrong answers, or nothing but the loss."""
        return "error" if self.loss is None else self.loss.measured_by

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of the files that the factory has read, by name."""
        return self._files

    @property
    def built_remarks(self) -> list[str]:
        """What was perhaps not meant about the modules that the factory builds; the module's name precedes it."""
        return self._built.remarks

    @property
    def functions(self) -> list[Factory]:
        """The factory, and a loss of the user's own."""
        return [self._factory, *([own_function(self.loss.name, "loss.name")] if isinstance(self.loss, OwnLoss) else [])]

    def kept(self) -> dict[str, Any]:
        """Return the attributes of the module, and of those in it, but for those that PyTorch sets itself.

        Of its copies they are those that are no longer what they were at first.
        """
        found = {f"the attribute {key} of model.name: {self.name}": value for key, value in self._attributes().items()}
        for number, twin in enumerate(self.twins, 1):
            changed = {key: value for key, value in twin._attributes().items() if fingerprint(value) != twin.first[key]}
            where = f"of model.name: {self.name} in copy {number}"
            found |= {f"the attribute {key} {where}": value for key, value in changed.items()}
        return found

    def _attributes(self) -> dict[str, Any]:
        from fredsim.native.attributes import own_attributes

        return {
            ".".join(filter(None, (path, name))): value
            for path, part in self.module.named_modules()
            for name, value in own_attributes(part)
        }

    @cached_property
    def made(self) -> str:
        """The SHA-256 of the initial values of all parameters, of which some are never trained."""
        return hashlib.sha256(self._values.tobytes()).hexdigest()

    def initial(self, streams: Streams) -> Array:
        """Return the initial parameters, float32 (P,)."""
        del streams  # the module has initialized its parameters already
        return self.initial_params.copy()

    def first_losses(self, x: NDArray[Any], y: NDArray[Any]) -> Array | None:
        """Return the initial losses of samples; see Network."""
        import torch

        from fredsim.native.losses import losses_of
        from fredsim.native.statistics import norms_alone
        from fredsim.networks.capture.module import one_thread

        samples, targets = (torch.from_numpy(np.array(array)).to(self.device) for array in (x, y))
        samples = samples.reshape(-1, *self.shape)
        try:
            with seeded(0), torch.no_grad(), one_thread():
                norms_alone(self.module)
                output = self.module(samples if samples.is_floating_point() else samples.long())
                losses = losses_of(CrossEntropy() if self.loss is None else self.loss)(
                    output, targets if targets.is_floating_point() else targets.long()
                )
            return np.asarray(losses.detach().float().cpu())
        except BaseException as error:  # of any type: the module is the user's, and the run itself says what is wrong
            if is_interrupt(error):
                raise
            return None
        finally:
            self.module.train()

    def remarks(self, x: Array) -> Iterator[str]:
        """Yield what about the module, and about its outputs for the samples `x`, was perhaps not meant."""
        import torch

        from fredsim.native.checks import are_probabilities, left_by_forward
        from fredsim.networks.capture.module import one_thread

        yield from (f"model.name: {self.name} {remark}" for remark in self.built_remarks)
        if self.why_native:
            reason = self.why_native.partition("; give numerics: native")[0]
            yield f"{reason}; so PyTorch computes it (numerics: native)"
        is_softmax = self.loss is None or isinstance(self.loss, CrossEntropy)
        samples = torch.from_numpy(np.array(x)).reshape(-1, *self.shape)  # a copy: the module may write into them
        samples = samples.to(self.device)
        with one_thread():
            with seeded(0):  # first, since the others let it change parameters
                changed, counted = left_by_forward(self.module, samples)
            with seeded(0):
                probabilities = is_softmax and are_probabilities(self.module, samples)
        if probabilities:
            found = "for each sample of the first minibatch they are not negative, and their sum is 1"
            remedy = "the loss is softmax cross-entropy, which takes logits; leave softmax out"
            yield f"model.name: {self.name} gives probabilities: {found}; {remedy}"
        if changed:
            what = f"model.name: {self.name} changes its parameter {changed!r} in forward, as a limit on weights does"
            yield f"{what}: that holds for one gradient alone, and neither its client nor the server keeps it"
        if counted:
            calls = "of all clients, of evaluation, and of what is tried before the run"
            yield f"model.name: {self.name} counts in its attribute {counted!r} in forward: the calls {calls}, together"

    def check_calls(self) -> None:
        """Raise ConfigError if calls of the module have given it parameters, which no client and no server has."""
        if made := [name for name, _ in self.module.named_parameters() if name not in self.own_memory]:
            what = f"makes its parameter {made[0]!r} in forward, and nothing would train it"
            raise self.refused(f"{what}; make it in __init__, or leave out nn.Parameter")

    def refused(self, what: str) -> ConfigError:
        """Return the error that says what is wrong with the module: `what` follows the module's name."""
        return ConfigError(f"model.name: {self.name} {what}")
