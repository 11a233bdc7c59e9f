"""What native modules change and draw besides gradients: runs either know of it, or refuse it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from fredsim.config.models import TorchChoice
from fredsim.config.resolution import resolve
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError, SimulationError
from fredsim.native.model import TorchModel, TorchOptions
from fredsim.numerics.ops.draws import Keys
from fredsim.plugins.generators import generator_states
from fredsim.runs.checkpoint.checkpoints import CheckpointPolicy
from fredsim.runs.folder.results import Result
from fredsim.runs.processes.observer import Observer
from fredsim.runs.single.execution import execute
from fredsim.simulation.paths.backends import make_engine
from tests.test_random_experiments import asked_often, contents

Simulate = Callable[..., Result]
MU = 4


pytestmark = pytest.mark.usefixtures("modules")


class Notes(Observer):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def model(name: str, digits: Dataset, options: TorchOptions = TorchOptions(), **hyper: Any) -> TorchModel:  # noqa: B008
    return TorchModel(f"torch:own_modules:{name}", hyper, "cpu", digits.shape, digits.classes, 0, None, options)


def engine(found: TorchModel, digits: Dataset) -> Any:
    return make_engine("numpy", found, digits, MU, 1)


@pytest.mark.parametrize(
    ("keys", "measured"),
    [
        ({"name": "torch:own_modules:Rows"}, False),
        ({"name": "torch:own_modules:Rows", "kind": "GRU"}, True),
        ({"name": "torch:own_modules:weighted", "kind": "weight_norm", "numerics": "native"}, True),
        ({"name": "torch:own_modules:weighted", "kind": "prune", "numerics": "native"}, False),
        ({"name": "torch:own_modules:dropped", "numerics": "native"}, True),
    ],
    ids=["lstm", "gru", "weight norm", "pruned", "dropout"],
)
def test_what_pytorch_keeps_hinders_no_checkpoint(keys: dict[str, Any], measured: bool, tmp_path: Path) -> None:
    data = {"data": {"name": "digits"}, "clients": {"count": 3, "batch_size": 4}, "model": keys, "threads": 1}
    data |= {"server": {"name": "asgd", "lr": 0.1}, "iterations": 8}
    data["evaluation"] = {"every": 2, "gradient_norm": measured}
    observer, experiment = Notes(), resolve(data)
    execute(experiment, tmp_path / "whole")
    for least in (4, 10**9):
        stop = partial(asked_often, count(), least)
        execute(experiment, tmp_path / "run", stop=stop, policy=CheckpointPolicy(1e9), observer=observer)
    assert [note for note in observer.notes if "checkpoint" in note] == ["continues from the checkpoint at iteration 4"]
    assert contents(Result(tmp_path / "run")) == contents(Result(tmp_path / "whole"))


def test_a_parameter_that_is_not_trained_stays_as_it_is(digits: Dataset) -> None:
    what = "its parameter 'mean', which is not trained,"
    with pytest.raises(ConfigError, match=f"Follows changes {what} in training, which no client pushes"):
        engine(model("Follows", digits), digits)
    remarks = list(model("Follows", digits).remarks(digits.train.x[:MU]))
    assert not any("limit on weights" in remark for remark in remarks), remarks
    other = engine(model("Follows", digits, of="nothing"), digits)
    assert other.evaluate(other._model.initial_params, "validation")[0] > 0
    other.close()
    later, bright = engine(model("Follows", digits, of="later"), digits), np.argsort(-digits.train.x.sum(axis=1))[:MU]
    later.gradients([later._model.initial_params], bright[None])
    with pytest.raises(SimulationError, match=f"Follows has changed {what} since the run began"):
        later.evaluate(later._model.initial_params, "validation")
    later.close()


@pytest.mark.parametrize("served", ["averaged", "last"])
def test_running_statistics_may_be_assigned(served: str, simulate: Simulate) -> None:
    base = {"iterations": 6, "threads": 1, "evaluation": {"every": 2}}
    found, expected = (
        simulate(base | {"model": {"name": f"torch:own_modules:{name}", "numerics": "native", "buffers": served}})
        for name in ("assigned", "normalized")
    )
    losses, others = (list(one.metrics["validation_loss"]) for one in (found, expected))
    np.testing.assert_allclose(losses, others, rtol=1e-4)


def test_what_is_tried_draws_from_nobody(digits: Dataset) -> None:
    before = generator_states()
    for name in ("dropped", "jittered", "DrawsBack"):
        found = model(name, digits)
        list(found.remarks(digits.train.x[:MU]))
        engine(found, digits).close()
    assert generator_states() == before


def test_what_is_drawn_on_the_way_back_is_seeded(digits: Dataset) -> None:
    """The noise is that of torch.rand in the generator of the gradient's key, which forward passes leave alone."""
    found = engine(model("DrawsBack", digits), digits)
    assert found.draws
    held, rows = [found._model.initial_params] * 2, np.arange(2 * MU).reshape(2, MU)
    keys = Keys(0, np.array([1, 2]), np.array([0, 3]))
    first, _ = (one.copy() for one in found.gradients(held, rows, keys))
    torch.rand(3)
    for b in (1, 0):
        again, _ = found.gradients(held[:1], rows[b : b + 1], keys.part(slice(b, b + 1)))
        assert again[0].tobytes() == first[b].tobytes()
    other, _ = found.gradients(held[:1], rows[:1], Keys(0, np.array([1]), np.array([1])))
    assert other[0].tobytes() != first[0].tobytes()
    found.close()


