"""Columns at the end of metrics.csv: the numbers that a server records, and the error on the test rows."""

import csv
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.runs.folder.results import Result
from fredsim.simulation.record.recorder import METRICS

Refused = Callable[..., None]
Simulate = Callable[..., Result]

OWN = """
import numpy as np

from fredsim.servers.asgd import ASGD

EVENTS = []


class Fresh:  # throws away what is staler than 4
    metrics = {"discarded": "sum", "norm": "mean", "weight": "sum"}

    def __init__(self, lr, called="discarded", value=1, metrics=None):
        self.lr, self.called, self.value = np.float32(lr), called, value
        if metrics is not None:
            self.metrics = metrics

    def init(self, params, clients):
        self.params = params.copy()
        self.timestamp = 0
        EVENTS.clear()

    def apply_update(self, grad, client_id, timestamp):
        late = self.timestamp - timestamp > 4
        EVENTS.append((late, float(np.abs(grad).max())))
        if late:
            self.record(self.called, self.value)
            return
        self.record("norm", np.abs(grad).max())
        self.record("weight", 0.1)
        self.params -= self.lr * grad
        self.timestamp += 1


class Counted(ASGD):
    metrics = {"pushes": "mean"}

    def apply_update(self, grad, client_id, timestamp):
        self.record("behind", self.timestamp - timestamp)
        return super().apply_update(grad, client_id, timestamp)


class Late(Counted):
    metrics = {"behind": "mean", "most": "sum"}

    def _apply(self, grad, client_id, *coefficients):
        self.record("most", 1)
        super()._apply(grad, client_id, *coefficients)


class Enormous(Fresh):
    def apply_update(self, grad, client_id, timestamp):
        self.record("norm", 10**400)


class Fixed(Fresh):
    record = property(lambda self: None)
"""


@pytest.fixture
def own(small_yaml: Path) -> Path:
    small_yaml.with_name("own_numbers.py").write_text(OWN, encoding="utf-8")
    return small_yaml


