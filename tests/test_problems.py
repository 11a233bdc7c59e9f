"""The key `problem`: a user's own class in place of data and model."""

from __future__ import annotations

import json
import shutil
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fredsim
from fredsim.config.document import dump_yaml, read_document
from fredsim.config.problem import ProblemChoice
from fredsim.errors import ConfigError, SimulationError
from fredsim.networks.own_problem import Draw, OwnProblem, find_problem
from fredsim.numerics.ops.draws import Draws
from fredsim.runs.folder.results import Result, Results
from fredsim.runs.verify.sweep import recorded_expansion, sweep_difference
from fredsim.show.plots.groups import group
from fredsim.show.report.run_table import run_table
from tests.conftest import checkpoints_every
from tests.forked import Forked
from tests.test_live import FakeWorkers, lived

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]

OWN = Path(__file__).with_name("own_problems.py")
BASE: dict[str, Any] = {
    "name": "base", "iterations": 40, "problem": {"name": "own_problems:Bowl"}, "clients": {"count": 5},
    "server": {"name": "asgd", "lr": 0.05}, "evaluation": {"every": 10},
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a new folder, with the module `own_problems`."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(OWN, "own_problems.py")
    Path("base.yaml").write_text(json.dumps(BASE))


def run(out: str = "run", **changes: Any) -> Result:
    found = fredsim.run(BASE | changes, out=out)
    assert isinstance(found, Result)
    return found


def problem(name: str = "Bowl", **more: Any) -> dict[str, Any]:
    return {"name": f"own_problems:{name}", **more}


def params_of(result: Result) -> Any:
    return np.concatenate([array.reshape(-1) for array in result.params.values()])


def generator(seed: int, client: int, number: int, purpose: int = 0) -> np.random.Generator:
    """Return what docs/problems.md says that a class is given, written out."""
    counter, key = [0, purpose, number, client], [seed, 19]
    return np.random.Generator(np.random.Philox(counter=np.array(counter, np.uint64), key=np.array(key, np.uint64)))


def test_a_run_is_that_of_a_plain_loop() -> None:
    """Who arrives is what events.parquet says; all else is computed again, with generators written out."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    result = run(events=True, seed=3)
    sys.path.insert(0, ".")
    from own_problems import Bowl  # type: ignore[import-not-found]

    bowl = Bowl()
    theta = bowl.initial(generator(3, 0, 0, 1))
    held, numbers, heights, losses = [theta.copy() for _ in range(5)], [0] * 5, [bowl.height(theta)], []
    for iteration, client in enumerate(result.events["client"].tolist(), start=1):
        grad, loss = bowl.gradient(held[client], generator(3, client, numbers[client]))
        losses.append(np.float32(loss))
        theta = theta - np.float32(0.05) * grad
        held[client], numbers[client] = theta.copy(), numbers[client] + 1
        if iteration % 10 == 0:
            heights.append(bowl.height(theta))
    assert params_of(result).tobytes() == theta.tobytes()
    assert result.metrics["height"].tolist() == heights
    assert result.metrics["train_loss"].tolist()[1:] == pytest.approx(
        [np.mean(losses[n : n + 10]) for n in (0, 10, 20, 30)]
    )
    assert result.metrics["bytes_pushed"].iloc[-1] == 40 * 6 * 4
    assert result.summary["metrics"] == dict(result.metrics[["height", "farthest", "nearness"]].iloc[-1])


def test_nothing_else_moves_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("whole").summary["digest"]
    others: list[dict[str, Any]] = [{"window": 1}, {"window": 5}, {"backend": "numpy"}, {"evaluation": {"every": 3}}]
    for n, other in enumerate(others):
        assert run(f"other{n}", **other).summary["digest"] == whole
    assert run("seed", seed=1).summary["digest"] != whole
    checkpoints_every(0.0, monkeypatch)
    assert run("checkpoints").summary["digest"] == whole


@pytest.mark.parametrize("name", ["Bowl", "Everywhere", "Hill"])
def test_a_stopped_run_goes_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("whole", problem=problem(name))
    checkpoints_every(0.0, monkeypatch)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fredsim.run(
            BASE | {"problem": problem(name)},
            out="stopped",
            on_row=lambda row: stop() if row["iteration"] == 20 else None,
        )
    assert Result(Path("stopped")).summary["status"] == "interrupted"
    found = run("stopped", problem=problem(name))
    assert (found.summary["digest"], found.metrics.to_csv()) == (whole.summary["digest"], whole.metrics.to_csv())


def test_what_a_class_takes_need_not_be_known(refused: Refused) -> None:
    """Of one of C++ or Cython, or a dict, Python cannot tell it."""
    usual, found = (run(name, problem=problem(name, size=4)) for name in ("Bowl", "Mapped"))
    assert found.summary["digest"] == usual.summary["digest"]
    refused("run", "base.yaml", "problem={name: 'builtins:dict'}", says=("has no method initial",))
    refused("run", "base.yaml", "problem={name: 'own_problems:Mapped', sise: 4}", says=("'sise'",))


@pytest.mark.parametrize("name", ["Bowl", "Everywhere"])
def test_a_live_run_is_replayed(name: str, tmp_path: Path, command: Command) -> None:
    data = BASE | {"problem": problem(name), "threads": 1}
    result = lived(data, tmp_path / "live", FakeWorkers(data))
    assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")


def test_what_works_with_it(command: Command) -> None:
    ways: list[dict[str, Any]] = [
        {"clients": {"count": 4, "local_steps": 3}, "server": {"name": "fedbuff", "lr": 0.05}},
        {"clients": {"count": 4, "local_steps": 2, "optimizer": {"name": "adamw", "lr": 0.01}, "prox": 0.1}},
        {"clients": {"count": 4, "clip": 0.5, "clip_each_sample": 2.0, "noise": 0.01, "fraction": 0.5}},
        {"clients": {"count": 4, "local_steps": 2, "control_variates": True}, "server": {"name": "sync", "lr": 0.05}},
        {"compress": {"name": "top_k", "k": 2}, "average": {"name": "window"}, "probe": {"every": 7}},
        {"dispatcher": {"name": "uniform", "push": {"every": 2}, "dropped_push": "accumulate", "wait": False}},
        {"dispatcher": {"name": "clock", "compute": {"seconds": [1.0, 2.0, 3.0, 4.0, 5.0]}}, "memory": "1MB"},
        {"clients": {"count": 4, "local_steps": {"fastest": 3, "by": "speed"}},
         "dispatcher": {"name": "clock", "compute": {"seconds": [1.0, 2.0, 3.0, 6.0]}}},
        {"evaluation": {"every": 10, "per_client": True}, "server": {"name": "fasgd", "lr": 0.01}},
        {"problem": problem(names=True), "stages": {"cuts": ["rest"], "delay": "pipedream"}},
        {"problem": problem(names=True), "server": {"name": "adam", "lr": 0.05}},
    ]  # fmt: skip
    for number, way in enumerate(ways):
        result = run(f"way{number}", **way)
        assert result.ending == "finished"
        assert run(f"numpy{number}", **way, backend="numpy", window=1).summary["digest"] == result.summary["digest"]
        assert command("verify", result.folder)[:2] == (0, f"{result.folder}: same bits\n")
    probe = Result(Path("way4")).probe
    assert (probe["b_staleness"] >= 0).all()
    assert len(probe) == 5
    assert list(Result(Path("way10")).params) == ["first", "rest"]


def test_what_counts_is_what_the_class_says(command: Command) -> None:
    hill: dict[str, Any] = {"problem": problem("Hill")}
    result = run(**hill, until={"nearness": -1.0})
    assert result.metrics["nearness"].iloc[-1] >= -1.0 > result.metrics["nearness"].iloc[-2]
    assert result.measure == "nearness"
    assert result.first_row("nearness", -1.0)["iteration"].tolist() == [result.summary["iterations"]]
    assert result.metrics["train_loss"].isna().all()
    assert (result.summary["numerics"], result.ending) == ("portable", "finished")
    swept = fredsim.sweep(
        BASE
        | hill
        | {"sweep": {"server.lr": [0.001, 0.1], "seed": [0, 1]}, "select": {"best": "nearness", "over": "server.lr"}},
        out="swept",
    )
    assert swept.best["server.lr"].tolist() == [0.1]
    assert swept.best["mean_nearness"].iloc[0] == swept.runs["nearness"][2:].mean()
    assert command("verify", "swept")[0] == 0
    code, output, _ = command("plot", "swept", "-o", "figure.png")
    assert code == 0
    assert "final nearness" in output
    (row,) = [line for line in command("ls", ".")[1].splitlines() if line.startswith("swept")]
    assert f"{swept.runs['nearness'].max():.4f}" in row
    for one in swept:
        shutil.rmtree(one.folder)
    assert command("verify", "swept")[0] == 0
    assert Results(Path("swept")).best["server.lr"].tolist() == [0.1]
    runs, best = Path("swept/runs.csv"), Path("swept/best.csv")
    texts = runs.read_text(), best.read_text()
    for key in ("height", "nearness"):
        value = str(swept.runs[key].iloc[0])
        runs.write_text(texts[0].replace(f",{value}", ",-7.5"))
        best.write_text(texts[1])
        code, output, _ = command("verify", "swept")
        assert (code, f"runs.csv: {key} is -7.5 (recorded) and {value} (now)" in output) == (1, True), output
    runs.write_text(texts[0])
    mean = swept.runs["nearness"][:2].mean()  # of the rate that is the worst
    best.write_text(texts[1].replace(f"0.1,{swept.best['mean_nearness'].iloc[0]}", f"0.001,{mean}"))
    assert best.read_text() != texts[1]
    code, output, _ = command("verify", "swept")
    assert (code, "swept: different: best.csv, line 2 is 0.001," in output) == (1, True), output


def test_a_function_may_make_the_problem() -> None:
    Path("wrong.py").write_text("import own_problems\n\n\ndef made(size=4):\n    return own_problems.Hill(size=size)\n")
    of = {"problem": {"name": "wrong:made"}}
    choice = {"sweep": {"server.lr": [0.001, 0.1]}, "select": {"best": "nearness", "over": "server.lr"}}
    assert fredsim.sweep(BASE | of | choice, out="swept").best["server.lr"].tolist() == [0.1]


def test_a_loss_and_an_error_have_their_usual_columns(command: Command) -> None:
    result = run(problem=problem("Named"), until={"validation_error": 0.02})
    assert result.summary["measured_by"] == "validation_loss"
    assert result.metrics["validation_error"].tolist() == [
        min(1.0, loss / 100) for loss in result.metrics["validation_loss"]
    ]
    assert result.metrics["validation_error"].iloc[-1] <= 0.02
    assert "metrics" not in result.summary
    words = ["problem={name: 'own_problems:Named'}", "sweep={server.lr: [0.1, 0.2]}"]
    assert command("show", "base.yaml", *words, "select={best: validation_error, over: server.lr}")[0] == 0


def test_published_points_are_of_a_column_of_its_own() -> None:
    points = {
        "source": "A paper",
        "x": "iterations",
        "y": "height",
        "series": [{"where": {"seed": 0}, "points": [[40, 2.5]]}],
    }
    assert run(published=points).config["published"] == points


def test_the_report_knows_which_way_is_better(command: Command) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed")
    found = fredsim.sweep(BASE | {"problem": problem("Hill"), "sweep": {"server.lr": [0.001, 0.1]}}, out="swept")
    columns = run_table([*found], [], [], several=False)["columns"]
    assert [column["name"] for column in columns if column.get("largest")] == ["nearness"]
    assert command("report", "swept", "-o", "report.html")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "won: its final nearness is" in page
    assert "the largest of 2" in page


def test_gradients_at_the_servers_parameters() -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    result = run(problem=problem("Lagging"), events=True)
    sys.path.insert(0, ".")
    from own_problems import Lagging

    own = Lagging()
    theta = own.initial(generator(0, 0, 0, 1))
    held = [theta.copy() for _ in range(5)]
    for client in result.events["client"].tolist():
        grad, _ = own.gradient(held[client], generator(0, client, 0), theta)
        theta = theta - np.float32(0.05) * grad
        held[client] = theta.copy()
    assert params_of(result).tobytes() == theta.tobytes()
    assert run("sync", problem=problem("Lagging"), server={"name": "sync", "lr": 0.05}).ending == "finished"
    clipped = run("clipped", problem=problem("Lagging"), clients={"count": 5, "clip_each_sample": 1e30})
    assert clipped.summary["digest"] == result.summary["digest"]
    shorter = run("shorter", problem=problem("Lagging"), clients={"count": 5, "clip_each_sample": 0.5})
    assert shorter.summary["digest"] == run("c", problem=problem("Lagging"), clients={"count": 5, "clip": 0.5}).summary[
        "digest"
    ]  # fmt: skip
    for change, why in (
        ({"clients": {"count": 2, "local_steps": 2}}, "clients take steps of their own"),
        ({"compress": {"name": "sign"}, "dispatcher": {"name": "clock", "compute": {"seconds": 1.0},
          "link": {"up": 100.0}}}, "pushes travel for a time"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"its gradient takes current, .*; {why}"):
            run("other", problem=problem("Lagging"), **change)


def test_shared_generators_are_those_of_each_gradient() -> None:
    whole = run("whole", problem=problem("Everywhere"))
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    other = run("other", problem=problem("Everywhere"), window=1)
    assert other.summary["digest"] == whole.summary["digest"]
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


def test_so_are_those_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a generator of the processor's in place of a device's."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    drawn = torch.Generator().manual_seed(3)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [drawn.get_state()])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: drawn.set_state(states[0]))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", drawn.manual_seed)
    lines = RIGHT.replace("return params", "return params + torch.rand(3, generator=GENERATOR).numpy()")
    Path("changing.py").write_text(f"import torch\n{lines}")
    find_problem("changing:P").gradient.__globals__["GENERATOR"] = drawn
    before = drawn.get_state().tolist()
    found, first, other = OwnProblem("changing:P", {}, 0), Draws(0, 1, 2), Draws(0, 1, 3)
    found.try_out()
    assert found.draws_shared
    one, again, later = (found.gradient(np.zeros(3, np.float32), draws)[0].tolist() for draws in (first, first, other))
    assert one == again != later
    assert drawn.get_state().tolist() == before


@pytest.mark.parametrize("more", [{}, {"clip_each_sample": 1.0}], ids=str)
def test_what_is_drawn_at_some_times_alone_is_refused(more: dict[str, Any]) -> None:
    """As by a class that explores now and then: nobody has seeded that."""
    drawing = "(np.random.random() if draw.random() < 0.3 else 0)"
    Path("changing.py").write_text(RIGHT.replace("return params", f"return params * np.float32(1 + {drawing})"))
    with pytest.raises(SimulationError, match="at some times alone, so it is not seeded; use draw"):
        run(problem={"name": "changing:P"}, evaluation={"every": 5}, clients={"count": 5, **more})


def test_others_may_draw_from_shared_generators() -> None:
    """Such as a user's server, between gradients."""
    lines = (
        RIGHT
        + """
class S:
    def __init__(self, lr):
        self.lr = lr
    def init(self, params, clients):
        self.params = params.copy()
    def apply_update(self, grad, client_id, timestamp):
        self.params -= np.float32(self.lr * np.random.random()) * grad
"""
    )
    Path("changing.py").write_text(lines)
    found = run(problem={"name": "changing:P"}, server={"name": "changing:S", "lr": 0.05}, evaluation={"every": 5})
    assert found.summary["status"] == "finished"


def test_a_class_that_is_defined_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook: what it says of itself is that of the class of now."""
    module = types.ModuleType("changing")
    monkeypatch.setitem(sys.modules, "changing", module)
    for name in ("a", "b"):
        larger = f"class P:\n    larger_is_better = ('{name}',)"
        exec(RIGHT.replace('"x"', f'"{name}"').replace("class P:", larger), vars(module))
        choice = ProblemChoice(name="changing:P")
        assert (choice.columns(0), choice.larger_is_better(0)) == ((name,), (name,))


def test_a_draw_knows_whose_it_is() -> None:
    draw = Draw(7, 3, 2**33 + 1)
    assert (draw.client, draw.number) == (3, 2**33 + 1)
    assert draw.random(5).tolist() == generator(7, 3, 2**33 + 1).random(5).tolist()


def test_what_verify_says_where_the_bits_differ(command: Command) -> None:
    """Those of a problem that is not `portable` are promised on the same machine alone."""
    run(problem=problem("Cliff"))
    path = Path("run/metrics.csv")
    path.write_text(path.read_text().replace("1,", "2,", 1))
    code, output, _ = command("verify", "run")
    assert code == 1
    assert "\n  gradients are those of a problem's class: their bits are promised on the same" in output


def test_files_are_part_of_the_run(command: Command, refused: Refused) -> None:
    Path("table.txt").write_text("1 2 3")
    Path("other.txt").write_text("any")
    result = run(problem=problem("OfFiles", table="table.txt", other="other.txt"))
    assert set(result.summary["model_files"]) == {"table.txt", "other.txt"}
    assert set(result.summary["code"]) == {"own_problems"}
    Path("table.txt").write_text("1 2 4")
    code, _, messages = command("verify", "run")
    assert code == 1
    assert "the file table.txt that the model reads has changed" in messages
    refused("run", "base.yaml", "problem={name: 'own_problems:OfFiles', table: table.txt, other: none.txt}",
            says=["none.txt: cannot be read; its class names it in files"])  # fmt: skip


@pytest.mark.parametrize(("name", "package"), [("ByTorch", "torch"), ("ByJax", "jax")])
def test_other_frameworks(name: str, package: str, command: Command) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    result = run(problem=problem(name), iterations=60, server={"name": "asgd", "lr": 0.3})
    losses = result.metrics["validation_loss"]
    assert losses.iloc[-1] < 0.7 * losses.iloc[0]
    assert result.summary["numerics"] == "native"
    assert run("again", problem=problem(name), iterations=60, server={"name": "asgd", "lr": 0.3}, window=1).summary[
        "digest"
    ] == result.summary["digest"]  # fmt: skip
    assert command("verify", "run")[:2] == (0, "run: same bits\n")


ARGUMENTS = {"initial": "self, rng", "gradient": "self, params, draw", "evaluate": "self, params"}
#: A method, what it returns instead, and what is said.
RETURNED: list[tuple[str, str, str]] = [
    ("initial", "{}['a']", "P, initial: KeyError: 'a' (wrong.py:"),
    ("initial", "np.zeros(3)", "is float64 (3,); it must be float32 (3,); give .astype(np.float32)"),
    ("initial", "np.zeros((3, 1), np.float32)", "is float32 (3, 1); it must be float32 (P,)"),
    ("initial", "np.zeros(0, np.float32)", "returned no parameters"),
    ("initial", "np.full(3, np.nan, np.float32)", "parameters that are not finite"),
    ("initial", "np.full(3, next(COUNT), np.float32)", "other parameters the second time"),
    ("gradient", "params @ np.zeros(4)", "P, client 0, its gradient 0, gradient: ValueError"),
    ("gradient", "sys.exit(3)", "gradient: SystemExit: 3"),
    ("gradient", "2.0 * params.astype(float)", "the gradient is float64 (3,); it must be float32 (3,)"),
    ("gradient", "params[:2]", "the gradient is float32 (2,); it must be float32 (3,)"),
    ("gradient", "params[None]", "the gradient is float32 (1, 3); it must be float32 (3,); give .ravel()"),
    ("gradient", "np.ma.masked_array(params, [1, 0, 0])", "TypeError: a masked array"),
    ("gradient", "(params, np.ma.masked)", "TypeError: a masked array"),
    ("gradient", "None", "the gradient is a NoneType; it must be float32 (3,)"),
    ("gradient", "(params, 1.0, 2.0)", "a tuple of 3; return the gradient, or the gradient and its loss"),
    ("gradient", "params * np.float32(np.nan)", "the gradient at the initial parameters is not finite"),
    ("gradient", "params + np.float32(next(COUNT))", "returned another gradient the second time"),
    ("gradient", "(params, params)", "its loss is float32 (3,); it must be one real number"),
    ("gradient", "(1.0, params)", "returned a number before the gradient; give the gradient, its loss"),
    ("gradient", "(params, 'low')", "its loss is a str; it must be one real number, beside the gradient"),
    ("gradient", "(params, decimal.Decimal(2))", "its loss is a Decimal; it must be one real number, beside the gr"),
    ("evaluate", "params.nothing", "P, evaluate: AttributeError"),
    ("evaluate", "3.0", "returned 3.0; it must return a dict of names to numbers"),
    ("evaluate", "{}", "it must return a dict of names to numbers, one at least"),
    ("evaluate", "{'x': params}", "gave x as float32 (3,); it must be one real number"),
    ("evaluate", "{'x': 'high'}", "gave x as a str; it must be one real number"),
    ("evaluate", "{'x': True}", "gave x as a bool; it must be one real number"),
    ("evaluate", "{'x': 10**400}", "x is inf at the initial parameters"),
    ("evaluate", "{'x': np.ma.masked}", "evaluate: TypeError: a masked array"),
    ("evaluate", "{'a b': 1.0}", "names 'a b'; a name has letters, digits and _"),
    ("evaluate", "{'staleness_max': 1.0}", "'staleness_max', which is the name of another column; give it another"),
    ("evaluate", "{'x': float('nan')}", "x is nan at the initial parameters"),
    ("evaluate", "{'x': float(next(COUNT))}", "of the same parameters; evaluate must depend on them alone"),
    ("evaluate", "{f'x{next(COUNT)}': 1.0}", "the names must stay the same"),
]
STATE = """def gradient(self, params, draw):
    self.n = getattr(self, "n", 0) + 1
    return params * np.float32(self.n)
P.gradient = gradient"""
WRONG: list[tuple[str, str]] = [
    *((f"P.{name} = lambda {ARGUMENTS[name]}: {found}", says) for name, found, says in RETURNED),
    ("del P.evaluate", "has no method evaluate; a problem has initial(rng), gradient(params, draw)"),
    ("def init(self): 1 / 0\nP.__init__ = init", "wrong:P() failed: ZeroDivisionError: division by zero (wrong.py:"),
    ("P.initial = lambda self: 0", "is initial(self) (wrong.py:"),
    ("P.gradient = lambda self, params: params", "it must be gradient(self, params, draw)"),
    (STATE, "on nothing that the object keeps from call to call"),
    (
        "P.parameters = {'a': (2,), 'b': 2}",
        "its parameters have 4 numbers, and initial(rng) returns 3; they must agree",
    ),
    ("P.parameters = [3]", "its parameters are [3]; it must be a dict of names to shapes"),
    ("P.parameters = {'ä': (3,)}", "it must be a dict of names to shapes"),
    ("P.parameters = {'a': (3.0,)}", "its parameters are {'a': (3.0,)}; it must be a dict of names to shapes"),
    ("P.parameters = {'a': True, 'b': 2}", "its parameters are {'a': True, 'b': 2}; it must be a dict of names to"),
    ("P.measured_by = 'y'", "measured_by: names 'y', and evaluate returns x; give one of these"),
    ("P.measured_by = 3", "its measured_by is 3; it must be a name that evaluate returns"),
    ("P.larger_is_better = ('y',)", "larger_is_better: names 'y', and evaluate returns x"),
    ("P.larger_is_better = 'x'", "its larger_is_better is 'x'; it must be a tuple of names"),
    ("P.portable = 1", "its portable is 1; it must be True or False"),
    ("P.files = 'a.txt'", "its files are 'a.txt'; they must be a list of paths"),
    ("P.files = property(lambda self: 1 / 0)", "its files cannot be had (ZeroDivisionError: division by zero) (wrong"),
    ("P.files = property(lambda self: sys.exit())", "its files cannot be had (SystemExit: ) (wrong.py:"),
    ("import pathlib\nP.files = [pathlib.Path('none')]", "none: cannot be read; its class names it in files"),
]
RIGHT = """
import decimal
import itertools
import sys

import numpy as np

COUNT = itertools.count()


class P:
    def initial(self, rng):
        return np.ones(3, np.float32)

    def gradient(self, params, draw):
        return params

    def evaluate(self, params):
        return {"x": float(params[0])}


"""


@pytest.mark.parametrize(("lines", "says"), WRONG, ids=[lines for lines, _ in WRONG])
def test_what_a_class_must_not_do(lines: str, says: str, refused: Refused) -> None:
    Path("wrong.py").write_text(RIGHT + lines + "\n")
    refused("run", "base.yaml", "problem={name: 'wrong:P'}", says=[says])


def test_numbers_of_python_of_any_kind() -> None:
    """An int of more than 64 bits, and a Fraction, are NumPy's objects; one beyond all floats is infinite."""
    lines = (
        "import fractions\nP.gradient = lambda self, params, draw: (params, [2**70, fractions.Fraction(1, 3), 10**400]"
        "[draw.number])\nP.evaluate = lambda self, params: {'x': 2**70, 'y': fractions.Fraction(-1, 3)}\n"
    )
    Path("wrong.py").write_text(RIGHT + lines)
    problem = OwnProblem("wrong:P", {}, 0)
    assert problem.evaluate(np.ones(3, np.float32)) == {"x": 2.0**70, "y": -1 / 3}
    losses = [problem.gradient(np.ones(3, np.float32), Draws(0, 0, number))[1] for number in range(3)]
    assert losses == [np.float32(2.0**70), np.float32(1 / 3), np.inf]


def test_sizes_of_tensors_are_integers_of_numpy() -> None:
    Path("wrong.py").write_text(f"{RIGHT}P.parameters = {{'a': (np.int64(1), 2), 'b': np.uint8(1)}}\n")
    assert OwnProblem("wrong:P", {}, 0).layout.tensors == (("a", (1, 2)), ("b", (1,)))


@pytest.mark.parametrize("more", [{}, {"clip_each_sample": 1.0}], ids=str)
def test_what_changes_later_is_found(more: dict[str, Any]) -> None:
    """An object whose gradient begins to depend on what it keeps is found when a gradient is computed twice."""
    Path("changing.py").write_text(RIGHT.replace("return params", "self.n = getattr(self, 'n', 0) + 1\n        "
                                                 "return params * np.float32(1 + (self.n > 25) * self.n)"))  # fmt: skip
    with pytest.raises(SimulationError, match="another gradient the second time; it must depend on params and draw"):
        run(problem={"name": "changing:P"}, evaluation={"every": 5}, clients={"count": 5, **more})


def test_a_class_may_keep_what_changes_nothing() -> None:
    """It is given copies: it may write into them, keep them, and return the same array again and again."""
    Path("changing.py").write_text(
        RIGHT.replace("return params", "self.kept = params\n        params *= np.float32(0.5)\n        return params")
    )
    other = run("other", problem={"name": "changing:P"})
    Path("wrong.py").write_text(RIGHT.replace("return params", "return params * np.float32(0.5)"))
    assert run(problem={"name": "wrong:P"}).summary["digest"] == other.summary["digest"]


def test_divergence_is_no_error(command: Command) -> None:
    Path("wrong.py").write_text(RIGHT.replace("return params", "return params * params * params * np.float32(100)"))
    words, threads = ("problem={name: 'wrong:P'}", "server.lr=1e6", "threads=2"), threading.active_count()
    code, _, messages = command("run", "base.yaml", *words, "--out", "diverged")
    assert code == 0
    assert Result(Path("diverged")).ending == "diverged"
    assert threading.active_count() == threads  # also those on which it was run again
    Path("changing.py").write_text(
        RIGHT.replace("return params", "return params if draw.number < 3 else params * np.float32('nan')")
    )
    code, _, messages = command("run", "base.yaml", "problem={name: 'changing:P'}", "--out", "nan")
    assert Result(Path("nan")).ending == "diverged"
    assert "gradient 3 of client 3 has NaN at finite parameters, 0.639 at most" in messages
    code, _, messages = command("run", "base.yaml", "server.lr=1e6", "--out", "high")  # of which no height is finite
    assert (code, " s, height none, digest " in messages) == (0, True)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "data={name: digits}",
            "data: is given beside problem, which takes the place of data, model and loss; leave one",
        ),
        ("model={name: linear}", "model: is given beside problem"),
        ("loss=mse", "loss: is given beside problem"),
        (
            "problem={name: 'own_problems:Bowle'}",
            "problem.name: module 'own_problems' has no 'Bowle'; did you mean 'Bowl'?",
        ),
        ("problem={name: 'nowhere:Bowl'}", "problem.name: cannot import 'nowhere'"),
        ("problem={name: 'python:own_problems:Bowl'}", "leave python: out, as in 'own_problems:Bowl'"),
        (
            "problem={name: Bowl}",
            "problem.name: is 'Bowl'; it must be yours, as package.module:name, such as name: 'my_problem:Valley'",
        ),
        ("problem={size: 3}", "problem.name: is required"),
        ("problem=3", "problem: is 3; it must be a mapping of keys to values"),
        ("problem={name: 'own_problems:Bowl', sise: 4}", "problem.sise: unknown key; did you mean 'size'?"),
        ("problem={name: 'own_problems:Bowl', size: small}", "own_problems:Bowl(size) failed: TypeError"),
        ("problem={name: 'own_problems:OfFiles'}", "problem.table: is required"),
        ("clients.batch_size=4", "clients.batch_size is 4; a problem draws its own samples"),
        (
            "clients.sampling=shuffled",
            "clients.sampling is shuffled; a problem has no rows to take in turn: leave it out",
        ),
        ("clients.sampling=sequential", "clients.sampling is sequential; a problem has no rows to take in turn"),
        ("clients.partition={name: dirichlet, alpha: 1.0}", "clients.partition is dirichlet; a problem has no rows"),
        ("evaluation.test=true", "evaluation.test is true; a problem has no rows to test on"),
        ("evaluation.gradient_norm=true", "evaluation.gradient_norm is true; a problem has no rows"),
        ("evaluation.metrics=[top5]", "evaluation.metrics is top5; a problem has no outputs"),
        ("evaluation={every: 1, unit: epochs}", "evaluation.unit is epochs; a problem has no rows"),
        (
            "until={heigth: 1.0}",
            "until.heigth: is of what evaluate of own_problems:Bowl does not return; did you mean 'height'",
        ),
        (
            "until={validation_error: 0.1}",
            "until.validation_error: is of what evaluate of own_problems:Bowl does not return",
        ),
    ],
)
def test_keys_that_do_not_fit(override: str, says: str, refused: Refused) -> None:
    refused("run", "base.yaml", override, says=[says])


