"""Every control of a report in a headless browser: what a click on it does, compared with the runs' own numbers."""

import csv
import math
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import fredsim
from fredsim.runs.folder.results import Result, Results
from fredsim.show.plots.groups import flat_config
from fredsim.show.plots.numbers import given
from fredsim.show.report.values import shown
from fredsim.show.tables import Table
from tests.reports import data_in, hovered, opened, rows_in, until

pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")

Command = Callable[..., tuple[int, str, str]]
SWEEP = "sweep={server.name: [asgd, sasgd, fasgd], server.lr: [0.01, 0.1, 0.5], seed: [0, 1]}"
LINES = 9


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    """A sweep of three servers, three rates and two seeds, and its report."""
    folder = tmp_path_factory.mktemp("swept")
    data = {
        "name": "swept", "iterations": 60, "data": {"name": "digits"}, "model": {"hidden": [8]}, "backend": "numpy",
        "clients": {"count": 8, "batch_size": 4}, "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 10},
    }  # fmt: skip
    results = fredsim.sweep(data, [SWEEP], out=folder / "out")
    results.report(folder / "report.html")
    loaded = fredsim.load(folder / "out")
    assert isinstance(loaded, Results)
    return loaded, folder / "report.html"


@pytest.fixture
def runs(swept: tuple[Results, Path]) -> list[Result]:
    return list(swept[0])


Opened = tuple[Any, list[str], list[str]]
#: Takes back what a test has changed, so that all of them have one page.
RESET = """() => {
  clearFilters();
  window.chosen ??= findAll("select").map((one) => one.value);
  findAll("select").forEach((one, at) => {
    one.value = window.chosen[at];
    one.dispatchEvent(new Event("change"));
  });
  for (const one of findAll("input[type=checkbox][name], input[type=radio]")) {
    if (one.defaultChecked && !one.checked || one.type == "checkbox" && one.checked != one.defaultChecked) one.click();
  }
  find("input[name=smooth]").value = 0;
  change({ sort: { column: -1, down: false }, selected: new Set(), folded: new Set(), touched: new Set() });
  showOnly(null);
  useTheme("light");
}"""


@pytest.fixture(scope="module")
def open_page(swept: tuple[Results, Path], browser: Any) -> Opened:
    return opened(browser, swept[1], 1280)


@pytest.fixture
def page(open_page: Opened) -> Iterator[Any]:
    """The report, as it is at first; afterwards nothing must be in the console, and nothing have been asked for."""
    page, said, asked = open_page
    page.mouse.move(2, 2)
    page.evaluate(RESET)
    settled(page)
    yield page
    assert said == []
    assert [one for one in asked if not one.startswith("blob:")] == [page.url]


def column(page: Any, name: str) -> list[str]:
    """Return the texts of a column of the table of runs, as they are shown."""
    names = page.locator("#runs thead tr:first-child th button").all_text_contents()
    return list(page.locator(f"#runs tbody td:nth-child({names.index(name) + 2})").all_text_contents())


def trace_names(page: Any, figure: str = "curves-0", kind: str = "line") -> list[str]:
    """Return the labels of a figure's lines that are drawn."""
    found = page.evaluate(f"document.getElementById('{figure}').data.filter(one => one.meta.is == '{kind}')")
    return [one["meta"].get("label", "") for one in found]


def settled(page: Any) -> None:
    """Wait until all that was asked for is drawn."""
    until(page, "waiting === null")
    page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)))")


def medians(runs: list[Result], column: str, **where: Any) -> list[float]:
    """Return the medians of the runs whose server has these values, row by row."""
    chosen = [run.metrics[column] for run in runs if where.items() <= run.config["server"].items()]
    return [median(values) for values in zip(*chosen, strict=True)]


def four(value: float) -> str:
    return f"{value:.4f}" if value < 1 else f"{value:.3f}"


def test_sorting(page: Any, runs: list[Result]) -> None:
    errors = [run.summary["validation_error"] for run in runs]
    head = page.locator("#runs th", has_text="validation error")
    for wanted, direction in ((sorted(errors), "ascending"), (sorted(errors, reverse=True), "descending")):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == direction
        assert column(page, "validation error") == [four(error) for error in wanted]
    head.locator("button").click()
    assert column(page, "validation error") == [four(error) for error in errors]
    for name in page.locator("#runs thead tr:first-child th button").all_text_contents():  # each of them sorts
        page.locator("#runs thead button", has_text=name).first.click()
        shown = column(page, name)
        numbers = [float(text) for text in shown if text.replace(".", "").isdigit()]
        assert numbers == sorted(numbers)
        if name == "server.name":
            assert shown == sorted(shown)


def test_texts_are_sorted_by_their_numbers(page: Any) -> None:
    """As lines are named, by what a number is and not by its digits; in one order, whatever is compared first."""
    rates = [10, 2, 0.5, 0.1, 0.05, 0.003, 1.5e-5, 1e-5, 0, -2, -10]
    labels = [f"ASGD, α = {given(rate)}, seed {seed}" for rate in rates for seed in (10, 2)]
    wanted = [f"ASGD, α = {given(rate)}, seed {seed}" for rate in sorted(rates) for seed in (2, 10)]
    ordered = "texts => [...texts].sort((a, b) => order(a, b, false))"
    assert page.evaluate(ordered, labels) == page.evaluate(ordered, labels[::-1]) == wanted
    mixed: list[Any] = ["sqrt", "run-10", "run-2", 10, "1.5", 2, 0.5, "nan", "inf", None]
    order: list[Any] = [0.5, 2, 10, "inf", "1.5", "run-2", "run-10", "sqrt", "nan", None]
    assert page.evaluate(ordered, mixed) == page.evaluate(ordered, mixed[::-1]) == order
    assert page.evaluate("['constructor', 'toString'].map(one => [numberOf(one), readNumber(one)])") == [
        ["constructor", None], ["toString", None]
    ]  # fmt: skip


