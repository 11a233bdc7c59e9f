"""Passes of several clients of a native module at the same time: the bits of one client after the other."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    from torch.utils.checkpoint import checkpoint

from fredsim.config.resolution import resolve
from fredsim.data.datasets import data_root, load_dataset
from fredsim.errors import ConfigError, SimulationError
from fredsim.native import concurrent
from fredsim.native.checks import nothing_again
from fredsim.native.concurrent import ConcurrentPasses
from fredsim.native.queue import _updates_before
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from tests.test_native_fused import CASES, GATED, compare_stopped, experiment
from tests.test_random_experiments import asked_often

Simulate = Callable[..., Result]
pytestmark = pytest.mark.usefixtures("modules")

NATIVE = {"numerics": "native"}
AT_ONCE = "each client on 1 thread, {} at the same time"


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute as many at the same time as may be, whether it saves time or not."""
    monkeypatch.setattr(ConcurrentPasses, "choose", lambda self, compute: None)
    monkeypatch.setattr(concurrent, "LEAST_BYTES", 0)


def own(name: str, **hyper: Any) -> dict[str, Any]:
    return {"model": {"name": f"torch:own_modules:{name}", **NATIVE, **hyper}}


HERE = "torch:tests.test_native_concurrent:"
STEPS = {"count": 8, "batch_size": 4, "local_steps": 3, "pushes": "difference"}
#: Beside those of test_native_fused: experiments, and the paths that they take.
MORE: dict[str, dict[str, Any]] = {
    "gradients that are parameters": own("Crossed"),
    "computed again on the way back": own("checkpointed"),
    "bfloat16": own("dense", precision="bfloat16"),
    "attends": {"model": {"name": "torch:tests.test_native_concurrent:Attends", **NATIVE}},
    "writes into its weight": own("Halves", inplace=True),
    "own statistics": own("pretrained", p=0.0, buffers="local"),
    "draws": own("dropped"),
    "draws beside the shared generators of NumPy and Python": {"model": {"name": f"{HERE}Noise", **NATIVE}},
    "running statistics": own("pretrained", p=0.0, buffers="averaged"),
    "running statistics, and draws": own("pretrained", buffers="last"),
    "running statistics, no waiting": own("pretrained", p=0.0, buffers="last") | {"dispatcher": {"wait": False}},
    "running statistics, in steps": own("pretrained", buffers="averaged") | {"clients": STEPS},
    "running statistics, and a probe": own("pretrained", buffers="averaged") | {"probe": {"every": 10}},
    "running statistics that are assigned": {"model": {"name": f"{HERE}assigns", "buffers": "averaged", **NATIVE}},
    "pushes of differences": {"clients": STEPS},
    "augmented": {"data": {"name": "digits", "augment": {"flip": True}}},
    "compressed": {"compress": {"name": "sign"}},
    "whole gradients": {"server": {"name": "dcasgd", "lr": 0.1}},
    "a probe": {"probe": {"every": 10}},
    "all at once": {"server": {"name": "sync", "lr": 0.1}},
    "a straggler": {"dispatcher": {"name": "weighted", "weights": [20, 1, 1, 1, 1, 1, 1, 1]}},
    "two clients": {"clients": {"count": 2, "batch_size": 24}},
}
SAME = {**{name: case for name, case in CASES.items() if "window" not in case}, **MORE}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("case", SAME)
def test_the_bits_are_those_of_one_thread(case: str, simulate: Simulate) -> None:
    changes = experiment("asgd") | SAME[case] | {"evaluation": {"every": 20}}
    alone = simulate(changes | {"threads": 1})  # on whatever path: test_native_fused compares these
    paths = ["auto"] if alone.summary["path"] == "snapshots" else ["auto", "snapshots"]
    for path in paths:
        found = simulate(changes | {"threads": 3, "path": path})
        assert found.summary["vmap"] == AT_ONCE.format(2 if case == "two clients" else 3)
        assert found.summary["path"] == (alone.summary["path"] if path == "auto" else path)
        assert found.summary["iterations"] == alone.summary["iterations"]
        for name in ("staleness.csv", "params.safetensors"):
            assert (found.folder / name).read_bytes() == (alone.folder / name).read_bytes(), (path, name)