def rows(result: Result) -> list[dict[str, str]]:
    with (result.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def run(own: Path, *overrides: str, out: str = "out") -> Result:
    result = fredsim.run(own, list(overrides), out=out)
    assert isinstance(result, Result)
    return result


@pytest.mark.parametrize("average", ["null", "{name: window}"])
def test_sums_and_means_since_the_row_before(own: Path, average: str) -> None:
    result = run(own, "server.name=own_numbers:Fresh", "evaluation.every=7", f"average={average}")
    found = rows(result)
    assert tuple(found[0]) == (*METRICS, "discarded", "norm", "weight")
    from own_numbers import EVENTS  # type: ignore[import-not-found]

    assert 5 < sum(late for late, _ in EVENTS) < 45
    assert [found[0][name] for name in ("discarded", "norm", "weight")] == ["0", "", "0"]
    for before, row in pairwise(found):
        events = EVENTS[int(before["iteration"]) : int(row["iteration"])]
        norms = [norm for late, norm in events if not late]
        assert row["discarded"] == str(sum(late for late, _ in events))
        assert np.isclose(float(row["norm"]), np.mean(norms), rtol=1e-12) if norms else row["norm"] == ""
        assert np.isclose(float(row["weight"]), 0.1 * len(norms), rtol=1e-12) if norms else row["weight"] == "0"


def test_integers_of_any_size_can_be_read(own: Path) -> None:
    """More than 18 digits are written as a float's, which every reader of the table takes."""
    value = 7 * 10**17
    result = run(own, f"server={{name: 'own_numbers:Fresh', lr: 0.1, value: {value}}}", "evaluation.every=50")
    from own_numbers import EVENTS

    late = sum(late for late, _ in EVENTS)
    assert late > 1
    assert result.metrics["discarded"].tolist() == [0, float(late * value)]
    assert rows(result)[-1]["discarded"] == repr(float(late * value))


@pytest.mark.parametrize("value", ["True", "np.True_"])
def test_what_is_true_counts_as_one(own: Path, value: str) -> None:
    own.with_name("own_truths.py").write_text(OWN.replace("self.called, self.value)", f"self.called, {value})"))
    found = rows(run(own, "server={name: 'own_truths:Fresh', lr: 0.1}", "evaluation.every=50"))
    from own_truths import EVENTS  # type: ignore[import-not-found]

    assert found[-1]["discarded"] == str(sum(late for late, _ in EVENTS)) != "0"


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_an_elementwise_server_sees_every_push(own: Path, backend: str) -> None:
    """It would be computed ahead, many pushes at once."""
    words = ("evaluation.every=6", f"backend={backend}")
    result, plain = run(own, "server.name=own_numbers:Late", *words), run(own, *words, out="plain")
    assert result.summary["path"] == ("hand" if backend == "numba" else "snapshots")
    assert result.summary["digest"] == plain.summary["digest"]
    for row, other in zip(rows(result), rows(plain), strict=True):
        assert (row.pop("behind") or "0", row.pop("most")) == (
            other["staleness_mean"] or "0", str(min(6, int(row["iteration"]) % 6 or 6) * (int(row["iteration"]) > 0)),
        )  # fmt: skip
        assert row == other


def test_what_is_recorded_is_drawn(own: Path, command: Callable[..., tuple[int, str, str]], refused: Refused) -> None:
    result = run(own, "server.name=own_numbers:Fresh", "evaluation.every=10")
    for kind in ("curves", "ends"):
        assert command("plot", "out", "--kind", kind, "--y", "norm", "-o", f"{kind}.svg")[0] == 0
        with Path(f"{kind}-table.csv").open(newline="", encoding="utf-8") as file:
            assert float(next(csv.DictReader(file))["final norm"]) == float(rows(result)[-1]["norm"])
    run(own, out="plain")
    says = "--y: is 'norm', which plain has not recorded; --where draws those that have, such as --where server.name="
    refused("plot", "out", "plain", "--y", "norm", says=(says,))
    words = ("--y", "norm", "--where", "server.name=own_numbers:Fresh", "-o", "some.svg")
    assert command("plot", "out", "plain", *words)[0] == 0
    refused(
        "plot", "out", "plain", "--y", "nrm", says=("--y: is 'nrm'; did you mean 'norm'? (known: validation_error, ",)
    )


def test_a_diverged_run_records_what_it_kept(own: Path) -> None:
    result = run(own, "server={name: 'own_numbers:Late', lr: 1.0e+30}")
    assert result.summary["status"] == "diverged"
    assert rows(result)[-1]["most"] == str(result.summary["iterations"])


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("Counted', lr: 0.1", "Counted, metrics: names 'pushes', which is another column of metrics.csv; choose"),
        ("Fresh', lr: 0.1, metrics: {test_error: sum}", "Fresh, metrics: names 'test_error', which is another column"),
        (
            "Fresh', lr: 0.1, metrics: {norm: most}",
            "metrics: is {'norm': 'most'}; it must be a dict of names to sum or",
        ),
        ("Fresh', lr: 0.1, metrics: {'a b': sum}", "metrics: is {'a b': 'sum'}; it must be a dict of names to sum or"),
        ("Fresh', lr: 0.1, metrics: [norm]", "Fresh, metrics: is ['norm']; it must be a dict of names to sum or mean"),
        ("Fixed', lr: 0.1", "Fixed, record: fredsim cannot set it (AttributeError: "),
        ("Enormous', lr: 0.1", ", record: norm is 1000"),
        (
            "Fresh', lr: 0.1, called: discord",
            ", record: names 'discord'; did you mean 'discarded'? (known: discarded, ",
        ),
        ("Fresh', lr: 0.1, value: many", ", record: discarded is 'many'; it must be a number, 1e+300 at most"),
    ],
)
def test_what_is_refused(own: Path, server: str, says: str, refused: Refused) -> None:
    refused("run", own, f"server={{name: 'own_numbers:{server}}}", "--quiet", "--out", "out", says=(says,))


def test_the_error_on_the_test_rows(simulate: Simulate) -> None:
    given: list[dict[str, Any]] = [{"every": 20, "test": True}, {"every": 20, "test": False}, {"every": 20}]
    asked, denied, plain = (simulate({"evaluation": evaluation}) for evaluation in given)
    assert tuple(rows(asked)[0]) == (*METRICS, "test_loss", "test_error")
    assert [{key: row[key] for key in METRICS} for row in rows(asked)] == rows(plain) == rows(denied)
    for name in ("metrics.csv", "config.yaml", "staleness.csv"):
        assert (denied.folder / name).read_bytes() == (plain.folder / name).read_bytes()
    assert denied.summary["experiment"] == plain.summary["experiment"]
    assert "test" not in plain.config["evaluation"]
    assert asked.config["evaluation"]["test"] is True
    for row in rows(asked)[1:]:  # what a run that ends there says at its end
        ended = simulate({"iterations": int(row["iteration"])})
        assert float(row["test_error"]) == ended.summary["test_error"]
        assert 0 < float(row["test_loss"]) < 3
