"""The probe of the true B-staleness: what it measures, and that it changes no bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import fredsim
from fredsim.data.datasets import data_root, load_dataset
from fredsim.networks.mlp import Mlp
from fredsim.numerics.streams import Streams
from fredsim.runs.folder.results import Result
from fredsim.show.plots import plot
from tests import dense_networks

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

CHANGES: dict[str, dict[str, Any]] = {
    "asgd": {},
    "fasgd": {"server": {"name": "fasgd", "lr": 0.01}},
    "gap_aware": {"server": {"name": "gap_aware", "lr": 0.1}},
    "sync": {"server": {"name": "sync", "lr": 0.1}},
    "without waiting": {"dispatcher": {"name": "uniform", "wait": False}},
    "a fetch gate": {"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"fetch": {"bandwidth_aware": {"c": 0.1}}}},
    "a push gate": {"dispatcher": {"push": {"every": 2}, "dropped_push": "accumulate"}},
    "local steps": {"clients": {"count": 8, "batch_size": 3, "local_steps": 2}},
    "params": {"server": {"name": "easgd", "lr": 0.1, "alpha": 0.1, "period": 2}},
    "a server that cancels": {"server": {"name": "ringmaster", "lr": 0.1, "threshold": 3}},
    "average": {"average": {"name": "window", "rate": 0.5, "min_window": 2, "max_window": 10}},
    "compress": {"compress": {"name": "ternary"}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_it_changes_no_bit(changes: dict[str, Any], simulate: Simulate) -> None:
    plain = simulate(changes)
    probed = simulate({**changes, "probe": {"every": 3}})
    assert (plain.folder / "metrics.csv").read_bytes() == (probed.folder / "metrics.csv").read_bytes()
    assert plain.summary["digest"] == probed.summary["digest"]
    assert plain.summary["experiment"] == probed.summary["experiment"]
    assert not (plain.folder / "probe.csv").exists()
    assert probed.probe["iteration"].tolist() == list(range(3, 51, 3))
    assert probed.summary["seconds_probe"] > 0
    oracle_ran = simulate({**changes, "probe": {"every": 3}, "backend": "numpy"})
    assert (oracle_ran.folder / "probe.csv").read_bytes() == (probed.folder / "probe.csv").read_bytes()


def test_what_it_measures(simulate: Simulate) -> None:
    """The protocol written out as a plain loop: ASGD, minibatches in order."""
    found = simulate({"probe": {"every": 1}}).probe
    data = load_dataset("digits", None, None, data_root())
    model = Mlp((64, 16, 10), "he", 1.0)

    def gradient(params: Any, samples: slice) -> Any:
        views = model.layout.split(params)
        weights = [(views[f"W{i}"], views[f"b{i}"]) for i in (1, 2)]
        layers, _ = dense_networks.gradient(weights, data.train.x[samples], data.train.y[samples])
        return np.concatenate([part.reshape(-1) for layer in layers for part in layer])

    theta = model.initial(Streams(0))
    held, stamps = [theta.copy()] * 8, [0] * 8
    for i, row in enumerate(found.itertuples()):
        client, samples = int(row.client), slice(3 * i, 3 * i + 3)  # type: ignore[arg-type]
        theirs, ours = gradient(held[client], samples), gradient(theta, samples)
        assert (row.iteration, row.timestamp, row.staleness) == (i + 1, i, i - stamps[client])
        expected = [np.linalg.norm(x.astype(np.float64)) for x in (theirs, held[client] - theta)]
        difference = np.linalg.norm(theirs.astype(np.float64) - ours)
        assert [row.b_staleness, row.gradient_norm] == pytest.approx([difference, expected[0]], rel=1e-12)
        assert row.distance == pytest.approx(expected[1], rel=1e-5, abs=1e-12)
        theta = theta - np.float32(0.1) * theirs
        held[client], stamps[client] = theta.copy(), i + 1
    assert found["b_staleness"].max() > 0.1


def test_columns_of_strategies(simulate: Simulate) -> None:
    common = ["iteration", "timestamp", "client", "staleness", "b_staleness", "gradient_norm", "distance"]
    for name, more in (("asgd", []), ("fasgd", ["v_mean"]), ("gap_aware", ["gap"])):
        found = simulate({"server": {"name": name, "lr": 0.01}, "probe": {"every": 5}}).probe
        assert list(found) == common + more
    fresh = found[found["staleness"] == 0]
    assert fresh[["b_staleness", "distance", "gap"]].abs().sum().sum() == 0
    sync = simulate({"server": {"name": "sync", "lr": 0.1}, "probe": {"every": 5}}).probe
    assert sync[["staleness", "b_staleness", "distance"]].abs().sum().sum() == 0


OWN = """
class Own:
    def __init__(self, lr, broken=""):
        self.lr = lr
        self.broken = broken
        self.asked = 0

    def init(self, params, clients):
        self.params = params.copy()
        self.timestamp = 0

    def apply_update(self, grad, client_id, timestamp):
        self.timestamp += 1

    def proxies(self, client_id, timestamp):
        self.asked += 1
        if self.broken == "names" and self.asked > 1:
            return {"other": 1.0}
        if self.broken == "size":
            return {"old": self.timestamp - timestamp > 4, "large": -(10**20), "small": 7}
        return 3 if self.broken == "kind" else {"age": (self.timestamp - timestamp) / 2}