MODULES: list[dict[str, Any]] = [
    own("dense"), own("images"), own("images", channels=16), own("filters"), own("Scaled"), own("Halves", inplace=True),
    own("Turned"), own("Crossed"), own("tanhs"), own("checkpointed"), own("Slopes"), own("Rows"), own("Trains"),
    own("first", kind="shift", inplace=True), own("pretrained", p=0.0, buffers="local"),
    own("dense", precision="bfloat16"), own("dropped"), own("pretrained", buffers="averaged"),
    own("pretrained", p=0.0, buffers="last"), own("jittered"),
]  # fmt: skip
SERVERS = (
    "asgd", "adam", "fasgd", "dcasgd", "sasgd", "momentum", "sync", "downpour", "rescaled", "easgd", "dana",
    "gap_aware", "delay_adaptive",
)  # fmt: skip
STRAGGLERS = {"seconds": {"name": "two_class", "share": 0.25, "factor": 10}}
ORDERS: list[dict[str, Any]] = [
    {}, {"name": "round_robin"}, {"name": "clock"}, {"wait": False}, {"name": "clock", "compute": STRAGGLERS},
]  # fmt: skip


def drawn(seed: int) -> dict[str, Any]:
    """Return a random experiment; some do not fit together."""
    rng = np.random.default_rng(seed)

    def one(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    few = {"local_steps": one(2, 3)} if rng.random() < 0.15 else {}
    clients = {"count": one(2, 3, 5, 8, 16), "batch_size": one(1, 4, 24), "sampling": one("sequential", "iid"), **few}
    return {
        **one(*MODULES), "seed": seed, "iterations": one(20, 45), "clients": clients, "dispatcher": one(*ORDERS),
        "server": {"name": one(*SERVERS), "lr": 0.05}, "evaluation": {"every": one(7, 15)},
        **({"compress": {"name": one("sign", "ternary", "topk")}} if rng.random() < 0.15 else {}),
        **({"memory": 1} if rng.random() < 0.15 else {}),
        **({"path": "snapshots"} if rng.random() < 0.2 else {}),
    }  # fmt: skip


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("tens", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 30))])
def test_random_experiments(tens: int, simulate: Simulate) -> None:
    at_once = 0
    for seed in range(10 * tens, 10 * tens + 10):
        data, ends, vmap = drawn(seed), [], ""
        for threads in (1, 2 + seed % 4):
            try:
                found = simulate(data | {"threads": threads})
            except ConfigError as error:  # on both
                ends.append(str(error))
                continue
            vmap = found.summary["vmap"]
            files = [(found.folder / name).read_bytes() for name in ("staleness.csv", "params.safetensors")]
            ends.append(f"{found.summary['status']} {found.summary['iterations']} {files}")
        each_on_one = vmap.startswith("each client on 1 thread")
        assert ends[0] == ends[1] or not (each_on_one or vmap == ""), (data, vmap)
        at_once += each_on_one
    assert at_once > 2


@pytest.mark.usefixtures("always")
def test_stages_with_two_versions(simulate: Simulate) -> None:
    """Of each minibatch, the forward and the backward pass have other parameters."""
    stages = {"stages": {"cuts": ["second.weight"], "delay": {"forward": [3, 1], "backward": [2, 0]}}}
    alone, found = (simulate(experiment("asgd") | own("tanhs") | stages | {"threads": threads}) for threads in (1, 2))
    assert found.summary["vmap"] == AT_ONCE.format(2)
    assert (found.folder / "params.safetensors").read_bytes() == (alone.folder / "params.safetensors").read_bytes()


def test_a_module_that_is_called_for_another_client_is_not_called_again() -> None:
    """That is looked for in the thread of a backward pass alone."""
    module, x = torch.nn.Linear(2, 2), torch.zeros(1, 2)
    with nothing_again(ConfigError):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(module, x).result().shape == (1, 2)
        with pytest.raises(ConfigError, match="Linear again on the way back"):
            module(x)
    module(x)


