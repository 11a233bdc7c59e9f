"""`fredsim list` names what there is."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from fredsim.compressors import COMPRESSORS
from fredsim.config.data import Data, Glyphs, LeastSquares, Modular, Quadratic, Text
from fredsim.config.experiment import TorchChoice
from fredsim.config.models import LinearChoice, MlpChoice, Normal
from fredsim.config.sweep.expansion import expand, open_source
from fredsim.config.zoo import GptChoice, ResnetChoice, VggChoice
from fredsim.data.datasets import DATASETS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.dispatchers.scripted import Column
from fredsim.dispatchers.weighted import OnChosen
from fredsim.plugins.attribute_docs import meanings
from fredsim.servers import SERVERS
from fredsim.servers.schedules import SCHEDULES
from fredsim.servers.window_average import WindowAverage

Command = Callable[..., tuple[int, str, str]]


def test_one_of_ones_own(command: Command, small_yaml: Path, own_server: Callable[..., str]) -> None:
    small_yaml.with_name("own_listed.py").write_text(own_server(), encoding="utf-8")
    assert command("list", "own_listed:Plain") == (0, "own_listed:Plain: server\n  lr  required\n", "")
    code, output, messages = command("list", "own_listed:Plian")
    assert (code, output) == (2, "")
    assert messages == "error: list: module 'own_listed' has no 'Plian'; did you mean 'Plain'?\n"


def test_one_with_declared_hyper_parameters(command: Command) -> None:
    """It has all that is said about a name, from the same declaration."""
    found = SERVERS["fasgd"]
    known, own = (command("list", name)[1].splitlines() for name in ("fasgd", f"{found.__module__}:{found.__name__}"))
    assert own[0] == f"{found.__module__}:{found.__name__}: server"
    assert own[1:] == known[1:]


def test_a_clock_of_ones_own(command: Command, small_yaml: Path) -> None:
    clock = "class Steady:\n    def seconds(self, client, task):\n        return 1.0\n"
    small_yaml.with_name("own_listed_clock.py").write_text(clock, encoding="utf-8")
    assert command("list", "own_listed_clock:Steady") == (0, "own_listed_clock:Steady: dispatcher\n", "")


def test_functions_and_problems_of_ones_own(command: Command, small_yaml: Path) -> None:
    """Only a function of t is called a schedule; a loss, a metric and an augmentation are functions."""
    small_yaml.with_name("own_listed_more.py").write_text(
        "def focal(output, y, gamma=2.0, weights=None):\n    return output\n\n\n"
        "def warm(t, base):\n    return base\n\n\n"
        "class Valley:\n    def initial(self, rng): ...\n    def gradient(self, params, draw): ...\n"
        "    def evaluate(self, params): ...\n",
        encoding="utf-8",
    )
    said = {
        "focal": "function\n  output   required\n  y        required\n  gamma    2.0\n  weights  null\n",
        "warm": "schedule\n  base  required\n",
        "Valley": "problem\n",
    }
    for name, text in said.items():
        assert command("list", f"own_listed_more:{name}") == (0, f"own_listed_more:{name}: {text}", "")


def test_list(command: Command) -> None:
    code, output, messages = command("list")
    assert (code, messages) == (0, "")
    lines = [line.split()[0] for line in output.splitlines()]
    names = [
        *SERVERS,
        *DISPATCHERS,
        *GATES,
        *COMPRESSORS,
        "window",
        *SCHEDULES,
        "digits",
        "mnist",
        "npz:PATH",
        "quickstart",
        "fasgd/fig1",
    ]
    assert [name for name in names if name not in lines] == []
    assert {line.partition(":")[0] for line in lines} >= set(DATASETS)
    for what, known in (("dispatchers", DISPATCHERS), ("servers", SERVERS)):
        code, output, messages = command("list", what)
        named = [line.split()[0] for line in output.splitlines() if not line.startswith(" ")]
        assert (code, named, messages) == (0, list(known), "")
    for server in SERVERS.values():  # the idea, the citation, and every hyper-parameter
        assert server.idea in output
        assert server.citation in output
        assert all(name in output for name in server.Hyper.model_fields)
    assert command("list", "everything")[0] == 2


def classes() -> Iterator[tuple[str, Any]]:
    """Every set of hyper-parameters that is shipped, by the name that it is listed by."""
    known: list[Mapping[str, Any]] = [SERVERS, DISPATCHERS, GATES, COMPRESSORS, {"window": WindowAverage}]
    for name, found in ((name, found) for kind in known for name, found in kind.items()):
        yield name, found.Hyper
    yield from SCHEDULES.items()
    yield from {"mlp": MlpChoice, "torch:fredsim.zoo:lenet": TorchChoice, "digits": Data}.items()
    yield from {"linear": LinearChoice, "least_squares": LeastSquares, "quadratic": Quadratic}.items()
    yield from {
        "resnet": ResnetChoice,
        "vgg": VggChoice,
        "gpt": GptChoice,
        "modular": Modular,
        "glyphs": Glyphs,
        "text:PATH": Text,
    }.items()
    yield from {"weighted": OnChosen, "scripted": Column, "mlp": Normal}.items()


def test_every_hyper_parameter_is_described(command: Command) -> None:
    for name, model in classes():
        code, output, messages = command("list", name)
        assert (code, messages) == (0, "")
        said = meanings(model)
        for key, field in model.model_fields.items():
            if key == "name":
                continue
            default = field.get_default(call_default_factory=True)
            spelled = {"None": "null", "True": "true", "False": "false"}.get(str(default), str(default))
            if isinstance(default, BaseModel):  # a mapping, of which this is the first key
                spelled = f"{{{next(iter(type(default).model_fields))}:"
            expected = "required" if field.is_required() else spelled.split()[0]
            rows = [line.split() for line in output.splitlines() if line.endswith(f"  {said[key]}")]
            assert (key, expected) in [(row[0].rpartition(".")[2], row[1]) for row in rows], (name, key)
            assert said[key].endswith(".")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fasgd", "gamma 0.9 number ≥ 0, < 1 γ, the decay rate of"),
        ("fasgd", "lr required number > 0, or a schedule The learning rate α"),
        ("fasgd", "eps 0.0001 number ≥ 2^-126"),
        ("dcasgd", "lambda0 null number ≥ 0"),
        ("top_k", "k required integer > 0 or number > 0, < 1 How many values"),
        ("weighted", "on_chosen.recover_after required integer > 0"),
        ("mlp", "init he he, glorot, torch, zeros, normal or {name: normal, std} The"),
        ("quickstart", "quickstart: experiment ASGD, staleness-aware"),
    ],
)
def test_a_name(name: str, says: str, command: Command) -> None:
    assert says in " ".join(command("list", name)[1].split())


def test_a_name_of_two_kinds_and_of_none(command: Command, refused: Callable[..., None]) -> None:
    output = command("list", "exponential")[1]
    assert [line for line in output.splitlines() if not line.startswith(" ")] == [
        "exponential: server", "exponential: schedule",
    ]  # fmt: skip
    refused("list", "fasdg", says=("there is no 'fasdg'; did you mean 'fasgd'? (kinds: servers, ",))


@pytest.mark.parametrize(
    ("overrides", "comments"),
    [
        (["server={name: dcasgd, lr: 0.1}"], {"lambda0": 2.0}),
        (["server={name: dcasgd, lr: 0.1, adaptive: false}"], {"lambda0": 0.04}),
        (["server={name: dcasgd, lr: 0.1, lambda0: 3.0}"], {}),
        (["server={name: fasgd, lr: 0.1}"], {"divisor": "max1"}),
        (["server={name: bfasgd, lr: 0.1, variant: released}"], {"divisor": "plus1"}),
        (["server={name: delay_adaptive, lr: 0.1}"], {"n": 8}),
        (["server={name: sync, lr: 0.1}"], {"aggregate": 8, "inner": "none"}),
        (["compress={name: ternary}"], {"clip_sigma": "no clipping"}),
        (["average={name: window}"], {"device": "where the parameters are"}),
        (["dispatcher={name: weighted, weights: [1.0]}"], {"on_chosen": "weights stay"}),
    ],
)
def test_show_says_what_null_stands_for(
    overrides: list[str], comments: dict[str, Any], small_yaml: Path, command: Command
) -> None:
    output = command("show", small_yaml, *overrides)[1]
    found: dict[str, str] = {}
    for line in output.splitlines():
        before, _, comment = line.partition("  # ")
        named = [part.partition(": ") for part in comment.split("; ")] if comment else []
        for name, colon, value in named:
            found |= {name: value} if colon else {before.split(":")[0].strip(): name}
    assert found == {name: str(value) for name, value in comments.items()}
    small_yaml.with_name("shown.yaml").write_text(output, encoding="utf-8")
    shown, given = (expand(open_source(path), words).runs[0].experiment for path, words in (
        (small_yaml.with_name("shown.yaml"), []), (small_yaml, overrides)
    ))  # fmt: skip
    assert (shown.digest, shown.plain()) == (given.digest, given.plain())