def test_the_page_and_its_scripts_write_numbers_alike(page: Any) -> None:
    values = [
        0.0, 1.0, 60.0, -3.0, 0.15, 0.0016, 0.001573, 0.15625, 0.99996, 999.96, 1234.5, 99999.7,
        123456.7, 1234567.8, 8.601e-5, 1e-5, -2.5e-7, 1e30, 1.25e22, -12.345, 2.302585, 7, 1200,
    ]  # fmt: skip
    texts = page.evaluate("values => values.map(short)", values)
    assert [shown(value) for value in values] == texts
    for value, text in zip(values, texts, strict=True):
        mantissa, _, power = text.replace(",", "").partition("10" if "·" in text or text[:3] in {"10⁻", "10³"} else "x")
        raised = int(power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))) if power else 0
        assert float(mantissa.rstrip("·") or 1) * 10.0**raised == pytest.approx(value, rel=6e-4), text
    assert len({shown(value) for value in (0.00157, 0.001573, 0.00161, 0.0016)}) == 4


def test_what_is_heard_of_the_page(page: Any) -> None:
    """Figures say where their numbers are, groups of buttons and columns what they are; and one run is one."""
    labels = page.evaluate("findAll('.plot[role=img]').map(one => one.ariaLabel)")
    assert labels[:2] == [
        "Curves; the table below has its numbers",
        "Staleness: share of pushes, per update; the table below has its numbers",
    ]
    assert len(labels) == page.locator(".plot").count() == 3
    assert page.evaluate("findAll('[role=radiogroup]').map(one => one.ariaLabel)") == ["y axis", "x axis"]
    assert page.evaluate("findAll('input[type=radio]').every(one => one.closest('[role=radiogroup]'))")
    assert page.locator("th:not([scope=col]):not(:empty)").count() == 0
    assert page.locator("figcaption:empty").count() == 0
    count = page.evaluate("""() => {
      const all = data.table.rows;
      data.table.rows = all.slice(0, 1);
      showSelected();
      const { textContent } = find("#count");
      data.table.rows = all;
      return textContent;
    }""")
    assert count == "1 run"


def test_texts_of_an_axis_do_not_cover_one_another(page: Any) -> None:
    kept = page.evaluate("apart([0, 0.02, 0.06, 0.07, 0.5, 1].map(share => [share]), share => 200 * (1 - share))")
    assert kept == [[0], [0.06], [0.5], [1]]
    places = page.evaluate(
        "findAll('#parallel g').map(one => findAll('text', one).map(text => Number(text.getAttribute('y'))))"
    )
    assert all(low - high >= 11 for axis in places for low, high in pairwise(axis))


def test_filters_search_and_only_these(page: Any, runs: list[Result]) -> None:
    rates = [run.config["server"]["lr"] for run in runs]
    names = [run.config["server"]["name"].upper() for run in runs]
    box = page.get_by_label("filter server.lr")
    for text, wanted in (
        ("0.1", {0.1}), ("<0.1", {0.01}), (">=0.1", {0.1, 0.5}), ("0.05..0.2", {0.1}), ("!0.1", {0.01, 0.5}),
        ("0.01|0.5", {0.01, 0.5}), ("=0.5", {0.5}), ("", {*rates}), (">9", set()),
        ('!"0.1"', {0.01, 0.5}), ('!"0.1"|"0.1"', {*rates}),
    ):  # fmt: skip
        box.fill(text)
        assert column(page, "server.lr") == [str(rate) for rate in rates if rate in wanted], text
        assert box.get_attribute("aria-invalid") == "false"
    for text in ("<a", "!", '"0.1', "0.1..", '"0.1"0.5'):
        box.fill(text)
        assert box.get_attribute("aria-invalid") == "true", text
        assert len(column(page, "server.lr")) == len(runs)
    page.get_by_label("filter server.name").fill("sgd")
    assert column(page, "server.name") == names
    for text, kept in (
        ('!"ASGD"', {"SASGD", "FASGD"}), (' ! "ASGD" ', {"SASGD", "FASGD"}), ('!"ASGD"|"ASGD"', {*names}),
        ('"SASGD"|!sgd', {"SASGD"}), ('!fasgd', {"ASGD", "SASGD"}), ('"ASGD"|fas', {"ASGD", "FASGD"}),
    ):  # fmt: skip
        page.get_by_label("filter server.name").fill(text)
        assert column(page, "server.name") == [name for name in names if name in kept], text
    box.fill("0.5")
    assert page.locator("#count").text_content() == "4 of 18 runs"
    assert len(trace_names(page)) == LINES
    page.get_by_label("only these lines in the figures").check()
    settled(page)
    assert trace_names(page) == ["ASGD, α = 0.5", "FASGD, α = 0.5"]
    page.get_by_text("show all runs").click()
    settled(page)
    assert len(trace_names(page)) == LINES
    for text, value, passes in (
        ('"a|b"', "a|b", True), ('"a|b"', "b", False), ('!"a|b"', "a", True), ('a"b', 'a"b', True),
        ('"a\\"|b"|c', 'a"|b', True), ('"a\\"|b"|c', "b", False), ('"a\\"|b"|c', "c", True), ("!", "a", None),
        ('a"b', "ab", False),
    ):  # fmt: skip
        assert page.evaluate("([text, value]) => filterOf(text, false)?.(value) ?? null", [text, value]) is passes, text
    page.get_by_label("search").fill("1, fasgd")
    assert column(page, "seed") == ["1"] * 3
    assert {*column(page, "server.name")} == {"FASGD"}
    page.get_by_text("show all runs").click()
    assert len(column(page, "seed")) == len(runs)


