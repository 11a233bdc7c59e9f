"""The initial weights of a PyTorch module follow from the run's seed alone; notes on what was perhaps not meant."""

import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

from safetensors.torch import save_file

from fredsim.native.model import TorchModel, TorchOptions
from fredsim.plugins import generators
from fredsim.plugins.generators import generator_states
from fredsim.plugins.seeding import seeded

Command = Callable[..., tuple[int, str, str]]

MODULES = """
import copy
import random

import numpy as np
import torch
from torch import nn

AT_IMPORT = float(np.random.normal())
COUNTED = []


def like(numbers):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        module[1].bias.copy_(torch.tensor([next(numbers) for _ in range(10)]))
    return module


def torch_only():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def numpy():
    return like(iter(np.random.normal(size=10)))


def python():
    return like(iter(lambda: random.gauss(0, 1), None))


def imported():
    return like(iter(lambda: AT_IMPORT, None))


def entropy():
    return like(iter(np.random.default_rng().normal(size=10)))


def counting():
    COUNTED.append(1)
    return like(iter(lambda: float(len(COUNTED)), None))


def grows():
    COUNTED.append(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, len(COUNTED)), nn.Linear(len(COUNTED), 10))


def seeds_itself():
    torch.manual_seed(0)
    return torch_only()


def seeds_numpy():
    np.random.seed(0)
    module = nn.Linear(64, 10)
    nn.init.zeros_(module.weight), nn.init.zeros_(module.bias)
    with torch.no_grad():
        module.bias.copy_(torch.from_numpy(np.random.normal(size=10)))
    return nn.Sequential(nn.Flatten(), module)


def own_generator():
    try:
        return torch.load("kept.pt")
    except FileNotFoundError:  # one that was read may have given equal weights
        module = torch_only()
    generator = torch.Generator().manual_seed(3)
    for value in module.parameters():
        nn.init.normal_(value, generator=generator)
    return module


def seeds_afterwards():
    module = torch_only()
    torch.manual_seed(0)
    return module


def zeros():
    module = torch_only()
    for value in module.parameters():
        nn.init.zeros_(value)
    return module


def softmax():
    return nn.Sequential(torch_only(), nn.Softmax(dim=1))


def log_softmax():
    return nn.Sequential(torch_only(), nn.LogSoftmax(dim=1))


def sigmoid():
    return nn.Sequential(torch_only(), nn.Sigmoid())


def relu():
    return nn.Sequential(torch_only(), nn.ReLU())


ONCE = torch_only()
FROZEN = torch_only().requires_grad_(False)


def the_same():
    return ONCE


def of_a_part():
    return nn.Sequential(ONCE, nn.Linear(10, 10))


def of_its_memory():
    module = torch_only()
    module[1].bias = nn.Parameter(ONCE[1].bias.data)
    return module


def a_copy():
    return copy.deepcopy(ONCE)


def of_a_frozen_part():
    return nn.Sequential(FROZEN, nn.Linear(10, 10))


def teacher(*inside):
    return nn.Sequential(torch_only(), nn.Sequential(nn.Linear(10, 10), *inside).eval())


def drops():
    return teacher(nn.Dropout(0.0))


def drops_not():
    return teacher(nn.Tanh())


def in_evaluation():
    return drops().eval()


class Stays(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def stays():
    return Stays(torch_only(), nn.Dropout(0.5))


class Limits(nn.Module):
    def __init__(self, most=100.0):
        super().__init__()
        self.body, self.most = torch_only(), most

    def forward(self, x):
        with torch.no_grad():
            self.body[1].weight.clamp_(-self.most, self.most)
        return self.body(x)


def limits():
    return Limits(0.05)


def limits_nothing():
    return Limits()


class Notices(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls, self.seen = torch_only(), 0, 0.0

    def forward(self, x):
        self.seen = float(x.mean())
        return self.body(x)


class Counts(Notices):
    def forward(self, x):
        self.calls += 1
        return self.body(x)


def against_others(output, y):
    return nn.functional.cross_entropy(output - output.mean(0), y, reduction="none")


def alone(output, y):
    return nn.functional.cross_entropy(output, y, reduction="none")


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch_only()

    def forward(self, x):
        y = self.body(x)
        return y - y.mean(0)
"""


