"""What goes into a paper: figures for one column and for both, and tables in LaTeX."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from fredsim.config.document import dump_yaml
from fredsim.show.escaping import escape_latex
from fredsim.show.tables import Table

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
KEYS = [
    "server.name",
    "data.name",
    "clients.sampling",
    "dispatcher.name",
    "model.init",
    "clients.batch_size",
    "clients.local_steps",
]
LONG = [word for key in KEYS for word in ("--by", key)]  # more than a column holds in one line
WIDTHS = {"column": 3.35, "page": 6.9}
KINDS = ["curves", "ends", "staleness", "waits", "timeline", "matrix", "copies"]


@pytest.fixture
def sweep(
    recorded: Callable[..., object], small_yaml: Path, digits_experiment: dict[str, Any], command: Command
) -> Path:
    """Recorded runs of eight strategies."""
    names = ["asgd", "sasgd", "fasgd", "dcasgd", "gap_aware", "delay_adaptive", "adam", "momentum"]
    changes = {
        "iterations": 30,
        "evaluation": {"every": 10},
        "events": True,
        "dispatcher": {"name": "clock"},
        "sweep": {"server": [{"name": name, "lr": 0.01} for name in names]},
    }
    small_yaml.write_text(dump_yaml(digits_experiment | changes), encoding="utf-8")

    def run(folder: Path) -> None:
        assert command("run", small_yaml, "--quiet", "--out", folder) == (0, "", "")

    recorded("runs", run)
    return Path("runs")


@pytest.mark.parametrize("style", WIDTHS)
def test_a_figure_is_as_wide_as_a_column(style: str, sweep: Path, command: Command, drawn: list[Figure]) -> None:
    for kind in KINDS:
        some = sorted(sweep.glob("server=*"))[:2] if kind == "timeline" else [sweep]
        options = {"curves": LONG, "matrix": ["--reach", "0.5"]}.get(kind, [])
        words = [*some, "-o", f"{kind}.png", "--kind", kind, "--style", style, *options]
        assert command("plot", *words)[0] == 0
        figure = drawn[-1]
        assert figure.get_figwidth() == WIDTHS[style]
        assert imread(f"{kind}.png").shape[1] == 300 * WIDTHS[style]
        figure.draw_without_rendering()
        box, tight = figure.bbox_inches, figure.get_tightbbox()
        edge = 0.02  # inches that an overhang of a letter may have
        assert min(tight.x0, tight.y0) >= -edge  # nothing is cut off
        assert (tight.x1 <= box.x1 + edge, tight.y1 <= box.y1 + edge) == (True, True)
        for legend in figure.legends:
            foot = legend.get_window_extent().y0
            assert all(axes.get_window_extent().y1 < foot for axes in figure.axes)
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
        assert {text.get_fontsize() for text in texts} <= {6.0, 6.5, 7.0, 7.5, 8.0}
        panels = 2 if style == "page" else 1
        assert min(axes.get_window_extent().width for axes in figure.axes) > 0.4 * figure.bbox.width / panels
        assert figure.get_supxlabel() == ""  # the caption stands in the paper
    (legend,) = drawn[0].legends  # of names whose parts are all alike, but for the server's
    names = {name for text in legend.get_texts() for name in text.get_text().replace("\n", " ").split(" and ")}
    assert {"SASGD", "FASGD", "Adam", "Momentum"} <= names
    assert "digits" in legend.get_title().get_text() or style == "column"


def test_the_caption_of_a_figure_for_a_paper(sweep: Path, command: Command, drawn: list[Figure]) -> None:
    for words in (["--style", "column", "--caption"], [], ["--no-caption"]):
        assert command("plot", sweep, "-o", "error.png", "--kind", "staleness", *words)[0] == 0
    texts = [figure.get_supxlabel() for figure in drawn]
    assert [bool(text) for text in texts] == [True, True, False]
    assert "$ fredsim plot runs --kind staleness --style column --caption" in texts[0].replace("\n", " ")


def test_figures_of_an_experiment(small_yaml: Path, command: Command, refused: Refused) -> None:
    figures = "figures=[{name: rates, style: column, latex: true}, {name: error}]"
    assert command("run", small_yaml, figures, "--out", "out")[0] == 0
    written = {path.name for path in Path("out").iterdir()}
    wanted = {"rates.pdf", "rates-table.tex", "rates-table.md", "error.png", "error-table.md", "error-table.csv"}
    assert wanted <= written
    assert not {"rates.png", "error-table.tex"} & written
    for word in ("style: column", "latex: true"):
        assert Path("out/config.yaml").read_text(encoding="utf-8").count(word) == 1
    width = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", Path("out/rates.pdf").read_bytes())
    assert width is not None
    assert float(width[1]) == pytest.approx(72 * 3.35)
    before = Path("out/rates.pdf").read_bytes()
    assert command("plot", "out")[0] == 0
    assert Path("out/rates.pdf").read_bytes() == before
    refused("plot", "out", "-o", "a.pdf", "--style", "colum", says=["--style: is 'colum'; did you mean 'column'?"])
    refused("show", small_yaml, "figures=[{name: a, style: wide}]", says=["figures.0.style: is 'wide'"])


def unescaped(text: str) -> str:
    """Return what LaTeX sets, by its rules."""
    names = {"lambda": "λ", "mu": "µ", "tau": "τ", "alpha": "α", "Vert": "‖", "nabla": "∇", "times": "×", "infty": "∞"}
    text = re.sub(r"\\ensuremath\{\\(\w+)\}", lambda found: names[found[1]], text)
    text = re.sub(r"\$(-?)([^$]*)\$", lambda found: f"{found[1]}{found[2]}".replace("{,}", ","), text)
    text = re.sub(r" \\times 10\^\{(-?\d+)\}", lambda found: f"e{int(found[1]):+03}", text).replace(r"\infty", "inf")
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textbar": "|"}
    words |= {"textbraceleft": "{", "textbraceright": "}"}
    text = re.sub(r"\\(text\w+)\{\}", lambda found: words[found[1]], text)
    text = re.sub(r"\{([\[\]*])\}", r"\1", text)
    return re.sub(r"\\([$&#_%])", r"\1", text).replace("--", "–")


def test_a_table_in_latex_says_what_the_one_in_markdown_does(sweep: Path, command: Command) -> None:
    assert command("plot", sweep, "-o", "error.png", "--reach", 0.5, "--latex")[0] == 0
    text = Path("error-table.tex").read_text(encoding="utf-8")
    page = Path("error-table.md").read_text(encoding="utf-8")
    head, *lines = text.split("\\toprule\n")[1].replace("\\bottomrule\n\\end{tabular}\n", "").splitlines()
    shown = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("|")]
    assert lines.pop(0) == "\\midrule"
    cells = [[unescaped(cell) for cell in line.removesuffix(" \\\\").split(" & ")] for line in [head, *lines]]
    assert cells == [shown[0], *shown[2:]]
    assert "\\begin{tabular}{l" + "r" * (len(shown[0]) - 1) + "}\n" in text
    assert text.startswith("% $ fredsim plot runs -o error.png --reach 0.5 --latex\n% Validation error against")


def test_what_a_cell_may_hold() -> None:
    nasty = "a_b & 50 % of {x} [y] * #1 ~ ^ \\ < | $5, λ = 4, µ, τ, ‖∇‖"
    row = {"w_x": nasty, "n": -0.25, "e": -1.25e-7, "big": 12345.0, "none": None, "inf": float("inf"), "count": 12345}
    text = Table([row]).latex()
    assert text.isascii()
    line = text.splitlines()[4].removesuffix(" \\\\")
    cells = re.split(r" (?<!\\)& ", line)
    assert cells[1:] == [
        "$-0.25$".replace("0.25", "0.2500"),
        r"$-1.25 \times 10^{-7}$",
        "12,345",
        "--",
        r"$\infty$",
        "12,345",
    ]
    assert unescaped(cells[0].replace("\\$5", "§5")).replace("§", "$") == nasty
    assert escape_latex("½") == r"\ensuremath{\frac{1}{2}}"
