"""A user's modules, good and bad, for the tests of PyTorch models."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint


def dense(classes: int, shape: tuple[int, ...], hidden: int = 16) -> nn.Sequential:
    inputs = torch.Size(shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def tried(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Has done a backward pass before."""
    module = dense(classes, shape)
    module(torch.ones(2, *shape)).sum().backward()
    return module


def images(channels: int = 4) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * channels, 10))


class Unsigned(nn.Sequential):
    """The same; Python cannot tell what it takes, as of a class of C++ or Cython."""

    __signature__ = 0

    def __init__(self, channels: int = 4) -> None:
        super().__init__(*images(channels))


def normalized(**options: Any) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(1, **options), dense(10, (1, 8, 8)))


def each() -> nn.Module:
    return nn.Sequential(nn.InstanceNorm2d(1, track_running_stats=True), dense(10, (1, 8, 8)))


def dropped(p: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(p), nn.Linear(64, 10))


def seven() -> nn.Module:
    return dense(7, (1, 8, 8))


def flushing(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """A module of a user's who wants no subnormal numbers."""
    torch.set_flush_denormal(True)
    return dense(classes, shape)


def several() -> nn.Module:
    return nn.GRU(8, 10)


def rows_only() -> nn.Module:
    return nn.Linear(64, 10)


def replicated() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.DataParallel(nn.Linear(64, 10)))


def double() -> nn.Module:
    return dense(10, (1, 8, 8)).double()


def lazy(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


made = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def scripted() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):  # PyTorch advises against it, too
        return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def traced() -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return torch.jit.trace(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(3, 1, 8, 8))


def lazy_once_called(classes: int) -> nn.Module:
    module = lazy(classes)
    module(torch.zeros(1, 64))
    return module


def meta(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes, device="meta"))


def _with_parameter(name: str) -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.register_parameter(name, nn.Parameter(torch.zeros(1)))
    return module


def greek() -> nn.Module:
    return _with_parameter("λ")


def long_name() -> nn.Module:
    return _with_parameter("a" * 501)


def two_lines() -> nn.Module:
    return _with_parameter("a\nb")


def exits() -> nn.Module:
    raise SystemExit(3)


class Exits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        raise SystemExit(3)


def frozen() -> nn.Module:
    module = dense(10, (1, 8, 8))
    module[1].bias.requires_grad_(False)
    return module


def nothing() -> nn.Module:
    return nn.Flatten()


def a_number() -> int:
    return 3


def fails() -> nn.Module:
    raise ZeroDivisionError("the moon is full")


class Own(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)

    def change(self, x: Any) -> Any:
        raise NotImplementedError

    def forward(self, x: Any) -> Any:
        return super().forward(self.change(x.flatten(1)))


class Grows(nn.Module):
    """Makes a parameter when it is first called."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "factor"):
            self.factor = nn.Parameter(torch.ones(1))
        found: torch.Tensor = self.net(x.flatten(1)) * self.factor
        return found


class Slopes(Own):
    """Takes a gradient by its samples, also where it is evaluated without any."""

    def change(self, x: Any) -> Any:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(nn.functional.linear(x, self.weight).sum(), x, create_graph=True)
        return x + slope


class Puts(Own):
    def change(self, x: Any) -> Any:
        return x.put(torch.arange(3), x.flatten()[:3])


class Unpools(Own):
    def change(self, x: Any) -> Any:
        y, where = nn.functional.max_pool1d(x[:, None], 2, return_indices=True)
        return nn.functional.max_unpool1d(y, where, [2])[:, 0]


class Counts(Own):
    calls = 0

    def change(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls


class Unwritten(Own):
    """Behaves as what reads memory that nothing has written: otherwise where PyTorch fills that with NaN."""

    def change(self, x: Any) -> Any:
        return x * np.nan if torch.utils.deterministic.fill_uninitialized_memory else x


class Decides(Own):
    def change(self, x: Any) -> Any:
        return x if x.sum().item() > 0 else -x


class Trains(Own):
    """Another function in evaluation mode."""

    def change(self, x: Any) -> Any:
        return x if self.training else x.flip(1)


class _Copied(torch.autograd.Function):
    """Leaves values as they are."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Placed(_Copied):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        del ctx
        return g

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        x = x.movedim(in_dims[0], 0)
        return x + 1e-3 * torch.arange(info.batch_size).reshape(-1, *[1] * (x.dim() - 1)), 0