@pytest.mark.usefixtures("always")
def test_few_clients_share_the_threads(simulate: Simulate) -> None:
    """Each pass is computed by half of four threads, as without others on two."""
    few = experiment("asgd") | {"clients": {"count": 2, "batch_size": 24}}
    alone, found = simulate(few | {"threads": 2, "window": 1}), simulate(few | {"threads": 4})
    assert found.summary["vmap"] == "each client on 2 threads, 2 at the same time"
    assert (found.folder / "params.safetensors").read_bytes() == (alone.folder / "params.safetensors").read_bytes()


def test_each_pass_has_its_number_of_threads() -> None:
    """Whatever number another thread sets before its first one, as an engine that measures the gradient's norm does."""
    before, all_there = torch.get_num_threads(), threading.Barrier(3)
    passes = ConcurrentPasses([None] * 3, 1)  # type: ignore[list-item]
    time.sleep(0.05)  # they have begun
    found: list[int] = []

    def compute(*_: Any) -> None:
        all_there.wait(10)
        found.append(torch.get_num_threads())

    try:
        torch.set_num_threads(before + 1)
        passes.run([0] * 3, compute)
    finally:
        torch.set_num_threads(before)
        passes.close()
    assert found == [1, 1, 1]


def test_where_it_takes_longer_one_is_computed_at_a_time(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    base, seconds = experiment("asgd"), iter(range(1, 100))
    alone = simulate(base)
    monkeypatch.setattr(ConcurrentPasses, "_time_of_one", lambda *_: 1e-9 * next(seconds))
    monkeypatch.setattr(ConcurrentPasses, "run", None)  # never called then
    monkeypatch.setattr(concurrent, "LEAST_BYTES", 0)
    monkeypatch.setattr(ConcurrentPasses, "same", lambda *_: True)
    for path in ("auto", "fused", "snapshots"):
        found = simulate(base | {"threads": 2, "path": path})
        assert found.summary["vmap"] == AT_ONCE.format(2)
        assert (found.folder / "params.safetensors").read_bytes() == (alone.folder / "params.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("times", "most", "chosen"),
    [
        ([9, 1e-3, 6e-4, 4e-4, 3e-4], 8, 8),
        ([9, 1e-3, 6e-4, 5.9e-4], 8, 2),
        ([9, 1e-3, 9.6e-4], 8, 1),
        ([9, 1e-3, 6e-4, 4e-4], 3, 3),
        ([9, 4e-3], 8, 8),
    ],
)
def test_how_many_pay(times: list[float], most: int, chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(times)
    monkeypatch.setattr(ConcurrentPasses, "_time_of_one", lambda *_: next(left))
    passes = ConcurrentPasses([None] * most, 1)  # type: ignore[list-item]
    passes.choose(lambda *_: None)
    passes.close()
    assert passes.at_once == chosen
    assert not list(left)


class Attends(torch.nn.Linear):  # type: ignore[misc]
    """Attends without dropout, by an operator of PyTorch's that might draw."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        rows = x.reshape(len(x), 1, 8, 8)
        return super().forward(torch.nn.functional.scaled_dot_product_attention(rows, rows, rows).flatten(1))


class Noise(torch.nn.Linear):  # type: ignore[misc]
    """Adds noise from all generators."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        if self.training:
            drawn = np.random.rand(64), [random.random() for _ in range(64)]  # noqa: NPY002
            time.sleep(1e-4)  # for others to begin
            x = x.flatten(1) + torch.rand(64) / 8 + torch.tensor(np.array(drawn).sum(axis=0) / 8, dtype=torch.float32)
        return super().forward(x.flatten(1))


class Assigns(torch.nn.BatchNorm1d):  # type: ignore[misc]
    """Assigns its running means, by its weight, rather than writing into them."""

    running_mean: Any

    def forward(self, x: Any) -> Any:
        if self.training:
            self.running_mean = 0.5 * self.running_mean + 0.5 * x.mean(0) * self.weight
        return torch.nn.functional.batch_norm(
            x, None if self.training else self.running_mean, None if self.training else self.running_var,
            self.weight, self.bias, self.training,
        )  # fmt: skip


def assigns() -> Any:
    return torch.nn.Sequential(torch.nn.Flatten(), Assigns(64), torch.nn.Linear(64, 10))


class DrawsAgain(torch.nn.Linear):  # type: ignore[misc]
    """Draws again on the way back what it has drawn, and leaves the generator as it was."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        inside = partial(torch.nn.functional.dropout, training=self.training)
        return checkpoint(inside, super().forward(x.flatten(1)), use_reentrant=False)


class Shaken(torch.autograd.Function):  # type: ignore[misc]
    """The sum of numbers and a number that is drawn; its gradient is 1, and draws, too."""

    @staticmethod
    def forward(ctx: Any, x: Any, numpy: bool) -> Any:
        ctx.numpy = numpy
        return x + torch.rand(1)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        return dy + 0 * (np.random.rand() if ctx.numpy else torch.rand(1)), None  # noqa: NPY002


class DrawsLate(torch.nn.Linear):  # type: ignore[misc]
    def __init__(self, numpy: bool = False) -> None:
        super().__init__(64, 10)
        self.numpy = numpy

    def forward(self, x: Any) -> Any:
        found = super().forward(x.flatten(1))
        return Shaken.apply(found, self.numpy) if self.training else found


class DrawsBetween(torch.nn.Linear):  # type: ignore[misc]
    """Draws nothing on the way back, but puts the generator there back to what it was, and then forth again."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        dropped = torch.nn.functional.dropout(x.flatten(1), training=self.training)
        return checkpoint(super().forward, dropped, use_reentrant=False)


class DrawsLateAtTimes(DrawsLate):
    """By what it has drawn; nothing with the numbers of the first gradient that is tried."""

    def forward(self, x: Any) -> Any:
        late = float(torch.rand(1)) > 0.5 if self.training else False
        found = torch.nn.Linear.forward(self, x.flatten(1))
        return Shaken.apply(found, self.numpy) if late else found


class Uncopied(torch.nn.Linear):  # type: ignore[misc]
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        return super().forward(x.flatten(1))

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is one of me")


class Elsewhere(torch.nn.Linear):  # type: ignore[misc]
    """Computes by the parameters of the module that was made, as a function does that a copy shares."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.compute: Any = lambda x: torch.nn.functional.linear(x.flatten(1), self.weight, self.bias)

    def forward(self, x: Any) -> Any:
        return self.compute(x)


CALLS = [0]


class CountsElsewhere(torch.nn.Linear):  # type: ignore[misc]
    """Counts its calls in a variable of its Python module."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        CALLS[0] += 1
        return super().forward(x.flatten(1))


def hooked() -> Any:
    """Return a module that computes with what a hook has noted in a place that a copy shares."""
    first, seen = torch.nn.Linear(64, 16), []
    first.register_forward_hook(lambda part, x, output: seen.append(output))

    class Reads(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, _: Any) -> Any:
            return super().forward(torch.relu(seen.pop()))

    return torch.nn.Sequential(torch.nn.Flatten(), first, Reads(16, 10))


def in_one_room() -> Any:
    """Return a module that computes with memory of the function around its class, which copies share."""
    room = torch.zeros(600, 10)

    class Writes(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            output = super().forward(x.flatten(1))
            room[: len(x)] = output.detach()
            return output * (room[: len(x)] > 0)

    return Writes(64, 10)


class SameNoise(torch.nn.Linear):  # type: ignore[misc]
    """Adds noise that is the same each time; it leaves the generator as it was."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Any) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().forward(x.flatten(1) + torch.rand(64) / 8)


ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "draws the same": (
        {"model": {"name": f"{HERE}SameNoise", **NATIVE}}, "it draws random numbers, and puts the generator back"
    ),
    **{
        name: (
            {"model": {"name": f"{HERE}{module}", **NATIVE, **more}},
            "it draws random numbers, and Python code of its backward pass may do so, too",
        )
        for name, module, more in (
            ("draws again", "DrawsAgain", {}),
            ("draws late", "DrawsLate", {}),
            ("draws late from NumPy", "DrawsLate", {"numpy": True}),
            ("draws late at times", "DrawsLateAtTimes", {}),
            ("draws before what is computed again", "DrawsBetween", {}),
        )
    },
    "one client": ({"clients": {"count": 1, "batch_size": 4}}, "no more are taken at once"),
    "one thread": ({"threads": 1}, "no more are taken at once"),
    "counts": (own("Remembers"), "the attribute calls of model.name: torch:own_modules:Remembers has changed"),
    "counts elsewhere": (
        {"model": {"name": f"{HERE}CountsElsewhere", **NATIVE}}, "tests.test_native_concurrent.CALLS has changed"
    ),
    "elsewhere": ({"model": {"name": f"{HERE}Elsewhere", **NATIVE}}, "a copy of it computes another gradient"),
    "hooks": (
        {"model": {"name": f"{HERE}hooked", **NATIVE}}, "it has hooks, and copies would have the same ones"
    ),
    "one after the other": (
        GATED | {"dispatcher": {"name": "clock", "link": {"down": 1e6}, "fetch": {"bandwidth_aware": {"c": 0.5}}}},
        "no more are taken at once",
    ),
    "one room": (
        {"model": {"name": f"{HERE}in_one_room", **NATIVE}},
        f"the class in_one_room.<locals>.Writes of {HERE}in_one_room has changed",
    ),
    "no copies": (
        {"model": {"name": f"{HERE}Uncopied", **NATIVE}},
        "a copy of it failed on samples of shape (n, 1, 8, 8): TypeError: there is one of me",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_who_is_computed_alone(case: str, simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent, "LEAST_BYTES", 0)
    changes, why = ALONE[case]
    changes = {"iterations": 3, "threads": 2, "clients": {"count": 8, "batch_size": 4}} | changes
    summary = simulate(experiment("asgd") | changes).summary
    assert summary["vmap"] == f"one client after the other: {why}"
    one = simulate(experiment("asgd") | changes | {"window": 1}).summary
    assert one["digest"] == summary["digest"]


def test_large_modules(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """What two passes read and write would not be in a processor's cache."""
    size = 64 * 16 + 16 + 16 * 10 + 10
    for most, alone in ((size, True), (size + 1, False)):
        monkeypatch.setattr(concurrent, "MANY", most)
        monkeypatch.setattr(concurrent, "LEAST_BYTES", 0)
        vmap = simulate(experiment("asgd") | {"threads": 2, "iterations": 1}).summary["vmap"]
        assert vmap.startswith("one client after the other: it has 1,210" if alone else "each client on 1 thread")


def test_passes_that_keep_much(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass of a dense network keeps what each layer's weights are multiplied by, but for the first layer
    the weights of those that multiply errors, logarithms of probabilities, labels and the sum of their weights.
    """
    kept = 4 * (24 * 64 + 24 * 16 + 16 * 10 + 24 * 10) + 8 * 24 + 4
    for most, expected in ((4, 4), (4 - 1 / kept, 3), (2, 2), (2 - 1 / kept, 0)):
        monkeypatch.setattr(concurrent, "LEAST_BYTES", kept)
        monkeypatch.setattr(concurrent, "MOST_BYTES", round(most * kept))
        vmap = simulate(experiment("asgd") | {"threads": 5, "iterations": 4}).summary["vmap"]
        if expected:
            threads = "2 threads" if expected == 2 else "1 thread"
            assert vmap == f"each client on {threads}, {expected} at the same time"
        else:
            assert vmap == "one client after the other: what two forward passes keep is more than 19 kB"
    monkeypatch.setattr(concurrent, "LEAST_BYTES", kept + 1)
    vmap = simulate(experiment("asgd") | {"threads": 2, "iterations": 4}).summary["vmap"]
    assert vmap == "one client after the other: what a forward pass keeps is less than 9.48 kB"


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "case",
    [
        "a rule with state",
        "filters in another order",
        "in a file",
        "no waiting",
        "draws",
        "running statistics, and draws",
        "running statistics, in steps",
    ],
)
def test_a_run_that_was_stopped_goes_on(case: str, tmp_path: Path) -> None:
    compare_stopped(experiment("asgd") | SAME[case] | {"threads": 2}, tmp_path)


class Fails(torch.nn.Linear):  # type: ignore[misc]
    """Fails for minibatches with a certain sample."""

    def __init__(self, how: str, begin: float) -> None:
        super().__init__(64, 10)
        self.how, self.begin = how, begin

    def forward(self, x: Any) -> Any:
        if self.training and not torch.is_grad_enabled():
            return super().forward(x.flatten(1))
        if self.training and float(x[0].sum()) == self.begin:
            raise {"error": ValueError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[self.how]("enough")
        return super().forward(x.flatten(1))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("how", ["error", "exit", "interrupt"])
def test_what_a_module_raises(how: str, simulate: Simulate) -> None:
    """The run ends with the same error as if one were computed after the other."""
    x = load_dataset("digits", None, None, data_root()).train.x
    begin = float(torch.from_numpy(x[24 * 17 : 24 * 17 + 1]).sum())
    model = {"name": f"{HERE}Fails", "how": how, "begin": begin, **NATIVE}
    changes = experiment("asgd") | {"model": model, "evaluation": {"every": 5}, "data": {"name": "digits"}}
    changes["clients"] = {"count": 8, "batch_size": 24, "sampling": "sequential"}
    said = []
    for threads in (1, 3):
        with pytest.raises(SimulationError, match="enough") as caught:
            simulate(changes | {"threads": threads})
        said.append(str(caught.value))
    assert said[0] == said[1]


class Late(torch.nn.Linear):  # type: ignore[misc]
    """Changes a buffer or an attribute, or draws, for minibatches that are brighter than the first one."""

    def __init__(self, what: str) -> None:
        super().__init__(64, 10)
        self.what, self.seen = what, 0
        self.register_buffer("least", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        if self.training and x.sum() > 19.5 * len(x):
            if self.what == "buffer":
                self.least += 1
            elif self.what == "attribute":
                self.seen += 1
            else:
                x = torch.nn.functional.dropout(x, 0.1)
        return super().forward(x.flatten(1))


LATE = {"clients": {"count": 8, "batch_size": 4}, "threads": 2, "evaluation": {"every": 5}, "data": {"name": "digits"}}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("what", "kind", "said"),
    [
        ("buffer", SimulationError, "Late has changed its buffer 'least' since the run began"),
        ("draws", ConfigError, "Late draws random numbers for some minibatches alone"),
    ],
)
def test_what_a_copy_does_later_is_refused(what: str, kind: type[Exception], said: str, simulate: Simulate) -> None:
    with pytest.raises(kind, match=said):
        simulate(experiment("asgd") | LATE | {"model": {"name": f"{HERE}Late", "what": what, **NATIVE}})


class Notes(Observer):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.usefixtures("always")
def test_what_a_copy_keeps_is_in_no_checkpoint(tmp_path: Path) -> None:
    model, told = {"model": {"name": f"{HERE}Late", "what": "attribute", **NATIVE}}, Notes()
    found = resolve(experiment("asgd") | LATE | model | {"server": {"name": "asgd", "lr": 0.1}})
    stop = partial(asked_often, count(), 6)
    execute(found, tmp_path, stop=stop, policy=CheckpointPolicy(1e9), observer=told)
    assert any("the attribute seen of model.name: " in note and "in copy" in note for note in told.notes), told.notes


class Turn:
    """What stands for passes here: each thread has its own."""


def waited(rng: np.random.Generator) -> None:
    time.sleep(float(rng.choice([0, 0, 1e-4, 2e-3])))


@pytest.fixture(params=[1, 2, 5])
def several(request: pytest.FixtureRequest) -> Iterator[ConcurrentPasses]:
    found = ConcurrentPasses([Turn() for _ in range(request.param)], 1)  # type: ignore[misc]
    yield found
    found.close()
    assert not any(thread.is_alive() for thread in found._each)


def test_results_are_used_in_order_after_what_they_need(several: ConcurrentPasses) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        n = int(rng.integers(0, 40))
        after = [int(rng.integers(0, i + 1)) for i in range(n)]
        used: list[int] = []
        busy: set[int] = set()
        most = 0

        def compute(turn: Any, i: int, after=after, used=used, busy=busy) -> tuple[int, int]:  # type: ignore[no-untyped-def]
            nonlocal most
            assert id(turn) not in busy  # no thread has another one's
            busy.add(id(turn))
            most = max(most, len(busy))
            seen = len(used)
            assert seen >= after[i]
            waited(rng)
            busy.discard(id(turn))
            return i, seen

        def use(i: int, found: tuple[int, int], used=used) -> bool:  # type: ignore[no-untyped-def]
            assert (i, i) == (found[0], len(used))
            waited(rng)
            used.append(i)
            return True

        assert several.run(after, compute, use) == n
        assert used == list(range(n))
        assert most <= several.at_once


def test_all_threads_take_part(several: ConcurrentPasses) -> None:
    """Each task waits until all threads have one."""
    together = threading.Barrier(several.at_once)
    assert several.run([0] * several.at_once, lambda *_: together.wait(10)) == several.at_once


@pytest.mark.parametrize("where", ["compute", "use", "stop"])
def test_the_first_failure_ends_it(where: str, several: ConcurrentPasses) -> None:
    """That with the smallest number, whoever is done first; what came before it is used, nothing after it."""
    used: list[int] = []

    def compute(_: Any, i: int) -> int:
        time.sleep(0.002 if i == 11 else 0)
        if where == "compute" and i in (11, 12, 13):
            raise ValueError(i)
        return i

    def use(i: int, _: int) -> bool:
        if where == "use" and i in (11, 12):
            raise ValueError(i)
        if where == "stop" and i == 11:
            return False
        used.append(i)
        return True

    for _ in range(5):  # and the next ones are done as the first
        used.clear()
        if where == "stop":
            assert several.run([0] * 40, compute, use) == 11
        else:
            with pytest.raises(ValueError, match="11"):
                several.run([0] * 40, compute, use)
        assert used == list(range(11))
    assert several.run([0] * 5, lambda _, i: i) == 5


def test_an_interrupt_waits_for_those_under_way(several: ConcurrentPasses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes to the thread that waits for the others."""
    running: set[int] = set()
    wait, interrupts = several._ended.wait, iter([KeyboardInterrupt, None, KeyboardInterrupt])

    def interrupted(timeout: float | None = None) -> bool:
        wait(0.01)
        if (error := next(interrupts, None)) is not None:
            raise error
        return wait(timeout) if several._tasks is not None and several._tasks.running else True

    def compute(_: Any, i: int) -> None:
        running.add(i)
        time.sleep(0.03)
        running.discard(i)

    monkeypatch.setattr(several._ended, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        several.run([0] * 1000, compute)
    assert not running
    monkeypatch.undo()
    assert several.run([0] * 3, lambda _, i: i) == 3


def test_what_an_event_reads_is_written_before() -> None:
    """By what is in the places if all events are done in order, and whose events these are."""
    rng = np.random.default_rng(3)
    for _ in range(50):
        n, places = int(rng.integers(1, 60)), int(rng.integers(1, 6))
        held, kept = rng.integers(0, places, n).tolist(), rng.integers(-1, places, n).tolist()
        clients, done = rng.integers(0, 4, n).tolist(), [0] * 4
        found, followed = (_updates_before(held, kept, each) for each in (None, clients))
        written = [0] * places
        for i, (read, copied) in enumerate(zip(held, kept, strict=True)):
            assert found[i] == written[read]
            assert followed[i] == max(written[read], done[clients[i]])
            done[clients[i]] = i + 1
            if copied >= 0:
                written[copied] = i + 1
