"""`fredsim plan` says what a run will take, as the run then finds it."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fredsim.config.sweep.expansion import expand, open_source
from fredsim.kernels.mlp.engine import NumbaEngine
from fredsim.networks.layout import Layout
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.plan import estimates as module
from fredsim.runs.plan.estimates import Estimate, estimate
from fredsim.runs.processes.apart import do_apart
from fredsim.runs.single import execution
from fredsim.runs.single.prepared import prepare
from fredsim.show import printing
from fredsim.simulation.clients.holdings import Holdings

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
P = 1210  # the small experiment's parameters


def of(path: Path, *overrides: str) -> list[Estimate]:
    return list(estimate(expand(open_source(path), overrides).runs, None))


def ended(command: Command, path: Path, *overrides: str) -> Result:
    assert command("run", path, *overrides, "--quiet", "--out", "out")[0] == 0
    return Result(Path("out"))


@pytest.mark.parametrize("overrides", [
    (),
    ("server={name: sync, lr: 0.1}", "iterations=48"),
    ("server={name: sync, lr: 0.1}", "iterations=null", "updates=7"),
    ("server={name: soft_sync, lr: 0.1, n: 2}", "iterations=null", "updates=7"),
    ("iterations=null", "epochs=1", "data.train=60"),
    ("server={name: ternary_sync, lr: 0.1}", "iterations=48"),
    ("compress={name: top_k, k: 0.1}",),
    ("dispatcher={fetch: {every: 2}}",),
], ids=str)  # fmt: skip
def test_the_figures_are_the_runs(overrides: tuple[str, ...], small_yaml: Path, command: Command) -> None:
    (run,) = of(small_yaml, *overrides)
    summary = ended(command, small_yaml, *overrides).summary
    assert (run.path, run.why, run.iterations) == (summary["path"], summary["path_why"], summary["iterations"])
    assert run.pushed == summary["bytes_pushed"]
    assert run.fetched == summary["bytes_fetched"] or (run.gated and run.fetched > summary["bytes_fetched"])
    assert run.gated == ("dispatcher={fetch: {every: 2}}" in overrides)
    assert run.seconds > 0


@pytest.mark.parametrize(("overrides", "rows"), [
    (("iterations=30000", "evaluation.every=2500"), 13),
    (("iterations=30001", "evaluation.every=2500"), 14),
    (("iterations=null", "epochs=100", "data.train=60", "evaluation={every: 30, unit: epochs}"), 5),
    (("iterations=24000", "server={name: sync, lr: 0.1}", "evaluation={every: 50, unit: updates}"), 61),
    (("iterations=900", "probe={every: 1}", "evaluation.every=300"), 4),
    (("iterations=30000", "evaluation={every: 2500, per_client: true}"), 13),
    (("iterations=30000", "evaluation={every: 2500, per_client: true, test: true, gradient_norm: true}"), 13),
], ids=str)  # fmt: skip
def test_time_is_that_of_all_iterations_and_rows(overrides: tuple[str, ...], rows: int, small_yaml: Path) -> None:
    """In the proportion of a stretch, whose measurement is kept; of what the end evaluates, in that of a sample."""
    measured: dict[str, dict[str, Any]] = {}
    (run,) = estimate(expand(open_source(small_yaml), overrides).runs, None, measured=measured)
    (stretch,) = measured.values()
    assert ("probe={every: 1}" in overrides) == (stretch.get("seconds_probe", 0) > 0)
    iterations = run.iterations * (stretch["seconds"] + stretch.get("seconds_probe", 0)) / stretch["iterations"]
    at_end = 300  # test rows
    if "per_client: true" in overrides[-1]:
        at_end += 1200  # each training row once
    evaluations = rows * stretch["seconds_evaluation"] / stretch["rows"] + at_end * stretch["seconds_sample"]
    assert run.seconds == pytest.approx(iterations + evaluations, rel=1e-9)


def test_memory_grows_with_what_clients_hold(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 0.0)  # the time is not looked at
    snapshots = ("path=snapshots", "iterations=100000")
    few, many = (of(small_yaml, *snapshots, f"clients.count={count}")[0] for count in (8, 1008))
    assert many.memory - few.memory == 1000 * 4 * P
    assert (few.most_held, many.most_held) == (9, 1009)
    assert of(small_yaml, *snapshots, "clients.count=1008", "iterations=50")[0].most_held == 51
    (waiting,) = of(small_yaml, *snapshots, "dispatcher.wait=false")
    assert waiting.most_held == 17
    (rounds,) = of(small_yaml, "server={name: sync, lr: 0.1}")
    assert rounds.most_held == 2
    for n, live in ((1, 2), (4, 9)):  # of four batches, each is released by itself
        assert of(small_yaml, f"server={{name: soft_sync, lr: 0.1, n: {n}}}")[0].most_held == live
    assert of(small_yaml, "server={name: sync, lr: 0.1, aggregate: 4}")[0].most_held == 9
    (cached,) = of(small_yaml, *snapshots, "dispatcher.push={every: 2}")
    assert cached.memory - few.memory == 8 * 4 * P
    (each,) = of(small_yaml, *snapshots, "clients.clip_each_sample=1")
    assert each.memory - few.memory == 3 * 4 * P
    (pipelines,) = of(small_yaml, *snapshots, "stages={cuts: [W2], delay: pipedream}")
    older, composed = 1, 1  # the first stage's parameters are those of one minibatch ago
    assert pipelines.memory - few.memory == 8 * (older + composed) * 4 * P
    (stateful,) = of(small_yaml, *snapshots, "server={name: fasgd, lr: 0.1}")
    assert stateful.memory - few.memory == 3 * 4 * P
    (averaged,) = of(small_yaml, *snapshots, "average={name: window, min_window: 3, max_window: 9}")
    assert averaged.memory - few.memory == 3 * 4 * P
    for server, arrays in (("ia2sgd", 2 + 8), ("malenia", 8), ("ringleader", 4 + 2 * 8), ("throttle, q: 2.0", 0)):
        (tables,) = of(small_yaml, *snapshots, f"server={{name: {server}, lr: 0.1}}")
        assert tables.memory - few.memory == arrays * 4 * P, server
    (limited,) = of(small_yaml, *snapshots, "clients.count=1008", "memory=2MB", "server={name: ia2sgd, lr: 0.1}")
    assert limited.memory < 3 * 2**20
    (limited,) = of(small_yaml, *snapshots, "clients.count=1008", "memory=2MB")
    assert limited.memory < 3 * 2**20 < many.memory


def test_a_gap_needs_the_data_in_float64_too(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not say what a process takes, as on Windows."""
    monkeypatch.setattr(execution, "peak_memory", lambda: 0)
    words = ["data={name: least_squares, train: 4000, columns: 50}", "model={name: linear}"]
    (run,) = estimate(expand(open_source(small_yaml), words).runs, None, rough=True)  # it starts no process
    assert run.memory == pytest.approx(5000 * 50 * (4 + 8), rel=0.1)


