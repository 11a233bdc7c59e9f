"""The numbers that figures and their tables show, beside an independent computation from metrics made by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import fredsim
from fredsim.runs.folder.results import Result, Results
from fredsim.show.plots import Options, plot
from fredsim.show.plots.groups import Panel, group, labels
from fredsim.show.plots.kinds.staleness import different
from tests.reports import data_in

Command = Callable[..., tuple[int, str, str]]

ROWS = [0, 10, 20, 30, 40, 50]  # iterations


def value_of(text: str) -> float:
    """Return the number that a text of a figure says."""
    plain = text.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")).replace("\u2009", "")
    mantissa, _, power = plain.partition("10") if "⁻" in text or "⁵" in text else (plain, "", "0")
    return float(mantissa.rstrip("·") or 1) * 10.0 ** int(power)


def runs_of(source: Path, *overrides: str) -> list[Result]:
    return list(fredsim.sweep(source, ["evaluation.every=10", *overrides]))


@pytest.fixture
def seeds(recorded: Callable[..., Results], small_yaml: Path) -> list[Result]:
    """Three runs that differ in their seed alone, with rows at 0, 10, …, 50."""
    words = ["evaluation.every=10", "sweep={seed: [0, 1, 2]}"]
    return list(recorded("seeds", lambda folder: fredsim.sweep(small_yaml, words, out=folder)))


def ends(run: Result, **values: float) -> None:
    """Let a run end with these values."""
    for column, value in values.items():
        run.metrics[column] = run.metrics[column].astype(float)
        run.metrics.loc[len(run.metrics) - 1, column] = value


def test_tables_have_medians_of_shares_and_bytes(seeds: list[Result]) -> None:
    """Where the median is neither the mean nor the first run."""
    made = [(40, 50, 3000, 500), (5, 50, 100, 100), (10, 40, 200, 700)]
    for run, (pushes, potential, pushed, fetched) in zip(seeds, made, strict=True):
        ends(run, pushes=pushes, potential_pushes=potential, bytes_pushed=pushed, bytes_fetched=fetched)
    expected = {"pushes": 10, "of potential pushes": 10 / 40, "bytes": 900}
    for kind in ("copies", "ends"):
        (row,) = plot(seeds, Path("x.png"), kind).tables[0].rows
        assert {name: row[name] for name in expected if name in row} == {
            name: value for name, value in expected.items() if kind == "copies" or name != "pushes"
        }


@pytest.mark.parametrize(
    ("largest", "unit", "name"),
    [(999, 1, "bytes"), (1000, 1000, "kB"), (999_999, 1000, "kB"), (1_000_000, 10**6, "MB"), (10**9, 10**9, "GB")],
)
def test_units_of_bytes(largest: int, unit: int, name: str, seeds: list[Result], drawn: list[Figure]) -> None:
    pushed = [0, 1, 2, 3, 4, largest - 5]
    seeds[0].metrics["bytes_pushed"], seeds[0].metrics["bytes_fetched"] = pushed, [0, 1, 2, 3, 4, 5]
    for kind in ("curves", "ends"):
        plot(seeds[:1], Path("x.png"), kind, Options(x="bytes"))
        (axes,) = drawn[-1].axes
        assert axes.get_xlabel() == f"pushed and fetched ({name})"
        (line,) = axes.lines
        totals = [0, 2, 4, 6, 8, largest] if kind == "curves" else [largest]
        assert list(line.get_xdata()) == [total / unit for total in totals]  # type: ignore[arg-type]


def test_bands_of_all_runs_and_of_the_middle_half(small_yaml: Path, drawn: list[Figure]) -> None:
    runs = runs_of(small_yaml, "sweep={seed: [0, 1, 2, 3, 4]}")
    for run, last in zip(runs, [0.5, 0.1, 0.9, 0.3, 0.2], strict=True):
        ends(run, validation_error=last)
    for quartiles, low, high, names in (
        (False, 0.1, 0.9, ("smallest", "largest")),
        (True, 0.2, 0.5, ("lower quartile", "upper quartile")),  # of five, the second and the fourth
    ):
        drawing = plot(runs, Path("x.png"), options=Options(quartiles=quartiles))
        (band,) = drawn[-1].axes[0].collections
        edges = band.get_paths()[0].vertices
        assert sorted({y for x, y in np.asarray(edges) if x == 50}) == [low, high]
        (row,) = drawing.tables[0].rows
        assert [row[name] for name in (f"final {Options().y}", *names)] == [0.3, low, high]
        assert ("their quartiles" in drawing.caption) == quartiles


def test_how_a_run_is_computed_makes_no_line(small_yaml: Path) -> None:
    results = runs_of(small_yaml, "sweep={threads: [1, 2], window: [1, 8]}")
    (row,) = plot(results, Path("x.png")).tables[0].rows
    assert (row["line"], row["runs"]) == ("ASGD", 1)  # four times


def test_bands_of_a_probe_are_quartiles(small_yaml: Path, drawn: list[Figure]) -> None:
    (run,) = runs_of(small_yaml, "sweep={seed: [0]}", "probe.every=1", "iterations=100")
    probe = run.probe
    probe["iteration"], probe["staleness"] = np.arange(100), np.arange(100) // 10
    probe["b_staleness"] = np.tile([8.0, 1.0, 2.0, 4.0, 16.0], 20)
    plot([run], Path("x.png"), "probe")
    for axes, parts in zip(drawn[0].axes, (20, 10), strict=True):  # of 5, and of 10 probes
        (line,), (band,) = axes.lines, axes.collections
        assert list(line.get_ydata()) == [4] * parts  # type: ignore[arg-type]
        assert set(np.asarray(band.get_paths()[0].vertices)[:, 1]) == {2, 8}


def test_probes_of_one_iteration_are_not_parted(small_yaml: Path, drawn: list[Figure]) -> None:
    """Runs with many and with few clients, probed at the same iterations, make one point of each iteration."""
    (run,) = runs_of(small_yaml, "sweep={seed: [0]}", "probe.every=1", "iterations=150")
    probe = run.probe
    probe["iteration"] = np.repeat(np.arange(1, 31), 5)
    probe["b_staleness"] = np.tile([1.0, 2.0, 3.0, 4.0, 5.0], 30)
    plot([run], Path("x.png"), "probe")
    (line,) = drawn[0].axes[0].lines
    values = np.asarray(line.get_ydata())
    assert {*values.tolist()} == {3}
    assert 10 <= len(values) <= 20


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("log", [None, False])
def test_staleness_is_a_share_with_so_much_or_more(
    first: int, log: bool | None, seeds: list[Result], drawn: list[Figure]
) -> None:
    """A push of each staleness from the first on: all have the first one or more, one alone has the last."""
    last = first + 99
    vars(seeds[0])["staleness"] = pd.DataFrame({"staleness": range(first, last + 1), "count": 1})
    plot(seeds[:1], Path("x.png"), "staleness", Options(log=log))
    (axes,) = drawn[0].axes
    assert axes.get_yscale() == ("log" if log is None else "linear")
    found = {float(at): float(share) for at, share in np.asarray(axes.lines[0].get_xydata())}
    expected = {float(at): min(100, last + 1 - at) / 100 for at in (0, *range(first, last + 1))}
    assert found == pytest.approx(expected)
    assert axes.lines[0].get_drawstyle() == "steps-pre"  # the share at τ counts from the staleness below it


@pytest.mark.parametrize("counts", [{0: 50, 1: 45, 2: 4, 7: 1}, {0: 1, 1: 1}, {3: 5, 4: 90, 9: 4, 11: 1}])
def test_percentiles_of_staleness(counts: dict[int, int], seeds: list[Result]) -> None:
    """The smallest value that at least so many of a hundred do not exceed, also where exactly so many do not."""
    vars(seeds[0])["staleness"] = pd.DataFrame({"staleness": counts.keys(), "count": counts.values()})
    (row,) = plot(seeds[:1], Path("x.png"), "staleness").tables[0].rows
    pushes = [value for value, count in counts.items() for _ in range(count)]
    for percent in (50, 95, 99):
        enough = [one for one in pushes if sum(other <= one for other in pushes) * 100 >= percent * len(pushes)]
        assert row[f"{percent} %"] == min(enough)


def test_panels_are_compared_by_their_mean_staleness(seeds: list[Result], drawn: list[Figure]) -> None:
    """Each panel ends at its own largest staleness, and not before 1; an answer has panels of one line only."""
    for run, counts in zip(seeds, ({0: 1, 4: 3}, {0: 7}, {1: 1, 8: 1}), strict=True):
        vars(run)["staleness"] = pd.DataFrame({"staleness": counts.keys(), "count": counts.values()})
    answer = plot(seeds, Path("x.png"), "staleness", Options(panel=["seed"])).answer
    assert answer == "On average 0 with seed 1, 4.5 with seed 2"
    assert [axes.get_xlim() for axes in drawn[0].axes[:3]] == [(0, 4), (0, 1), (0, 8)]


def test_a_report_knows_the_smallest_error_above_zero(small_yaml: Path, command: Command) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    words = ("data.validation=5", "iterations=1000", "evaluation.every=20", "sweep={seed: [0]}")
    errors = [error for run in runs_of(small_yaml, *words) for error in run.metrics["validation_error"]]
    assert min(errors) == 0
    assert command("report", "results/small", "--log")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    axis = data_in(page)["figures"]["curves-0"]["y"]["validation_error"]
    assert axis["range"] == [0, max(errors), min(error for error in errors if error > 0)]
    assert '<input type="checkbox" name="log" checked>' in page


def test_names_of_files_are_no_markup(small_yaml: Path, drawn: list[Figure], command: Command) -> None:
    """Neither a column of a Markdown table nor a formula, in legends, above panels and beside ticks."""
    images, classes = np.arange(120, dtype=np.uint8).reshape(20, 6), np.arange(20) % 2
    for name in ("a|b.npz", r"$\frac{$.npz"):
        np.savez(name, x_train=images, y_train=classes, x_test=images, y_test=classes)
    sweep = r"sweep={data.name: ['npz:a|b.npz', 'npz:$\frac{$.npz']}"
    assert command("run", small_yaml, "data={train: 12, validation: 8}", sweep, "--quiet")[0] == 0
    assert command("plot", "results/small", "-o", "x.svg")[0] == 0
    (row,) = [line for line in Path("x-table.md").read_text("utf-8").splitlines() if "b.npz" in line]
    assert [cell.strip() for cell in re.split(r"(?<!\\)\|", row)][1:4] == [r"ASGD, npz:a\|b.npz", "1", "0"]
    for words in (("--panel", "data.name"), ("--kind", "ends", "--x", "data.name")):
        assert command("plot", "results/small", *words, "-o", "x.svg")[0] == 0
    for figure in drawn:
        texts = [text for text in figure.findobj(match=Text) if isinstance(text, Text)]
        assert [text for text in texts if r"npz:$\frac{$.npz" in text.get_text()]


@pytest.mark.parametrize("several", [2, 7])
def test_long_names_leave_room_for_what_they_name(several: int, small_yaml: Path, drawn: list[Figure]) -> None:
    """Few or many: within the picture, and beside panels that are no narrower for it."""
    results = runs_of(small_yaml, f"sweep={{server.lr: {[0.1 * n for n in range(1, several + 1)]}}}")
    for run in results:
        run.config["server"]["name"] = "module_of_a_user:" + "LongNameOfAServer" * 6
    plot(results, Path("x.png"))
    (figure,) = drawn
    figure.draw_without_rendering()  # in its own resolution, not the file's
    (legend,) = figure.legends
    extent, axes = legend.get_window_extent(), figure.axes[0].get_window_extent()
    assert extent.x0 > axes.x1
    assert extent.x1 <= figure.bbox.x1
    assert axes.width > 4 * figure.dpi


NOTHING = "No value is above 0 that a logarithmic axis could show."


@pytest.mark.parametrize(
    ("values", "scale", "ticks", "says"),
    [
        ((0.9, 0.5, 0.1, np.nan, 0.06, 0.04), "log", ["0.05", "0.1", "0.2", "0.5", "1"], ""),
        ((0.09, 0.08, 0.07, 0.07, 0.07, 0.06), "log", None, ""),
        ((2.0, 0.1, 1e-3, 1e-4, 1e-4, 1e-6), "log", ["10⁻⁶", "10⁻⁵", "10⁻⁴", "0.001", "0.01", "0.1", "1"], ""),
        (
            (0.9, 0.5, 0.0, np.nan, 0.06, 0.0),
            "symlog",
            ["0", "0.1", "0.2", "0.5"],
            "Below 0.06 the axis is linear, to 0.",
        ),
        ((0.0, np.nan, 0.0, 0.0, 0.0, 0.0), "linear", None, NOTHING),
        ((np.nan,) * 6, "linear", None, NOTHING),
    ],
)
def test_a_logarithmic_axis(
    values: list[float], scale: str, ticks: list[str] | None, says: str, seeds: list[Result], drawn: list[Figure]
) -> None:
    """Numbers stand at its ticks; what is 0 can be seen and is still 0, what is missing is a gap."""
    for run in seeds[:2]:
        run.metrics["validation_error"] = run.metrics["validation_loss"] = values
    caption = plot(seeds[:2], Path("x.svg"), options=Options(log=True)).caption
    (axes,) = drawn[0].axes
    assert axes.get_yscale() == scale
    assert caption.endswith(says or "largest.")
    shown = [value for value in values if not np.isnan(value)]
    line = axes.lines[0]  # and points of what stands alone
    np.testing.assert_array_equal(line.get_ydata(), values)
    heights = [axes.transAxes.inverted().transform(axes.transData.transform((0, value)))[1] for value in shown]
    assert all(0 <= height <= 1 for height in heights)
    assert np.argsort(heights, kind="stable").tolist() == np.argsort(shown, kind="stable").tolist()
    low, high = axes.get_ylim()
    labels = [text for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
    assert len(labels) > 2
    assert [value_of(text.get_text()) for text in labels] == pytest.approx([text.get_position()[1] for text in labels])
    assert ticks in (None, [text.get_text() for text in labels])


def test_where_the_axis_of_curves_ends(seeds: list[Result], drawn: list[Figure]) -> None:
    """In the unit that it shows; nothing else changes."""
    tables = [plot(seeds, Path("x.svg"), options=Options(x="bytes", end=end)).tables for end in (None, 2e5, 3e9)]
    whole, short, long = (figure.axes[0] for figure in drawn)
    assert whole.get_xlim()[0] == short.get_xlim()[0] == 0
    assert (short.get_xlim()[1], long.get_xlim()[1]) == (200, 3)
    assert (short.get_xlabel()[-4:], long.get_xlabel()[-4:]) == ("(kB)", "(GB)")
    assert np.asarray(short.lines[0].get_xdata()).max() > 200
    assert tables[0] == tables[1] == tables[2]


def test_an_end_of_no_error_stands_on_a_logarithmic_axis(small_yaml: Path, drawn: list[Figure]) -> None:
    results = runs_of(small_yaml, "sweep={server.lr: [0.1, 0.2, 0.3]}")
    for run, error in zip(results, (0.5, 0.0, 0.02), strict=True):
        ends(run, validation_error=error)
    plot(results, Path("x.svg"), "ends", Options(x="server.lr", log=True))
    (axes,) = drawn[0].axes
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.0, 0.02]  # type: ignore[arg-type]
    assert axes.get_ylim()[0] < 0
    assert "0" in [text.get_text() for text in axes.get_yticklabels()]


def test_a_probe_of_a_run_that_diverged_at_once(small_yaml: Path, drawn: list[Figure]) -> None:
    """Some of its parts hold no number at all."""
    (run,) = runs_of(small_yaml, "sweep={seed: [0]}", "server.lr=1e30", "probe.every=1")
    for log in (False, True):
        plot([run], Path("x.svg"), "probe", Options(log=log))
    assert len(drawn) == 2


class Configured:
    """What grouping asks of a run that has not ended."""

    has_ended = False

    def __init__(self, server: Mapping[str, Any], optimizer: Mapping[str, Any], **others: Any) -> None:
        self.config = {"server": server, "clients": {"count": 2, "optimizer": optimizer}, **others}


def named(*runs: Configured, by: list[str] | None = None) -> list[str]:
    """Return the names of the lines of these runs, of which no two are the same."""
    panels = group(cast("list[Result]", runs), by, [])
    assert by or [line.label for line in panels[0].lines] == labels(cast("list[Result]", runs))
    return [line.label for line in panels[0].lines]


def test_keys_of_the_same_last_part_are_told_apart() -> None:
    pairs = [(own, other) for own in (0.5, 0.9) for other in (0.5, 0.9)]
    runs = [Configured({"name": "x:Own", "momentum": own}, {"momentum": other}) for own, other in pairs]
    texts = [f"server momentum {own}, optimizer momentum {other}" for own, other in pairs]
    assert named(*runs) == [f"x:Own, {text}" for text in texts]
    assert named(*runs, by=["server.momentum", "clients.optimizer.momentum"]) == texts
    panels = group(cast("list[Result]", runs), [], ["server.momentum", "clients.optimizer.momentum"])
    assert [panel.title for panel in panels] == texts
    assert panels[1].parts == ("server momentum 0.5", "optimizer momentum 0.9")
    assert named(*runs[:2]) == ["x:Own, momentum 0.5", "x:Own, momentum 0.9"]


def test_no_value_makes_a_line_of_its_own() -> None:
    """Also where the others have the value of another key of the same last part."""
    runs = [
        Configured({"name": "x:Own", "inner": {"name": "sgd", "lr": own}}, {"name": "sgd", "lr": other})
        for own in (0.1, 0.01)
        for other in (None, 0.1)
    ]
    assert named(*runs) == [
        "x:Own, inner lr 0.1", "x:Own, inner lr 0.1, optimizer lr 0.1",
        "x:Own, inner lr 0.01", "x:Own, inner lr 0.01, optimizer lr 0.1",
    ]  # fmt: skip
    names = ("sgd", "adam")
    runs = [Configured({"name": "x:Own", "inner": {"name": own}}, {"name": other}) for own in names for other in names]
    found = [f"x:Own, inner {own}, optimizer {other}" for own in names for other in names]
    assert [text.lower() for text in named(*runs)] == [text.lower() for text in found]
    gates = [{"dispatcher": {"push": {gate: {"c": 0.5}}}} for gate in ("x:One", "x:Other")]
    runs = [Configured({"name": "x:Own"}, {}, **gate) for gate in gates]
    assert named(*runs) == ["x:Own, x:One push c 0.5", "x:Own, x:Other push c 0.5"]


def test_panels_are_named_by_what_differs() -> None:
    panels = [Panel(f"λ = {count}, µ = 4", [], (f"λ = {count}", "µ = 4")) for count in (1, 16)]
    assert different(panels) == ["λ = 1", "λ = 16"]
    assert different(panels[:1]) == ["λ = 1, µ = 4"]
    assert different([Panel("", [])]) == [""]