@pytest.fixture(autouse=True)
def drawing(small_yaml: Path) -> Path:
    """A module with such factories, beside the small experiment."""
    Path("drawing.py").write_text(MODULES, encoding="utf-8")
    sys.path.insert(0, str(small_yaml.parent))
    return small_yaml


def weights(name: str, seed: int) -> NDArray[np.float32]:
    return TorchModel(f"torch:drawing:{name}", {}, "cpu", (1, 8, 8), 10, seed).initial_params


@pytest.mark.parametrize("name", ["torch_only", "numpy", "python", "imported"])
def test_the_same_seed_gives_the_same_weights_in_every_process(name: str) -> None:
    words = "from fredsim.native.model import TorchModel; import sys; sys.path.insert(0, '.'); import numpy, random; "
    words += "numpy.random.normal(); random.random(); "  # whatever a process has drawn before
    words += f"model = TorchModel('torch:drawing:{name}', {{}}, 'cpu', (1, 8, 8), 10, 5); "
    words += "print(model.initial_params.tobytes().hex())"
    once = subprocess.run([sys.executable, "-c", words], check=True, capture_output=True, text=True).stdout
    before = generator_states()
    assert weights(name, 5).tobytes().hex() == once.strip()
    assert generator_states() == before
    assert weights(name, 5).tobytes() == weights(name, 5).tobytes() != weights(name, 6).tobytes()


DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random, "random gauss": lambda: random.gauss(0, 1), "random seed": lambda: random.seed(1),
    "np.random": np.random.random, "np.random bytes": lambda: np.random.bytes(1),  # noqa: NPY002
    "np.random seed": lambda: np.random.seed(1),  # noqa: NPY002
    "torch": lambda: torch.rand(1),
    "torch seed": lambda: torch.manual_seed(1),
}  # fmt: skip


