"""A user's modules with hooks and unusual tensors: those that fredsim must honour, and those that it must refuse."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as every_module


def plain() -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 10))


def doubled(_: Any, __: Any, output: Any) -> Any:
    return 2 * output


class Doubling(torch.autograd.Function):
    """Leaves values as they are, and doubles the gradient."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        del ctx
        return 2 * g


class Reversed(nn.Module):
    def forward(self, x: Any) -> Any:
        return Doubling.apply(x)


class Called(nn.Module):
    """Calls what it keeps."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Any) -> Any:
        return self.call(x)


class Odd(nn.Module):
    """Applies `change` to what it is given."""

    def __init__(self, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.inside, self.change = plain(), change

    def forward(self, x: Any) -> Any:
        return self.inside(self.change(self, x))


class Whole(Odd):
    """Returns what `change` makes of what it is given."""

    def forward(self, x: Any) -> Any:
        return self.change(self, x)


def _hook_result(_: Any, __: Any, output: Any) -> None:
    if output.requires_grad:
        output.register_hook(lambda g: 3 * g)


def forward_hooks() -> Any:
    module = plain()
    module[1].register_forward_hook(doubled)
    module[3].register_forward_pre_hook(lambda _, inputs: (inputs[0] / 2,))
    return module


def hooked_results() -> Any:
    module = plain()
    module[3].register_forward_hook(_hook_result)
    return module


def removed_hooks() -> Any:
    module = plain()
    module[1].weight.register_hook(lambda g: 2 * g).remove()
    module[1].register_full_backward_hook(lambda *_: None).remove()
    return module


def own_function() -> Any:
    module = plain()
    module.insert(3, Reversed())
    return module


def tied() -> Any:
    module = plain()
    module[4] = nn.Linear(12, 12)
    module[4].weight = module[3].weight
    return module


def twice_the_same() -> Any:
    module = plain()
    module.insert(4, module[3])
    return module


def unused() -> Any:
    module = plain()
    module.register_parameter("spare", nn.Parameter(torch.ones(3)))
    return module


def parametrized() -> Any:
    module = plain()
    nn.utils.parametrizations.weight_norm(module[3])
    return module


def detached() -> Any:
    module = plain()
    module[2].register_forward_hook(lambda _, __, output: output.detach() / 2 + output / 2)
    return module


def in_a_list() -> Any:
    module = Odd(lambda own, x: x.flatten(1) @ own.known[0].T @ own.known[0])
    module.known = [module.inside[1].weight]
    return module


def in_a_partial() -> Any:
    module = plain()
    module.insert(4, Called(functools.partial(nn.functional.linear, weight=module[3].weight)))
    return module


def by_its_data() -> Any:
    module = Odd(lambda own, x: x * (1 + own.known[0].square().mean()))
    module.known = [module.inside[3].weight.data]
    return module


def straight_through() -> Any:
    module = Odd(lambda own, x: x * (1 + own.known[0] - own.known[0].detach()).mean())
    module.known = [module.inside[3].weight]
    return module


def sparse_rows() -> Any:
    module = Odd(lambda own, x: x.flatten(1) * own.table((x.flatten(1) * 16).long())[..., 0])
    module.table = nn.Embedding(17, 1, sparse=True)
    return module


def by_gradients_of_samples() -> Any:
    """Moves samples along a gradient, also where the module is evaluated."""

    def moved(own: Any, x: Any) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (along,) = torch.autograd.grad(own.inside(x).logsumexp(1).sum(), x, create_graph=True)
            return own.inside(x + along)

    return Whole(moved)


def by_gradients_of_parameters() -> Any:
    """Takes a step of its own before it computes, also where the module is evaluated."""

    def adapted(own: Any, x: Any) -> Any:
        with torch.enable_grad():
            names, values = zip(*own.inside.named_parameters(), strict=True)
            steps = torch.autograd.grad(own.inside(x).logsumexp(1).mean(), values, create_graph=True)
            fast = {name: value - step for name, value, step in zip(names, values, steps, strict=True)}
            return torch.func.functional_call(own.inside, fast, (x,))

    return Whole(adapted)


def by_strides() -> Any:
    """Takes filters as a matrix by the strides of their memory."""
    module = Odd(lambda own, x: (
        own.second.weight.as_strided((1, 18), (18, 1)) @ nn.functional.unfold(own.first(x), 3, padding=1)
    ).view_as(x))  # fmt: skip
    module.first, module.second = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 1, 3)
    return module


#: Modules that reach a parameter by another way than its attribute.
ELSEWHERE = (in_a_list, in_a_partial, by_its_data, straight_through)
HONOURED = (
    plain, forward_hooks, hooked_results, removed_hooks, own_function, tied, twice_the_same, unused, parametrized,
    detached, sparse_rows, by_gradients_of_samples, by_gradients_of_parameters, by_strides, *ELSEWHERE,
)  # fmt: skip


def on_parameter() -> Any:
    module = plain()
    module[3].bias.register_hook(lambda g: 2 * g)
    return module


def after_accumulation() -> Any:
    module = plain()
    module[1].weight.register_post_accumulate_grad_hook(lambda p: p.grad.zero_() and None)
    return module


def on_several_parameters() -> Any:
    module = plain()
    torch.autograd.graph.register_multi_grad_hook([module[1].weight, module[5].weight], lambda _: None)
    return module


def on_buffer() -> Any:
    module = plain()
    module.register_buffer("scale", torch.ones(3, requires_grad=True))
    module.scale.register_hook(lambda g: 2 * g)
    return module


def on_module() -> Any:
    module = plain()
    module[3].register_full_backward_hook(lambda _, inputs, __: (2 * inputs[0],))
    return module


def before_module() -> Any:
    module = plain()
    module[3].register_full_backward_pre_hook(lambda _, outputs: (2 * outputs[0],))
    return module


def on_whole_module() -> Any:
    module = plain()
    module.register_full_backward_hook(lambda *_: None)
    return module


def old_hook() -> Any:
    module = plain()
    module[3].register_backward_hook(lambda *_: None)
    return module


def on_every_module() -> Any:
    every_module.register_module_full_backward_hook(lambda *_: None)
    return plain()


def before_every_module() -> Any:
    every_module.register_module_full_backward_pre_hook(lambda *_: None)
    return plain()


def in_forward() -> Any:
    def change(module: Any, x: Any) -> Any:
        if module.inside[1].weight.requires_grad:
            module.inside[1].weight.register_hook(lambda g: 2 * g)
        return x

    return Odd(change)


def on_the_graph() -> Any:
    module = plain()
    weight = module[1].weight
    module.node = weight.view_as(weight).grad_fn.next_functions[0][0]  # it lives as long as somebody holds it
    module.node.register_prehook(lambda gradients: (2 * gradients[0],))
    return module


def same_memory() -> Any:
    module = plain()
    module[5].bias = nn.Parameter(module[5].weight.detach()[:, 0].clone())
    module.flat = nn.Parameter(module[3].weight.detach().view(-1))
    return module


def buffer_of_parameter() -> Any:
    module = plain()
    module.register_buffer("start", module[3].weight.detach())
    return module


def changes_in_evaluation() -> Any:
    def change(module: Any, x: Any) -> Any:
        if not module.training:
            module.seen += 1
        return x

    module = Odd(change)
    module.register_buffer("seen", torch.zeros(()))
    return module


def replaces_buffer() -> Any:
    def change(module: Any, x: Any) -> Any:
        module.seen = module.seen + 1
        return x

    module = Odd(change)
    module.register_buffer("seen", torch.zeros(()))
    return module


def draws_from_python() -> Any:
    return Odd(lambda _, x: x if random.random() > 1e-9 else -x)


def draws_from_numpy() -> Any:
    return Odd(lambda _, x: x if np.random.random() > 1e-9 else -x)  # noqa: NPY002


def drops_in_evaluation() -> Any:
    return Odd(lambda module, x: x if module.training else nn.functional.dropout(x, 0.1))


def frozen() -> Any:
    return plain().requires_grad_(False)


BACKWARD = ("at what clients hold", "autograd.Function with setup_context")
#: By factory: what the message names.
REFUSED: dict[Callable[[], Any], tuple[str, ...]] = {
    on_parameter: ("hook on its parameter '3.bias'", *BACKWARD),
    after_accumulation: ("hook on its parameter '1.weight'", *BACKWARD),
    on_several_parameters: ("hook on its parameter '1.weight'", *BACKWARD),
    on_buffer: ("hook on its buffer 'scale'", *BACKWARD),
    on_module: ("backward hook on its module '3' (Linear)", *BACKWARD),
    before_module: ("backward hook on its module '3' (Linear)", *BACKWARD),
    on_whole_module: ("backward hook on the whole module (Sequential)", *BACKWARD),
    old_hook: ("backward hook on its module '3' (Linear)", *BACKWARD),
    on_every_module: ("backward hook on all modules", *BACKWARD),
    before_every_module: ("backward hook on all modules", *BACKWARD),
    in_forward: ("hook on its parameter 'inside.1.weight'", *BACKWARD),
    on_the_graph: ("another gradient by loss.backward()", *BACKWARD),
    same_memory: ("parameter '3.weight'", "parameter 'flat'", "the same memory", "nn.Parameter"),
    buffer_of_parameter: ("parameter '3.weight'", "buffer 'start'", "the same memory", ".clone()"),
    changes_in_evaluation: ("changes its buffer 'seen' in evaluation",),
    replaces_buffer: ("changes its buffer 'seen'",),
    draws_from_python: ("draws random numbers in evaluation",),
    draws_from_numpy: ("draws random numbers in evaluation",),
    drops_in_evaluation: ("draws random numbers in evaluation",),
    frozen: ("has no parameter that requires gradients",),
}
#: Those of which only what PyTorch computes is another: a graph has none of it.
HARMLESS = (changes_in_evaluation, replaces_buffer)
