"""A rule, a server or a dispatcher of one's own takes the paths that it can, with the same bytes."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.kernels.mlp import pending
from fredsim.numerics.arrays import MARGIN, aligned
from fredsim.simulation.paths.hand import HandWholeGradients
from tests.servers.paths import SETTINGS, Check, Simulate, check_same

OWN = """
import numpy as np

from fredsim.numerics.rules import Rule, sqrt
from fredsim.servers import ASGD, ElementwiseServer
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


def rooted(theta, s, g, alpha):
    s = s + g * g
    return theta - alpha * g / sqrt(s), s


class Rooted(Smoothed):
    # Not finite where parameter, state and gradient are 0.
    rule = Rule(rooted, state=("s",))

    def initial_state(self):
        return {"s": 0.1}

    def coefficients(self, t, staleness):
        return (np.float32(self.rate(t)),)


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


class Plain:
    def __init__(self, lr):
        self.lr = np.float32(lr)

    def init(self, params, clients):
        self.params = params.copy()

    def apply_update(self, grad, client_id, timestamp):
        grad *= self.lr
        self.params -= grad


class Rebinding(Plain):
    def apply_update(self, grad, client_id, timestamp):
        # Anywhere in memory, with gaps or without.
        self.params = (np.repeat(self.params, 2) - self.lr * np.repeat(grad, 2))[:: 2]


class EveryThird(Plain):
    timestamp, waiting, sums = 0, 0, 0.0

    def apply_update(self, grad, client_id, timestamp):
        self.sums = self.sums + grad
        self.waiting += 1
        if self.waiting == self.wanted():
            self.params -= self.lr / np.float32(1 + self.timestamp - timestamp) * self.sums
            self.timestamp += 1
            self.waiting, self.sums = 0, 0.0

    def wanted(self):
        return 3


class OneTwoThree(EveryThird):
    def wanted(self):
        return 1 + self.timestamp % 3


class Warm(Plain):
    # Clients begin from what it makes of the parameters.
    def init(self, params, clients):
        self.params = params * np.float32(0.5)


class WarmRule(ASGD):
    def init(self, params, clients, layout=None):
        super().init(params, clients, layout)
        self.params *= np.float32(0.5)


class Copies(EveryThird):
    # What its `params` is changes with every push, and nobody sees the same array twice.
    @property
    def params(self):
        return self.own.copy()

    @params.setter
    def params(self, values):
        self.own = values

    def apply_update(self, grad, client_id, timestamp):
        self.own = self.own - np.float32(0.01) * grad
        self.waiting = (self.waiting + 1) % 3
        self.timestamp += self.waiting == 0


class Counting(Plain):
    metrics = {"norms": "sum", "behind": "mean"}
    timestamp = 0

    def apply_update(self, grad, client_id, timestamp):
        self.record("norms", float(np.abs(grad).max()))
        self.record("behind", self.timestamp - timestamp)
        self.timestamp += 1
        super().apply_update(grad, client_id, timestamp)


class Tames(Plain):
    # Goes on from parameters whose gradients are not finite.
    def apply_update(self, grad, client_id, timestamp):
        grad = np.nan_to_num(grad, nan=0.5, posinf=1.0, neginf=-1.0)
        self.params = np.float32(3e37) * np.sin(np.float32(1e3) * (self.params / np.float32(3e37) + grad))


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
@pytest.mark.parametrize("hidden", [[], [12], [20, 12]], ids=str)
@pytest.mark.parametrize("knobs", [{}, {"threads": 3, "window": 3}], ids=str)
def test_a_rule_that_is_not_finite_at_0(
    hidden: list[int], knobs: dict[str, int], check: Check, simulate: Simulate
) -> None:
    """Rows that are padded with zeros in memory say nothing of the parameters."""
    run = SETTINGS[6] | {"server": {"name": "own_path:Rooted", "lr": 0.05}, "model": {"hidden": hidden}}
    reference = check(run | knobs)
    assert reference.summary["status"] == "finished"
    check_same(simulate(run | {"backend": "numpy"}), reference)
    lr = {"name": "step", "base": 0.9, "every": 20, "factor": 3e38}
    diverging = check(run | knobs | {"server": {"name": "own_path:Rooted", "lr": lr}})
    assert diverging.summary["status"] == "diverged"


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


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("number", range(len(SETTINGS)))
def test_a_server_that_sees_whole_gradients(number: int, check: Check) -> None:
    """Clients hold pending passes, too, and what the server gets is the same to the bit."""
    server = ["Plain", "Rebinding", "EveryThird", "Counting", "Tames", "Warm", "Copies"][number % 7]
    check(SETTINGS[number] | {"server": {"name": f"own_path:{server}", "lr": 0.05}}, ["hand"])


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("knob", [{"threads": 1}, {"threads": 3}, {"memory": 1}, {"window": 1}], ids=str)
@pytest.mark.parametrize("server", [{"name": "own_path:EveryThird"}, {"name": "asgd", "weight_decay": 0.1}], ids=str)
def test_no_knob_moves_a_bit(server: dict[str, Any], knob: dict[str, int], check: Check, simulate: Simulate) -> None:
    run = SETTINGS[9] | {"server": server | {"lr": 0.05}, "iterations": 300}
    reference = check(run, ["hand"])
    check_same(simulate(run | knob | {"path": "hand"}), reference)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("hidden", [[1], [300, 200], [7, 9, 11]], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 40, 200])
