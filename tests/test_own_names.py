"""A user's class may have any attribute: only the names that the manual gives mean something to fredsim.

Every other name that fredsim's own classes use is tried, on an object that has it as an attribute of its class.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.compressors import COMPRESSORS
from fredsim.dispatchers import DISPATCHERS
from fredsim.dispatchers.gates import GATES
from fredsim.hyper import HyperParameters
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


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_mean_nothing(
    kind: str, digits_experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cls, bases, change = KINDS[kind]
    page = (ROOT / "docs" / f"own_{kind}.md").read_text(encoding="utf-8")
    names = {name for base in bases for name in dir(base)} | OF_INSTANCES
    known = {*vars(cls), "state_names", "take_state", "put_state"}  # the last three of any kind
    tried = [name for name in sorted(names - known) if f"`{name}" not in page and name[:2] != "__"]
    assert len(tried) > 8
    module = ModuleType("odd_names")
    monkeypatch.setitem(sys.modules, "odd_names", module)

    def digest(attributes: dict[str, Any]) -> Any:
        setattr(module, "Odd", type("Odd", (cls,), {**attributes, "__module__": "odd_names"}))  # noqa: B010
        with tempfile.TemporaryDirectory() as folder:
            small = {**digits_experiment, "iterations": 12, **change("odd_names:Odd")}
            result = fredsim.run(small, out=Path(folder) / "run")
            assert isinstance(result, Result)
            return result.summary["digest"]

    expected = digest({})
    for name in tried:
        for value in (False, 7):
            assert digest({name: value}) == expected, (name, value)


def test_the_earlier_name_of_resolve_defaults() -> None:
    """A user's class that defines `meant` is asked for it, and those of fredsim still have it."""

    class Hyper(HyperParameters):
        steps: int | None = None

        def meant(self, clients: int) -> dict[str, Any]:
            return {"steps": 2 * clients}

    assert Hyper().resolve_defaults(3) == {"steps": 6}
    fasgd: Any = SERVERS["fasgd"]
    assert fasgd.Hyper(lr=0.1, variant="released").meant(3) == {"divisor": "plus1"}
