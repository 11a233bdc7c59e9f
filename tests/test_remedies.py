"""Errors name the remedy: the file that was meant, an example of what is missing, how YAML is mended."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim import errors
from fredsim.config.registry import argument_problems

Refused = Callable[..., None]


BASE = "iterations: 1\nclients: {count: 2, batch_size: 1}\ndata: {name: digits}\nserver: {name: asgd, lr: 0.1}\n"
#: By a description: an experiment's text, and parts of the error.
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nothing but a length": (
        "iterations: 1\n",
        (
            "data: is required, such as data: {name: mnist}",
            "clients: is required, such as clients: {count: 32, batch_size: 4}",
            "server: is required, such as server: {name: fasgd, lr: 0.005}",
        ),
    ),
    "a colon within a value": ("name: a: b\n", ("x.yaml:1:8: not valid YAML", "; indent the keys of a mapping alike")),
    "a tab": ("data:\n\tname: digits\n", ("x.yaml:2:1: not valid YAML", "; indent with spaces, not with tabs")),
    "a capital in one of a few words": (
        BASE + "backend: NumPy\n",
        ("x.yaml:5: backend: is 'NumPy'; it must be 'auto', 'numpy', 'numba' or 'cuda'; did you",),
    ),
    "an open bracket": ("data: {name: digits\nseed: 1\n", ("not valid YAML", "; close the bracket, }")),
    "an open list": ("sweep: {seed: [0, 1}\n", ("not valid YAML", "; close the bracket, ]")),
    "open quotes": ("name: 'a\n", ("not valid YAML", "; close the quotes")),
    "a key twice": ("seed: 1\nseed: 2\n", ('found duplicate key "seed"; keep one',)),
    "a model's name": (BASE + "model: {name: resnt}\n", ("model.name: is 'resnt'", "; did you mean 'resnet'?")),
    "a distribution's name": (
        BASE + "dispatcher: {name: clock, compute: {seconds: {name: two_clas}}}\n",
        ("dispatcher.compute.seconds: is {'name': 'two_clas'}", "; did you mean 'two_class'?"),
    ),
    "a distribution without its key": (
        BASE + "dispatcher: {name: clock, compute: {noise: gama}}\n",
        ("dispatcher.compute.noise: is 'gama'", "; did you mean 'gamma'?"),
    ),
    "a file without its kind": (
        BASE.replace("digits", "here/rows.npz"),
        ("unknown data set 'here/rows.npz'; did you mean 'npz:here/rows.npz'?",),
    ),
    "a point for a colon": (
        BASE.replace("asgd", "'my_servers.Root'"),
        ("server.name: unknown server 'my_servers.Root'; did you mean 'my_servers:Root'?",),
    ),
    "no space after a colon": (
        BASE.replace("name: asgd, lr: 0.1", "name:asgd,lr: 0.1"),
        ("x.yaml:4: server.name: is required; write name: asgd, with a space after the colon",),
    ),
    "no space after a colon of a key": (
        BASE.replace("batch_size: 1", "batch_size:1"),
        ("clients.batch_size:1: unknown key; write batch_size: 1, with a space after the colon",),
    ),
    "no space after a colon of a choice": (
        BASE + "loss: {name:mse}\n",
        ("without a name; write name: mse, with a space after the colon (known: cross_entropy, mse",),
    ),
    "no space after a colon of what may have any key": (
        BASE + "until: {validation_error:0.1}\n",
        ("until.validation_error:0.1: unknown key; write validation_error: 0.1, with a space after the colon",),
    ),
    "no space after a colon before quotes": (
        BASE + "evaluation: {metrics: [{name:'my_metrics:mae'}]}\n",
        ("metrics.0.name: is required; write name: 'my_metrics:mae', with a space after the colon",),
    ),
    "no space before a list": (
        BASE + "model: {hidden:[3]}\n",
        ("x.yaml:5:16: not valid YAML: ", "; put a space after each colon, and close every bracket"),
    ),
    "no space before a mapping": (
        BASE + "model: {init:{name: normal}}\n",
        ("not valid YAML", "; put a space after each colon, and close every bracket"),
    ),
    "no space after a colon of a line": (
        BASE.replace("iterations: 1", "iterations:1"),
        ("x.yaml:2:8: not valid YAML", ", put a space after each colon, "),
    ),
    "no space after a colon of a later line": (
        BASE.replace("clients", "seed:1\nclients"),
        ("not valid YAML", "; write KEY: VALUE, with a space after the colon"),
    ),
    "an axis within its section": (
        BASE + "sweep:\n  server:\n    lr: [0.1, 0.2]\n",
        ("x.yaml:5: sweep: must map each key to a list of values, such as server.lr: [0.1, 0.2]",),
    ),
    "an axis of one value": (
        BASE + "sweep: {seed: [1], server.lr: 0.3}\n",
        ("sweep: must map each key to a list of values, such as server.lr: [0.3]",),
    ),
    "an axis of a long text": (
        BASE + f"sweep: {{name: {'a' * 1000}}}\n",
        ("to a list of values, such as seed: [0, 1]",),
    ),
    "an axis of nothing": (BASE + "sweep: {server: {}}\n", ("to a list of values, such as seed: [0, 1]",)),
    "a loss with a point": (BASE + "loss: my.focal\n", ("loss: names 'my.focal'; did you mean 'my:focal'?",)),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_experiments(what: str, refused: Refused) -> None:
    text, parts = EXPERIMENTS[what]
    Path("x.yaml").write_text(text)
    refused("show", "x.yaml", says=parts)


def test_an_argument_without_a_space_after_its_colon() -> None:
    problems = argument_problems(lambda lr, beta=0.9: None, {"lr:0.1": None})
    assert problems == [(("lr:0.1",), "unknown key; write lr: 0.1, with a space after the colon")]


@pytest.mark.parametrize(
    ("given", "known", "found"),
    [
        ("augment", ["name", "columns", "seed"], None),
        ("lars", ["asgd", "adam"], None),
        ("W9", ["W1", "b1"], "W1"),
        ("lt", ["lr", "momentum"], "lr"),
        ("epsilon", ["c", "eps"], "eps"),
        ("Fasdg", ["asgd", "FASGD"], "FASGD"),
        ("DC-ASGD", ["asgd", "dcasgd"], "dcasgd"),
        ("trainloss", ["train_loss", "train"], "train_loss"),
        ("loss", ["los_s", "l"], "los_s"),
        ("_", ["-", "a"], None),
    ],
)
def test_a_name_is_near_that_another_is_misspelt_as(given: str, known: list[str], found: str | None) -> None:
    """One letter of two may be wrong; half of a longer one is another word."""
    assert errors.closest(given, known) == found


#: By a key: names that PyTorch has, and what they are called here.
OF_PYTORCH: dict[str, dict[str, str | None]] = {
    "loss": {
        "BCEWithLogitsLoss": "bce", "BCELoss": "bce", "binary_cross_entropy": "bce",
        "CrossEntropyLoss": "cross_entropy",
        "binary_cross_entropy_with_logits": "bce", "NLLLoss": "cross_entropy", "nll_loss": "cross_entropy",
        "MSELoss": "mse", "mse_loss": "mse", "torch.nn.MSELoss": "mse", "torch.nn.functional.mse_loss": "mse",
        "L1Loss": None, "HuberLoss": None, "KLDivLoss": None, "GaussianNLLLoss": None,
    },
    "clients.optimizer.name": {"SGD": "sgd", "AdamW": "adamw", "torch.optim.AdamW": "adamw", "Adam": "adamw"},
    "server.name": {"SGD": "asgd", "RMSprop": "rmsprop", "NAdam": "nadam", "torch.optim.Adagrad": "adagrad"},
    "server.lr.name": {"StepLR": "step", "CosineAnnealingLR": "cosine", "ExponentialLR": "exponential"},
    }  # fmt: skip


@pytest.mark.parametrize("key", OF_PYTORCH)
def test_names_that_pytorch_has(key: str, command: Callable[..., tuple[int, str, str]]) -> None:
    Path("x.yaml").write_text(BASE)
    for name, meant in OF_PYTORCH[key].items():
        code, _, messages = command("show", "x.yaml", f"{key.removesuffix('.name')}={{name: {name}}}")
        assert code == 2
        hint = re.search("; did you mean '(.*?)'", messages)
        assert (hint and hint[1]) == meant, messages


def test_a_misspelt_file(refused: Refused) -> None:
    """A file beside is meant before an experiment that comes with fredsim."""
    Path("within").mkdir()
    Path("within/first.yaml").write_text(BASE)
    refused("run", "within/firs.yaml", says=("within/firs.yaml: no such file", "did you mean 'first.yaml'?"))
    refused("run", "nowhere/firs.yaml", says=("nowhere/firs.yaml: no such file",))


def test_python_in_place_of_an_experiment(refused: Refused) -> None:
    Path("my_servers.py").write_text("class Root:\n    pass\n")
    refused("run", "my_servers.py", says=("my_servers.py: is Python; name the YAML file", "fredsim new --own server"))


def test_a_folder_around_results(refused: Refused) -> None:
    """Whoever names the folder around results is told what is in it."""
    Path("results/first").mkdir(parents=True)
    refused(
        "verify", "results", says=("results: holds no results (neither config.yaml nor runs.csv); name the folder",)
    )
    Path("results/first/runs.csv").write_text("run\n")
    refused("verify", "results", says=(f"such as {Path('results/first')} (`fredsim ls results` lists them)",))


def test_a_sweep_that_is_to_be_live(refused: Refused) -> None:
    Path("x.yaml").write_text(BASE + "sweep:\n  server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}]\n")
    refused("live", "x.yaml", says=("this is a sweep of 2 runs", "such as 'server={name: asgd, lr: 0.1}'"))


def test_an_extra_is_installed_as_fredsim_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout with -e, of which pip makes a copy otherwise; by uv where the environment has no pip, as uv's have."""
    monkeypatch.setattr(sys, "executable", "/a b/python")
    pip, uv = "'/a b/python' -m pip install", "uv pip install --python '/a b/python'"
    say = "in the checkout, run {} -c constraints.txt {}".format
    assert errors.how_to_install("report") == say(pip, '-e ".[report]"')
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/fredsim/errors.py"))
    assert errors.how_to_install("report") == say(pip, '".[report]"')
    monkeypatch.setattr("fredsim.errors.find_spec", lambda name: None)
    assert errors.how_to_install("cuda") == say(uv, '".[cuda]"')