def test_what_the_table_shows_is_found(page: Any, runs: list[Result]) -> None:
    """Also a number that it rounds, or writes with commas or a power of ten."""
    shown = column(page, "validation error")
    errors = [run.summary["validation_error"] for run in runs]
    box = page.get_by_label("filter validation error")
    rounded = [text for text, error in zip(shown, errors, strict=True) if float(text) != error]
    assert rounded
    for text in {*rounded[:3]}:
        for filtered in (text, f"={text}", f'"{text}"'):
            box.fill(filtered)
            assert column(page, "validation error") == [text] * shown.count(text), filtered
        box.fill(f"!{text}")
        assert column(page, "validation error") == [one for one in shown if one != text]
        box.fill("")
        page.get_by_label("search").fill(text)
        assert text in column(page, "validation error")
        page.get_by_label("search").fill("")
    for text, value, passes in (
        ("1,000", 1000, True), ("1,000", 1000.4, True), (">1,000", 1000.4, True), ("1,00", 100, None),
        ("1,234,567", 1234567, True), ("2·10⁻⁷", 2e-7, True), ("<10⁻⁶", 2e-7, True), ("10⁻", 0.1, None),
        ("1.235·10⁻⁷", 1.23451e-7, True), ("2 × 10⁻⁷", 2e-7, True), ("−2·10⁻⁷", -2e-7, True),
        ("constructor", 1, None), ("0,5", 0.5, None),
    ):  # fmt: skip
        found = page.evaluate("([text, value]) => filterOf(text, true, short)?.(value) ?? null", [text, value])
        assert found is passes, (text, value)


def test_numbers_and_words_in_one_column(page: Any) -> None:
    """What is offered or dragged over keeps exactly these values: 1 is no part of 10."""
    found = page.evaluate("""() => {
      const at = data.table.columns.push({ name: "sd", kind: "own", numeric: false }) - 1;
      const values = [1, 10, "sqrt"];
      data.table.rows.forEach((row, n) => row.push(values[n % 3]));
      const dragged = valuesOf(at).map((_, n) => rangeText(at, scaleOf(at), n / 3, (n + 1) / 3));
      const kept = (text) => values.filter(filterOfColumn(at, text));
      const offered = findAll(`#values-${at} option`, makeHead(data.table.columns)).map((one) => one.value);
      const all = [dragged.map(kept), offered.map(kept)];
      data.table.columns.pop();
      data.table.rows.forEach((row) => row.pop());
      sortedValues.delete(at);
      return all;
    }""")
    assert found == [[[1], [10], ["sqrt"]]] * 2


def test_groups(page: Any, runs: list[Result]) -> None:
    page.get_by_label("group by").select_option(label="server.name")
    heads = page.locator("#runs tr.group")
    assert heads.locator("button").all_text_contents() == ["▾ ASGD (6)", "▾ SASGD (6)", "▾ FASGD (6)"]
    assert page.locator("#runs tbody tr").count() == len(runs) + 3
    of_asgd = [run.summary["validation_error"] for run in runs if run.config["server"]["name"] == "asgd"]
    assert column(page, "validation error")[0] == four(median(of_asgd))
    for _ in range(2):
        heads.first.locator("button").click()
    heads.first.locator("button").click()
    assert heads.first.locator("button").get_attribute("aria-expanded") == "false"
    assert page.locator("#runs tbody tr").count() == len(runs) + 3 - 6
    page.get_by_label("group by").select_option(label="line")
    assert heads.count() == LINES
    page.get_by_label("group by").select_option(label="nothing")
    assert heads.count() == 0


