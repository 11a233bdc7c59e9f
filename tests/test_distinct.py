"""A run that is named twice counts once, and runs that are the same whatever their seed are named."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fredsim
from fredsim.show.plots.groups import group
from fredsim.show.report.sections import sections
from tests.reports import data_in

Command = Callable[..., tuple[int, str, str]]
#: Nothing is drawn: neither an order, nor a minibatch, nor a weight.
NO_DRAWS = ["dispatcher={name: round_robin}", "model={hidden: [], init: zeros}", "clients.sampling=sequential"]


def counted(name: str) -> list[str]:
    with Path(f"{name}-table.csv").open(newline="", encoding="utf-8") as file:
        return [row["runs"] for row in csv.DictReader(file)]


def test_a_copy_counts_once(small_yaml: Path, command: Command) -> None:
    fredsim.run(small_yaml, ["sweep={seed: [0, 1]}"], out="o")
    one, other = sorted(path for path in Path("o").iterdir() if path.is_dir())
    shutil.copytree(one, "copy")
    for folders, runs, said in (
        ((one, one), "1", "counts once"),
        ((one, "copy"), "1", "counts once"),
        (("o", "copy", other), "2", "counts once, like 1 more"),
        ((one, other), "2", ""),
    ):
        code, _, messages = command("plot", *folders, "-o", "x.svg")
        assert (code, counted("x"), messages.count("note:"), messages.count("\n")) == (0, [runs], *[bool(said)] * 2)
        assert messages.endswith(f"{said}\n" if said else "")
    assert messages == ""
    assert "copy: is the same run as o/seed=0" in command("plot", one, "copy", "-o", "x.svg")[2]
    fredsim.run(small_yaml, ["backend=numpy"], out="numpy")  # is another configuration
    fredsim.run(small_yaml, out="numba")
    code, _, messages = command("plot", "numba", "numpy", "-o", "x.svg")
    assert (code, messages) == (0, "note: 2 runs that differ in backend have the same bits: they show no spread\n")
    assert counted("x") == ["1"]
    fredsim.run(small_yaml, ["seed=1"], out="other")
    assert command("plot", "numba", "other", "numpy", "-o", "x.svg")[0] == 0
    assert counted("x") == ["2"]  # of which one was run on two backends
    fredsim.run(small_yaml, ["sweep={threads: [1, 2], seed: [0, 1]}"], out="threads")
    assert command("plot", "threads", "-o", "x.svg")[0] == 0
    assert counted("x") == ["2"]


#: Who was said to have published what, and where it is.
POINTS = "published={source: Somebody, series: [{where: {seed: 0}, points: [[50, 0.5]]}]}"


def test_of_equal_runs_the_one_remains_that_has_what_is_shown(small_yaml: Path, command: Command) -> None:
    """Whichever is named first; each of them has recorded something else."""
    more = {"plain": (), "waits": ("events=true",), "probe": ("probe={every: 5}", "seed=0", "events=true"),
            "tensors": ("probe={every: 5, per_tensor: true}",), "curves": (POINTS, "threads=1")}  # fmt: skip
    for name, words in more.items():
        fredsim.run(small_yaml, ["dispatcher.name=clock", *words], out=name)
    for kind in ("waits", "probe", "tensors", "curves"):
        others = [name for name in more if name != kind]
        for folders in ((*others, kind), (kind, *others)):
            code, _, messages = command("plot", *folders, "--kind", kind, "-o", "x.svg")
            assert code == 0, folders
            assert "5 runs that differ in events and probe and published and threads have the same bits" in messages
        assert "Somebody" in Path("x-table.md").read_text("utf-8") or kind != "curves"
    fredsim.run(small_yaml, ["dispatcher.name=clock", POINTS], out="published")
    for folders in (("plain", "published"), ("published", "plain")):  # which are the same run
        assert command("plot", *folders, "-o", "x.svg")[2].count("is the same run as published") == 1
        assert "Circles: published (Somebody)." in Path("x-table.md").read_text("utf-8")


def test_in_a_report_and_an_export(small_yaml: Path, command: Command) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install .[tensorboard]")
    fredsim.run(small_yaml, out="one")
    shutil.copytree("one", "copy")
    code, _, messages = command("report", "one", "copy", "-o", "x.html")
    assert (code, messages.count("note: copy: is the same run as one")) == (0, 1)
    assert "<p>1 run: 1 finished.</p>" in Path("x.html").read_text(encoding="utf-8")
    code, output, messages = command("export", "one", "copy", "one", "--to", "tensorboard", "-o", "board")
    assert (code, output) == (0, "new: one\n")
    assert messages.count("note: copy: is the same run as one") == messages.count("\n") == 1


def test_a_report_has_the_runs_that_are_drawn(small_yaml: Path, command: Command) -> None:
    """Of those that differ in nothing that changes a bit, one."""
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    words = ["backend=numpy"]
    fredsim.run(small_yaml, words, out="one")
    fredsim.run(small_yaml, [*words, "name=other"], out="other")
    fredsim.sweep(small_yaml, [*words, "sweep={threads: [1, 2], seed: [0, 1]}"], out="threads")
    for folders, runs, again in (
        (("one", "other"), 1, 1), (("threads",), 2, 2), (("other", "threads", "one"), 2, 4)
    ):  # fmt: skip
        assert command("report", *folders, "-o", "x.html")[0] == 0, folders
        page = Path("x.html").read_text(encoding="utf-8")
        what = f"Runs that are one of these again, say on another backend ({again}), are not shown."
        assert f"<p>{runs} run{'s' if runs > 1 else ''}: {runs} finished. {what}</p>" in page
        data = data_in(page)
        assert (len(data["runs"]), len(data["table"]["rows"]), len(data["lines"])) == (runs, runs, 1)
        assert len([title for title, _ in data["texts"] if "sweep" not in title]) == runs


def test_seeds_that_change_nothing(small_yaml: Path, command: Command) -> None:
    said = "3 runs that differ in seed have the same bits: they show no spread"
    code, _, messages = command("run", small_yaml, *NO_DRAWS, "sweep={seed: [0, 1, 2]}", "--out", "o")
    assert (code, messages.count(f"note: {said}\n")) == (0, 1)
    assert f"{said}." in Path("o/error-table.md").read_text(encoding="utf-8")
    assert command("plot", "o", "-o", "x.svg")[2] == f"note: {said}\n"
    assert counted("x") == ["3"]
    assert f" {said}." in next(sections(group([*fredsim.Results("o")], None, None))).caption
    code, _, messages = command("run", small_yaml, "sweep={seed: [0, 1, 2]}", "--out", "drawn")
    assert (code, "same bits" in messages) == (0, False)


@pytest.mark.parametrize("file", ["metrics.csv", "staleness.csv", "params.safetensors", "probe.csv", "clients.csv"])
def test_every_file_is_looked_at(file: str, small_yaml: Path, command: Command) -> None:
    """Also one that is not drawn."""
    fredsim.run(small_yaml, ["probe={every: 5}", "evaluation.per_client=true"], out="one")
    content = bytearray(Path("one", file).read_bytes())
    content[-2] ^= 1
    Path("one", file).write_bytes(content)
    for words in (("plot", "one", "-o", "x.svg"), ("report", "one"), ("export", "one", "--to", "tensorboard")):
        code, _, messages = command(*words)
        assert code == 2
        assert file in messages or "cannot be imported" in messages
