"""The page of `fredsim report`: what stands in it, that it is the same again, and what a browser makes of it."""

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.runs.folder.results import Results
from tests.bad_results import results
from tests.odd_texts import BAD, PLACES, forge
from tests.reports import data_in, hovered, opened, rows_in, unpacked, until

go = pytest.importorskip("plotly.graph_objects", reason="plotly is not installed: pip install .[report]")

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]

HEADING = """\
# Does a <b> gate cost accuracy? {{plotly}}
#
# A second
# paragraph.
"""
PICKY = """\
if self.lr == 0.3:
    raise ValueError("0.3 is </script> too much")
"""


@pytest.fixture
def sweep(small_yaml: Path, digits_experiment: dict[str, Any], command: Command) -> Results:
    """A recorded sweep with gates, a probe, published points, several seeds and a run that diverged."""
    changes = {
        "dispatcher": {"push": {"every": 2}},
        "server": {"name": "fasgd", "lr": 0.1},
        "evaluation": {"every": 10},
        "probe": {"every": 5},
        "published": {"source": "A </script> & B", "series": [{"where": {"server.lr": 0.1}, "points": [[40, 0.5]]}]},
        "sweep": {"server.lr": [0.1, 1.0e30], "clients.count": [8, 4], "seed": [0, 1, 2]},
    }
    small_yaml.write_text(HEADING + dump_yaml(digits_experiment | changes), encoding="utf-8")
    assert command("run", small_yaml, "--quiet", "--out", "sweep") == (0, "", "")
    results = fredsim.load("sweep")
    assert isinstance(results, Results)
    return results


def test_what_stands_in_it(sweep: Results, command: Command) -> None:
    assert command("report", "sweep", "-o", "report.html") == (0, "report.html\n", "")
    page = Path("report.html").read_text(encoding="utf-8")
    assert '<p class="question">Does a &lt;b&gt; gate cost accuracy? {{plotly}}</p><p>A second\nparagraph.</p>' in page
    assert "12 runs: 6 finished, 6 diverged." in page
    assert "<td>server.lr</td><td>0.1, 1e+30</td>" in page
    data = data_in(page)
    for run in sweep:
        assert f"<td>{run.summary['digest']}</td>" in page
        assert f"<td>{run.folder.name}</td>" in page
        assert (run.folder / "config.yaml").read_text(encoding="utf-8") in dict(map(reversed, data["texts"]))
    assert [title.partition(",")[0] for title, _ in data["texts"]] == ["the sweep", *["FASGD"] * 12]
    assert '<p class="caption">Lines: medians of runs; bands: their smallest and largest. Medians count' in page
    assert "Circles: published (A &lt;/script&gt; &amp; B)." in page
    assert re.findall(r'name="x" value="(.*?)>', page) == ['iterations" checked', 'updates"', 'bytes"']
    for key, column in {"staleness": "95 %", "copies": "of potential pushes", "probe": "rank by staleness"}.items():
        assert f">{column}</th>" in page.partition(f'<section id="{key}">')[2].partition("</section>")[0], key
    assert "<td>numerics</td><td>portable</td>" in page
    assert unpacked(page, "plotly").count("* plotly.js v") == 1
    assert [
        tag for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page) if "src" in tag or "href" in tag
    ] == []
    figures = data["figures"]
    counts = Counter(name.partition("-")[0] for name in figures)
    assert counts == {"curves": 2, "staleness": 2, "copies": 4, "probe": 4}
    low, high, middle = (trace["y"] for trace in figures["probe-0"]["data"][:3])
    assert len(middle) > 1
    assert all(least <= between <= most for least, between, most in zip(low, middle, high, strict=True))
    assert low != middle != high
    all_pass = [trace for trace in figures["copies-0"]["data"] if trace["meta"]["is"] == "all"]
    assert [(trace["x"], trace["y"]) for trace in all_pass] == [([0, 50], [0, 50])]  # pushes of 50 iterations
    for figure in figures.values():
        for trace in figure["data"]:
            go.Scatter({key: value for key, value in trace.items() if key not in {"x", "y"}})  # knows every attribute