def test_the_csv_is_the_table(page: Any, swept: tuple[Results, Path]) -> None:
    page.get_by_label("filter server.name").fill("fasgd")
    page.locator("#runs thead button", has_text="validation loss").click()
    with page.expect_download() as saved:
        page.get_by_text("download CSV").click()
    found = list(csv.reader(StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
    rows = [row for row in rows_in(swept[1].read_text(encoding="utf-8")) if row["server.name"] == "FASGD"]
    wanted = list(csv.reader(StringIO(Table(sorted(rows, key=lambda row: row["validation loss"])).csv())))
    assert len(wanted) == 7
    assert [[_number(cell) for cell in row] for row in found] == [[_number(cell) for cell in row] for row in wanted]


def test_the_csv_has_the_order_of_groups(page: Any, swept: tuple[Results, Path]) -> None:
    """And no rows of one that is folded; nor are these selected with all that are shown."""
    page.get_by_label("group by").select_option(label="seed")
    page.locator("#runs tr.group button").first.click()
    page.get_by_label("group by").select_option(label="server.lr")
    page.locator("#runs thead button", has_text="validation loss").click()
    page.locator("#runs tr.group button").nth(1).click()
    shown = page.locator("#runs tbody tr:not(.group) td:last-child").all_text_contents()
    with page.expect_download() as saved:
        page.get_by_text("download CSV").click()
    found = list(csv.DictReader(StringIO(Path(saved.value.path()).read_text(encoding="utf-8"))))
    assert [row["digest"] for row in found] == shown
    assert [len([*group]) for _, group in groupby(row["server.lr"] for row in found)] == [6, 6]
    page.get_by_label("select all runs").check()
    rows = rows_in(swept[1].read_text(encoding="utf-8"))
    assert {rows[at]["digest"] for at in page.evaluate("[...state.selected]")} == {*shown}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_cells_are_defused_as_in_other_files(page: Any) -> None:
    for text in ("=1+1", "+a", "-0.5", "@x", " =3", "1e5", "-inf", "a,b", 'a"b', "＝1", "-1_0", "plain", "'=1", "1=1"):
        line = page.evaluate("text => csvOf([0], [[text]]).split('\\n')[1]", text)
        assert line == Table([{"": text}]).csv().splitlines()[1], text
    assert page.evaluate("csvOf([0], [['\\t=2']]).split('\\n')[1]") == "'\t=2"


def test_hover_compares_lines(page: Any, runs: list[Result]) -> None:
    wanted = []
    for name in ("asgd", "sasgd", "fasgd"):
        for rate in (0.01, 0.1, 0.5):
            values = medians(runs, "validation_error", name=name, lr=rate)
            wanted.append((values[3], f"{name.upper()}, α = {rate}"))
    found = hovered(page, "curves-0", 0.5)
    assert "iteration 30" in page.locator("#curves .hover p").text_content()
    assert sorted(found) == sorted((four(value), label) for value, label in wanted)
    assert [value for value, _ in found] == [four(value) for value in sorted(value for value, _ in wanted)]
    strokes = page.locator("#curves .hover line").evaluate_all("all => all.map(one => one.getAttribute('stroke'))")
    drawn = page.evaluate(
        "Object.fromEntries(document.getElementById('curves-0').data.map(one => [one.meta.label, one.line.color]))"
    )
    assert strokes == [drawn[label] for _, label in found]
    page.mouse.move(5, 5)
    page.locator("#curves .hover").wait_for(state="hidden")


def test_smoothing(page: Any, runs: list[Result]) -> None:
    page.locator("input[name=smooth]").fill("0.6")
    settled(page)
    values = medians(runs, "validation_error", name="sasgd", lr=0.1)
    wanted = [
        sum(0.6 ** (at - k) * values[k] for k in range(at + 1)) / sum(0.6 ** (at - k) for k in range(at + 1))
        for at in range(len(values))
    ]
    (trace,) = page.evaluate(
        "document.getElementById('curves-0').data.filter(one => one.meta.label == 'SASGD, α = 0.1')"
    )
    assert trace["y"] == pytest.approx(wanted, rel=1e-5)
    assert page.locator("#smoothed").text_content() == "0.6"


def test_legend_bands_and_selected_runs(page: Any, runs: list[Result]) -> None:
    assert not page.locator("input[name=bands]").is_checked()  # more than six lines
    assert trace_names(page, kind="band") == []
    page.locator("input[name=bands]").check()
    settled(page)
    assert len(trace_names(page, kind="band")) == 2 * LINES
    button = page.locator(".legend button", has_text="SASGD, α = 0.1")
    button.click()
    settled(page)
    assert (len(trace_names(page)), button.get_attribute("aria-pressed")) == (LINES - 1, "false")
    assert "SASGD, α = 0.1" not in trace_names(page, "staleness-0")
    button.click()
    button.dblclick()
    settled(page)
    assert trace_names(page) == trace_names(page, "staleness-0") == ["SASGD, α = 0.1"]
    assert len(trace_names(page, kind="band")) == 2
    button.dblclick()
    settled(page)
    assert len(trace_names(page)) == LINES
    button.focus()
    page.keyboard.press("Shift+Enter")
    settled(page)
    assert trace_names(page) == ["SASGD, α = 0.1"]
    page.get_by_text("show all", exact=True).click()
    settled(page)
    assert len(trace_names(page)) == LINES
    row = page.locator("#runs tbody tr").nth(4)
    row.locator("input").check()
    settled(page)
    label = row.locator("td").nth(1).text_content()
    (trace,) = page.evaluate("document.getElementById('curves-0').data.filter(one => one.meta.is == 'run')")
    assert trace["meta"]["label"] == f"run: {label}"
    assert trace["y"] == pytest.approx(runs[4].metrics["validation_error"].tolist(), rel=1e-5)
    page.get_by_label("select all runs").check()
    settled(page)
    assert len(trace_names(page, kind="run")) == len(runs)


def test_axes_and_colours_of_lines(page: Any) -> None:
    def axis(name: str) -> dict[str, Any]:
        found: dict[str, Any] = page.evaluate(f"document.getElementById('curves-0').layout.{name}")
        return found

    box = page.locator("input[name=log]")
    for y in ("validation_loss", "train_loss", "validation_error"):
        page.locator(f"input[value={y}]").check()
        settled(page)
        span = page.evaluate(f"data.figures['curves-0'].y.{y}.range")
        assert box.is_checked() == (span[1] > 5 * span[2])
        assert (axis("yaxis")["type"] == "log") == box.is_checked()
    for _ in range(2):
        box.click()
        settled(page)
        assert (axis("yaxis")["type"] == "log") == box.is_checked()
    box.check()
    page.locator("input[name=logx]").check()
    settled(page)
    for name in ("xaxis", "yaxis"):
        ticks = axis(name)["tickvals"]
        assert {f"{tick:e}".rstrip("0").partition(".")[0].partition("e")[0] for tick in ticks if tick} <= {
            *"12345678",
            "9",
        }
    first = page.evaluate("document.getElementById('curves-0').data[0]")
    assert (first["x"][0], first["meta"]["x"][0]) == (axis("xaxis")["tickvals"][0], 0)  # it stands at the foot
    assert axis("xaxis")["ticktext"][0] == "0"
    assert math.log10(first["x"][0]) > axis("xaxis")["range"][0]
    hovered(page, "curves-0", 0.03)
    assert "iteration 0" in page.locator("#curves .hover p").text_content()
    page.mouse.move(5, 5)
    page.evaluate("Plotly.relayout('curves-0', { 'xaxis.range': [0, 2] }).then(() => null)")
    assert axis("xaxis")["ticktext"][0] == "0"
    page.locator("input[value=updates]").check()
    settled(page)
    assert axis("xaxis")["title"]["text"] == "update (server timestamp)"
    colours = "document.getElementById('curves-0').data.filter(one => one.meta.is == 'line').map(one => one.line.color)"
    assert page.locator("#colour").input_value() != "-1"  # nine lines: by server
    assert len(set(page.evaluate(colours))) == 3
    page.locator("#colour").select_option(label="server.lr")
    settled(page)
    assert len(set(page.evaluate(colours))) == 3
    page.locator("#colour").select_option(label="line")
    settled(page)
    assert len(set(page.evaluate(colours))) == 8


@pytest.mark.parametrize(("by", "count"), [("run", 18), ("line", LINES), ("server.name", 3)])
def test_no_two_groups_of_a_scatter_look_alike(by: str, count: int, page: Any, runs: list[Result]) -> None:
    """More than eight have other marks, and the key names each of them."""
    assert page.locator("#colour").input_value() != "-1"  # curves are coloured by a key, which lines have in common
    page.locator("#scatter-colour").select_option(label=by)
    settled(page)
    marker = page.evaluate("document.getElementById('scatter').data[0].marker")
    looks = list(zip(marker["color"], marker["symbol"], strict=True))
    of: dict[str, Callable[[Result], Any]] = {"line": line_of, "server.name": lambda run: run.config["server"]["name"]}
    groups = [of[by](run) if by in of else number for number, run in enumerate(runs)]
    assert len({*looks}) == len({*zip(looks, groups, strict=True)}) == count
    entries = page.locator("#scatter-key > span:has(svg)")
    assert entries.count() == count
    script = "all => all.map(one => [one.querySelector('path').getAttribute('fill'), one.textContent])"
    shown = entries.evaluate_all(script)
    assert len({text for _, text in shown}) == count
    assert sorted(fill for fill, _ in shown) == sorted(colour for colour, _ in {*looks})


def line_of(run: Result) -> tuple[Any, ...]:
    return run.config["server"]["name"], run.config["server"]["lr"]


def test_scatter(page: Any, runs: list[Result]) -> None:
    plot = "document.getElementById('scatter')"
    page.locator("#scatter-x").select_option(label="server.lr")
    page.locator("#scatter-y").select_option(label="validation loss")
    page.locator("#scatter-colour").select_option(label="server.name")
    settled(page)
    (trace,) = page.evaluate(f"{plot}.data")
    assert trace["x"] == [run.config["server"]["lr"] for run in runs]
    assert trace["y"] == [run.summary["validation_loss"] for run in runs]
    colours = trace["marker"]["color"]
    assert len({*zip(colours, (run.config["server"]["name"] for run in runs), strict=True)}) == 3 == len({*colours})
    assert page.evaluate(f"{plot}.layout.xaxis.type") == "log"
    page.locator("#scatter-colour").select_option(label="server.lr")
    page.locator("#scatter-x").select_option(label="server.name")
    page.get_by_label("filter seed").fill("1")
    settled(page)
    (trace,) = page.evaluate(f"{plot}.data")
    chosen = [run for run in runs if run.config["seed"] == 1]
    assert trace["x"] == [run.config["server"]["name"].upper() for run in chosen]
    assert len({*zip(trace["marker"]["color"], (run.config["server"]["lr"] for run in chosen), strict=True)}) == 3
    page.locator("#scatter-x").select_option(label="server.lr")
    page.get_by_label("filter server.lr").fill("<0.5")
    settled(page)
    low, high = (10**end for end in page.evaluate(f"{plot}.layout.xaxis.range"))
    assert 0.005 < low < 0.01 < 0.1 < high < 0.2  # of those that are shown
    page.get_by_label("filter server.lr").fill("")
    settled(page)
    page.locator("#scatter .point").first.scroll_into_view_if_needed()
    at = page.locator("#scatter .point").first.bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2 - 3, at["y"] + at["height"] / 2)
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.locator("#explore .hover").wait_for()
    assert page.locator("#explore .hover p").text_content() in column(page, "run")
    until(page, f"{plot}._hoverdata?.length == 1")
    page.mouse.down()
    page.mouse.up()
    until(page, "state.selected.size == 1")


def test_lines_that_coincide_are_drawn_once_and_counted(page: Any) -> None:
    """Staleness follows from who arrives when, and so it is the same for all servers and rates."""
    note = page.locator("figure:has(#staleness-0) .together")
    assert trace_names(page, "staleness-0") == [f"all {LINES} lines coincide"] == [note.text_content()]
    assert note.locator("[title]").get_attribute("title").split("\n") == trace_names(page)
    assert page.locator("figure:has(#curves-0) .together").is_hidden()
    for n, label in enumerate(trace_names(page)[:-2], start=1):
        page.locator(".legend button", has_text=label).first.click()
        settled(page)
        left = LINES - n
        assert note.text_content() == ("both lines coincide" if left == 2 else f"all {left} lines coincide")


def test_parallel_coordinates(page: Any, runs: list[Result]) -> None:
    lines = page.locator("#parallel path.run")
    assert lines.count() == len(runs)
    axes = page.locator("#parallel .name").all_text_contents()
    assert axes == ["server.name", "server.lr", "validation error"]
    area = page.locator("#parallel .area").last
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] - 1, steps=4)
    page.mouse.up()
    settled(page)
    low, high = map(float, page.get_by_label("filter validation error").input_value().split(".."))
    errors = [run.summary["validation_error"] for run in runs]
    assert low == min(errors)  # with all its digits, so that the best run is within
    inside = [error for error in errors if low <= error <= high]
    assert 0 < len(inside) < len(errors)
    assert column(page, "validation error") == [four(error) for error in inside]
    assert page.locator("#parallel path.run:not(.out)").count() == len(inside)
    page.locator("#parallel .area").last.dblclick()
    settled(page)
    assert page.locator("#parallel path.run:not(.out)").count() == len(errors)
    first = page.locator("#parallel .area").first
    box = first.bounding_box()
    page.mouse.move(box["x"] + 14, box["y"] + box["height"] - 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 14, box["y"] + box["height"] * 0.7, steps=4)
    page.mouse.up()
    settled(page)
    assert {*column(page, "server.name")} == {"ASGD"}


