"""The gradient of a user's PyTorch module is that of `loss.backward()`, or the module is refused."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fredsim.data.datasets import Dataset, data_root, load_dataset
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


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", None, None, data_root())


def by_backward(module: Any, x: Any, y: Any) -> NDArray[np.float32]:
    """Return what plain PyTorch computes: the gradient of the mean loss, as one vector."""
    module.zero_grad(set_to_none=False)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    found: NDArray[np.float32] = torch.cat([part.reshape(-1) for part in parts]).numpy()
    return found


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
        torch.nn.utils.vector_to_parameters(torch.from_numpy(params), module.parameters())
        x = torch.from_numpy(digits.train.x[its]).reshape(-1, *digits.shape)
        expected = by_backward(module, x, torch.from_numpy(digits.train.y[its]))
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # an old kind of hook
@pytest.mark.parametrize("factory", odd_modules.REFUSED, ids=lambda factory: factory.__name__)
def test_what_would_be_ignored_is_refused(digits: Dataset, factory: Callable[[], Any]) -> None:
    name = f"torch:odd_modules:{factory.__name__}"
    with pytest.raises(ConfigError) as refused:
        make_engine("numpy", TorchModel(name, {}, "cpu", digits.shape, digits.classes, 1), digits, MU, 1)
    parts = (f"model.name: {name} ", *odd_modules.REFUSED[factory])
    assert [part for part in parts if part not in str(refused.value)] == [], refused.value
