"""Builds the module of a user's factory: under a seed, from files that are noted, and the same each time."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.weak import WeakIdKeyDictionary

from fredsim.errors import ConfigError
from fredsim.networks.given import Weights, frozen_names
from fredsim.plugins.failures import failing, message_of
from fredsim.plugins.generators import generator_states
from fredsim.plugins.seeding import seeded
from fredsim.system.files import content_digest
from fredsim.system.opened_files import files_opened

__all__ = ["Built", "as_array", "build", "check_shared", "freeze", "load_weights", "same"]

Refused = Callable[[str], ConfigError]
LONGEST = 500  # letters of a parameter's name, as saved graphs have them
#: Types that NumPy lacks.
NOT_OF_NUMPY = {
    found for name in ("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    if (found := getattr(torch, name, None)) is not None
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """What is known about the modules that a factory builds from the same arguments.

    `remarks`: probable mistakes; `opened`: the full paths of the files that the factory reads. Those that it
    read the first time count, too: it may keep what it has read. `shared`: the names of the parameters that two modules
    have in common.
    """

    factory: object
    remarks: list[str] = field(default_factory=list)
    opened: dict[str, None] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of the files that the factory reads, by name.

        That is the path below the current folder, and for files elsewhere, where others may have them in another place,
        only the file's name, unless two have the same.
        """
        found: dict[str, str] = {}
        for path in sorted(self.opened):
            below = os.path.relpath(path) if path.startswith(os.path.join(os.getcwd(), "")) else os.path.basename(path)
            name = path if below in found else below
            if (digest := content_digest(path)) is not None:
                found[name.replace(os.sep, "/")] = digest
        return found


#: Wrappers that divide minibatches among devices or processes.
REPLICATED = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")
#: Modules that compute something else in evaluation.
OF_TWO_MODES = (_NormBase, _DropoutNd, torch.nn.RNNBase, torch.nn.MultiheadAttention)
#: By factory, arguments and device. Each keeps its factory alive, so that the id stays its own.
_known: dict[tuple[int, str, str], Built] = {}
#: Parameters that required gradients before `freeze`: the next module may have the same ones.
_turned_off = WeakIdKeyDictionary()


def build(
    factory: Callable[..., Any], arguments: Mapping[str, Any], device: str, seed: int, refused: Refused
) -> tuple[Any, Built]:
    """Return the module for a seed, and what is known about such modules.

    The first time, two more are built: with the same seed, to see that the weights are the same, and with another seed.
    `refused` makes the error of a text that follows the module's name. Raises ConfigError if the factory fails, or does
    not return a module that can be trained here.
    """
    key = id(factory), repr(sorted(arguments.items())), device
    known = _known.get(key) or Built(factory)

    def one(number: int) -> tuple[Any, dict[str, bytes]]:
        with seeded(number), files_opened() as found:
            module = _called(factory, arguments, refused, known.remarks)
            states = generator_states()
        known.opened.update(found)
        return module, states

    module, states = one(seed)
    _check_tensors(module, refused)
    if key not in _known:
        again, _ = one(seed)
        if not _same_tensors(module, again):
            raise refused(
                "has other initial weights each time it is built, with one seed; draw them from generators that "
                "fredsim seeds: torch's, np.random's own (np.random.normal, not default_rng()) and random's"
            )
        taken = {begin for begin, *_ in _memory(again)}
        known.shared.update(key for begin, _, kind, key in _memory(module) if kind == "parameter" and begin in taken)
        other, other_states = one((seed + 1) % 2**32)
        reseeded = any(mine == other_states.get(name) for name, mine in states.items())
        constant = all(bool((value == value.flatten()[0]).all()) for value in module.parameters() if value.numel())
        drawn = reseeded or (not known.opened and not constant)
        if drawn and _same_tensors(module, other):
            why = "its factory seeds a generator itself" if reseeded else "its factory draws nothing that depends on it"
            known.remarks.append(f"has the same initial weights for every seed: {why}; leave seeding to fredsim")
        _known[key] = known
    return module, known