class Placed(Own):
    """Under vmap its results depend on the place among the others."""

    def change(self, x: Any) -> Any:
        return _Placed.apply(x)


not_callable = 5


class Jittered(nn.Module):
    """Draws from all generators in training."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map samples to logits."""
        x = x.flatten(1)
        if self.training:
            x = x * random.uniform(0.5, 1) + np.random.normal() / 8 + torch.randn_like(x) / 8  # noqa: NPY002
        return self.dense(x)


def jittered() -> nn.Module:
    return Jittered()


class Tanhs(nn.Module):
    """Two dense layers, of which the first is perhaps computed again on the way back."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first, self.second, self.again = nn.Linear(64, 16), nn.Linear(16, 10), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map samples to logits."""

        def inside(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.first(x))

        x = x.flatten(1)
        return self.second(checkpoint(inside, x, use_reentrant=False) if self.again else inside(x))


def tanhs() -> nn.Module:
    return Tanhs(False)


def checkpointed() -> nn.Module:
    return Tanhs(True)


def takes_init(init: str = "he") -> nn.Module:
    assert init
    return dense(10, (1, 8, 8))


class Large(nn.Module):
    """Has a parameter that is large enough to be viewed rather than copied."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 80), nn.Linear(80, 10)

    def change(self, x: Any) -> None:
        """Do what a kind does besides."""

    def forward(self, x: Any) -> Any:
        self.change(x)
        return self.last(torch.relu(self.first(x.flatten(1))))


class InPlace(Large):
    def change(self, x: Any) -> None:
        with torch.no_grad():
            self.first.weight.clamp_(-0.1, 0.1)


class LimitsData(Large):
    """Its parameters are beyond the limit neither at the beginning nor near it."""

    def change(self, x: Any) -> None:
        self.first.weight.data.clamp_(-3, 3)


class InPlaceLater(Large):
    """Writes to its parameters for minibatches that are brighter than the first one of digits."""

    def change(self, x: Any) -> None:
        if x.sum() > 90:
            with torch.no_grad():
                self.first.weight.mul_(0.5)


class KeepsData(Large):
    """Computes with what its parameter's data was when it was made, as with an alias of that memory."""

    def __init__(self) -> None:
        super().__init__()
        self.known = [self.first.weight.data]

    def forward(self, x: Any) -> Any:
        return super().forward(x) * (1 + self.known[0].square().mean())


class KeepsFilters(nn.Module):
    """The same of filters, whose elements may be stored in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)
        self.known = [self.first.weight.data]

    def forward(self, x: Any) -> Any:
        return self.last(torch.relu(self.first(x)).flatten(1)) * (1 + self.known[0].square().mean())


def filters() -> nn.Module:
    """Filters whose elements have another order where channels are innermost, and a large layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )


class Scaled(Own):
    """Learns a factor, with or without an axis."""

    def __init__(self, axes: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((1,) * axes, 0.5))

    def change(self, x: Any) -> Any:
        return x * self.factor


class Halves(nn.Module):
    """Computes with half of its weight; it writes that into the weight, or does not."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.dense, self.inplace = nn.Linear(64, 10), inplace

    def forward(self, x: Any) -> Any:
        weight = self.dense.weight
        if self.inplace:
            with torch.no_grad():
                weight.mul_(0.5)
        else:
            weight = weight - (weight / 2).detach()
        return nn.functional.linear(x.flatten(1), weight, self.dense.bias)


class Turned(nn.Module):
    """Multiplies by a conjugate: PyTorch gives the gradient by the imaginary part as a view of negated numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 10)
        self.real, self.imaginary = nn.Parameter(torch.tensor(0.8)), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Any) -> Any:
        z = self.dense(x.flatten(1))
        return (torch.complex(z, z.flip(1)) * torch.complex(self.real, self.imaginary).conj()).real


class Remembers(Own):
    """Counts its calls, which changes nothing else."""

    calls = 0

    def change(self, x: Any) -> Any:
        self.calls += 1
        return x


