"""A user's class may have any attribute: only the names that the manual gives mean something to fredsim.

Every other name that fredsim's own classes use is tried, on an object that has it as an attribute of its class;
with `--slow` also each by itself.
"""

import math
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.compressors import COMPRESSORS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.errors import ConfigError
from fredsim.hyper import HyperParameters
from fredsim.optimizers import OPTIMIZERS
from fredsim.runs.folder.results import Result
from fredsim.servers import SERVERS, ElementwiseServer, WindowAverage
from fredsim.simulation.schedule.guarded_clock import OwnClock


class Server:
    def init(self, params: Any, clients: int) -> None:
        self.params = params.copy()

    def apply_update(self, grad: Any, client_id: int, timestamp: int) -> None:
        self.params -= np.float32(0.05) * grad


class Dispatcher:
    def init(self, clients: int, streams: Any) -> None:
        self.count = clients

    def choose(self, step: int) -> int:
        return step % self.count

    def hold(self, client: int) -> None: ...

    def release(self, client: int) -> None: ...


class Gate:
    def init(self, clients: int, tensors: Any, streams: Any, stream: Any) -> None: ...

    def passes(self, step: int, client: int, statistics: Any) -> bool:
        return step % 3 > 0


class Compressor:
    def init(self, layout: Any, streams: Any) -> None: ...

    def compress(self, push: Any, client: int, step: int) -> tuple[Any, int]:
        return push, 400


ROOT = Path(__file__).parents[1]
Change = Callable[[str], dict[str, Any]]
KINDS: dict[str, tuple[type, list[type], Change]] = {
    "server": (Server, [ElementwiseServer, WindowAverage, *SERVERS.values()], lambda name: {"server": {"name": name}}),
    "dispatcher": (Dispatcher, [OwnClock, *DISPATCHERS.values()], lambda name: {"dispatcher": {"name": name}}),
    "gate": (Gate, [*GATES.values()], lambda name: {"dispatcher": {"push": {name: {}}}}),
    "compressor": (Compressor, [*COMPRESSORS.values()], lambda name: {"compress": {"name": name}}),
}
#: Attributes that instances of fredsim's classes have, and their classes have not.
OF_INSTANCES = {
    "arrays", "own", "update", "compiled", "finite", "rule", "hyper", "layout", "clients", "inner", "shadow",
}  # fmt: skip


def names_that_mean_nothing(kind: str) -> list[str]:
    """Return the names that fredsim's classes of this kind use and the manual does not give."""
    cls, bases, _ = KINDS[kind]
    page = (ROOT / "docs" / f"own_{kind}.md").read_text(encoding="utf-8")
    names = {name for base in bases for name in dir(base)} | OF_INSTANCES
    known = {*vars(cls), "state_names", "take_state", "put_state"}  # the last three of any kind
    tried = [name for name in sorted(names - known) if f"`{name}" not in page and name[:2] != "__"]
    assert len(tried) > 8
    return tried


@pytest.fixture
def outcome(digits_experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run with a class of this kind that has these attributes besides; return the digest, or what went wrong."""
    module = ModuleType("odd_names")
    monkeypatch.setitem(sys.modules, "odd_names", module)

    def run(kind: str, attributes: Mapping[str, Any]) -> str:
        cls, _, change = KINDS[kind]
        setattr(module, "Odd", type("Odd", (cls,), {**attributes, "__module__": "odd_names"}))  # noqa: B010
        small = {**digits_experiment, "iterations": 12, **change("odd_names:Odd")}
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = fredsim.run(small, out=Path(folder) / "run")
            except Exception as error:  # of any kind
                return repr(error)
            assert isinstance(result, Result)
            return str(result.summary["digest"])

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_mean_nothing(kind: str, outcome: Callable[..., str]) -> None:
    """Many at once: the rows and the columns of a square of names, so that no two are together twice."""
    tried, expected = names_that_mean_nothing(kind), outcome(kind, {})
    assert re.fullmatch("[0-9a-f]+", expected)
    side = math.isqrt(len(tried) - 1) + 1
    rows, columns = [tried[i : i + side] for i in range(0, len(tried), side)], [tried[i::side] for i in range(side)]
    for names in (*rows, *columns):
        for value in (False, 7):
            if (found := outcome(kind, dict.fromkeys(names, value))) != expected:
                alone = {name: outcome(kind, {name: value}) for name in names}
                pytest.fail(f"{value} means something: {found}; {[one for one in alone.items() if one[1] != expected]}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_other_name_means_nothing(kind: str, outcome: Callable[..., str]) -> None:
    expected = outcome(kind, {})
    for name in names_that_mean_nothing(kind):
        for value in (False, 7):
            assert outcome(kind, {name: value}) == expected, (name, value)


def test_the_earlier_name_of_resolve_defaults() -> None:
    """A user's class that defines `meant` is asked for it, and those of fredsim still have it."""

    class Hyper(HyperParameters):
        steps: int | None = None

        def meant(self, clients: int) -> dict[str, Any]:
            return {"steps": 2 * clients}

    assert Hyper().resolve_defaults(3) == {"steps": 6}
    fasgd: Any = SERVERS["fasgd"]
    assert fasgd.Hyper(lr=0.1, variant="released").meant(3) == {"divisor": "plus1"}


@pytest.mark.parametrize("known", [SERVERS, DISPATCHERS, GATES, COMPRESSORS, OPTIMIZERS], ids=lambda known: len(known))
@pytest.mark.parametrize("key", ["self", "cls"])
def test_a_key_that_has_the_name_of_an_argument_is_an_unknown_key(known: Any, key: str) -> None:
    for cls in known.values():
        with pytest.raises(ConfigError, match=f"{key}: unknown key"):
            cls(**{key: 1})
