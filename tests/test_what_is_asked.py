"""What is asked of runs that lack it, or of some of them: overrides of axes, figures of a few, runs without a value."""

from collections.abc import Callable
from pathlib import Path

from fredsim.system.csv_files import read_cells

Command = Callable[..., tuple[int, str, str]]


def test_what_an_override_replaces_is_what_tables_say(small_yaml: Path, command: Command) -> None:
    """Not what it replaced; and where it leaves two runs the same, it is refused."""
    axis = "sweep={server: [{name: asgd, lr: 0.1}, {name: sasgd, lr: 0.2}], seed: [0]}"
    assert command("run", small_yaml, axis, "server.lr=0.5", "--quiet", "--out", "swept")[0] == 0
    assert [row["server.lr"] for row in read_cells(Path("swept/runs.csv"))] == ["0.5", "0.5"]
    rates = "sweep={server.lr: [0.1, 0.2]}"
    code, _, messages = command("run", small_yaml, rates, "server={name: asgd, lr: 0.5}", "--quiet", "--out", "alike")
    assert (code, "two runs are the same then" in messages) == (2, True)


def test_an_axis_that_changes_no_bit_leaves_runs_apart(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "sweep={threads: [1, 2]}", "seed=3", "--quiet", "--out", "swept")[0] == 0
    assert len({row["digest"] for row in read_cells(Path("swept/runs.csv"))}) == 1


def test_figures_of_some_runs(small_yaml: Path, command: Command) -> None:
    """Those that `where` leaves have the clock that the figure asks for."""
    axis = "sweep={dispatcher: [{name: clock}, {name: uniform}]}"
    for name, where in {"one": "clock", "some": "[clock, trace]"}.items():
        figures = f"figures=[{{name: {name}, x: seconds, where: {{dispatcher.name: {where}}}}}]"
        assert command("run", small_yaml, axis, figures, "--out", "swept")[0] == 0
        assert Path(f"swept/{name}.png").exists()


def test_several_lists_are_wanted(small_yaml: Path, command: Command) -> None:
    """Of a key whose values are lists; one list is its elements, one of which is wanted."""
    axis = "sweep={model.hidden: [[4], [5], [6], [4, 5]]}"
    assert command("run", small_yaml, axis, "iterations=4", "--quiet", "--out", "swept")[0] == 0
    for words, lines in (
        (["model.hidden=[5]"], 1), (["model.hidden=[4]", "model.hidden=[4, 5]"], 2),
        (["server.name=[asgd, sync]", "server.name=sasgd"], 4),
    ):  # fmt: skip
        options = [part for word in words for part in ("--where", word)]
        assert command("plot", "swept", "-o", "a.png", *options)[0] == 0, words
        assert len(read_cells(Path("a-table.csv"))) == lines
    code, _, messages = command("plot", "swept", "-o", "a.png", "--reach", "nan")
    assert (code, messages) == (2, "error: --reach: is nan; it must be a finite number, such as 0.05\n")
    assert command("plot", "swept", "-o", "a.png", "--reach", "0.5", "--reach", "0.50000001")[0] == 0
    assert {"iterations to 0.5", "iterations to 0.50000001"} <= read_cells(Path("a-table.csv"))[0].keys()


def test_runs_without_a_value_are_drawn_without_one(small_yaml: Path, command: Command) -> None:
    words = ("dispatcher={name: clock}", "data.validation=0", "--quiet", "--out", "none")
    assert command("run", small_yaml, *words)[0] == 0
    assert command("plot", "none", "--x", "seconds", "-o", "a.png")[0] == 0
    wide = "model={name: mlp, hidden: [10], init: {name: normal, std: 1e30}}"
    diverges = ("dispatcher={name: clock}", "events=true", wide, "--quiet", "--out", "ended")
    assert command("run", small_yaml, *diverges)[0] == 0
    for kind in ("waits", "timeline"):
        code, _, messages = command("plot", "ended", "--kind", kind, "-o", "b.png")
        assert (code == 0) or messages.startswith("error: "), messages


def test_code_that_draws_by_itself_is_named(small_yaml: Path, command: Command, own_server: Callable[..., str]) -> None:
    Path("own_draws.py").write_text(own_server("grad = grad + np.random.rand()\n"), encoding="utf-8")
    assert command("run", small_yaml, "server={name: 'own_draws:Plain', lr: 0.1}", "--quiet", "--out", "drawn")[0] == 0
    code, output, _ = command("verify", "drawn")
    assert (code, "drawn: different: metrics.csv, line 3" in output) == (1, True)
    assert "  code of its own takes part (own_draws): the bits are the same where that keeps to what has" in output


def test_a_number_of_jobs_that_cannot_be(small_yaml: Path, command: Command, refused: Callable[..., None]) -> None:
    assert command("run", small_yaml, "--quiet", "--out", "one")[0] == 0
    refused("verify", "one", "--jobs", 0, says=("jobs is 0; it must be 1 at least",))