def test_a_part_of_an_axis_has_the_runs_that_lie_in_it(page: Any) -> None:
    """Whatever is rounded: what lies in the part passes, and what is off by 1 % of the axis does not."""
    shares = [n / 7 for n in range(8)]
    found = page.evaluate(
        """shares => data.table.columns.flatMap(({ numeric }, at) => numeric && spanOf(at) ? [at] : []).map((at) => {
          const scale = scaleOf(at);
          const rows = [...data.runs.keys()].map((row) => data.table.rows[row][at]);
          return shares.flatMap((low) => shares.filter((high) => high > low).map((high) => {
            const passes = filterOf(rangeText(at, scale, low, high), true);
            return [low, high, rows.map((value) => [scale.share(value), passes(value)])];
          }));
        })""",
        shares,
    )
    assert len(found) == 5
    for low, high, rows in (part for column in found for part in column):
        for share, passes in rows:
            assert passes or not low <= share <= high, (low, high, share)
            assert not passes or low - 0.01 <= share <= high + 0.01, (low, high, share)


def test_the_keyboard_stays_where_it_is(page: Any) -> None:
    """A key does what a second press of it takes back, without looking for the control again."""
    page.locator("#runs tbody input").nth(3).focus()
    for wanted in (True, False, True):
        page.keyboard.press("Space")
        assert page.locator("#runs tbody input").nth(3).is_checked() is wanted
        assert page.locator("#runs tbody tr").nth(3).get_attribute("class") == ("selected" if wanted else "")
        assert page.locator("#count").text_content() == f"18 runs{', 1 selected' if wanted else ''}"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.evaluate("[...state.selected]") == [3, 4]
    page.get_by_label("group by").select_option(label="server.lr")
    group = page.locator("#runs tr.group button").nth(1)
    group.focus()
    for expanded in ("false", "true", "false"):
        page.keyboard.press("Enter")
        assert group.get_attribute("aria-expanded") == expanded
        assert page.locator("[aria-expanded=false]").count() == int(expanded == "false")
    page.keyboard.press("Tab")  # the next group
    page.keyboard.press("Tab")
    page.keyboard.press("Space")  # its first run
    assert page.evaluate("[...state.selected]") == [3]
    page.get_by_label("group by").select_option(label="nothing")
    assert page.locator("#runs tr.selected input").evaluate_all("all => all.map(one => one.dataset.row)") == ["3"]
    page.locator(".legend button").first.focus()
    page.keyboard.press("Shift+Enter")
    page.locator(".legend .every").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.line") == trace_names(page)[0]