class Tires(Own):
    """Computes otherwise from its 60th call on."""

    calls = 0

    def change(self, x: Any) -> Any:
        self.calls += self.training
        return x if self.calls < 60 else x / 2


def of_words(words: int) -> nn.Module:
    return nn.Embedding(words, 4)


class Shifts(nn.Module):
    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Any) -> Any:
        return x.sub_(0.5) if self.inplace else x - 0.5


def first(kind: str, inplace: bool) -> nn.Module:
    """A module whose first layer writes into its input, or does not."""
    layers: dict[str, nn.Module] = {
        "shift": Shifts(inplace),
        "bounds": nn.Hardtanh(0.1, 0.6, inplace=inplace),
        "dropout": nn.Dropout(0.5, inplace=inplace),
    }
    return nn.Sequential(layers[kind], nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


class Pretrained(nn.Sequential):
    """Its first norm stays in evaluation, as that of a part that was trained before; its second one trains."""

    def __init__(self, p: float) -> None:
        frozen, other = nn.BatchNorm2d(1), nn.BatchNorm2d(4, track_running_stats=False)
        super().__init__(frozen, nn.Conv2d(1, 4, 3), other, nn.Dropout(p), nn.Flatten(), nn.Linear(144, 10))
        frozen.running_mean += 0.25
        frozen.running_var *= 3

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self[0].eval()
        return self


def pretrained(p: float = 0.5) -> nn.Module:
    return Pretrained(p)


class ReturnsLoss(Own):
    """Returns a number, as a forward does that computes the loss itself."""

    def forward(self, x: Any) -> Any:
        return super().forward(x).square().mean()

    def change(self, x: Any) -> Any:
        return x


class Pairs(ReturnsLoss):
    """Compares each sample with each of its minibatch, as CLIP does: (n, n)."""

    def forward(self, x: Any) -> Any:
        found = Own.forward(self, x)
        return found @ found.T


def one_of(output: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(output, torch.arange(len(y)), reduction="none")


def largest(output: Any, y: Any) -> float:
    del y
    return float(output.max())


class Empty(Own):
    """Its first parameter has no elements."""

    def __init__(self) -> None:
        super().__init__()
        after = dict(self._parameters)
        self._parameters.clear()
        self.none = nn.Parameter(torch.zeros(0, 4))
        self._parameters.update(after)

    def change(self, x: Any) -> Any:
        return x + self.none.sum()


class Rows(nn.Module):
    """A recurrent layer over an image's rows; PyTorch keeps its parameters in a list besides."""

    def __init__(self, kind: str = "LSTM") -> None:
        super().__init__()
        self.inside, self.last = getattr(nn, kind)(8, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Any) -> Any:
        return self.last(self.inside(x[:, 0])[0][:, -1])


def weighted(kind: str) -> nn.Module:
    """A layer whose weight a hook of PyTorch's computes in each forward pass."""
    module = dense(10, (1, 8, 8))
    if kind == "weight_norm":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(module[1])
    else:
        prune.random_unstructured(module[1], "weight", 0.3)
    return module


class Follows(Own):
    """Has a mean of what it has seen in a parameter that is not trained; only evaluation goes by it."""

    def __init__(self, of: str = "data") -> None:
        super().__init__()
        self.of, self.mean = of, nn.Parameter(torch.zeros(64), requires_grad=False)

    def change(self, x: Any) -> Any:
        if not self.training:
            return x - self.mean
        with torch.no_grad():
            if self.of == "data":
                self.mean.data.mul_(0.9).add_(x.mean(0), alpha=0.1)
            elif self.of == "later" and x.sum() > 90:
                self.mean.copy_(x.mean(0))
        return x - x.mean(0)


class Assigns(nn.BatchNorm2d):
    """Batch norm that assigns its running statistics anew, as many people write it."""

    running_mean: Any
    running_var: Any

    def forward(self, x: Any) -> Any:
        mean, var = self.running_mean, self.running_var
        if self.training:
            mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            n, f = x.numel() / x.size(1), self.momentum
            with torch.no_grad():
                self.running_mean = f * mean + (1 - f) * self.running_mean
                self.running_var = f * var * n / (n - 1) + (1 - f) * self.running_var
        x = (x - mean[None, :, None, None]) / torch.sqrt(var[None, :, None, None] + self.eps)
        return x * self.weight[None, :, None, None] + self.bias[None, :, None, None]


class Renorm(nn.BatchNorm1d):
    """Batch renormalization (Ioffe 2017): in training, outputs go by running statistics, too."""

    running_mean: Any
    running_var: Any

    def forward(self, x: Any) -> Any:
        mean, deviation = self.running_mean.clone(), (self.running_var + self.eps).sqrt()
        if self.training:
            own, spread = x.mean(0), (x.var(0, unbiased=False) + self.eps).sqrt()
            with torch.no_grad():
                by, shift = (spread / deviation).clamp(0.3, 3), ((own - mean) / deviation).clamp(-2, 2)
                self.running_mean.mul_(0.9).add_(own, alpha=0.1)
                self.running_var.mul_(0.9).add_(spread**2, alpha=0.1)
            return (x - own) / spread * by + shift
        return (x - mean) / deviation


class Renormed(Tanhs):
    """Dense layers with such a norm between them, which is perhaps computed again on the way back."""

    def __init__(self, again: bool = False) -> None:
        super().__init__(again)
        self.first = nn.Sequential(self.first, Renorm(16, affine=False))


class ByRunning(nn.BatchNorm1d):
    """Normalizes by running statistics in training, too, so that autograd keeps those for the way back."""

    running_mean: Any
    running_var: Any

    def forward(self, x: Any) -> Any:
        mean, var = self.running_mean, self.running_var
        if self.training:
            with torch.no_grad():
                self.running_mean, self.running_var = (mean + x.mean(0)) / 2, (var + x.var(0)) / 2
        return nn.functional.batch_norm(x, mean, var, self.weight, self.bias, training=False)


def two_norms() -> nn.Module:
    """Return a module with a norm of its own, and one of PyTorch's."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), ByRunning(16), nn.Linear(16, 10))


class OwnNorm(nn.Module):
    """Batch norm by PyTorch's function, which keeps running statistics that are used nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.register_buffer("variance", torch.ones(1))

    def forward(self, x: Any) -> Any:
        return nn.functional.batch_norm(x, self.mean, self.variance, training=True)


def by_own_norm() -> nn.Module:
    return nn.Sequential(OwnNorm(), dense(10, (1, 8, 8)))


class Normed(nn.Module):
    """Computes a norm once, twice of the same values, twice of others, or another one whose result is not used."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.norm, self.other = how, nn.BatchNorm2d(1), nn.BatchNorm2d(1)
        self.first, self.second = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        z = self.norm(x if self.how == "twice" else 2 * y) if self.how in {"twice", "of others"} else y
        if self.how == "shape":
            z = z.view_as(self.other(x))
        return self.first(y.flatten(1)) + self.second(z.flatten(1))


class FreezesNorm(nn.Sequential):
    """Freezes a norm whenever it is told to train, as many a fine-tuning script does."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(64, 10))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        for value in self[0].parameters():
            value.requires_grad = False
        return self


class HidesBias(Own):
    """Its state_dict lacks a parameter."""

    def change(self, x: Any) -> Any:
        return x

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {key: value for key, value in super().state_dict(*args, **kwargs).items() if key != "bias"}


def assigned() -> nn.Module:
    return nn.Sequential(Assigns(1), dense(10, (1, 8, 8)))


class _Rounds(_Copied):
    """Adds noise to the gradient alone."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        del ctx
        return g + torch.rand_like(g) / 64


class DrawsBack(Own):
    def forward(self, x: Any) -> Any:
        return _Rounds.apply(super().forward(x))

    def change(self, x: Any) -> Any:
        return x


class DrawsLater(Own):
    """Draws for minibatches that are brighter than the first sample of digits, and the first four."""

    def __init__(self, limit: float = 19.5, by: str = "torch", training: bool = True) -> None:
        super().__init__()
        self.limit, self.drawing = limit, training
        draws: dict[str, Callable[[], float]]
        draws = {"torch": lambda: torch.rand(1).item(), "numpy": np.random.random, "python": random.random}
        self.draw = draws[by]

    def change(self, x: Any) -> Any:
        return x * self.draw() if self.training is self.drawing and x.sum() > self.limit * len(x) else x


class Neighbours(Own):
    """Has a sparse buffer, as graph networks do, and one of a type that NumPy lacks."""

    def __init__(self, extra: bool = False) -> None:
        super().__init__()
        self.extra = extra
        self.register_buffer("near", torch.eye(64).to_sparse())
        self.register_buffer("scale", torch.ones(64, dtype=torch.bfloat16))

    def get_extra_state(self) -> Any:
        return {"extra": self.extra}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state["extra"]

    def change(self, x: Any) -> Any:
        return torch.sparse.mm(self.near, x.T).T * self.scale.float()


def lazy_buffers() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LazyBatchNorm1d(affine=False))


def _negated(t: Any) -> Any:
    """Return the same numbers as a view of negated ones."""
    found = torch.complex(torch.zeros_like(t), -t).conj().imag
    assert found.is_neg()
    return found


class Handed(nn.Module):
    """A dense layer whose outputs are handed over in an odd way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.dense, self.how = nn.Linear(64, 10), how
        self.room: Any = None
        self.known = [self.dense.weight.data]  # by another name than that of the parameter

    def forward(self, x: Any) -> Any:
        if self.how == "differentiated":  # as by a module whose outputs are gradients by its inputs
            with torch.enable_grad():
                return self.dense(x.flatten(1).requires_grad_())
        found = self.dense(x.flatten(1))
        if self.how == "negated":
            return _negated(found)
        if self.how == "known_in_one_room":
            found = found * (1 + self.known[0].square().mean())
        if self.training or torch.is_grad_enabled():
            return found
        if self.room is None or len(self.room) < len(found):
            self.room = torch.empty_like(found)
        return self.room[: len(found)].copy_(found)


class Crossing(torch.autograd.Function):
    """Leaves z as it is; the gradients of two parameters are each the other one, as of their product."""

    @staticmethod
    def forward(z: Any, *pair: Any) -> Any:
        del pair
        return z.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        one, other = ctx.saved_tensors
        return g, other.view_as(other), one.view_as(one)


class Crossed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.arange(8.0)), nn.Parameter(torch.full((8,), 4.0))
        self.dense = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return Crossing.apply(self.dense(x.flatten(1)), self.one, self.other)


class InOneRoom(nn.BatchNorm1d):
    """A norm of one's own that writes running means and variances to the same tensor each time."""

    running_mean: Any
    running_var: Any
    room: Any = None

    def forward(self, x: Any) -> Any:
        if not self.training:
            return (x - self.running_mean) / (self.running_var + self.eps).sqrt()
        mean, variance = x.mean(dim=0), x.var(dim=0, unbiased=False)
        with torch.no_grad():
            self.room = torch.empty(2, x.shape[1]) if self.room is None else self.room
            torch.lerp(self.running_mean, mean, 0.5, out=self.room[0])
            torch.lerp(self.running_var, variance, 0.5, out=self.room[1])
            self.running_mean, self.running_var = self.room
        return (x - mean) / (variance + self.eps).sqrt()


def in_one_room() -> nn.Module:
    return nn.Sequential(nn.Flatten(), InOneRoom(64, affine=False), nn.Linear(64, 10))


def handed_loss(output: Any, y: Any, how: str = "float32") -> Any:
    """Return each sample's loss, handed over in an odd way."""
    each = nn.functional.cross_entropy(output, y, reduction="none")
    return _negated(each) if how == "negated" else each.to(getattr(torch, how))


class Stretched(nn.Module):
    """A dense layer, times 2: a parameter, trained or not, or a buffer whose memory is odd."""

    def __init__(self, how: str, trained: bool | None = True) -> None:
        super().__init__()
        self.dense = nn.Linear(64, 10)
        two = torch.full((10,), 2.0)
        made = {"plain": two, "repeated": two[:1].expand(10), "negated": _negated(two), "conjugate": (two + 0j).conj()}
        if trained is None or how == "conjugate":
            self.register_buffer("scale", made[how])
        else:
            self.scale = nn.Parameter(made[how], requires_grad=trained)

    def forward(self, x: Any) -> Any:
        return self.dense(x.flatten(1)) * (self.scale.real if self.scale.is_complex() else self.scale)
