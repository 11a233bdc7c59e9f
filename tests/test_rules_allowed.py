"""A rule is taken or refused alike on every backend, in one line that says what to write."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.errors import SimulationError
from fredsim.jit.team import Team
from fredsim.kernels.arrays.update import TeamRule
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.rules import Rule
from fredsim.runs.folder.results import Results
from tests.conftest import HAS_CUDA

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text(encoding="utf-8")
TEAM = Team(1)
MakeModule = Callable[[str], ModuleType]
IMPORTS = "import math\nimport numpy as np\nfrom fredsim.numerics.rules import *\nfrom fredsim.numerics import rules\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeModule:
    """Import a module of this text."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> ModuleType:
        (tmp_path / "own_rules.py").write_text(text, encoding="utf-8")
        sys.modules.pop("own_rules", None)
        importlib.invalidate_caches()
        return importlib.import_module("own_rules")

    return make


def operations(*, device: bool = True) -> Iterator[Callable[[Rule], Any]]:
    yield NumpyOperations().compile_rule
    yield lambda rule: TeamRule(TEAM, rule)
    if device and HAS_CUDA:
        from fredsim.cuda.operations import CudaOperations

        yield CudaOperations().compile_rule


def test_all_that_the_page_shows_has_one_result(module: MakeModule) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    shown = [f for f in vars(module(text)).values() if inspect.isfunction(f) and f.__module__ == "own_rules"]
    assert len(shown) == 10
    rng = np.random.default_rng(0)
    for function in shown:
        names = list(inspect.signature(function).parameters)
        rule = Rule(function, state=tuple(names[1 : names.index("g")]))
        coefficients = [np.float32(x) for x in rng.uniform(0.1, 0.9, len(rule.coefficients))]
        arrays = [rng.standard_normal(50).astype(np.float32) for _ in range(2 + len(rule.state))]
        results = []
        for compiled in operations():
            copies = [array.copy() for array in arrays]
            assert compiled(rule)(*copies, 0, 50, *coefficients)
            results.append(np.concatenate(copies[:-1]).view(np.uint32).tolist())
        assert results == results[:1] * len(results), function.__name__
        assert results[0] != np.concatenate(arrays[:-1]).view(np.uint32).tolist()


def test_a_function_that_wraps_another_is_itself(module: MakeModule) -> None:
    """What a backend compiles is what NumPy calls."""
    text = (
        "import functools\ndef plain(theta, g, a):\n    return theta - a * g\n"
        "def louder(theta, g, a):\n    return theta - 2.0 * a * g\nlouder = functools.wraps(plain)(louder)\n"
    )
    rule = Rule(module(text).louder)
    for compile_rule in operations():
        theta = np.ones(40, np.float32)
        assert compile_rule(rule)(theta, np.ones(40, np.float32), 0, 40, np.float32(0.25))
        assert (theta == 0.5).all()


def test_coefficients_and_numbers_are_float32_everywhere(module: MakeModule) -> None:
    text = IMPORTS + "def rule(theta, g, a, b):\n    return theta - ((a * 0.1 + b) / 3 - a * b * 1e-3) * g\n"
    rule, rng = Rule(module(text).rule), np.random.default_rng(1)
    f = np.float32
    for _ in range(20):
        a, b = (f(x) for x in rng.uniform(0.1, 0.9, 2))
        theta, g = (rng.standard_normal(16).astype(f) for _ in range(2))
        expected = theta - ((a * f(0.1) + b) / f(3) - a * b * f(1e-3)) * g
        for compiled in operations(device=False):
            found = theta.copy()
            compiled(rule)(found, g, 0, 16, a, b)
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