"""


def test_a_server_of_ones_own(small_yaml: Path, refused: Refused) -> None:
    Path("own_probed.py").write_text(OWN, encoding="utf-8")
    words = ["server={name: 'own_probed:Own', lr: 0.1}", "probe.every=10"]
    result = fredsim.run(small_yaml, words, out="out")
    assert isinstance(result, Result)
    assert (result.probe["age"] == result.probe["staleness"] / 2).all()
    for broken, says in (("kind", "Own, client "), ("names", "proxies: named ")):
        refused(
            "run", small_yaml, *words, f"server.broken={broken}", "--out", broken, "--quiet", says=(says, "proxies")
        )


def test_proxies_are_numbers_that_can_be_read(small_yaml: Path) -> None:
    """Truth values and integers of more than 18 digits are none in a table."""
    Path("own_probed.py").write_text(OWN, encoding="utf-8")
    words = ["server={name: 'own_probed:Own', lr: 0.1, broken: size}", "probe.every=10"]
    found = fredsim.run(small_yaml, words, out="out").probe
    assert found["old"].tolist() == (found["staleness"] > 4).tolist()
    assert {*found["large"]} == {-1e20}
    assert {*found["small"]} == {7}


def test_the_path_says_why(simulate: Simulate, small_yaml: Path, refused: Refused) -> None:
    summary = simulate({"probe": {"every": 10}}).summary
    assert (summary["path"], summary["path_why"]) == ("fused", "the probe asks for the parameters that clients hold")
    refused(
        "run", small_yaml, "probe.every=10", "path=hand", "--out", "out", says=("path is hand; the probe asks for",)
    )


def test_verify_sees_it(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "probe.every=10", "--quiet", "--out", "out")[0] == 0
    assert command("verify", "out")[:2] == (0, "out: same bits\n")
    path = Path("out/probe.csv")
    path.write_bytes(path.read_bytes().replace(b"\n10,", b"\n11,"))
    code, output, _ = command("verify", "out")
    assert (code, output.startswith("out: different: probe.csv, line 2 is 11,")) == (1, True)
    assert command("run", small_yaml, "--quiet", "--out", "out")[0] == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        ("probe.every=0", "probe.every: is 0"),
        ("probe=3", "probe: is 3; it must be a mapping"),
        ("probe={}", "is required"),
    ],
)
def test_what_cannot_be_probed(probe: str, says: str, small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, probe, says=(f"override '{probe}'", says))


def test_a_run_that_diverges_is_probed_to_its_end(simulate: Simulate) -> None:
    found = simulate({"server": {"name": "asgd", "lr": 1e30}, "probe": {"every": 1}})
    assert found.summary["status"] == "diverged"
    assert len(found.probe) in {found.summary["iterations"], found.summary["iterations"] + 1}


def test_a_run_that_diverges_before_the_first_probe(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "server.lr=1e30", "probe={every: 500}", "--out", "results", "--quiet")[0] == 0
    found = Result(Path("results"))
    assert found.summary["status"] == "diverged"
    assert found.probe.empty
    assert command("plot", "results", "--kind", "probe", "-o", "probe.svg")[0] == 0
    assert Path("probe.svg").is_file()


def test_a_task_that_was_given_up_has_no_row(simulate: Simulate) -> None:
    """There is no gradient to measure; every other arrival that is due is measured."""
    compute = {"seconds": 1.0, "noise": {"name": "exponential"}, "limit": 1.0}
    for server in ({"name": "asgd", "lr": 0.1}, {"name": "mindflayer", "lr": 0.1, "probability": 0.6}):
        dispatcher = {"name": "clock", "compute": compute}
        result = simulate({"probe": {"every": 2}, "dispatcher": dispatcher, "server": server, "events": True})
        done = {i + 1 for i, lost in enumerate(result.events["given_up"]) if not lost}
        due = set(range(2, result.summary["iterations"] + 1, 2))
        assert set(result.probe["iteration"]) == due & done
        assert 0 < len(due & done) < len(due)


def test_an_ended_run_with_another_probe_is_done_again(small_yaml: Path, command: Command) -> None:
    run = ("run", small_yaml, "--quiet", "--out", "results", "--resume")
    for every in (2, 3):
        assert command(*run, f"probe={{every: {every}}}")[0] == 0
        found = fredsim.load("results")
        assert isinstance(found, Result)
        assert found.probe["iteration"].tolist()[0] == every


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"server": {"name": "gap_aware", "lr": 0.1}},
        {"model": {"name": "resnet", "depth": 8, "width": 8}},
        {"stages": {"cuts": ["W2"], "delay": "pipemare"}},
    ],
    ids=["mlp", "proxies", "resnet", "two vectors"],
)
def test_tensors_are_measured_alone(changes: dict[str, Any], simulate: Simulate) -> None:
    """Their squares add up, and the other columns stay as they are; the bits are those of NumPy."""
    probe = {"every": 7}
    whole, each = (simulate({**changes, "probe": one}) for one in (probe, {**probe, "per_tensor": True}))
    assert each.summary["digest"] == whole.summary["digest"]
    assert whole.config["probe"] == probe
    found, tensors = each.probe, list(each.params)
    pd.testing.assert_frame_equal(found[whole.probe.columns], whole.probe)
    for column in ("b_staleness", "gradient_norm", "distance"):
        parts = found[[f"{column} of {name}" for name in tensors]].to_numpy()
        np.testing.assert_allclose(np.sqrt((parts**2).sum(axis=1)), found[column], rtol=1e-12)
        assert (parts > 0).any(axis=0).all() or column == "b_staleness"
    oracle_ran = simulate({**changes, "probe": {**probe, "per_tensor": True}, "backend": "numpy"})
    assert (oracle_ran.folder / "probe.csv").read_bytes() == (each.folder / "probe.csv").read_bytes()


def test_a_tensor_that_a_proxy_is_named_like(
    own_server: Callable[..., str], refused: Refused, small_yaml: Path
) -> None:
    proxies = "    def proxies(self, client_id, timestamp):\n        return {'distance of W1': 1.0}\n"
    Path("named_alike.py").write_text(own_server() + proxies, encoding="utf-8")
    words = ("run", small_yaml, "server={name: 'named_alike:Plain', lr: 0.1}", "probe={every: 7, per_tensor: true}")
    refused(*words, says=("distance of W1", "another column of probe.csv; choose another"))


@pytest.mark.usefixtures("small_yaml")  # its folder
def test_where_in_the_network_gradients_are_stale(simulate: Simulate, command: Command, drawn: list[Figure]) -> None:
    found = simulate({"probe": {"every": 5, "per_tensor": True}})
    code, _, _ = command("plot", found.folder, "--kind", "tensors", "-o", "tensors.png")
    assert code == 0
    table = pd.read_csv("tensors-table.csv")
    assert table["tensor"].tolist() == ["W1", "b1", "W2", "b2"]
    for name, share in zip(table["tensor"], table["share"], strict=True):
        ratios = found.probe[f"b_staleness of {name}"] / found.probe[f"gradient_norm of {name}"]
        assert share == pytest.approx(ratios.median(), rel=1e-12)
    (most,) = table.nlargest(1, "share").to_dict("records")
    answer = f"Most: {most['tensor']}, {100 * most['share']:.3g} % of its gradient's norm"
    assert plot([found], Path("x.png"), "tensors").answer == answer
    fresh = simulate({"probe": {"every": 5, "per_tensor": True}, "clients": {"count": 1, "batch_size": 2}})
    plot([fresh], Path("x.png"), "tensors")  # all are 0
    assert drawn[-1].axes[0].get_xlim() == (0, 1.05)


def test_runs_without_a_tensor_do_not_count_for_it(small_yaml: Path, command: Command) -> None:
    """One diverges before its first probe, one has no probe; the others have layers of their own."""
    words = ("probe={every: 5, per_tensor: true}", "figures=[]")
    assert command("run", small_yaml, "sweep={model.hidden: [[8], [8, 6]]}", *words, "--out", "swept")[0] == 0
    assert command("run", small_yaml, "server.lr=1.0e+30", *words, "--out", "lost")[0] == 0
    assert command("run", small_yaml, "iterations=5", "figures=[]", "--out", "plain")[0] == 0
    folders = ("swept", "lost", "plain")
    assert command("plot", *folders, "--kind", "tensors", "--by", "server.name", "-o", "tensors.png")[0] == 0
    table = pd.read_csv("tensors-table.csv")
    assert table["tensor"].tolist() == ["W1", "b1", "W2", "b2", "W3", "b3"]
    (two,) = (run.probe for run in fredsim.load("swept") if "gradient_norm of W3" in run.probe)  # type: ignore[union-attr]
    expected = (two["b_staleness of W3"] / two["gradient_norm of W3"]).median()
    assert table.set_index("tensor")["share"]["W3"] == pytest.approx(expected, rel=1e-12)


def test_panels_of_tensors_show_all_of_them_the_input_on_top(
    small_yaml: Path, command: Command, drawn: list[Figure]
) -> None:
    words = ("sweep={clients.count: [2, 16]}", "probe={every: 5, per_tensor: true}", "figures=[]", "--out", "swept")
    assert command("run", small_yaml, *words)[0] == 0
    assert command("plot", "swept", "--kind", "tensors", "-o", "tensors.png")[0] == 0
    panels = [axes for axes in drawn[-1].axes if axes.lines]
    assert len(panels) == 2
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["W1", "b1", "W2", "b2"]
    for axes in panels:
        assert axes.get_xlim()[0] == 0
        points = np.asarray(axes.lines[0].get_xydata())
        places = axes.transAxes.inverted().transform(axes.transData.transform(points))
        assert points.shape == (4, 2)
        assert ((places >= 0) & (places <= 1)).all()
        assert (np.diff(places[:, 1]) < 0).all()
    table = pd.read_csv("tensors-table.csv")
    assert len(table) == 8
    assert table["share"].max() > 2 * table["share"].min()
    assert table["share"].max() < panels[0].get_xlim()[1] < 1.2 * table["share"].max()


@pytest.mark.usefixtures("small_yaml")
def test_a_figure_of_tensors_without_them(simulate: Simulate, refused: Refused) -> None:
    found = simulate({"probe": {"every": 5}})
    refused(
        "plot", found.folder, "--kind", "tensors", "-o", "tensors.png", says=("probe: {every: 100, per_tensor: true}",)
    )