def test_curves_are_medians_and_bands(sweep: Results, command: Command) -> None:
    assert command("report", "sweep", "-o", "report.html")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<figcaption>λ = 8, µ = 3</figcaption>" in page
    figure = data_in(page)["figures"]["curves-0"]
    low, high, middle, published = (trace for trace in figure["data"] if trace["legendgroup"] == "FASGD, α = 0.1")
    runs = [run.metrics for run in sweep if run.config["server"]["lr"] == 0.1 and run.config["clients"]["count"] == 8]
    assert len(runs) == 3
    for y in ("validation_error", "validation_loss", "train_loss"):
        rows = [sorted(values) for values in zip(*(run[y] for run in runs), strict=True)]
        if y == "train_loss":
            rows = rows[1:]
        columns = [list(column) for column in zip(*rows, strict=True)]
        for trace, column in zip((low, middle, high), columns, strict=True):
            assert trace["y"][y][-len(rows) :] == pytest.approx(column, rel=1e-5)  # six digits
    assert middle["x"]["iterations"] == runs[0]["iteration"].tolist()
    pushed_and_fetched = zip(*(run["bytes_pushed"] + run["bytes_fetched"] for run in runs), strict=True)
    assert middle["x"]["bytes"] == [sorted(row)[1] for row in pushed_and_fetched]
    assert (published["x"], published["y"]) == ({"iterations": [40.0]}, {"validation_error": [0.5]})
    crosses = [trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == "x"]
    assert len(crosses) == 3
    errors = [0.5, *(error for run in sweep for error in run.metrics["validation_error"])]
    assert figure["y"]["validation_error"]["range"] == [min(errors), max(errors), min(errors)]  # and the least above 0


def test_the_same_runs_give_the_same_bytes(sweep: Results, small_yaml: Path, command: Command) -> None:
    assert command("report", "sweep", "-o", "one.html")[0] == 0
    assert command("run", small_yaml, "--quiet", "--jobs", 2, "--out", "again/sweep") == (0, "", "")
    assert command("report", "again/sweep", "-o", "deeper/two.html")[0] == 0
    assert Path("one.html").read_bytes() == Path("deeper/two.html").read_bytes()
    del sweep


def test_one_run_and_one_that_failed(
    small_yaml: Path, own_server: OwnServer, command: Command, refused: Refused
) -> None:
    assert command("run", small_yaml, "--quiet", "--out", "single") == (0, "", "")
    assert command("report", "single") == (0, "report.html\n", "")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<h1>small</h1><p>1 run: 1 finished.</p></header>" in page
    assert list(data_in(page)["figures"]) == ["curves-0", "staleness-0"]
    Path("own_picky.py").write_text(own_server(PICKY, "Picky"), encoding="utf-8")
    own = ("run", small_yaml, "server.name=own_picky:Picky")
    command(*own, "sweep={server.lr: [0.1, 0.3]}", "--quiet", "--out", "sweep")
    assert command("report", "sweep", "single", "-o", "two.html")[0] == 0
    page = Path("two.html").read_text(encoding="utf-8")
    assert "3 runs: 2 finished, 1 failed." in page
    assert [row["error"] for row in rows_in(page)].count(None) == 2
    assert "0.3 is </script> too much" in str(rows_in(page))
    assert "</script> too much" not in page
    command(*own, "sweep={server.lr: [0.3]}", "--quiet", "--out", "hopeless")
    refused("report", "hopeless", says=("hopeless: all its runs failed; hopeless/runs.csv says why",))


def test_runs_that_did_not_end(small_yaml: Path, command: Command) -> None:
    """A report says how many a sweep lacks; and marks one that was interrupted, which is not the best of a table."""

    def stop(row: dict[str, Any]) -> None:
        if "seed=2" in row["run"] and row["iteration"] == 20:
            raise ValueError("enough")

    words = ["backend=numpy", "evaluation.every=20"]
    with pytest.raises(ValueError, match="enough"):
        fredsim.sweep(small_yaml, [*words, "sweep={seed: [0, 1, 2, 3]}"], out="out", on_row=stop)
    note = "note: out: runs of the sweep that did not end (2) are not shown; --resume does them\n"
    for folders in (("out",), ("out", "out")):
        code, _, messages = command("report", *folders, "-o", "report.html")
        assert (code, messages.count(note), messages.count("not shown")) == (0, 1, 1)
        page = Path("report.html").read_text(encoding="utf-8")
        assert "<p>2 runs: 2 finished. Runs that did not end (2) are not shown.</p>" in page
        assert "Runs that were interrupted" not in page
        assert [title for title, _ in data_in(page)["texts"]].count("the sweep, with its overrides") == 1
    fredsim.run(small_yaml, words, out="single")
    (stopped,) = Path("out").glob("seed=2*")
    assert command("report", "single", stopped, "-o", "report.html") == (0, "report.html\n", "")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "<p>2 runs: 1 finished, 1 interrupted.</p>" in page
    assert "Runs that were interrupted (1) count by what they had then." in page
    assert data_in(page)["table"]["interrupted"] == [1]