def test_what_draws_for_some_minibatches_alone_is_refused(digits: Dataset) -> None:
    """At once, though all before drew nothing; what others draw between gradients is theirs."""
    found, sums = engine(model("DrawsLater", digits), digits), digits.train.x.sum(axis=1)
    held, bright = [found._model.initial_params], np.argsort(-sums)[None, :MU]
    assert not found.draws
    for _ in range(2):
        torch.rand(3)
        found.gradients(held, np.arange(MU)[None])
    with pytest.raises(ConfigError, match="DrawsLater draws random numbers for some minibatches alone"):
        found.gradients(held, bright)
    found.close()


CLIPPED = {"clip_each_sample": 1.0}


@pytest.mark.parametrize(("limit", "more"), [(19.5, {}), (19.5, CLIPPED), (18.5, CLIPPED)], ids=str)
def test_a_run_ends_that_draws_for_some_alone(limit: float, more: dict[str, Any], simulate: Simulate) -> None:
    """Also if samples are computed alone, which another engine does than the one that evaluates.

    Above 18.5 the first four samples together draw, but the first one alone does not.
    """
    model = {"name": "torch:own_modules:DrawsLater", "limit": limit, "numerics": "native"}
    with pytest.raises(ConfigError, match="DrawsLater draws random numbers for some minibatches alone"):
        simulate({
            "model": model, "clients": {"count": 4, "batch_size": MU, **more}, "threads": 1,
            "evaluation": {"every": 5, "test": True},
        })  # fmt: skip


GATED = {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"fetch": {"budget": 60.0}}}


@pytest.mark.parametrize("more", [{}, GATED, {"server": {"name": "fedbuff", "lr": 0.1, "buffer": 2}}], ids=str)
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "for some minibatches alone"), ({"by": "numpy"}, "for some minibatches alone"),
        ({"by": "python"}, "for some minibatches alone"), ({"training": False, "limit": 19.3}, "in evaluation"),
    ],
    ids=str,
)  # fmt: skip
def test_draws_are_noticed_whoever_makes_them_and_when(
    keys: dict[str, Any], said: str, more: dict[str, Any], simulate: Simulate
) -> None:
    """On the paths `queued`, `fused` and `snapshots`; also after the last evaluation but one."""
    model = {"name": "torch:own_modules:DrawsLater", "numerics": "native", **keys}
    base = {"model": model, "clients": {"count": 4, "batch_size": MU}, "threads": 1, "evaluation": {"every": 1000}}
    with pytest.raises(ConfigError, match=f"DrawsLater draws random numbers {said}"):
        simulate(base | more)


def test_a_module_that_freezes_parameters_in_train(digits: Dataset) -> None:
    frozen, trained = ("0.weight", "0.bias"), ("2.weight", "2.bias")
    choice = TorchChoice.model_validate({"name": "torch:own_modules:FreezesNorm", "numerics": "portable"})
    graph = choice.network(digits, 0).graph
    assert graph is not None
    assert graph.frozen == frozen
    found = engine(model("FreezesNorm", digits), digits)
    for layout in (found._model.layout, graph.trained):
        assert tuple(name for name, _ in layout.tensors) == trained
    params, rows = found._model.initial_params, np.arange(MU)
    for _ in range(2):
        (gradient,), _ = found.gradients([params], rows[None])
        found.evaluate(params, "validation")
    x = digits.train.x[rows].reshape(MU, 64)
    normal = torch.from_numpy((x - x.mean()) / np.sqrt(x.var() + 1e-5))
    dense = torch.nn.Linear(64, 10)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(params), dense.parameters())
    torch.nn.functional.cross_entropy(dense(normal), torch.from_numpy(digits.train.y[rows])).backward()
    expected = torch.cat([value.grad.reshape(-1) for value in dense.parameters()])
    np.testing.assert_allclose(gradient, expected.numpy(), rtol=1e-4, atol=1e-6)
    found.close()
    with pytest.raises(
        ConfigError, match=r"sets requires_grad of its parameter '0\.weight' in its train\(\), and model"
    ):
        model("FreezesNorm", digits, TorchOptions(trainable="*"))


def test_a_module_whose_state_lacks_a_parameter_loads_no_file(digits: Dataset, tmp_path: Path) -> None:
    file, values = str(tmp_path / "weights.safetensors"), model("HidesBias", digits).values
    save_file({"weight": values[:640].reshape(10, 64), "bias": values[640:]}, file)
    with pytest.raises(ConfigError, match="HidesBias has no parameter 'bias' in its state_dict, which model"):
        model("HidesBias", digits, TorchOptions(initial=file))


def test_sparse_buffers_and_types_that_numpy_lacks(digits: Dataset, tmp_path: Path) -> None:
    """They are no part of a file of weights, which has the parameters."""
    plain = model("Neighbours", digits)
    engine(plain, digits).close()
    file, values = str(tmp_path / "weights.safetensors"), plain.values
    save_file({"weight": values[:640].reshape(10, 64) + 1, "bias": values[640:]}, file)
    loaded = model("Neighbours", digits, TorchOptions(initial=file))
    np.testing.assert_array_equal(loaded.values[:640], values[:640] + 1)
    with pytest.raises(ConfigError, match=r"has a buffer '2\.running_mean' without values, as of a lazy layer"):
        model("lazy_buffers", digits)
