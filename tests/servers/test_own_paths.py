"""A rule, a server or a dispatcher of one's own takes the paths that it can, with the same bytes."""

from pathlib import Path

import pytest

from tests.servers.paths import SETTINGS, Check

OWN = """
import numpy as np

from fredsim.numerics.rules import Rule
from fredsim.servers import ElementwiseServer
from fredsim.servers.base import Rated


def smoothed(theta, mean, g, alpha, kept, fresh):
    mean = kept * mean + fresh * g
    return theta - alpha * mean, mean


class Smoothed(ElementwiseServer):
    Hyper = Rated
    rule = Rule(smoothed, state=("mean",))

    def initial_state(self):
        return {"mean": 0.25}

    def coefficients(self, t, staleness):
        return np.float32(self.rate(t)), np.float32(0.9), np.float32(0.1)


class Averaging(Smoothed):
    @property
    def averaged_params(self):
        return self.arrays["mean"]


class ItsOwnTime(Smoothed):
    def coefficients(self, t, staleness):
        return np.float32(self.rate()), np.float32(1 - 0.1 / (self.timestamp + 1)), np.float32(0.1)


class OneByOne(Smoothed):
    def coefficients(self, t, staleness):
        return np.float32(self.rate() / 2 if staleness > 3 else self.rate(t)), np.float32(0.9), np.float32(0.1)


class Backwards:
    def init(self, clients, streams):
        self.clients = clients

    def choose(self, step):
        return self.clients - 1 - step * step % self.clients

    def hold(self, client):
        raise NotImplementedError

    release = hold


class Listed(Backwards):
    def choose(self, step):
        return [3, 1, 2, 0, 1, 3, 3, 2, 0, 1][step]  # ends with the run
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_path.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("number", range(0, len(SETTINGS), 5))
@pytest.mark.parametrize("server", ["Smoothed", "Averaging"])
def test_a_rule_of_ones_own(server: str, number: int, check: Check) -> None:
    check(SETTINGS[number] | {"server": {"name": f"own_path:{server}", "lr": 0.05}})


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("number", range(0, len(SETTINGS), 5))
@pytest.mark.parametrize("server", ["ItsOwnTime", "OneByOne"])
def test_a_server_that_reads_its_own_time(server: str, number: int, check: Check) -> None:
    lr = {"name": "cosine", "base": 0.1, "steps": 50}
    check(SETTINGS[number] | {"server": {"name": f"own_path:{server}", "lr": lr}})


@pytest.mark.usefixtures("own")
def test_a_dispatcher_of_ones_own(check: Check) -> None:
    check({"dispatcher": {"name": "own_path:Backwards"}, "evaluation": {"every": 5}})


@pytest.mark.usefixtures("own")
def test_nobody_is_asked_for_what_lies_beyond_the_end(check: Check) -> None:
    check({"dispatcher": {"name": "own_path:Listed"}, "iterations": 10})