def test_two_configurations(page: Any, runs: list[Result]) -> None:
    page.locator("#run-first").select_option(index=0)
    page.locator("#run-second").select_option(index=17)
    table = page.locator("#difference tr.differs")
    assert [row.locator("td").all_text_contents() for row in table.all()] == [
        ["server.name", "ASGD", "FASGD"], ["server.lr", "0.01", "0.5"], ["seed", "0", "1"]
    ]  # fmt: skip
    for row in (0, 1):  # two that are selected are compared
        page.locator(f"#runs input[data-row='{row}']").check()
    assert [row.locator("td").all_text_contents() for row in table.all()] == [["seed", "0", "1"]]
    ended = page.locator("#difference tr.ended", has_text="validation error").locator("td").all_text_contents()
    assert ended[1:] == [four(run.summary["validation_error"]) for run in runs[:2]]


def test_dark_mode(page: Any, swept: tuple[Results, Path], browser: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    paper = "document.getElementById('curves-0').layout.paper_bgcolor"
    assert (page.evaluate(ground), page.evaluate(paper)) == ("rgb(255, 255, 255)", "#FFFFFF")
    light = page.evaluate("document.getElementById('curves-0').data.map(one => one.line.color)")
    page.get_by_text("dark mode").click()
    settled(page)
    assert (page.evaluate(ground), page.evaluate(paper)) == ("rgb(20, 22, 26)", "#14161A")
    dark = page.evaluate("document.getElementById('curves-0').data.map(one => one.line.color)")
    assert not {*light} & {*dark}
    assert page.locator("#theme").get_attribute("aria-pressed") == "true"
    page.get_by_text("dark mode").click()
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    other, said, _ = opened(browser, swept[1], 390, color_scheme="dark")
    assert (other.evaluate(ground), said) == ("rgb(20, 22, 26)", [])
    assert other.evaluate("document.documentElement.scrollWidth") == 390
    other.emulate_media(color_scheme="light")
    until(other, f"{ground} == 'rgb(255, 255, 255)'")


def test_every_control_has_a_name_and_is_reached(page: Any) -> None:
    controls = "[...document.querySelectorAll('button, input, select, summary')].filter(one => one.checkVisibility())"
    nameless = "!(one.textContent.trim() || one.ariaLabel || one.labels?.length)"
    assert page.evaluate(f"{controls}.filter(one => {nameless}).map(one => one.outerHTML)") == []
    assert page.evaluate(f"{controls}.filter(one => one.tabIndex < 0).length") == 0
    for title in page.locator(".parts button:not(#theme)").all_text_contents():
        page.locator(".parts").get_by_text(title, exact=True).click()
        assert page.locator("section h2", has_text=title).first.is_visible()
    texts = page.locator("#configuration details")
    texts.nth(1).locator("summary").click()
    assert "lr: 0.01" in texts.nth(1).locator("pre").text_content()
    page.evaluate("useTheme('dark')")
    settled(page)
    looks = """['curves-0', 'staleness-0', 'scatter'].map((id) => document.getElementById(id)._fullLayout)
      .map((layout) => [layout.width, layout.paper_bgcolor, layout.font.color])"""
    assert {ground for _, ground, _ in page.evaluate(looks)} == {"#14161A"}
    # No frame is painted between the event and the paper.
    found = page.evaluate(f"() => {{ window.dispatchEvent(new Event('beforeprint')); return {looks}; }}")
    assert found == [[640, "#FFFFFF", "#1B1B1B"]] * 3
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    until(page, "document.getElementById('curves-0')._fullLayout.width != 640")
    settled(page)
    assert {ground for _, ground, _ in page.evaluate(looks)} == {"#14161A"}


def test_who_won(swept: tuple[Results, Path], runs: list[Result]) -> None:
    ends: dict[str, list[float]] = {}
    for run in runs:
        server = run.config["server"]
        ends.setdefault(f"{server['name'].upper()}, α = {server['lr']}", []).append(run.summary["validation_error"])
    order = sorted(ends, key=lambda name: median(ends[name]))
    text = swept[1].read_text(encoding="utf-8")
    assert f'<p class="verdict">{order[0]} won: its final validation error is {median(ends[order[0]]):#.4g}' in text
    won = sum((a < b) + (a == b) / 2 for a in ends[order[0]] for b in ends[order[1]])
    how = "all 4 pairs of runs, as by chance alone once in 6." if won == 4 else f"{won:g} of 4 pairs of runs, so chance"
    assert f"It is ahead in {how}" in text
    assert data_in(text)["won"] == [{"panel": 0, "line": order[0]}]
    assert math.isclose(median(ends[order[0]]), min(map(median, ends.values())))


@pytest.fixture(scope="module")
def cliffs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Result], Path]:
    """Runs whose energy, of which less is better, becomes negative; of one line, half diverge, ahead of the others."""
    folder = tmp_path_factory.mktemp("cliffs")
    data = {
        "name": "cliffs", "iterations": 12, "problem": {"name": "tests.own_problems:Cliff"}, "clients": {"count": 2},
        "server": {"name": "asgd", "lr": 0.25}, "evaluation": {"every": 1},
        "sweep": {"problem.edge": [-1.5, -100.0], "server.lr": [0.25, 0.5], "seed": [0, 1, 2, 3]},
    }  # fmt: skip
    results = fredsim.run(data, out=folder / "out")
    assert isinstance(results, Results)
    results.report(folder / "report.html")
    return list(results), folder / "report.html"