def _called(factory: Callable[..., Any], arguments: Mapping[str, Any], refused: Refused, remarks: list[str]) -> Any:
    """Return a module in training mode; remark on parts that its factory has left in evaluation mode."""
    if isinstance(factory, torch.nn.Module):
        raise refused("is a module; it must be a class, or a function that returns one, since each run begins anew")
    with failing(lambda error: refused(f"failed: {type(error).__name__}: {message_of(error)}")):
        module = factory(**arguments)
    if not isinstance(module, torch.nn.Module):
        raise refused(f"returned {type(module).__name__}; it must return a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise refused("is compiled by torch.jit, which hides its tensors; return the module itself")
    for name, part in module.named_modules():
        if (kind := type(part).__name__) in REPLICATED:
            what = f"has its {name!r} in {kind}" if name else f"is wrapped in {kind}"
            raise refused(f"{what}, and clients take the place of its replicas; return the module without it")
    left = [part for part in module.modules() if module.training and not part.training]
    with failing(lambda error: refused(f"failed in its train(): {type(error).__name__}: {message_of(error)}")):
        module.train()  # which may freeze some of its parameters
    for value in module.parameters():
        if _turned_off.pop(value, False):
            value.requires_grad_(True)
    if (remark := _about_modes(module, left)) and remark not in remarks:
        remarks.append(remark)
    return module


def _about_modes(module: Any, left: Sequence[Any]) -> str:
    """Return the remark about parts that were in evaluation mode, and are no longer; "" if they compute the same."""
    changed = [part for part in left if part.training]
    if not any(isinstance(part, OF_TWO_MODES) for part in changed):
        return ""
    name = next(name for name, part in module.named_modules() if any(part is one for one in changed))
    what = f"has its {name!r} in evaluation mode when its factory returns it, and train() ends that, as of the whole"
    return f"{what}; to keep it so, let the module have a train() of its own, which calls eval() of that part"


def _lacks_values(value: Any) -> str:
    """Return why a parameter or buffer has no values, and the remedy; "" if it has some."""
    if torch.nn.parameter.is_lazy(value):
        remedy = "give its layer the size, as nn.Linear has it, or let the factory call the module once with a sample"
        return f"without values, as of a lazy layer; {remedy}"
    return "without values, on the device meta; make the module on the CPU" if value.is_meta else ""


def _check_tensors(module: Any, refused: Refused) -> None:
    """Raise ConfigError if a parameter is not one that fredsim can train, or shares memory that training changes."""
    for key, value in module.named_parameters():
        if lacks := _lacks_values(value):
            raise refused(f"has a parameter {key!r} {lacks}")
        if not (key.isascii() and key.isprintable() and len(key) <= LONGEST):
            raise refused(f"has a parameter {key!r}; its name must be of ASCII letters, {LONGEST} at most")
        if value.dtype != torch.float32:
            raise refused(f"has a parameter {key!r} of {value.dtype}; parameters must be torch.float32")
    for key, value in module.named_buffers():
        if lacks := _lacks_values(value):
            raise refused(f"has a buffer {key!r} {lacks}")
    if next(module.parameters(), None) is None:
        raise refused("has no parameters; there is nothing to train")
    end, owner = 0, ""
    for begin, stop, kind, key in sorted(_memory(module)):
        if begin < end and "parameter" in (owner + kind):
            raise refused(
                f"has its {owner} and its {kind} {key!r} in the same memory, and clients have copies of their own; tie "
                "two parameters by giving both names the same nn.Parameter, and give a buffer a copy (.clone())"
            )
        if stop > end:
            end, owner = stop, f"{kind} {key!r}"


def _memory(module: Any) -> Iterator[tuple[int, int, str, str]]:
    """Yield the first and last address, the kind and the name of each parameter and buffer."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for key, value in tensors:
            if value.layout == torch.strided and not value.is_meta and value.numel():
                yield value.data_ptr(), value.data_ptr() + _reach(value) * value.element_size(), kind, key


def _reach(value: Any) -> int:
    """Return how many elements the memory has from the first of a tensor's elements to its last."""
    steps = zip(value.shape, value.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps) if value.numel() else 0


def _tensors(module: Any) -> dict[str, Any]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _same_tensors(one: Any, other: Any) -> bool:
    """Return whether two modules have the same parameters and buffers, by name."""
    ours, theirs = _tensors(one), _tensors(other)
    return list(ours) == list(theirs) and all(same(value, theirs[key]) for key, value in ours.items())


def same(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same type and values, NaN or not."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout != torch.strided:  # such as a sparse one, which cannot be compared
        one, other = one.to_dense(), other.to_dense()
    return bool(((one == other) | ((one != one) & (other != other))).all())


def check_shared(
    module: Any, shared: Container[str], initial: str | None, trainable: str | Sequence[str] | None, refused: Refused
) -> None:
    """Raise ConfigError if a run changes parameters that a factory's modules have in common: the next would have them.

    `trainable` as in `freeze`; `initial` is not None if weights are loaded into all of them.
    """
    named = dict(module.named_parameters())
    frozen = frozen_names(named, trainable)
    for key, value in named.items():
        trained = value.requires_grad if trainable is None else key not in frozen
        if key in shared and (trained or initial is not None):
            raise refused(
                f"has the parameter {key!r} of the module that its factory has returned before, so that a run would "
                "begin with what another one has trained; make it, or a copy (copy.deepcopy), within the factory"
            )


def load_weights(module: Any, weights: Weights, refused: Refused) -> None:
    """Load tensors of a file into a module: all of its parameters, and buffers.

    Raises ConfigError: see Weights.put; or if the module's own state_dict is another.
    """
    factory = "which model.initial loads; let the factory load the file"
    with failing(lambda error: refused(f"failed in its state_dict, {factory}: {message_of(error)}")):
        state = {key: value for key, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    arrays = {key: as_array(value) for key, value in state.items() if _has_numpy(value)}
    names = [key for key, _ in module.named_parameters()]
    if missing := [key for key in names if key not in arrays]:
        raise refused(f"has no parameter {missing[0]!r} in its state_dict, {factory}")
    weights.put({key: arrays[key] for key in names}, arrays)
    loaded = {key: torch.from_numpy(array) for key, array in arrays.items() if key in weights.tensors}
    with failing(lambda error: refused(f"failed in its load_state_dict, {factory}: {message_of(error)}")):
        module.load_state_dict(loaded, strict=False)


def _has_numpy(value: Any) -> bool:
    """Return whether a tensor can be an array of NumPy's, as what a file has must be."""
    return bool(value.layout == torch.strided and value.dtype not in NOT_OF_NUMPY and not value.is_quantized)


def as_array(value: Any) -> NDArray[Any]:
    """Return a copy of a tensor, which may be a view of conjugate or negated numbers."""
    found: NDArray[Any] = value.detach().cpu().resolve_conj().resolve_neg().numpy().copy()
    return found


def freeze(module: Any, trainable: str | Sequence[str] | None, refused: Refused) -> tuple[str, ...]:
    """Let only some parameters of a module require gradients; return the names of the others.

    `trainable` has patterns of their names; None: it is as the module says in training mode. Raises ConfigError if none
    is trained, if the memory of one cannot be written, or if the module says otherwise whenever that mode is set.
    """
    named = dict(module.named_parameters())
    if trainable is not None:
        frozen = frozen_names(named, trainable)
        for key, value in named.items():
            if value.requires_grad and key in frozen:
                _turned_off[value] = True
            value.requires_grad_(key not in frozen)
        module.train()
        if odd := [key for key, value in named.items() if value.requires_grad == (key in frozen)]:
            what = f"sets requires_grad of its parameter {odd[0]!r} in its train(), and model.trainable says otherwise"
            raise refused(f"{what}; leave one of them out")
    found = tuple(key for key, value in named.items() if not value.requires_grad)
    for key, value in named.items():
        if value.requires_grad and value.layout == torch.strided and (value.is_neg() or value.numel() > _reach(value)):
            how = "are negated where they are read" if value.is_neg() else "share memory with each other, as by expand"
            raise refused(f"has a parameter {key!r} whose numbers {how}, so that they cannot be trained; give .clone()")
    if len(found) == len(named):
        raise refused("has no parameter that requires gradients; there is nothing to train")
    return found