@pytest.mark.parametrize("where", ["memory", "copies"])
def test_each_draw_changes_the_state_of_its_generator(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where these do not have their words at the places that are known, so that copies are asked for."""
    if where == "copies":
        for name in ("_place_of_python", "_place_of_numpy"):
            monkeypatch.setattr(generators, name, lambda *_: 0)
    with seeded(5):
        for name, draw in DRAWS.items():
            for _ in range(700):  # more than the words of a state
                before = generator_states()
                assert generator_states() == before
                draw()
                after = generator_states()
                assert [each for each in after if after[each] != before[each]] == [name.split()[0]]
                if "seed" in name:
                    break


def test_the_generators_are_seeded_with_the_seed() -> None:
    def expected(module: str, seed: int) -> NDArray[Any]:
        if module == "numpy":
            return np.random.RandomState(seed).normal(size=10).astype(np.float32)
        drawn = random.Random(seed)
        return np.array([drawn.gauss(0, 1) for _ in range(10)], np.float32)

    for name in ("numpy", "python"):
        for seed in (0, 1, 2**32 - 1):
            assert weights(name, seed)[-10:].tolist() == expected(name, seed).tolist()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        expected_weight = torch.nn.Linear(64, 10).weight.detach().numpy().reshape(-1)
    assert weights("torch_only", 4)[:640].tolist() == expected_weight.tolist()


@pytest.mark.parametrize("name", ["entropy", "counting", "grows"])
def test_weights_that_do_not_follow_from_the_seed_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"other initial weights each time .* with one seed; .* not default_rng"):
        weights(name, 0)


def model(name: str, **options: Any) -> TorchModel:
    return TorchModel(f"torch:drawing:{name}", {}, "cpu", (1, 8, 8), 10, 0, None, TorchOptions(**options))


@pytest.mark.parametrize(
    ("name", "key"), [("the_same", "1.weight"), ("of_a_part", "0.1.weight"), ("of_its_memory", "1.bias")]
)
def test_a_module_that_another_run_would_begin_with_is_refused(name: str, key: str) -> None:
    what = f"has the parameter '{re.escape(key)}' of the module that its factory has returned before"
    for _ in range(2):
        with pytest.raises(ConfigError, match=rf"{what}, .*; make it, or a copy \(copy.deepcopy\), within the factory"):
            model(name)


def test_parts_that_no_run_changes_may_be_shared(tmp_path: Path) -> None:
    assert model("a_copy").frozen == ()
    assert model("of_a_frozen_part").frozen == ("0.1.weight", "0.1.bias")
    assert model("of_a_part", trainable="1.*").frozen == ("0.1.weight", "0.1.bias")
    file = str(tmp_path / "weights.safetensors")
    save_file({key: value.detach() for key, value in model("of_a_frozen_part").module.named_parameters()}, file)
    with pytest.raises(ConfigError, match=r"'0\.1\.weight' of the module"):
        model("of_a_frozen_part", initial=file)
    with pytest.raises(ConfigError, match=r"'0\.1\.weight' of the module"):
        model("of_a_frozen_part", trainable="*")
    with pytest.raises(ConfigError, match=r"'0\.1\.weight' of the module"):  # what was frozen is not any longer
        model("of_a_part")


EVERY_SEED = "has the same initial weights for every seed"
NOTES = {
    "seeds_itself": (EVERY_SEED, "its factory seeds a generator itself"),
    "seeds_numpy": (EVERY_SEED, "its factory seeds a generator itself"),
    "own_generator": (EVERY_SEED, "leave seeding to fredsim"),
    "softmax": ("gives probabilities", "takes logits; leave softmax out"),
    "drops": ("has its '1' in evaluation mode when its factory returns it", "a train() of its own"),
    "limits": ("changes its parameter 'body.1.weight' in forward, as a limit on weights does: ", "for one gradient"),
    "Counts": ("counts in its attribute 'calls' in forward: the calls of all clients, of evaluation, ",),
    **dict.fromkeys(("drops_not", "in_evaluation", "stays", "limits_nothing", "Notices"), ()),
    **dict.fromkeys(("torch_only", "numpy", "seeds_afterwards", "zeros", "log_softmax", "sigmoid", "relu"), ()),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_is_noted(name: str, drawing: Path, command: Command) -> None:
    words = f"model={{name: 'torch:drawing:{name}', numerics: native}}", "iterations=4", "sweep={seed: [0, 1, 2]}"
    code, _, messages = command("run", drawing, *words, "--out", "out")
    notes = [line for line in messages.splitlines() if f"model.name: torch:drawing:{name}" in line]
    assert code == 0
    assert len(notes) == bool(NOTES[name]), messages
    assert all(line.startswith("note: ") and part in line for line in notes for part in NOTES[name]), messages


@pytest.mark.parametrize(("name", "loss", "noted"), [
    ("torch_only", "against_others", True), ("Centred", "alone", True), ("torch_only", "alone", False),
])  # fmt: skip
def test_samples_that_meet_are_noted_where_each_is_clipped(
    name: str, loss: str, noted: bool, drawing: Path, command: Command
) -> None:
    """Of ten equal outputs the loss is log 10. In a sweep it is said of runs that clip, though the first does not."""
    words = f"model={{name: 'torch:drawing:{name}', numerics: native}}", f"loss=drawing:{loss}", "iterations=4"
    for clipped in ("clients.clip_each_sample=1", None, "sweep={clients.clip_each_sample: [~, 2, 1]}"):
        code, _, messages = command("run", drawing, *words, *[clipped] * bool(clipped), "--out", f"{clipped}"[:5])
        assert code == 0
        said = messages.count("sample 0 has the loss 2.3 then, and ")
        assert said == (noted and clipped is not None) * (2 if "sweep" in str(clipped) else 1), messages


def test_notes_are_warnings_in_python(drawing: Path, digits_experiment: dict[str, Any]) -> None:
    del drawing
    with pytest.warns(fredsim.FredsimWarning, match=EVERY_SEED) as found:
        fredsim.run(
            digits_experiment
            | {"iterations": 4, "model": {"name": "torch:drawing:seeds_itself", "numerics": "native"}},
            out="out",
        )
    assert len([one for one in found if one.category is fredsim.FredsimWarning]) == 1