@pytest.mark.parametrize(("overrides", "held"), [
    (("server={name: asgd, lr: 0.1}",), 5), (("server={name: fedbuff, lr: 0.1, buffer: 3}",), 5),
    (("server={name: sync, lr: 0.1}",), 2), (("server={name: sync, lr: 0.1}", "clients.local_steps=2"), 2),
    (("server={name: sync, lr: 0.1, aggregate: 4}",), 2), (("server={name: slowmo, lr: 0.1}",), 2),
    (("server={name: sync, lr: 0.1, aggregate: 2}",), 5),
], ids=str)  # fmt: skip
def test_what_a_share_of_the_clients_holds(
    overrides: tuple[str, ...], held: int, small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of eight are at work, which in synchronous rounds hold one version, and the next one."""
    words = (*overrides, "clients.fraction=0.5", "iterations=200")
    live: set[int] = set()
    most, store, drop = [0], Holdings._store, Holdings._drop

    def stored(self: Any, *arguments: Any, **more: Any) -> Any:
        version = store(self, *arguments, **more)
        live.add(id(version))
        most[0] = max(most[0], len(live))
        return version

    def dropped(self: Any, version: Any) -> None:
        drop(self, version)
        if version.holders == 0:
            live.discard(id(version))

    (run,) = of(small_yaml, *words)
    monkeypatch.setattr(Holdings, "_store", stored)
    monkeypatch.setattr(Holdings, "_drop", dropped)
    assert ended(command, small_yaml, *words).summary["path"] == "snapshots"
    assert run.most_held == held >= most[0]
    assert most[0] >= held - 1  # rounds with late clients: no more than these happened to hold


def test_a_server_of_ones_own_is_started_by_the_run_alone(small_yaml: Path) -> None:
    small_yaml.with_name("own_layout.py").write_text(
        "from fredsim.servers.asgd import ASGD\n\n\nclass Own(ASGD):\n"
        "    def init(self, params, clients, layout):\n"
        "        super().init(params, clients, layout)\n"
        "        assert [name for name, _ in layout.tensors] == ['W1', 'b1', 'W2', 'b2']\n",
        encoding="utf-8",
    )
    (run,) = of(small_yaml, "server.name=own_layout:Own", "path=snapshots")
    assert run.most_held == 9


def test_runs_alike_share_a_measurement(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[object] = []
    measure = module._measure

    def counted(*arguments: Any, **more: Any) -> Any:
        measured.append(arguments)
        return measure(*arguments, **more)

    monkeypatch.setattr(module, "_measure", counted)
    runs = of(small_yaml, "sweep={seed: [0, 1, 2], server.lr: [0.1, 0.2], clients.count: [4, 8]}")
    assert len(runs) == 12
    assert len(measured) == 2


def test_a_path_that_hangs_on_the_length(small_yaml: Path, own_server: Callable[..., str]) -> None:
    """Runs of one sweep may take two paths."""
    counting = "\n\nclass Counting(Plain):\n    timestamp = 0\n"
    Path("own_counting.py").write_text(own_server("self.timestamp += 1\n") + counting, encoding="utf-8")
    cases = "cases=[{iterations: 300}, {iterations: null, updates: 100}]"
    found = of(small_yaml, "server.name=own_counting:Counting", cases)
    assert [run.path for run in found] == ["hand", "snapshots"]


def test_the_table(small_yaml: Path, command: Command) -> None:
    code, out, _ = command("plan", small_yaml, "sweep={seed: [0, 1]}")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["run", "path", "iterations", "live", "memory", "pushed", "fetched", "time"]
    assert lines[1].split()[:5] == ["seed=0", "hand", "50", "8", "tasks"]
    assert "hand: all that an event depends on is known ahead" in lines
    assert lines[-1].startswith("2 runs, ")
    assert "at most" not in out
    assert "at most, before gates" in command("plan", small_yaml, "server={name: bfasgd, lr: 0.1}")[1]
    assert not Path("results").exists()


OTHERS = """

class Holding(Plain):
    holds = True


class WithV(Plain):
    def init(self, params, clients):
        super().init(params, clients)
        self.v = abs(params)
"""


def test_what_a_rule_would_bring(small_yaml: Path, command: Command, own_server: Callable[..., str]) -> None:
    Path("own_plain.py").write_text(own_server() + OTHERS, encoding="utf-8")
    words = ("plan", small_yaml, "model.hidden=[200]", "iterations=20000")
    code, out, _ = command(*words, "server.name=own_plain:Plain")
    assert code == 0
    assert re.search(
        r"^a server of your own: .* s, and .* s with asgd in its place; written as a rule", out, re.MULTILINE
    )
    (found,) = of(small_yaml, "server.name=own_plain:Plain")
    (asgd,) = of(small_yaml)
    assert (found.path, asgd.path) == ("hand", "hand")
    assert found.as_rule is not None
    assert asgd.as_rule is None
    for other in ("server.name=own_plain:Holding", "server.name=asgd"):
        assert "a server of your own" not in command("plan", small_yaml, other)[1]
    gate = "dispatcher.fetch={bandwidth_aware: {c: 0.1}}"  # asgd has no v
    code, out, _ = command("plan", small_yaml, "server.name=own_plain:WithV", gate)
    assert (code, "a server of your own" in out) == (0, False)


def test_bad_input(small_yaml: Path, refused: Callable[..., None]) -> None:
    refused("plan", small_yaml, "clients.batch_size=9999", says=("batch_size is 9999",))
    refused("plan", small_yaml, "path=hand", "dispatcher.fetch={every: 2}", says=("path is hand",))


EXPONENTIAL = "dispatcher={name: clock, compute: {seconds: {name: gamma, cv: 0.6}, noise: {name: exponential}}}"
LINK = "link: {latency: 0.1, up: 1e4}, server: {seconds: 0.05}"
NETWORK = f"dispatcher={{name: clock, compute: {{noise: {{name: gamma, cv: 0.5}}}}, {LINK}}}"
STEPS = f"{EXPONENTIAL} & clients.local_steps=3"
VARIATES = f"{NETWORK} & clients.sampling=iid & clients.control_variates=true"  # they travel with each copy
NEVER = "dispatcher={name: clock, compute: {noise: {name: bernoulli, p: 0.1, factor: .inf}}}"
DOWN = "dispatcher={name: clock, outages: {up: {name: exponential, mean: 5}, down: {name: exponential, mean: 2}}}"
BY_SECONDS = ("iterations=null", "seconds=20", "evaluation={every: 0.75, unit: seconds}")
IN_SECONDS = ("iterations=null", "seconds=20", "evaluation={every: 2, unit: iterations}")  # the last is odd or even


@pytest.mark.parametrize(
    "length", [BY_SECONDS, IN_SECONDS, ("iterations=150",), ("iterations=null", "updates=15")], ids=str
)
@pytest.mark.parametrize(
    ("server", "clock"),
    [
        ("asgd", EXPONENTIAL),
        ("asgd", STEPS),
        ("asgd", NETWORK),
        ("asgd", DOWN),
        ("asgd", VARIATES),
        ("sync", NETWORK),
        ("sync", DOWN),
    ],
    ids=["exponential", "local-steps", "network", "outages", "control-variates", "sync-network", "sync-outages"],
)
def test_a_short_run_by_the_clock(
    server: str, clock: str, length: tuple[str, ...], small_yaml: Path, command: Command
) -> None:
    """Its events, rows and seconds are known."""
    words = (f"server={{name: {server}, lr: 0.1}}", *clock.split(" & "), *length)
    (run,) = of(small_yaml, *words)
    result = ended(command, small_yaml, *words)
    assert (run.iterations, run.path) == (result.summary["iterations"], result.summary["path"])
    assert run.rows == len(result.metrics)
    assert run.simulated == result.summary["time"]
    assert run.exact == ("updates=15" not in length)


def test_tasks_that_never_end(
    small_yaml: Path, command: Command, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = of(small_yaml, NEVER, *BY_SECONDS)
    summary = ended(command, small_yaml, NEVER, *BY_SECONDS).summary
    assert (run.iterations, run.simulated, run.exact) == (summary["iterations"], 20, True)
    (whole,) = of(small_yaml, NEVER, "iterations=null", "seconds=1e9")
    says = f"iteration {whole.iterations}: no gradient will ever arrive"
    refused("plan", small_yaml, NEVER, "iterations=500", says=(says,))
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 0.0)  # long before it, it is known from the clock
    refused(
        "plan", small_yaml, NEVER.replace("0.1", "0.005"), "iterations=5000", says=("no gradient will ever arrive",)
    )
    nobody = NEVER.replace("0.1", "1")
    (run,) = of(small_yaml, nobody, *BY_SECONDS)
    assert (run.iterations, run.simulated, run.rows) == (0, 20, 28)


@pytest.mark.parametrize(
    "length", [("iterations=null", "seconds=600"), ("iterations=4000",)], ids=["seconds", "iterations"]
)
@pytest.mark.parametrize("server", ["asgd, lr: 0.1", "sync, lr: 0.1", "ringmaster, lr: 0.1, threshold: 5, stop: true"])
def test_a_long_run_by_the_clock(
    server: str, length: tuple[str, ...], small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """About so many events, in about so many seconds: its clock alone, or its beginning, is run so far."""
    monkeypatch.setattr("fredsim.runs.plan.forecast.AHEAD", 1000)
    monkeypatch.setattr(
        module, "ENOUGH_SECONDS", 0.0
    )  # seconds: the first beginning that is tried is enough, on any machine
    monkeypatch.setattr(module, "FIRST_LENGTH", 500)
    words = (f"server={{name: {server}}}", NETWORK, *length, "evaluation.every=1000")
    (run,) = of(small_yaml, *words)
    summary = ended(command, small_yaml, *words).summary
    assert not run.exact
    assert run.iterations == pytest.approx(summary["iterations"], rel=0.05)
    assert run.simulated == pytest.approx(summary["time"], rel=0.05)


def test_each_run_has_its_own_clock(small_yaml: Path) -> None:
    """Runs that share a measurement do not share their times; where a server has a say in them, none is shared."""
    clocks = "sweep={dispatcher.compute.seconds: [0.5, 2.0], seed: [0, 2]}"
    words = ("dispatcher={name: clock, compute: {seconds: 1.0, noise: {name: exponential}}}", *BY_SECONDS, clocks)
    measured: dict[str, dict[str, Any]] = {}
    for server, count in (("asgd", 1), ("sync", 5)):
        runs = list(
            estimate(expand(open_source(small_yaml), [*words, f"server.name={server}"]).runs, None, measured=measured)
        )
        assert len(measured) == count
        fast, slow = runs[:2], runs[2:]
        assert min(run.iterations for run in fast) > 2 * max(run.iterations for run in slow)
        assert len({run.iterations for run in runs}) == 4


@pytest.mark.parametrize(("enough", "measurements"), [(1e9, 2), (0.0, 1)])
def test_runs_of_other_lengths_share_what_took_long_enough(
    enough: float, measurements: int, small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ENOUGH_SECONDS", enough)
    measured: dict[str, dict[str, Any]] = {}
    runs = expand(open_source(small_yaml), ["sweep={iterations: [20, 40]}"]).runs
    assert [run.iterations for run in estimate(runs, None, measured=measured)] == [20, 40]
    assert len(measured) == measurements


@pytest.mark.parametrize("server", ["sync", "asgd"])
@pytest.mark.parametrize("seconds", [(5, 200), (200, 5), (0.5, 200)])
def test_a_short_run_tells_nothing_of_a_long_one(server: str, seconds: tuple[float, float], small_yaml: Path) -> None:
    """All 8 clients arrive once a second, whichever of the runs is measured first."""
    words = ("dispatcher={name: clock}", "iterations=null", f"sweep={{seconds: {[*seconds]}}}")
    for run, length in zip(of(small_yaml, *words, f"server.name={server}"), seconds, strict=True):
        assert run.iterations == pytest.approx(8 * int(length), abs=8, rel=0.02)
        assert run.simulated == length


@pytest.mark.parametrize(
    "words", [("iterations=null", "updates=20"), ("iterations=480", "evaluation={every: 1, unit: updates}")]
)
def test_a_number_of_a_server_says_how_many_pushes_make_an_update(words: tuple[str, ...], small_yaml: Path) -> None:
    """With equal times each of the 8 clients sends as many gradients as `harmonic` asks for; a rate asks for none."""
    sweep = "sweep={server.harmonic: [1.0, 3.0], server.lr: [0.1, 0.2]}"
    measured: dict[str, dict[str, Any]] = {}
    words = (*words, "dispatcher={name: clock}", "server={name: malenia, lr: 0.1}", sweep)
    runs = list(estimate(expand(open_source(small_yaml), words).runs, None, measured=measured))
    assert len(measured) == 2
    few, many = (8 * 20, 24 * 20) if "updates=20" in words else (480, 480)
    assert [run.iterations for run in runs] == [few, few, many, many]
    assert [run.rows for run in runs] == ([2] * 4 if "updates=20" in words else [61, 61, 21, 21])


def test_how_many_gradients_are_fresh_depends_on_the_clients_times(small_yaml: Path, command: Command) -> None:
    """Of slow clients few are, but these also send few: rennala then needs fewer for an update."""
    clock = "dispatcher={name: clock, compute: {seconds: {name: two_class, share: 0.5, factor: 1.5}}}"
    words = (clock, "server={name: rennala, batch: 8, lr: 0.1}", "iterations=null", "updates=100")
    factor = "dispatcher.compute.seconds.factor"
    runs = of(small_yaml, *words, f"sweep={{{factor}: [1.5, 50.0]}}")
    found = ended(command, small_yaml, *words, f"{factor}=50.0").summary["iterations"]
    assert runs[1].iterations == pytest.approx(found, rel=0.05)
    assert runs[0].iterations > 1.2 * found


@pytest.mark.parametrize("length", ["seconds=3", "seconds=3.5", "seconds=0.5", "iterations=5", "iterations=24"])
@pytest.mark.parametrize("rows", ["every: 1", "every: 3", "every: 1, unit: updates", "every: 2, unit: updates"])
@pytest.mark.parametrize("server", ["asgd", "sync"])
def test_rows_of_a_run_that_ends_at_or_after_its_last_event(
    server: str, rows: str, length: str, small_yaml: Path
) -> None:
    """The 8 clients arrive each second; there is a row where the time is over, unless that is the last event's."""
    words = ["dispatcher={name: clock}", f"server={{name: {server}, lr: 0.1}}", f"evaluation={{{rows}}}", length]
    (run,) = of(small_yaml, *words, *(["iterations=null"] if "seconds" in length else []))
    key, value = length.split("=")
    events = 8 * int(float(value)) if key == "seconds" else int(value)
    unit = 8 if "updates" in rows and server == "sync" else 1
    due = {(event, (event + 7) // 8) for event in range(1, events + 1) if event % (unit * int(rows[7])) == 0}
    last = (events, float(value) if key == "seconds" else (events + 7) // 8)
    assert run.rows == len({(0, 0), *due, last})


def test_a_time_that_is_no_number_of_seconds(small_yaml: Path) -> None:
    """In float64 the nanosecond 31999457 is a little more than 31999457 × 1e-9 seconds: no row more is due."""
    assert 31_999_457 / 1e9 * 1e9 > 31_999_457
    words = (
        "dispatcher={name: clock, compute: {seconds: 31.999457e-3}}",
        "evaluation={every: 31.999457e-3, unit: seconds}",
    )
    assert of(small_yaml, *words, "iterations=8")[0].rows == 2


FOUR_OF_EIGHT = "server={name: sync, aggregate: 4, restart: true, lr: 0.1}"
SMALL_BUDGET = "dispatcher={push: {budget: {bytes: 300}}, fetch: {budget: {bytes: 300}}}"


@pytest.mark.parametrize(("words", "each"), [
    ((FOUR_OF_EIGHT, "dispatcher={name: clock, compute: {seconds: [1, 2, 3, 4, 9, 9, 9, 9]}}"), (1, 2)),
    (("dispatcher={name: clock, compute: {seconds: [1, 1, 1, 1, 2, 2, 2, 2], limit: 1.5}}",), (0.6, 1)),
    (("server={name: sync, lr: 0.1}", "clients.count=40", "dispatcher={name: round_robin}"), (1, 1)),
    (("dispatcher={push: {every: 100}, fetch: {every: 100}}",), (1, 1)),
    (("server={name: fasgd, lr: 0.1}", SMALL_BUDGET), (1, 1)),
], ids=["restart", "given up", "sync", "seldom", "parts"])  # fmt: skip
def test_bytes_where_a_push_is_not_one_copy_and_one_fetch(
    words: tuple[str, ...], each: tuple[float, float], small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many pushes and fetches an event, as counted by hand; a gate may let all of them pass."""
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 0.0)
    (run,) = of(small_yaml, *words, "iterations=20000")
    found = run.pushed / (20_000 * 4 * P), run.fetched / (20_000 * 4 * P)
    assert found == pytest.approx(each, rel=0.05)


def test_what_is_given_up_depends_on_the_limit(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four slow clients all tasks, or none."""
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 1.0)  # longer than both runs take
    clock = "dispatcher={name: clock, compute: {seconds: [1, 1, 1, 1, 1.5, 1.5, 1.5, 1.5], limit: 1.2}}"
    runs = of(small_yaml, clock, "iterations=null", "seconds=12", "sweep={dispatcher.compute.limit: [1.2, 1.5]}")
    assert [run.iterations for run in runs] == [4 * 12 + 4 * 10, 4 * 12 + 4 * 8]
    assert [run.pushed for run in runs] == [4 * P * 4 * 12, 4 * P * (4 * 12 + 4 * 8)]


def test_who_arrives_when_may_depend_on_the_learning_rate(small_yaml: Path, command: Command) -> None:
    """Where a gate asks for what is learned, and what it drops takes no time."""
    clock = "dispatcher={name: clock, compute: {seconds: 0.5}, link: {up: 1e3, down: 1e3}}"
    server = "server={name: bfasgd, lr: 0.1, c_push: 0.05, c_fetch: 0.05}"
    words = (clock, server, "model.hidden=[4]", "iterations=null", "seconds=20", "sweep={server.lr: [0.001, 1.0]}")
    runs = of(small_yaml, *words)
    assert command("run", small_yaml, *words, "--quiet", "--out", "rates")[0] == 0
    found = [result.summary["iterations"] for result in Results(Path("rates"))]
    assert [run.iterations for run in runs] == found
    assert found[0] != found[1]


@pytest.mark.parametrize("words", [
    ("server={name: rennala, batch: 100, lr: 0.1}", "clients.count=1"),
    ("server={name: soft_sync, n: 1, lr: 0.1}", "clients.count=100"),
    ("clients.count=1", "dispatcher={push: {every: 100}, dropped_push: skip}"),
], ids=["collected", "of all", "dropped"])  # fmt: skip
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_updates_of_many_gradients(
    seconds: float, words: tuple[str, ...], small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a hundred, of which a beginning has fewer."""
    monkeypatch.setattr(module, "ENOUGH_SECONDS", seconds)
    for updates in (1, 3, 20):
        (run,) = of(small_yaml, *words, "iterations=null", f"updates={updates}", "evaluation={every: 500}")
        assert (run.iterations, run.rows) == (100 * updates, 2 + (updates > 5) * 3)


def test_a_run_that_fails_is_named(small_yaml: Path, refused: Refused) -> None:
    """Where it is one of several: the others do not."""
    down = "dispatcher={name: clock, outages: {up: 0.5, down: 0.1}}"
    says = "give dispatcher.outages.up longer times than tasks take, or task: paused"
    refused(
        "plan", small_yaml, down, "sweep={dispatcher.outages.up: [50.0, 0.5]}", says=(f"{says} (in the run up=0.5)",)
    )
    refused("plan", small_yaml, down, says=(f"{says}\n",))


def test_runs_in_which_nobody_arrives(small_yaml: Path) -> None:
    """What the first of them took is no length to begin the second one with."""
    servers = "sweep={server.name: [asgd, sync]}"
    runs = of(small_yaml, "dispatcher={name: clock}", "iterations=null", "seconds=0.5", servers)
    assert [(run.iterations, run.simulated) for run in runs] == [(0, 0.5)] * 2


@pytest.mark.parametrize(
    ("server", "count"),
    [("{name: sync, aggregate: 2, restart: true, lr: 0.1}", 1), ("{name: bfasgd, lr: 0.1}", 2)],
)
def test_runs_whose_rows_are_dealt_otherwise_share_a_measurement(
    server: str, count: int, small_yaml: Path, command: Command
) -> None:
    """Who arrives when is the same, so each estimate is right; not where a gate asks for what is computed from them."""
    clock = "dispatcher={name: clock, compute: {noise: {name: exponential}}}"
    words, measured = (clock, *BY_SECONDS, f"server={server}"), dict[str, dict[str, Any]]()
    sweep = "sweep={clients.partition: [{name: iid, shards: true}, {name: dirichlet, alpha: 0.1}]}"
    runs = list(estimate(expand(open_source(small_yaml), [*words, sweep]).runs, None, measured=measured))
    assert len(measured) == count
    assert command("run", small_yaml, *words, sweep, "--quiet", "--out", "dealt")[0] == 0
    assert [run.iterations for run in runs] == [result.summary["iterations"] for result in Results(Path("dealt"))]


def test_a_terminal_shows_how_many_runs_are_measured(monkeypatch: pytest.MonkeyPatch, small_yaml: Path) -> None:
    told: list[str] = []

    class Told:
        is_terminal = True

        @contextmanager
        def status(self, text: str) -> Iterator[Any]:
            told.append(text)
            yield SimpleNamespace(update=told.append)

    monkeypatch.setattr(printing, "PlainConsole", lambda **_: Told())
    runs = of(small_yaml, "iterations=5")
    printing.print_estimates(iter(runs * 3), 3)
    assert told == ["measuring …", *(f"measuring … {done} of 3 runs" for done in (1, 2, 3))]


def test_the_table_of_runs_with_a_clock(small_yaml: Path, command: Command) -> None:
    code, out, _ = command("plan", small_yaml, *BY_SECONDS, NETWORK)
    assert code == 0
    header, row = out.splitlines()[:2]
    assert header.split()[:6] == ["run", "path", "iterations", "rows", "sim.", "seconds"]
    summary = ended(command, small_yaml, *BY_SECONDS, NETWORK).summary
    assert row.split()[:4] == ["hand", str(summary["iterations"]), "28", "20"]
    code, out, _ = command("plan", small_yaml, "iterations=null", "updates=100", NETWORK)
    assert out.splitlines()[1].split()[1].startswith("~")
    words = ("iterations=10000", "evaluation={every: 100, unit: updates}", EXPONENTIAL)
    for server, shown in (("asgd", "101"), ("rennala, batch: 7", "10")):
        code, out, _ = command("plan", small_yaml, *words, f"server={{name: {server}, lr: 0.1}}")
        assert out.splitlines()[1].split()[2].startswith(shown)


def test_a_replayed_trace(small_yaml: Path, command: Command) -> None:
    """Its times are known; figures may be against them."""
    first = ended(command, small_yaml, EXPONENTIAL, "iterations=60", "events=true")
    replay = ("dispatcher={name: trace, file: out/events.parquet}", "iterations=40")
    (run,) = of(small_yaml, *replay)
    assert (run.iterations, run.simulated, run.exact) == (40, first.events["time"][39], True)
    assert command("run", small_yaml, *replay, "figures=[{name: a, x: seconds}]", "--out", "again")[0] == 0
    assert Path("again/a.png").exists()
    untimed = first.events.drop(columns=["time", "began_ns", "done_ns", "received_ns", "time_ns"])
    untimed.to_parquet("untimed.parquet")
    (run,) = of(small_yaml, "dispatcher={name: trace, file: untimed.parquet}", "iterations=40")
    assert (run.iterations, run.simulated) == (40, None)


def test_a_trace_that_is_too_short_is_told(small_yaml: Path, command: Command, refused: Refused) -> None:
    """Of a run that is so many updates long, too."""
    ended(command, small_yaml, EXPONENTIAL, "iterations=40", "events=true")
    for length in ("updates=60", "epochs=1000"):
        words = ("dispatcher={name: trace, file: out/events.parquet}", "iterations=null", length)
        refused("plan", small_yaml, *words, says=("the trace ends after 40 events",))


def test_a_beginning_is_as_long_as_it_had_to_be_for_another_server(
    small_yaml: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """So that each further server of a network needs one process alone."""
    lengths: list[int] = []
    beginning = module._beginning

    def noted(prepared: Any, root: Any, how: dict[str, Any], *rest: Any, **more: Any) -> Any:
        lengths.append(how["most_iterations"])
        return beginning(prepared, root, how, *rest, **more)

    monkeypatch.setattr(module, "_beginning", noted)
    monkeypatch.setattr(module, "ENOUGH_SECONDS", 1e9)
    servers = "sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.1}, {name: momentum, lr: 0.1}]}"
    code, _, _ = command("plan", small_yaml, "iterations=300", servers)
    assert code == 0
    assert lengths == [64, 300, 300, 300]


def test_time_alone_is_measured_without_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the memory of a network's run is that of a process of its own."""
    run = expand(open_source("resnet"), ["iterations=16"]).runs[0]
    started = []

    def count_and_do(*given: Any) -> Any:
        started.append(given)
        return do_apart(*given)

    monkeypatch.setattr(module, "do_apart", count_and_do)
    (found,) = estimate([run], None, rough=True)
    assert (found.iterations, found.seconds > 0, started) == (16, True, [])
    (found,) = estimate([run], None)
    assert found.iterations == 16
    assert started


@pytest.mark.parametrize(
    ("server", "each"), [("sync, lr: 0.1", 40), ("soft_sync, lr: 0.1, n: 2", 20), ("asgd, lr: 0.1", 1)]
)
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_lengths_in_updates_of_servers_that_collect(
    server: str, each: int, seconds: float, small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of 40 clients, or of half of them, where a beginning may end anywhere between two updates."""
    monkeypatch.setattr("fredsim.runs.plan.estimates.ENOUGH_SECONDS", seconds)
    monkeypatch.setattr("fredsim.runs.plan.estimates.FIRST_LENGTH", 17)
    words = "clients.count=40", f"server={{name: {server}}}", "dispatcher.name=round_robin"
    (found,) = of(small_yaml, *words, "iterations=null", "updates=100", "evaluation={every: 7, unit: updates}")
    assert (found.iterations, found.rows) == (100 * each, 1 + -(-100 // 7))
    size = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    assert found.pushed == 100 * each * size
    (found,) = of(small_yaml, *words, "iterations=4000", "evaluation={every: 7, unit: updates}")
    assert found.rows == 1 + -(-4000 // each // 7)


@pytest.mark.parametrize("clock", [(), ("dispatcher={name: clock, compute: {noise: {name: exponential}}}",)])
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_updates_where_all_is_known_ahead(
    seconds: float, clock: tuple[str, ...], small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client alone makes an update by each five gradients."""
    monkeypatch.setattr("fredsim.runs.plan.estimates.ENOUGH_SECONDS", seconds)
    words = ("clients.count=1", "server={name: rennala, batch: 5, lr: 0.1}", "evaluation={every: 10, unit: updates}")
    (found,) = of(small_yaml, *words, *clock, "iterations=24000")
    assert (found.path, found.rows) == ("hand", 1 + 24_000 // 50)
    (found,) = of(small_yaml, *words, *clock, "iterations=null", "updates=1000")
    assert (found.iterations, found.rows) == (5000, 101)


@pytest.mark.parametrize(("overrides", "alike"), [
    ((), True),
    (("dispatcher={name: clock, compute: {noise: {name: exponential}}}",), True),
    (("iterations=null", "updates=30"), False),
    (("evaluation={every: 5, unit: updates}",), False),
    (("dispatcher={name: clock, compute: {noise: {name: exponential}}}", "server={name: sync, lr: 0.1}"), True),
    (("dispatcher={name: clock, compute: {noise: {name: exponential}}}", "iterations=null", "seconds=9"), False),
], ids=str)  # fmt: skip
def test_a_rough_estimate_measures_fewer_kinds(overrides: tuple[str, ...], alike: bool, small_yaml: Path) -> None:
    """Of runs with other numbers of clients only where nothing but the time of an iteration depends on it."""
    runs = expand(open_source(small_yaml), [*overrides, "sweep={clients.count: [2, 8]}"]).runs
    rough: dict[str, dict[str, Any]] = {}
    found = list(estimate(runs, None, measured=rough, rough=True))
    exact: dict[str, dict[str, Any]] = {}
    right = list(estimate(runs, None, measured=exact))
    assert (len(rough), len(exact)) == (1 if alike else 2, 2)
    assert [(run.iterations, run.rows) for run in found] == [(run.iterations, run.rows) for run in right]


def test_a_beginning_evaluates_no_test_rows_nor_clients(small_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    monkeypatch.setattr(execution, "evaluate", lambda engine, params, part: evaluated.append(part))
    monkeypatch.setattr(execution, "clients_text", lambda engine, *others: evaluated.append("train"))
    assert of(small_yaml, "evaluation.per_client=true")[0].seconds > 0
    assert not evaluated


@pytest.mark.parametrize("validation", [0, 2, 600])
def test_the_time_of_the_end_is_that_of_its_samples(
    validation: int, small_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a row evaluates so few that its time is that of something else, here of the parameters' digest."""
    of_samples, of_digest, now = 2e-4, 0.01, [0.0]
    outcomes, digest = NumbaEngine.outcomes, Layout.digest
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])  # all else takes no time

    def slow_outcomes(self: NumbaEngine, params: Any, part: str) -> Any:
        found = outcomes(self, params, part)
        now[0] += of_samples * len(found[0])
        return found

    def slow_digest(self: Layout, params: Any) -> str:
        now[0] += of_digest
        return digest(self, params)

    monkeypatch.setattr(NumbaEngine, "outcomes", slow_outcomes)
    monkeypatch.setattr(Layout, "digest", slow_digest)
    words = "data.train=800", f"data.validation={validation}", "evaluation.per_client=true", "iterations=64"
    (run,) = of(small_yaml, *words)
    (prepared,) = (prepare(one.experiment, None) for one in expand(open_source(small_yaml), words).runs)
    samples = 800 + len(prepared.dataset.test) + run.rows * validation
    assert run.seconds == pytest.approx(of_samples * samples + of_digest * run.rows, rel=1e-6)