@pytest.fixture(scope="module")
def open_cliffs(cliffs: tuple[list[Result], Path], browser: Any) -> Opened:
    return opened(browser, cliffs[1], 1280)


@pytest.fixture
def cliff(open_cliffs: Opened) -> Iterator[Any]:
    page, said, _ = open_cliffs
    page.evaluate(RESET)
    settled(page)
    yield page
    assert said == []


def test_runs_that_diverged_are_the_worst(cliff: Any, cliffs: tuple[list[Result], Path]) -> None:
    runs, _ = cliffs
    assert {run.config["seed"] for run in runs if run.has_diverged} == {0, 1}
    some = [run for run in runs if run.config["problem"]["edge"] == -1.5]
    assert min(some, key=lambda run: float(run.summary["metrics"]["energy"])).has_diverged
    cliff.get_by_label("filter problem.edge").fill("-1.5")
    least = min(run.summary["metrics"]["energy"] for run in some if not run.has_diverged)
    best = cliff.locator("#runs td.best").all_text_contents()
    assert best == [f"{value:#.4g}" for value in (least, 6 - least, least - 6)]
    cliff.get_by_label("filter problem.edge").fill("")
    for key, group in (("line", ("problem.edge", "server.lr")), ("server.lr", ("server.lr",)), ("seed", ("seed",))):
        cliff.get_by_label("group by").select_option(label=key)
        for name, worst in (("energy", math.inf), ("profit", -math.inf), ("debt", math.inf)):
            values: dict[tuple[Any, ...], list[float]] = {}
            for run in runs:
                flat = flat_config(run)
                value = worst if run.has_diverged else run.summary["metrics"][name]
                values.setdefault(tuple(flat[one] for one in group), []).append(value)
            wanted = [f"{median(some):#.4g}" if math.isfinite(median(some)) else "–" for some in values.values()]
            assert wanted.count("–") == (key == "line"), key
            assert group_cells(cliff, name) == wanted, (key, name)
        costs: dict[tuple[Any, ...], list[Result]] = {}
        for run in runs:
            costs.setdefault(tuple(flat_config(run)[one] for one in group), []).append(run)
        lasting = [[run for run in some if not run.has_diverged] or some for some in costs.values()]
        wanted = [f"{median(run.summary['iterations'] for run in some):g}" for some in lasting]
        assert group_cells(cliff, "iterations") == wanted, key


def group_cells(page: Any, name: str) -> list[str]:
    """Return the texts of the rows of groups in a column of the table of runs."""
    at = page.locator("#runs thead tr:first-child th").all_text_contents().index(name)
    return list(page.locator(f"#runs tr.group td:nth-child({at + 1})").all_text_contents())