def test_the_opening_comment_stays_with_the_results(small_yaml: Path, command: Command) -> None:
    text = small_yaml.read_text(encoding="utf-8")
    words = ("run", small_yaml, "--quiet", "--out")
    small_yaml.write_text(f"# Why?\n{text}# no heading\n", encoding="utf-8")
    for out, sweep in (("single", "sweep=null"), ("sweep", "sweep={seed: [0, 1]}")):
        assert command(*words, out, sweep) == (0, "", "")
        kept = Path(out, "config.yaml" if out == "single" else "sweep.yaml")
        assert kept.read_text(encoding="utf-8").startswith("# Why?\nname: small\n")
    small_yaml.write_text(f"# Why, indeed?\n{text}", encoding="utf-8")  # is the same experiment
    assert command(*words, "sweep", "sweep={seed: [0, 1]}", "--resume") == (0, "", "")
    assert command(*words, "single") == (0, "", "")
    assert command("verify", "single")[0] == 0


def test_what_is_refused(small_yaml: Path, command: Command, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("report", "nowhere", says=("nowhere: is no folder",))
    command("run", small_yaml, "--quiet", "--out", "single")
    refused("report", "single", "--by", "server.rl", says=("'server.rl' is no key", "did you mean 'server.lr'?"))
    refused("report", "single", "-o", "single/config.yaml/report.html", says=("report.html: cannot be written",))
    refused("report", "single", "-o", "single.PDF", says=("single.PDF: a report is a page of HTML", "ends in .html"))
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    refused("report", "single", says=("needs plotly", 'pip install -c constraints.txt -e ".[report]"'))
    assert not Path("report.html").exists()


def test_in_a_browser(sweep: Results, command: Command, browser: Any) -> None:
    assert command("report", "sweep", "-o", "report.html")[0] == 0
    page, said, asked = opened(browser, Path("report.html"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390  # nothing is wider than a phone
    rows = page.locator("#runs tbody tr")
    assert rows.count() == len(sweep)
    assert rows.first.is_visible()
    assert [run.summary["digest"][:12] for run in sweep] == page.locator("#runs tbody td:last-child").all_inner_texts()

    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title ?? one.ariaLabel)")
    assert len(buttons) > 3
    assert [text for text in buttons if re.search("share|cloud|plotly|edit", text, re.IGNORECASE)] == []

    def lines(figure: str) -> int:
        return int(page.locator(f"#{figure} .scatterlayer .trace").count())

    passed = hovered(page, "copies-0", 0.5)  # of each run, once for those that have the same
    assert 0 < len(passed) == len({*passed}) <= 3
    before = {figure: lines(figure) for figure in ("curves-0", "curves-1", "probe-0")}
    button = page.locator(".legend button", has_text="FASGD, α = 0.1")
    button.click()
    until(page, f"document.querySelectorAll('#curves-1 .scatterlayer .trace').length < {before['curves-1']}")
    assert {figure: before[figure] - lines(figure) for figure in before} == {"curves-0": 4, "curves-1": 4, "probe-0": 3}
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    until(page, f"document.querySelectorAll('#curves-1 .scatterlayer .trace').length == {before['curves-1']}")

    page.locator("input[value=bytes]").check()
    page.locator("input[value=validation_loss]").check()
    until(page, "document.querySelector('#curves-0 .ytitle').textContent == 'validation loss (nats)'")
    assert page.locator("#curves-0 .xtitle").text_content() == "bytes pushed and fetched"
    page.locator("input[name=log]").check()
    until(page, "document.getElementById('curves-0').layout.yaxis.type == 'log'")
    assert said == []
    with page.expect_download() as saved:  # which makes an image of the figure
        page.locator("#curves-0 .modebar-btn").first.click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    assert said == []
    assert [one for one in asked if not one.startswith(("data:", "blob:"))] == [page.url]


#: What runs, or looks otherwise, if a browser or plotly.js takes a text for more than that.
ATTACKS = (
    f"<script>{BAD}</script>", f"<img src=x onerror={BAD}>", f'"><svg onload={BAD}>', f"' onmouseover='{BAD}' x='",
    f"</script><script>{BAD}</script>", f"</style></title></pre><script>{BAD}</script>", "<b>bold</b><br>",
    f"<a href=javascript:{BAD}>x</a>", f"<iframe srcdoc='<script>parent.{BAD[7:]}</script>'></iframe>", "<!--",
    "<style>*{display:none}</style>", "<base href=//example.com><form action=//example.com>",
    "<link rel=stylesheet href=//example.com/x.css>", "<meta http-equiv=refresh content='0;url=//example.com'>",
    "{{plotly}}{{figures}}", "&lt;&#60;", "%{x}<extra></extra>",
)  # fmt: skip
UNKNOWN = "iframe, img, a, base, form, link, meta[http-equiv=refresh], [onload], [onerror], [onmouseover]"


def test_hostile_folders_in_a_browser(
    tmp_path: Path, command: Command, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text of a folder is only shown, wherever it stands: no script but the page's own runs, nothing is asked."""
    monkeypatch.chdir(tmp_path)
    folders = [Path(f"{number} {attack.replace('/', '')[:100]}") for number, attack in enumerate(ATTACKS)]
    for number, (attack, folder) in enumerate(zip(ATTACKS, folders, strict=True)):
        folder.mkdir()
        for file, content in results()["one"].items():
            (folder / file).write_bytes(
                content.replace(b",1.0,0,0", b",0.%d,0,0" % (900 + number))
            )  # no curves coincide
        for place in PLACES:
            if place not in {"status", "metrics"}:  # which are refused
                forge(folder, [place], f"{attack}, {place}")
    code, _, messages = command("report", *folders, "-o", "report.html")
    assert code == 0, messages
    page, said, asked = opened(browser, Path("report.html"))
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    until(page, "document.querySelectorAll('#configuration details:not(:has(pre))').length == 0")
    shown = "".join(page.locator("body").inner_text().split())
    for attack in ATTACKS:
        for place in ("name", "published", "heading", "processor", "machine", "git", "server", "versions"):
            assert "".join(f"{attack}, {place}".split()) in shown, place
    assert page.locator(UNKNOWN).count() == 0
    labels = hovered(page, "curves-0", 0.5)  # the box beside the pointer
    assert len(labels) > 5
    assert [one for _, one in labels if any(f"{attack}," in one for attack in ATTACKS)] == [one for _, one in labels]
    assert page.locator(UNKNOWN).count() == 0
    for button in page.locator(".legend button").all()[:3]:
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
    buttons = page.locator(".modebar-btn").evaluate_all("all => all.map(one => one.dataset.title ?? one.ariaLabel)")
    assert [text for text in buttons if re.search("share|cloud|edit", text, re.IGNORECASE)] == []
    assert page.evaluate("window.__pwned") is None
    assert (said, asked) == ([], [page.url])


def test_a_metric_that_is_no_name_is_refused(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    for file, content in results()["one"].items():
        Path("a", file).write_bytes(content)
    forge(Path("a"), ["metrics"], ATTACKS[0])
    code, _, messages = command("report", "a", "-o", "report.html")
    assert (code, messages.count("\n")) == (2, 1)
    assert f"a/summary.json: is damaged (metrics has '{ATTACKS[0]}" in messages


def test_only_the_pages_own_code_runs(sweep: Results, command: Command, browser: Any) -> None:
    """Its Content-Security-Policy stops what would stand in it by a mistake."""
    del sweep
    assert command("report", "sweep", "-o", "report.html")[0] == 0
    path = Path("report.html")
    text = path.read_text(encoding="utf-8")
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert len(policy) == 1
    assert re.search("unsafe|eval|http|\\*", policy[0]) is None
    assert policy[0].startswith("default-src 'none'; script-src 'sha256-")
    path.write_text(text.replace("<main>", f"<main><script>{BAD}</script><svg onload={BAD}>"), encoding="utf-8")
    page, said, asked = opened(browser, path)
    assert page.evaluate("window.__pwned") is None
    assert page.evaluate("document.styleSheets.length") == 2  # the page's, and the one to which plotly.js adds rules
    assert len([line for line in said if "Content Security Policy" in line]) == 2
    assert asked == [page.url]