def test_other_sizes(batch: int, hidden: list[int], check: Check) -> None:
    """One thread, and several; a minibatch of several groups of blocks."""
    clients = {"count": 3, "batch_size": batch}
    for server in ("Plain", "Tames"):
        spec = {"name": f"own_path:{server}", "lr": 0.1}
        check({"iterations": 25, "clients": clients, "model": {"hidden": hidden}, "server": spec}, ["hand"])


@pytest.mark.usefixtures("own")
def test_clients_begin_from_what_init_made(check: Check, simulate: Simulate) -> None:
    run = SETTINGS[3] | {"server": {"name": "own_path:WarmRule", "lr": 0.05}}
    reference = check(run)
    check_same(simulate(run | {"backend": "numpy"}), reference)
    usual = simulate(run | {"server": {"name": "asgd", "lr": 0.05}})
    assert usual.metrics["digest"][0] != reference.metrics["digest"][0]
    run["server"] = {"name": "own_path:Warm", "lr": 0.05}
    assert check(run, ["hand"]).summary["digest"] == reference.summary["digest"]


@pytest.mark.usefixtures("own")
def test_slow_pushes_are_few_at_once(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """However quick the server was before: between them the run looks whether it is to stop."""
    run = SETTINGS[4] | {"server": {"name": "own_path:EveryThird", "lr": 0.05}}
    reference = simulate(run)
    stretches, process_events = [], HandWholeGradients.process

    def noted(self: HandWholeGradients, begin: int, many: int) -> Any:
        found = process_events(self, begin, many)
        stretches.append(len(found[0]))
        return found

    monkeypatch.setattr(HandWholeGradients, "process", noted)
    monkeypatch.setattr("fredsim.simulation.paths.hand.SLICE", -1.0)
    check_same(simulate(run), reference)
    assert stretches == [1] * run["iterations"]


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("hidden", [[], [5], [20, 12]], ids=str)
@pytest.mark.parametrize("batch", [1, 5, 70])
def test_threads_and_tasks_begun_together_move_no_bit(
    batch: int, hidden: list[int], simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: dict[str, Any] = {
        "iterations": 60, "clients": {"count": 9, "batch_size": batch}, "model": {"hidden": hidden}, "threads": 3,
        "server": {"name": "own_path:Tames", "lr": 0.1}, "dispatcher": {"name": "uniform", "wait": False},
    }  # fmt: skip
    reference = simulate(run | {"path": "snapshots"})
    for alone in ("GRADIENT_ALONE_BELOW", "PASSES_ALONE_BELOW"):
        monkeypatch.setattr(pending, alone, 0)
    for room in (1, 3 * 4 * 20_000, 2**30):
        monkeypatch.setattr(pending, "WORKSPACE_BYTES", room)
        check_same(simulate(run | {"path": "hand"}), reference)


def test_parameters_at_the_end_of_a_page_are_copied() -> None:
    """What lies behind them may not be there."""
    page, spare = mmap.PAGESIZE // 4, aligned(1000 + MARGIN)
    memory = np.frombuffer(mmap.mmap(-1, 4 * mmap.PAGESIZE), np.float32)
    memory[:] = np.arange(len(memory))
    for left in (0, 1, MARGIN - 1, MARGIN, MARGIN + 1, page - 1, page, page + MARGIN):
        params = memory[3 * page - left - 1000 : 3 * page - left]
        found = pending.with_margin(params, spare)
        assert (found[:1000] == params).all()
        assert np.shares_memory(found, params) == (left % page >= MARGIN), left
    assert (pending.with_margin(memory[::2][:1000], spare)[:1000] == memory[::2][:1000]).all()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("every", [1, 2, 7])
def test_rows_by_updates_that_the_server_counts(every: int, check: Check) -> None:
    rows = {"every": every, "unit": "updates"}
    run = {"iterations": 96, "server": {"name": "own_path:OneTwoThree", "lr": 0.05}, "evaluation": rows}
    result = check(run, ["hand"])
    assert result.summary["updates"] == 48  # three of six pushes
    assert result.metrics["timestamp"].tolist() == sorted({*range(0, 49, every), 48})