ROWS = re.findall(r"^\| (`.*) \|.*\|$", PAGE, re.MULTILINE)
EXPRESSIONS = [expression for row in ROWS for expression in re.findall(r"`(.*?)`", row)]
REFUSED = {
    "if g > 0:\n        g = 0 * g": "cannot branch or repeat; choose by where",
    "for i in range(3):\n        g = g + g": "cannot branch or repeat",
    "g += theta": "write it out, as in x = x + y",
    "a = b = g": "assign to one name at a time",
    "a, b = g, g": "assign to one name at a time",
    "half = 0.5": "half is a number",
    "sqrt = g * g": "sqrt is a function that a rule may use",
    "g = later\n    later = g": "later is no argument",
    "print(g)": "made of assignments to names",
    "g = rules.sqrt(g)": "use sqrt, imported from fredsim.numerics.rules",
    "g = sqrt(4.0) * g": "is of a number",
    "g = where(1 < 2, g, 0)": "both sides are numbers",
    "g = 1e39 * g": "is too large",
    "g = (1 / 0) * g": "is too large",
    "g = True * g": "must be a number",
    "g = where(g > 0, g)": "where takes 3 arguments",
    "g = g @ g": "@ is no operator of a rule; write it with + - * / and where, or give the class an apply_update of",
    "g = alpha * g // 2": "// is no operator of a rule; write it with",
    "g = (alpha // 2) * g": "// is no operator of a rule; compute it in coefficients",
    "g = g[0]": "an index is not for a rule, which sees one element of each array; make it a coefficient, or give the",
    "g = np.exp(g)": "a rule is elementwise and has no such operation: write it out, or give the class an apply_update",
    "g = g / g.sum()": "g.sum is no function of a rule; a rule is elementwise and has no such operation",
    "g = np.exp(alpha) * g": "np.exp is no function of a rule; compute it in coefficients",
    "g = np.maximum(g, 0.0)": "use positive_part(g), imported from fredsim.numerics.rules by its name",
    "g = min(g, alpha)": "use where(g < alpha, g, alpha), imported from",
    "g = {g}": "is not among what a rule may use",
    "return theta": "and return at its end",
}
SHAPES = {
    "rule = lambda theta, g, alpha: theta - alpha * g": "must be a plain function|is no plain function|cannot be read",
    "@staticmethod\ndef rule(theta, g, alpha):\n    return theta": "is a staticmethod; it must be a plain function",
    "def rule(theta, g, alpha=1):\n    return theta": "must be plain names",
    "def rule(theta, g, alpha):\n    return theta - g, g": "it must return the new parameter: 1 in all, and here are 2",
    "def rule(theta, g, alpha):\n    return alpha": "must be made of the parameter",
    "def rule(theta, g, alpha):\n    return theta > g": "a condition goes only into where",
    "def rule(theta):\n    return theta": "its arguments are θ, the state, g, coefficients",
    "from numpy import sqrt\ndef rule(theta, g, alpha):\n    return theta - sqrt(g)": "sqrt is another function here",
    "exec('def rule(theta, g, alpha):\\n    return theta')": "its source cannot be read",
}


def refusals(rule: Rule) -> list[str]:
    """Return what each backend says."""
    said = []
    for compiled in operations():
        with pytest.raises(SimulationError) as error:
            compiled(rule)
        said.append(str(error.value))
    return said


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_the_page_refuses(expression: str, module: MakeModule) -> None:
    text = f"LIMIT = 2.0\n{IMPORTS}def halved(x):\n    return x\n\n\n"
    said = refusals(Rule(module(f"{text}def rule(theta, g, alpha):\n    return theta - ({expression})\n").rule))
    assert said == said[:1] * len(said)
    assert "rule own_rules.rule (own_rules.py:11): `" in said[0]
    assert "a rule may use + - * /" in said[0]
    assert "\n" not in said[0]


@pytest.mark.parametrize(("line", "says"), REFUSED.items())
def test_a_statement_that_is_refused(line: str, says: str, module: MakeModule) -> None:
    rule = Rule(module(f"{IMPORTS}def rule(theta, g, alpha):\n    {line}\n    return theta - alpha * g\n").rule)
    said = refusals(rule)
    assert said == said[:1] * len(said)
    assert says in said[0]


@pytest.mark.parametrize(("text", "says"), SHAPES.items())
def test_a_function_that_is_refused(text: str, says: str, module: MakeModule) -> None:
    said = refusals(Rule(module(f"{IMPORTS}{text}\n").rule))
    assert said == said[:1] * len(said)
    assert re.search(says, said[0]), said[0]


SERVERS = """
import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated

SCALE = 2.0


def scaled(theta, g, alpha):
    return theta - SCALE * alpha * g


class Scaled(ElementwiseServer):
    Hyper = Rated
    rule = Rule(scaled)

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t)),)
"""


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_a_sweep_goes_on(
    backend: str, small_yaml: Path, digits_experiment: dict[str, Any], command: Callable[..., tuple[int, str, str]]
) -> None:
    small_yaml.with_name("scaled_rule.py").write_text(SERVERS, encoding="utf-8")
    sweep = {"server": [{"name": "scaled_rule:Scaled", "lr": 0.1}, {"name": "asgd", "lr": 0.1}]}
    small_yaml.write_text(dump_yaml({**digits_experiment, "backend": backend, "sweep": sweep}), encoding="utf-8")
    code, output, messages = command("run", small_yaml, "--quiet", "--out", "results")
    assert (code, output) == (2, "")
    (message,) = [line for line in messages.splitlines() if line.startswith("error: ")]
    assert "rule scaled_rule.scaled (scaled_rule.py:12): `SCALE`: SCALE is no argument of the rule; make" in message
    results = fredsim.load("results")
    assert isinstance(results, Results)
    assert results.runs["status"].tolist() == ["failed", "finished"]
    assert results.runs["error"].tolist()[0] in message