def test_where_values_are_negative(cliff: Any, cliffs: tuple[list[Result], Path]) -> None:
    """No axis is logarithmic at first, nor that of what is the better, the more it is; 0 is not what is below it."""
    text = cliffs[1].read_text(encoding="utf-8")
    least, largest, above = data_in(text)["figures"]["curves-0"]["y"]["energy"]["range"]
    assert least < 0 < 5 * above < largest
    box = cliff.locator("input[name=log]")
    assert not box.is_checked()
    spans = {y: cliff.evaluate(f"data.figures['curves-0'].y.{y}.range") for y in ("energy", "profit")}
    assert spans["profit"][1] > 5 * spans["profit"][2] > 0
    for y in ("profit", "energy"):
        cliff.locator(f"input[value={y}]").check()
        settled(cliff)
        assert not box.is_checked(), y
        assert cliff.evaluate("document.getElementById('curves-0').layout.yaxis.type") != "log"
    cliff.locator("input[value=debt]").check()
    for log in (False, True):  # of which nothing can be shown on a logarithmic axis
        box.set_checked(log)
        settled(cliff)
        low, high = cliff.evaluate("document.getElementById('curves-0').layout.yaxis.range")
        every = [value for run in cliffs[0] for value in run.metrics["debt"] if math.isfinite(value)]
        assert low < min(every) < max(every) < high < 0, log
    cliff.locator("input[value=energy]").check()
    settled(cliff)
    assert cliff.evaluate("document.getElementById('curves-0').layout.yaxis.ticktext")[0] == "≤ 0"
    cliff.locator("#scatter-y").select_option(label="debt")
    cliff.locator("#scatter-colour").select_option(label="debt")
    settled(cliff)
    debts = [run.summary["metrics"]["debt"] for run in cliffs[0]]
    assert max(debts) < 0
    low, high = cliff.evaluate("document.getElementById('scatter').layout.yaxis.range")
    assert low < min(debts) < max(debts) < high < 0
    colours = cliff.evaluate("document.getElementById('scatter').data[0].marker.color")
    assert len({*colours}) == len({*debts})


def test_a_selected_run_stays_in_the_figure(page: Any, runs: list[Result]) -> None:
    """Without bands, the y axis spans the medians; and the runs that are drawn."""
    for run in range(len(runs)):
        page.evaluate(f"select({run})")
    settled(page)
    box = page.locator("input[name=log]")
    box.check()
    settled(page)
    low, high = page.evaluate("document.getElementById('curves-0').layout.yaxis.range.map((end) => 10 ** end)")
    drawn = [value for run in runs for value in run.metrics["validation_error"]]
    assert low < min(drawn) < max(drawn) < high


def test_what_coincides_is_said_once(page: Any) -> None:
    """Of lines that have several traces; and not of a single point, which is no line."""
    said = page.evaluate("""() => {
      const lines = [["a", "b"], ["a", "b"], ["c", "d"], ["e", "f"]].map((labels, at) => ({
        y: at === 3 ? [1, null] : [1, 2], line: { color: "#000000", dash: "solid" },
        meta: { is: "line", labels, label: labels.join() },
      }));
      const box = make("div", {}, make("div"));
      noteTogether(box.firstChild, lines);
      return findAll(".together span[title]", box).map((one) => one.textContent);
    }""")
    assert said == ["a,b", "c,d"]


MANY = ["asgd", "sasgd", "fasgd", "bfasgd", "adagrad", "adam", "rmsprop", "nadam", "sync", "ternary_sync"]


def test_more_values_than_colours_have_dashes(browser: Any, tmp_path: Path) -> None:
    """Each line has a look of its own, at first and where lines are coloured by a key of so many values."""
    data = {
        "name": "many", "iterations": 4, "data": {"name": "digits"}, "model": {"hidden": []}, "backend": "numpy",
        "clients": {"count": 2, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.01}, "evaluation": {"every": 2},
    }  # fmt: skip
    results = fredsim.sweep(data, [f"sweep={{server.name: [{', '.join(MANY)}]}}"], out=tmp_path / "out")
    assert not results.failures
    results.report(tmp_path / "report.html")
    page, said, asked = opened(browser, tmp_path / "report.html", 1280)
    look = "one => [one.getAttribute('stroke'), one.getAttribute('stroke-dasharray')].join()"
    for choice in (None, "server.name"):
        if choice is not None:
            page.locator("#colour").select_option(label=choice)
        looks = page.evaluate(f"findAll('.legend .mark line').map({look})")
        assert len(looks) == len({*looks}) == len(MANY)
        drawn = "one => [one.line.color, one.line.dash].join()"
        lines = "document.getElementById('curves-0').data.filter(({ meta }) => meta.is === 'line')"
        until(page, f"new Set({lines}.map({drawn})).size === {lines}.length")
        assert page.evaluate(f"{lines}.length") > 1  # some coincide
    page.close()
    assert not said
    assert asked == [(tmp_path / "report.html").absolute().as_uri()]


LARGE = """
import numpy as np

class Large:
    def __init__(self, label=""):
        pass

    def initial(self, rng):
        return np.ones(20_000, np.float32)

    def gradient(self, params, draw):
        return params

    def evaluate(self, params):
        return {"loss": float(params[0])}
"""


@pytest.mark.usefixtures("small_yaml")
def test_formulas_and_large_numbers_are_texts(browser: Any) -> None:
    """On every axis of the scatter; and nothing is in the console, as the page's policy stops nothing."""
    Path("large.py").write_text(LARGE, encoding="utf-8")
    data = {
        "name": "texts", "iterations": 4, "problem": {"name": "large:Large"}, "clients": {"count": 2},
        "server": {"name": "asgd", "lr": 0.1}, "evaluation": {"every": 2},
    }  # fmt: skip
    results = fredsim.sweep(
        data, [f"sweep={{problem.label: ['$x_1$', '<b>', {'a' * 40}<{'z' * 40}], iterations: [2, 4]}}"], out="out"
    )
    assert not results.failures
    results.report("report.html")
    page, said, _ = opened(browser, Path("report.html"), 1280)
    found = {}
    for axis, column in (("x", "problem.label"), ("y", "bytes pushed")):
        page.locator(f"#scatter-{axis}").select_option(label=column)
        settled(page)
        found[axis] = page.evaluate(f"findAll('#scatter .{axis}tick text').map((one) => one.textContent)")
    assert {*found["x"]} == {"$x_1$", "<b>", f"{'a' * 12}…{'z' * 12}"}  # a long one would leave no room
    numbers = sorted(float(text.replace("\u2212", "-")) for text in found["y"])
    assert len(numbers) > 2
    sizes = [run.summary["bytes_pushed"] for run in results]
    assert 0.9 * min(sizes) < numbers[0] < numbers[-1] < 1.1 * max(sizes)
    page.close()
    assert not said
