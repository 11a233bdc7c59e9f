"""The gradient of a user's PyTorch module is that of `loss.backward()`, or the module is refused."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.config.models import TorchChoice
from fredsim.data.datasets import Dataset
from fredsim.errors import ConfigError
from fredsim.simulation.paths.backends import make_engine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from torch.nn.modules import module as every_module

from fredsim.native.model import TorchModel
from tests import odd_modules

CLIENTS, MU = 5, 3


@pytest.fixture(autouse=True)
def no_hook_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove what a module has hooked to all modules."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    yield
    every_module._global_backward_hooks.clear()
    every_module._global_backward_pre_hooks.clear()
    every_module._global_is_full_backward_hook = None


def by_backward(module: Any, x: Any, y: Any) -> NDArray[np.float32]:
    """Return what plain PyTorch computes: the gradient of the mean loss, as one vector."""
    module.zero_grad()
    torch.nn.functional.cross_entropy(module(x), y).backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in module.parameters()]
    found: NDArray[np.float32] = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return found


def put(module: Any, params: NDArray[np.float32]) -> None:
    """Write what a client holds to a module's parameters, in place."""
    parts = torch.split(torch.from_numpy(params), [value.numel() for value in module.parameters()])
    with torch.no_grad():
        for value, part in zip(module.parameters(), parts, strict=True):
            value.copy_(part.view(value.shape))


@pytest.mark.parametrize("factory", odd_modules.HONOURED, ids=lambda factory: factory.__name__)
@pytest.mark.parametrize("window", [1, CLIENTS])
def test_a_gradient_is_that_of_backward(digits: Dataset, factory: Callable[[], Any], window: int) -> None:
    model = TorchModel(f"torch:odd_modules:{factory.__name__}", {}, "cpu", digits.shape, digits.classes, 1)
    engine: Any = make_engine("numpy", model, digits, MU, 1)
    engine.fix_window(window, CLIENTS, 1)
    rng = np.random.default_rng(0)
    held = [model.initial_params + rng.normal(0, 0.1, model.layout.size).astype(np.float32) for _ in range(CLIENTS)]
    rows = rng.integers(0, len(digits.train), (CLIENTS, MU))
    found, _ = engine.gradients(held, rows)
    module = factory()
    for gradient, params, its in zip(found, held, rows, strict=True):
        put(module, params)
        x = torch.from_numpy(digits.train.x[its]).reshape(-1, *digits.shape)
        expected = by_backward(module, x, torch.from_numpy(digits.train.y[its]))
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
    if factory in odd_modules.ELSEWHERE and window > 1:
        how, why = engine.facts()["vmap"], "it computes with parameters that are not its attributes"
        assert how.startswith("one client after the other: ")
        assert why in how or factory is odd_modules.straight_through


@pytest.mark.parametrize("factory", odd_modules.HONOURED, ids=lambda factory: factory.__name__)
def test_what_is_evaluated_are_the_given_parameters(digits: Dataset, factory: Callable[[], Any]) -> None:
    """Whatever was computed last with the same module."""
    model = TorchModel(f"torch:odd_modules:{factory.__name__}", {}, "cpu", digits.shape, digits.classes, 1)
    engine: Any = make_engine("numpy", model, digits, MU, 1)
    params, other = (model.initial_params * np.float32(scale) for scale in (1.5, 0.5))
    module, part = factory().eval(), digits.validation
    put(module, params)
    with torch.no_grad():
        outputs = module(torch.from_numpy(part.x).reshape(-1, *digits.shape))
        expected = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(part.y)).item()
    for last in (other, params):
        engine.gradients([last], np.arange(MU)[None])
        assert engine.evaluate(params, "validation")[0] == pytest.approx(expected, rel=1e-5)
    found = np.concatenate([block for _, block in engine.outputs(params, "validation")])
    np.testing.assert_allclose(found, outputs.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # an old kind of hook
@pytest.mark.parametrize("factory", odd_modules.REFUSED, ids=lambda factory: factory.__name__)
def test_what_would_be_ignored_is_refused(digits: Dataset, factory: Callable[[], Any]) -> None:
    name = f"torch:odd_modules:{factory.__name__}"
    with pytest.raises(ConfigError) as refused:
        make_engine("numpy", TorchModel(name, {}, "cpu", digits.shape, digits.classes, 1), digits, MU, 1)
    parts = (f"model.name: {name} ", *odd_modules.REFUSED[factory])
    assert [part for part in parts if part not in str(refused.value)] == [], refused.value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("factory", [one for one in odd_modules.REFUSED if one not in odd_modules.HARMLESS])
@pytest.mark.parametrize("numerics", [None, "portable"])
def test_nor_does_fredsim_ignore_it(digits: Dataset, factory: Callable[[], Any], numerics: Any) -> None:
    """Where it computes the module itself: what it cannot do goes to PyTorch, which refuses it."""
    name = f"torch:odd_modules:{factory.__name__}"
    choice = TorchChoice.model_validate({"name": name, "numerics": numerics})
    with pytest.raises(ConfigError) as refused:
        make_engine("numpy", choice.network(digits, 1), digits, MU, 1)
    parts = (f"model.name: {name} ", *odd_modules.REFUSED[factory]) if numerics is None else (f"model.name: {name} ",)
    assert [part for part in parts if part not in str(refused.value)] == [], refused.value
