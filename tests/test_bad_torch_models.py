"""PyTorch modules that are refused: exit code 2, and a message that names what and why."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

Refused = Callable[..., None]


pytestmark = pytest.mark.usefixtures("modules")


BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "batch normalization": ("normalized", ("'0.running_mean'", "GroupNorm", "track_running_stats=False")),
    "put": ("Puts", ("operator put_", "not deterministic on cpu")),
    "unpooling": ("Unpools", ("operator max_unpooling2d_forward_out", "not deterministic on cpu")),
    "a memory": ("Counts", ("two gradients for one minibatch",)),
    "unwritten memory": ("Unwritten", ("two gradients for one minibatch",)),
    "seven classes": ("seven", ("(3, 1, 8, 8) to torch.float32 (3, 7)", "logits, torch.float32 (3, 10)")),
    "a number": ("ReturnsLoss", ("(3, 1, 8, 8) to torch.float32 (); it must give logits, torch.float32 (3, 10)",)),
    "a tuple": ("several", ("failed on samples of shape (n, 1, 8, 8)",)),
    "rows": (
        "rows_only",
        ("failed on samples of shape (n, 1, 8, 8)", "mat1 and mat2", "; begin with nn.Flatten(), wh"),
    ),
    "a module": ("made", ("is a module; it must be a class, or a function that returns one",)),
    "compiled": ("scripted", ("is compiled by torch.jit, which hides its tensors; return the module itself",)),
    "traced": ("traced", ("is compiled by torch.jit, which hides its tensors; return the module itself",)),
    "replicas": ("replicated", ("has its '1' in DataParallel", "return the module without it")),
    "a gradient in evaluation": ("Slopes", ("does not require grad", "within torch.enable_grad()")),
    "float64": ("double", ("'1.weight'", "torch.float64", "must be torch.float32")),
    "sizes to come": (
        "lazy",
        (
            "parameter '1.weight' without values, as of a lazy layer; give its layer the size, as nn.Linear has it, or "
            "let the factory call the module once with a sample",
        ),
    ),
    "no device": ("meta", ("parameter '1.weight' without values, on the device meta; make the module on the CPU",)),
    "a Greek name": ("greek", ("parameter 'λ'; its name must be of ASCII letters, 500 at most",)),
    "a long name": ("long_name", ("aaa'; its name must be of ASCII letters, 500 at most",)),
    "a name of two lines": ("two_lines", (r"parameter 'a\nb'; its name must be of ASCII letters, 500 at most",)),
    "a factory that exits": ("exits", ("SystemExit: 3",)),
    "a module that exits": ("Exits", ("failed on samples of shape (n, 1, 8, 8)", "SystemExit: 3")),
    "nothing to train": ("nothing", ("no parameters",)),
    "no module": ("a_number", ("returned int", "torch.nn.Module")),
    "a factory that fails": ("fails", ("ZeroDivisionError: the moon is full",)),
    "no factory": ("not_callable", ("is a int", "a function or a class")),
    "a misspelt factory": ("densse", ("has no 'densse'", "did you mean 'dense'?")),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused(what: str, small_yaml: Path, refused: Refused) -> None:
    name, says = BAD[what]
    words = (
        "run",
        small_yaml,
        f"model={{name: 'torch:own_modules:{name}', numerics: native}}",
        "--quiet",
        "--out",
        "out",
    )
    refused(*words, says=("override 'model=", "model.name", *says))
    assert not Path("out/summary.json").exists()


def test_a_lazy_layer_that_the_factory_has_given_its_size(small_yaml: Path, command: Callable[..., Any]) -> None:
    """As the message about lazy layers says."""
    model = "model={name: 'torch:own_modules:lazy_once_called', numerics: native}"
    assert command("run", small_yaml, model, "iterations=3", "--quiet", "--out", "out")[0] == 0


@pytest.mark.parametrize("numerics", ["native", "portable", "null"])
def test_a_parameter_that_is_made_in_forward(numerics: str, small_yaml: Path, refused: Refused) -> None:
    """No client has it, and no server: PyTorch could not compute such a module, either."""
    says = "Grows makes its parameter 'factor' in forward, and nothing would train it; make it in __init__"
    refused("run", small_yaml, f"model={{name: 'torch:own_modules:Grows', numerics: {numerics}}}", says=[says])


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("model={name: 'torch:own_modules:images', chanels: 2}", ("model.chanels: unknown key", "'channels'?")),
        ("model={name: 'torch:own_modules:of_words'}", ("model.words: is required; ", "call that argument")),
        ("model={name: 'torch:own_modules:images', device: tpu}", ("model.device: is 'tpu'", "'cpu' or 'cuda'")),
        ("model={name: 'torch:no_such_package:images'}", ("cannot import 'no_such_package'",)),
        ("model={name: 'torch:own_modules'}", ("must have the form torch:package.module:factory",)),
        ("model={name: 'torch:fredsim.zoo:lenet'}", ("an image is 8×8", "16×16 at least")),
        ("model={name: 'torch:fredsim.zoo:resnet', depth: 9}", ("depth is 9", "6n + 2")),
        ("model={name: 'torch:fredsim.zoo:resnet', width: 12}", ("width is 12", "multiple of 8")),
    ],
)
def test_a_choice_that_is_refused(override: str, says: tuple[str, ...], small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, override, "--quiet", "--out", "out", says=("override 'model=", *says))


@pytest.mark.parametrize(
    ("name", "path", "why"),
    [
        ("dense", "hand", "PyTorch does a client's passes when its push arrives"),
        ("dropped", "fused", "a PyTorch module forms whole gradients"),
        ("normalized", "fused", "a PyTorch module forms whole gradients"),
    ],
)
def test_a_path_is_refused(name: str, path: str, why: str, small_yaml: Path, refused: Refused) -> None:
    buffers = ", buffers: averaged" if name == "normalized" else ""
    model = f"model={{name: 'torch:own_modules:{name}', numerics: native{buffers}}}"
    refused("run", small_yaml, model, f"path={path}", "--out", "out", says=(f"path is {path}", why))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_there_is_not(small_yaml: Path, refused: Refused) -> None:
    model = "model={name: 'torch:own_modules:dense', device: cuda}"
    refused("run", small_yaml, model, "--out", "out", says=("model.device is cuda", "no CUDA device", "give cpu"))


SERVER = """
import torch

class Flushes:
    def init(self, params, clients):
        self.params, self.timestamp = params.copy(), 0

    def apply_update(self, grad, client_id, timestamp):
        self.params -= grad / 10
        self.timestamp += 1
        if self.timestamp == 3:
            torch.set_flush_denormal(True)
"""


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("who", ["model", "server"])
def test_subnormal_numbers_that_are_flushed(who: str, backend: str, small_yaml: Path, refused: Refused) -> None:
    """By a module that is imported, or by a server meanwhile: no run ends with bits that depend on it."""
    if not torch.set_flush_denormal(False):
        pytest.skip("the processor cannot flush subnormal numbers")
    Path("mine.py").write_text(SERVER)
    choice = "server={name: 'mine:Flushes'}" if who == "server" else "model={name: 'torch:own_modules:flushing'}"
    try:
        refused(
            "run", small_yaml, choice, f"backend={backend}", "--quiet", "--out", "out",
            says=("subnormal numbers", "torch.set_flush_denormal(False)"),
        )  # fmt: skip
    finally:
        torch.set_flush_denormal(False)
    assert '"status": "finished"' not in "".join(path.read_text() for path in Path("out").glob("summary.json"))
