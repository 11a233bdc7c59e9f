"""Errors name the remedy: the file that was meant, an example of what is missing, how YAML is mended."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from fredsim import errors, other_names
from fredsim.config.choices import Backend, Init, Sampling
from fredsim.config.losses import LOSSES
from fredsim.config.metrics import KNOWN as METRICS
from fredsim.config.partition import PARTITIONS
from fredsim.config.registry import KNOWN, argument_problems
from fredsim.data.datasets import DATASETS
from fredsim.servers.schedules import SCHEDULES

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
    "a space that is none": (
        "name:\u00a0a\nseed: 1\n",
        ("; line 1 has the character U+00A0, which looks like a space and",),
    ),
    "a colon that is none": (
        "name: a\nseed\uff1a 1\n",
        ("; line 2 has the character U+FF1A, which looks like a colon ",),
    ),
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


#: By a key: names that PyTorch, Flower, FedLab and Hugging Face have, and what they are called here, or what else is
#: said.
OF_OTHERS: dict[str, dict[str, str]] = {
    "loss": {
        "BCEWithLogitsLoss": "bce", "BCELoss": "bce", "binary_cross_entropy": "bce", "ce": "cross_entropy",
        "CrossEntropyLoss": "cross_entropy", "nn.CrossEntropyLoss": "cross_entropy",
        "binary_cross_entropy_with_logits": "bce", "NLLLoss": "cross_entropy", "nll_loss": "cross_entropy",
        "MSELoss": "mse", "mse_loss": "mse", "torch.nn.MSELoss": "mse", "torch.nn.functional.mse_loss": "mse",
        **dict.fromkeys(
            ("L1Loss", "torch.nn.L1Loss", "HuberLoss", "SmoothL1Loss", "KLDivLoss", "GaussianNLLLoss", "MAE"),
            "no such loss: write it as a function of yours (docs/losses.md)",
        ),
    },
    "clients.optimizer.name": {
        "SGD": "sgd", "AdamW": "adamw", "torch.optim.AdamW": "adamw", "Adam": "adamw",
        "RMSprop": "no such optimizer: write it as a class of yours (docs/clients.md)",
    },
    "server.name": {
        "SGD": "asgd", "RMSprop": "rmsprop", "NAdam": "nadam", "torch.optim.Adagrad": "adagrad", "Hogwild!": "asgd",
        "FedAvg": "sync with clients.local_steps (fredsim show clients/fedavg)", "fedlab.FedProx": "clients.prox",
        "flwr.server.strategy.FedAdam": "and inner: {name: adam", "SCAFFOLD": "clients.control_variates",
        "FedAsync": "fedasync", "my_module.FedAvg": "my_module:FedAvg",
        "Krum": "no such server: write it as a class of yours (docs/own_server.md)",
    },
    "server.lr.name": {
        "StepLR": "step", "CosineAnnealingLR": "cosine", "ExponentialLR": "exponential",
        "OneCycleLR": "no such schedule: write it as a function of yours (docs/own_schedule.md)",
    },
    "data.name": {
        "CIFAR10": "torchvision:CIFAR10", "cifar-100": "torchvision:CIFAR100", "MNIST": "mnist",
        "torchvision.datasets.FashionMNIST": "torchvision:FashionMNIST", "uoft-cs/cifar10": "torchvision:CIFAR10",
        "load_digits": "digits", "rows.csv": "save its arrays, and give npz:FILE", "rows.npz": "npz:rows.npz",
    },
    "model.name": {"ResNet18": "resnet", "GPT-2": "gpt", "CNN": "lenet", "LogisticRegression": "hidden: []"},
    "dispatcher.name": {"random": "uniform", "Poisson": "the noise of a clock's compute", "sync": "{name: sync}"},
    "evaluation.metrics": {"Accuracy": "the column validation_error", "top-5": "top5", "F1": "no such metric"},
    "clients.partition": {
        "DirichletPartitioner": "dirichlet", "IidPartitioner": "iid", "noniid": "dirichlet",
        "LinearPartitioner": "{name: lists, file: …}",
    },
    "compress.name": {"TopK": "top_k", "terngrad": "ternary", "signSGD": "sign", "PowerSGD": "no such compressor"},
    "model.init": {"kaiming_uniform": "he", "xavier": "glorot"},
    "backend": {"cpu": "numba", "gpu": "cuda"},
    "clients.sampling": {"random": "shuffled", "shuffle": "shuffled"},
}  # fmt: skip


@pytest.mark.parametrize("key", OF_OTHERS)
def test_names_that_others_have(key: str, command: Callable[..., tuple[int, str, str]]) -> None:
    Path("x.yaml").write_text(BASE)
    for name, meant in OF_OTHERS[key].items():
        value = f"[{name}]" if key == "evaluation.metrics" else name
        given = f"{key.removesuffix('.name')}={{name: {value}}}" if key.endswith(".name") else f"{key}={value}"
        code, _, messages = command("show", "x.yaml", given)
        assert code == 2
        proposed = re.search("; did you mean '(.*?)'", messages)
        assert proposed[1] == meant if proposed else f"{meant} (known" in messages or meant in messages, messages


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("num_clients=3", "clients.count"), ("num_rounds=3", "updates"), ("max_steps=3", "iterations"),
        ("random_seed=3", "seed"), ("learning_rate=3", "server.lr"), ("device=cuda", "backend"),
        ("clients={num_clients: 3, batch_size: 2}", "count"), ("evaluation={interval: 3}", "every"),
        ("server={name: asgd, learning_rate: 0.1}", "lr"), ("model={layers: [3]}", "hidden"),
        ("until={loss: 0.1}", "validation_loss"), ("until={val_loss: 0.1}", "validation_loss"),
    ],
)  # fmt: skip
def test_keys_that_others_have(given: str, meant: str, refused: Refused) -> None:
    Path("x.yaml").write_text(BASE)
    refused("show", "x.yaml", given, says=(f"unknown key; did you mean '{meant}'?",))


CLOCK = "dispatcher={name: clock, compute: {seconds: 1.0, noise: %s}}"
SECONDS = "dispatcher={name: clock, compute: {seconds: %s}}"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        # A name as the key of its own keys, or a name alone, where {name: …} is wanted.
        (CLOCK % "{lognormal: {sigma: 0.5}}", "{name: …} of gamma, exponential"),
        (CLOCK % "{lognormal: {sigma: 0.5}}", "; write {name: lognormal, sigma: 0.5}\n"),
        (CLOCK % "lognormal", "; write {name: lognormal, …}\n"),
        (CLOCK % "{exponential: 2}", "; write {name: exponential, …}\n"),
        (CLOCK % "{sigma: 0.5}", "it must be none, or {name: …} of gamma"),
        (SECONDS % "{power: {base: 2.0}}", "; write {name: power, base: 2.0}\n"),
        ("server.lr={cosine: {base: 0.1, steps: 9}}", "; write {name: cosine, base: 0.1, steps: 9}\n"),
        ("server.lr=cosine", "; write {name: cosine, …}\n"),
        ("server.lr={name: warmup, steps: 9, then: step}", "; write {name: step, …}\n"),
        ("clients.partition={dirichlet: {alpha: 0.3}}", "; write {name: dirichlet, alpha: 0.3} (known: iid"),
        ("clients.partition={dirichlet: 0.3}", "; write {name: dirichlet, …} (known: iid"),
        ("loss={cross_entropy: {label_smoothing: 0.1}}", "; write {name: cross_entropy, label_smoothing: 0.1} (known"),
        ("data={mnist: {train: 9}}", "data.name: is required; write {name: mnist, train: 9}\n"),
        ("compress={top_k: {k: 0.1}}", "compress.name: is required; write {name: top_k, k: 0.1}\n"),
        (
            "compress={name: ef21, inner: {top_k: {k: 0.1}}}",
            "inner.name: is required; write {name: top_k, k: 0.1} (known",
        ),
        ("compress={name: ef21, inner: top_k}", "a mapping of keys to values, such as inner: {name: top_k, k: 0.01}\n"),
        ("server={name: sync, inner: adam}", "a mapping of keys to values, such as inner: {name: adam, lr: 0.001}\n"),
        ("dispatcher={weighted: {weights: [1]}, wait: true}", "weighted: unknown key; write {name: weighted, …}\n"),
        ("model={resnet: {depth: 8}}", "model.resnet: unknown key; write {name: resnet, …}\n"),
        # A misspelt name of what has keys of its own: the others are no mistakes.
        ("data={name: Glyphs, size: 9}", "data.name: unknown data set 'Glyphs'; did you mean 'glyphs'? (known: digits"),
        ("model={name: GPT, width: 32}", "model.name: is 'GPT'; it must be mlp, linear, lenet, resnet, vgg, gpt, or "),
        ("until=0.1", "a mapping of keys to values, such as until: {validation_error: 0.05}\n"),
        # All types that a value may have.
        ("model.init=0.1", "it must be 'he', 'glorot', 'torch', 'zeros' or 'normal', or a mapping of keys to values\n"),
        ("dispatcher.push=2", "a valid string, or a mapping of keys to values, such as push: {bandwidth_aware: {c: 0"),
        ("dispatcher={name: clock, link: {latency: 10ms}}", "is '10ms'; it should be a valid number, or a valid list"),
        # Units.
        ("dispatcher={name: clock, link: {latency: 10ms}}", "; leave out the unit\n"),
        ("dispatcher={name: clock, link: {up: 1 MB/s}}", "; leave out the unit\n"),
        (SECONDS % "2s", "; leave out the unit\n"),
        (SECONDS % "'2'", "bernoulli: write 2\n"),
        # Numbers and words of others.
        ("server.lr=10%", "is '10%'; it should be a valid number: write 0.1\n"),
        ("server.lr=7%", ": write 0.07\n"),
        ("iterations=1,000,000", "is '1,000,000'; it should be a valid integer: write 1000000\n"),
        ("compress=none", "a mapping of keys to values: write null\n"),
        ("threads=None", "it should be a valid integer: write null\n"),
        ("events=yes", "it should be a valid boolean: write true\n"),
        ("evaluation.test=off", "it should be a valid boolean: write false\n"),
        ("events=1", "it should be a valid boolean: write true\n"),
        ("seed=none", "it should be a valid integer, such as seed: 7\n"),
        ("dispatcher={name: scripted, order: o.csv}", "such as order: {csv: order.csv, column: client}\n"),
        ("data.sha256=abc", "it must be a SHA-256, of 64 digits and letters from a to f, or null\n"),
        ("evaluation.metrics=[{name: 'a:b', column: 'x y'}]", "it must be of letters, digits and _, and begin with no"),
        ("dispatcher.push={bandwidth_aware: 0.5}", "must be a mapping; write {bandwidth_aware: {c: 0.5}}\n"),
    ],
)
def test_the_form_that_is_wanted(given: str, says: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """In one line: an unknown key is not another mistake than the missing name."""
    Path("x.yaml").write_text(BASE)
    code, _, messages = command("show", "x.yaml", given)
    assert (code, messages.count("\n")) == (2, 1)
    assert says in messages


@pytest.mark.parametrize("given", [CLOCK % "{name: lognormal, sigma: 0.5}", SECONDS % "{name: power, base: 2.0}"])
def test_the_form_that_is_told_is_taken(given: str, command: Callable[..., tuple[int, str, str]]) -> None:
    Path("x.yaml").write_text(BASE)
    assert command("show", "x.yaml", given)[0] == 0


def test_a_key_that_has_no_other_name_here(refused: Refused) -> None:
    Path("x.yaml").write_text(BASE)
    refused("show", "x.yaml", "until={accuracy: 0.9}", says=("unknown key; accuracy is 1 − validation_error (known",))
    refused("show", "x.yaml", "data.root=/data", says=("unknown key; the folder of files is given by --data-root or ",))


def test_the_last_part_of_a_dotted_name() -> None:
    assert errors.closest("lr", ["server.lr", "seed"]) == "server.lr"
    assert errors.closest("lr", ["server.lr", "clients.optimizer.lr", "seed"]) is None


def test_what_is_proposed_for_names_of_others_is_known() -> None:
    """No other name is one that is known where it stands."""
    known: dict[str, set[str]] = {
        "mse": {*LOSSES}, "sync": {*KNOWN["server"]}, "adamw": {*KNOWN["optimizer"]}, "mnist": {*DATASETS},
        "mlp": {"mlp", "linear", "lenet", "resnet", "vgg", "gpt"}, "round_robin": {*KNOWN["dispatcher"]},
        "top5": {*METRICS}, "dirichlet": {*PARTITIONS}, "top_k": {*KNOWN["compressor"]}, "cosine": {*SCHEDULES},
        "glorot": {*get_args(Init)}, "numba": {*get_args(Backend)}, "shuffled": {*get_args(Sampling)},
    }  # fmt: skip
    for one, names in known.items():
        for meant, words in other_names.OTHER_NAMES[one].items():
            assert " " in meant or meant.partition(":")[0] in names
            assert not names & {*words.split()}
            assert [*map(other_names.letters_of, words.split())] == words.split()


def test_a_misspelt_file(refused: Refused) -> None:
    """A file beside is meant before an experiment that comes with fredsim."""
    Path("within").mkdir()
    Path("within/first.yaml").write_text(BASE)
    refused("run", "within/firs.yaml", says=("within/firs.yaml: no such file", "did you mean 'first.yaml'?"))
    refused("run", "nowhere/firs.yaml", says=("nowhere/firs.yaml: no such file",))


def test_no_name_of_a_file(refused: Refused) -> None:
    """Its text, as a script may have it, is not shown in lines of its own."""
    text = BASE.replace("\n", "\\n")
    refused("show", BASE, says=(f"'{text}': is the text of an experiment; save it as a file, and name that\n",))
    refused("run", "https://a.org/x.yaml", says=("'https://a.org/x.yaml': is an address; save it as a file, and name",))


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