def test_selections_that_do_not_fit(refused: Refused) -> None:
    stages = "stages={cuts: [rest], delay: pipemare}"
    says = "stages.delay is pipemare; a problem's class computes both passes with the same parameters"
    refused("run", "base.yaml", "problem={name: 'own_problems:Bowl', names: true}", stages, says=[says])
    refused("run", "base.yaml", "iterations=null", "epochs=3", says=["epochs is 3; a problem has no rows to pass over"])
    for best, says in (
        ("heigt", "did you mean 'height'?"),
        ("validation_error", "evaluate does not return it have not; give height"),
    ):
        select = f"select={{best: {best}, over: server.lr}}"
        refused("run", "base.yaml", "sweep={server.lr: [0.1, 0.2]}", select, says=["select.best: is", says])


def test_a_folder_of_somebody_elses_runs_no_code(
    command: Command, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    monkeypatch.setenv("FREDSIM_STATE", str(Path("elsewhere").resolve()))
    refused("verify", "run", says=["names code, own_problems:Bowl", "give --allow-code"])
    assert command("verify", "run", "--allow-code")[:2] == (0, "run: same bits\n")
    assert command("ls", ".")[0] == 0


def test_other_commands(command: Command, refused: Refused) -> None:
    assert command("plan", "base.yaml")[0] == 0
    assert "own_problems:Bowl" in command("show", "base.yaml")[1]
    run()
    refused("plot", "run", "--kind", "shards", says=["is of a problem, which has no rows that clients could hold"])
    assert command("cite", "run")[0] == 0


def test_panels_of_a_problem_have_no_minibatch_size() -> None:
    found = list(fredsim.sweep(BASE | {"problem": problem("Bowl"), "sweep": {"clients.count": [2, 5]}}, out="swept"))
    assert [panel.title for panel in group(found, ["server.name"], None)] == ["λ = 2", "λ = 5"]


DRAWING = """
    rng = np.random.default_rng(0)

    def __init__(self, file=""):
        self.by = P.rng.normal()

    def gradient(self, params, draw):
        return params * np.float32(self.by)
"""


def test_what_is_made_does_not_hang_on_how_it_is_called(tmp_path: Path) -> None:
    """An object that draws from its class's generator trains the same one, whatever was said or looked at before."""
    Path("drawing.py").write_text(RIGHT + DRAWING)
    Path("some.txt").write_text("")
    Path("p.yaml").write_text(json.dumps(BASE | {"problem": {"name": "drawing:P", "file": "some.txt"}}))
    forked = Forked()

    def call(*words: str) -> None:
        code, said = forked(tmp_path, *words, FREDSIM_STATE=str(tmp_path / "state"))
        assert code == 0, said

    digests = set()
    for name, words in {"plain": [], "quiet": ["--quiet"], "sweep": ["sweep={seed: [0]}"]}.items():
        call("run", "p.yaml", *words, "--out", name)
        digests.add(Result(next(iter(Path(name).glob("seed*")), Path(name))).summary["digest"])
    Path("plain/summary.json").unlink()  # as of a run that was killed
    call("run", "p.yaml", "--out", "plain", "--resume")
    digests.add(Result(Path("plain")).summary["digest"])
    assert len(digests) == 1
    call("verify", "plain")
    call("verify", "sweep")
    forked.close()


def test_a_network_in_the_place_of_a_run_of_a_sweep() -> None:
    """Its config.yaml has `data`, which that of a problem has not."""
    results = fredsim.sweep(BASE | {"iterations": 4, "sweep": {"seed": [0, 1]}}, out="sweep")
    path = results[1].folder / "config.yaml"
    config = read_document(path).data
    del config["problem"]
    path.write_text(dump_yaml({**config, "data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [8]}}))
    found = str(sweep_difference(Path("sweep"), recorded_expansion(Path("sweep"))))
    assert found.startswith(f"{path.parent.name}/config.yaml is not what sweep.yaml gives: data.name: digits there, ")
