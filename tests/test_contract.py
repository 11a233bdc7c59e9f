"""What a server can do is read once; parts that do not go together are refused as an experiment is opened."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from fredsim.errors import SimulationError
from fredsim.numerics.operations import NumpyOperations
from fredsim.numerics.streams import Streams
from fredsim.servers import Sync, TernarySync, WindowAverage
from fredsim.simulation.plugins.contract import SIGNATURES, Contract, read_contract

Refused = Callable[..., None]
Command = Callable[..., tuple[int, str, str]]

OWN = """
from fredsim.errors import ConfigError
from fredsim.servers import ASGD, Reply, Server
from fredsim.servers.base import Rated


class HoldsLate(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.holds = clients > 1


class StepsLate(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.local_steps = 3


class RecordsLate(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.metrics = {"norm": "mean"}


class HandsOutLate(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.fetch = lambda client_id: self.params


class Holds(Plain):
    def expect(self, clients):
        if clients > 8:
            raise ConfigError(f"server.name is {type(self).__name__}; it takes 8 clients at most")
        self.holds = clients > 1

    def init(self, params, clients):
        super().init(params, clients)
        self.waiting = []

    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad, client_id, timestamp)
        self.waiting.append(client_id)
        if len(self.waiting) < 8:
            return Reply()
        released, self.waiting = self.waiting, []
        return Reply(released)


class MakesItsOwnV(Plain):  # what is there only after init is no declaration
    def init(self, params, clients):
        super().init(params, clients)
        self.timestamp, self.v, self.averaged_params = 0, np.ones_like(params), params

    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad, client_id, timestamp)
        self.timestamp += 1


class CallsANumberRate(Plain):  # what is no method is none, whatever its name
    def init(self, params, clients):
        super().init(params, clients)
        self.rate, self.proxies = 0.5, None


class Speaks(ASGD):
    def init(self, params, clients, layout=None):
        print(f"started with {len(params)} parameters")
        super().init(params, clients, layout)


class Whole:
    def init(self, layout, streams):
        pass

    def compress(self, push, client, step):
        return push.copy(), 9
"""


@pytest.fixture
def own(small_yaml: Path, own_server: Callable[..., str]) -> Path:
    small_yaml.with_name("own_contract.py").write_text(own_server() + OWN, encoding="utf-8")
    return small_yaml


def test_one_table_names_all_that_a_server_may_have() -> None:
    text = (Path(__file__).parents[1] / "docs/own_server.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `(\w+)(\(.*?\))?.*?` \|", text.partition("## All that")[2].partition("\n## ")[0], re.MULTILINE
    )
    explained = {name: tuple(given[1:-1].split(", ")) if given != "()" else () for name, given in rows if given}
    assert explained == SIGNATURES | {"record": ("name", "value")}
    known = {field.name for field in fields(Contract)} - {"name", "built_in", "derived", "whole_gradients"}
    assert {name for name, _ in rows} == known | {*SIGNATURES, "gates", "params", "record"}
    assert len(rows) == len({name for name, _ in rows})


@pytest.mark.parametrize(
    ("server", "says"),
    {
        "HoldsLate": "HoldsLate, init, holds: is True after init, and was False before; declare it in the class",
        "StepsLate": "StepsLate, init, local_steps: is 3 after init, and was None before; declare it in the class",
        "RecordsLate": "RecordsLate, init, metrics: is {'norm': 'mean'} after init, and was {} before; declare",
        "HandsOutLate": "HandsOutLate, init, fetch: exists only after init; declare it in the class",
    }.items(),
)
def test_what_is_declared_stays(server: str, says: str, own: Path, refused: Refused) -> None:
    refused("run", own, f"server.name=own_contract:{server}", "--quiet", "--out", "out", says=(says,))
    assert not Path("out").exists()


def test_what_depends_on_the_clients_is_declared_beforehand(own: Path, refused: Refused, command: Command) -> None:
    words = (own, "server.name=own_contract:Holds")
    assert command("run", *words, "--quiet", "--out", "out") == (0, "", "")
    place = "override 'server.name=own_contract:Holds': server.name is Holds; it takes 8 clients at most"
    for what in ("show", "plan", "run"):
        refused(what, *words, "clients.count=9", says=(place,))
    says = "override 'dispatcher.wait=false': dispatcher.wait is false; the server holds its clients"
    refused("show", *words, "dispatcher.wait=false", says=(says,))
    assert command("show", *words, "dispatcher.wait=false", "clients.count=1")[0] == 0


def test_what_init_makes_counts(own: Path, command: Command) -> None:
    words = (own, "server.name=own_contract:MakesItsOwnV", "dispatcher.fetch={bandwidth_aware: {c: 1.0}}")
    assert command("show", *words)[0] == 0
    assert command("run", *words, "--quiet", "--out", "out") == (0, "", "")
    assert Path("out/params_raw.safetensors").exists()
    assert command("run", own, "server.name=own_contract:CallsANumberRate", "--quiet", "--out", "other") == (0, "", "")


def test_what_init_does_not_make_is_missed_at_the_start(own: Path, command: Command, refused: Refused) -> None:
    words = (own, "server.name=own_contract:Plain", "dispatcher.fetch={bandwidth_aware: {c: 1.0}}")
    assert command("show", *words)[0] == 0
    refused("run", *words, "--quiet", "--out", "out", says=("dispatcher.fetch asks for the gradients' deviation v",))


def test_nothing_is_started_to_look_at_an_experiment(own: Path, command: Command) -> None:
    assert "started" not in command("show", own, "server.name=own_contract:Speaks")[1]
    assert "started with 1210 parameters" in command("run", own, "server.name=own_contract:Speaks", "--quiet")[1]


def test_what_is_verified_is_looked_at_first(own: Path, command: Command, refused: Refused) -> None:
    assert command("run", own, "server.name=sync", "--quiet", "--out", "out") == (0, "", "")
    recorded = Path("out/config.yaml")
    recorded.write_text(recorded.read_text(encoding="utf-8").replace("wait: true", "wait: false"), encoding="utf-8")
    refused("verify", "out", says=("out/config.yaml:", "dispatcher.wait is false; the server holds its clients"))


def test_a_compressor_of_ones_own_is_planned_with(own: Path, command: Command) -> None:
    code, output, messages = command("plan", own, "compress.name=own_contract:Whole")
    assert (code, messages) == (0, "")
    assert "pushes are compressed" in output


def test_who_draws_must_be_given_streams() -> None:
    server = TernarySync(lr=0.1)
    server.init(np.zeros(3, np.float32), 1)
    with pytest.raises(SimulationError, match="TernarySync: draws, but was given no streams; set `streams` first"):
        server.apply_update(np.ones(3, np.float32), 0, 0)


def test_a_server_within_another_computes_and_draws_as_that_does() -> None:
    operations = NumpyOperations()
    average = WindowAverage(Sync(inner={"name": "asgd", "lr": 0.1}))
    average.bind_runtime(Streams(17), operations)
    average.init(np.zeros(3, np.float32), 2)
    for server in (average.server, average.server._inner):
        assert (server.streams.seed, server.operations) == (17, operations)


def test_numbers_of_numpy_are_settings() -> None:
    class Sets:
        def gates(self) -> dict[str, object]:
            return {
                "push": {"every": np.int64(2)},
                "fetch": {"bandwidth_aware": {"c": np.float32(0.5)}},
                "replica": False,
            }

    found = read_contract(Sets(), 4).gates
    assert found == {"push": {"every": 2}, "fetch": {"bandwidth_aware": {"c": 0.5}}, "replica": False}
    assert type(found["push"]["every"]) is int
