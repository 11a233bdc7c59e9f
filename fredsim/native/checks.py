"""What a module does that fredsim would ignore, or that would make its bits depend on more than the experiment."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules import module as every_module
from torch.overrides import TorchFunctionMode

from fredsim.errors import ConfigError
from fredsim.native.attributes import own_attributes
from fredsim.native.backward import by_backward, by_grad, usual_way
from fredsim.native.building import same
from fredsim.numerics.arrays import near
from fredsim.plugins.failures import is_interrupt

__all__ = [
    "Casts", "Unchanged", "are_probabilities", "check_gradient", "check_hooks", "left_by_forward", "nothing_again",
]  # fmt: skip

Array = NDArray[np.float32]
Refused = Callable[[str], ConfigError]

INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
NEAR = 1e-5  # how near to 1 the sums of probabilities are
FORWARD_ONLY = (
    "fredsim computes gradients at what clients hold, in ways that need not call such a hook; change the gradient in "
    "forward, by a torch.autograd.Function with setup_context, or by register_hook on a result"
)


def check_hooks(module: Any, refused: Refused) -> None:
    """Raise ConfigError if a parameter, a buffer, a module or all modules have a hook on the backward pass."""
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for key, value in tensors:
            if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
                raise refused(f"has a hook on its {kind} {key!r}; {FORWARD_ONLY}")
    for key, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            whose = f"its module {key!r}" if key else "the whole module"
            raise refused(f"has a backward hook on {whose} ({type(part).__name__}); {FORWARD_ONLY}")
    if every_module._global_backward_hooks or every_module._global_backward_pre_hooks:
        raise refused(f"is used with a backward hook on all modules; {FORWARD_ONLY}")


@contextmanager
def nothing_again(refused: Refused) -> Iterator[None]:
    """Raise ConfigError if a module is called in the backward pass of a `with` block, which has other parameters."""
    thread = get_ident()

    def called(module: Any, given: Any) -> None:
        del given
        if get_ident() != thread:  # the passes of another client
            return
        what = f"computes its {type(module).__name__} again on the way back (torch.utils.checkpoint)"
        raise refused(
            f"{what}, with the parameters of the backward pass; leave that out, or stash weights (stages.delay)"
        )

    handle = every_module.register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        handle.remove()


def check_gradient(module: Any, loss: Callable[[], Any], found: Array, refused: Refused, tolerance: float) -> None:
    """Raise ConfigError if the gradient (P,) of a loss is another in the other way, as with hooks in some places.

    `tolerance`: how far the two may be apart, relative to the largest element.
    """
    values = [value for value in module.parameters() if value.requires_grad]
    other = by_grad if usual_way(values[0].device) is by_backward else by_backward
    parts = other(loss(), values, None)  # perhaps parameters themselves
    expected = torch.cat([part.detach().reshape(-1) for part in parts]).cpu().numpy()
    if not near(found, expected, tolerance):
        what = "has another gradient by loss.backward() than by torch.autograd.grad"
        raise refused(f"{what}, through a hook or a graph of its own; {FORWARD_ONLY}")


class Unchanged:
    """A module's buffers, as they are now, and its parameters that are not trained, which have these values."""

    def __init__(self, module: Any, frozen: Mapping[str, Any]) -> None:
        self._module, self._frozen = module, frozen
        self._before: Mapping[str, Any] = {name: value.clone() for name, value in module.named_buffers()}

    def changed(self, may: Container[str] = ()) -> str:
        """Return which has changed, been added or gone since, but for buffers in `may`; "" if none has."""
        now = dict(self._module.named_buffers())
        names = [*now, *(name for name in self._before if name not in now)]
        kept = {name for name in names if name in now and name in self._before and same(now[name], self._before[name])}
        odd = [f"buffer {name!r}" for name in names if name not in kept and name not in may]
        params = dict(self._module.named_parameters())
        odd += [
            f"parameter {name!r}, which is not trained,"
            for name, value in self._frozen.items()
            if name not in params or not same(params[name].detach().cpu(), value)
        ]
        return next(iter(odd), "")


class Casts(TorchFunctionMode):
    """Within a `with` block, notes whether values of the samples `x` are cut off to integers, such as by x.long()."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self._x, self.lossy = x, False

    def problem(self, divisor: int) -> str:
        """Return what is wrong if samples, divided by a number unless it is 0, were cut off; "" if nothing is."""
        if not self.lossy or not divisor:
            return ""
        return (
            f"cuts samples off to integers, such as by x.long(), and fredsim has divided these by {divisor}, so "
            "that nearly all become 0; save tokens as int32 in an NPZ file, which stay as they are"
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch's."""
        result, source = func(*args, **(kwargs or {})), args[0] if args else None
        if isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor) and source.shape == result.shape:
            to_integers = source.dtype.is_floating_point and result.dtype in INTEGERS
            if to_integers and torch.equal(result, source.to(result.dtype)):
                self.lossy |= bool((source != source.trunc()).any() and torch.isin(source, self._x).all())
        return result


def are_probabilities(module: Callable[[torch.Tensor], Any], x: torch.Tensor) -> bool:
    """Return whether the outputs for samples are probabilities of classes; False if the module fails."""
    try:
        with torch.no_grad():
            outputs = module(x)
            found = outputs.dim() == 2 and outputs.shape[1] > 1 and bool((outputs >= 0).all())
            return found and bool(((outputs.sum(dim=1) - 1).abs() <= NEAR).all())
    except BaseException as error:  # of any type: the module is the user's, and the run itself says what is wrong
        if is_interrupt(error):
            raise
        return False


def left_by_forward(module: Any, x: torch.Tensor) -> tuple[str, str]:
    """Return the names of the first parameter, and of the first attribute, a whole number, that a forward pass changes.

    A limit on weights changes parameters, which are put back afterwards; a count of calls stays. Those that are not
    trained are not meant: a change in them is refused. A name is "" if there is none, and both are if the module fails.
    """

    def counts() -> dict[str, int]:
        parts = ((path, own_attributes(part)) for path, part in module.named_modules())
        found = ((".".join(filter(None, (path, name))), value) for path, own in parts for name, value in own)
        return {name: value for name, value in found if type(value) is int}

    named, counted = dict(module.named_parameters()), counts()
    before = [value.detach().clone() for value in named.values()]
    try:
        with torch.no_grad():
            module(x)
        pairs = zip(named.items(), before, strict=True)
        changed = (name for (name, now), was in pairs if now.requires_grad and not same(now, was))
        return next(changed, ""), next((name for name, value in counts().items() if counted.get(name) != value), "")
    except BaseException as error:  # of any type: see are_probabilities
        if is_interrupt(error):
            raise
        return "", ""
    finally:
        with torch.no_grad():
            for value, was in zip(named.values(), before, strict=True):
                value.copy_(was)
