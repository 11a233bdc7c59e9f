"""Makes a figure: its panels, caption and file. The other modules of this package draw the contents of the panels."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from itertools import compress
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from fredsim.config.document import flatten, has_key, value_at
from fredsim.config.experiment import with_defaults
from fredsim.config.figures.options import KINDS, Y, is_wanted, option_problems
from fredsim.errors import ConfigError, OutputError, nearest, on_command_line, option, visible
from fredsim.runs.folder.results import Result, Results
from fredsim.show.distinct import alike
from fredsim.show.plots.direction import add_direction
from fredsim.show.plots.drawing import BEST_FIRST, Drawing, Kind, Options, available_y, default_y, in_nats
from fredsim.show.plots.groups import Panel, by_run, group, single_panel
from fredsim.show.plots.kinds.timeline import trace
from fredsim.show.plots.legends import Words, add_legend, avoid_overlap, put_below_title
from fredsim.show.plots.styles import SHOWN, WIDEST, Style, cut_lines, style_of, take_literally
from fredsim.show.plots.titles.answers import MOST_WINS, shortened
from fredsim.show.plots.titles.subjects import Subject, coloured, subject_of
from fredsim.show.plots.words import head, said, spoken, value_name
from fredsim.show.tables import Table
from fredsim.system.files import replacing, write_errors

__all__ = ["Options", "draw", "plot"]

FORMATS = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}
TRACE = ".json"  # the suffix of a timeline's trace file
LETTERS_PER_INCH = 20  # of the caption
TITLE_LETTERS = 11.5  # letters of the title per inch
LINE_OF_TITLE = 1.2  # the distance of its lines, as a multiple of its size
HEAD_LETTERS = 15.5  # letters of a panel's title per inch
HEAD_LINE = 0.16  # the height of a line of it, in inches
LABELS = 0.5  # the width of the labels on the left of the panels, in inches
EDGE = 0.08  # where the title begins, in inches
ALONE = 6.4  # the width, in inches, of a figure with one panel in a row; with two it is WIDEST


class ShownFigure(Figure):
    """A figure that a notebook shows, whatever matplotlib's backend."""

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        with _without_warnings():
            self.savefig(content, format="png")
        return content.getvalue()


def plot(
    results: Sequence[Result],
    path: Path,
    kind: str = "curves",
    options: Options | None = None,
    names: Sequence[str] | None = None,
) -> Drawing:
    """Write a figure of recorded runs to a PDF, SVG or PNG file, or a timeline to a JSON trace file; see `draw`.

    Returns the caption and tables. Raises OutputError also for another suffix or a file that cannot be written.
    """
    formats = [*FORMATS, *([TRACE] if kind == "timeline" else [])]
    if path.suffix not in formats:
        raise OutputError(f"{path}: unknown suffix '{path.suffix}'; choose {', '.join(formats)}")
    if path.suffix == TRACE:
        panels, options, _ = _prepared(results, kind, options or Options(), names)
        return trace(panels, path, options)
    figure, drawing = draw(results, kind, options, names)
    with _settings(style_of(options or Options())), write_errors(path, "choose another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            figure.savefig(file, format=path.suffix[1:], metadata=FORMATS[path.suffix])
    return drawing


@contextmanager
def _settings(style: Style) -> Iterator[None]:
    """Within the `with` block, let matplotlib have its default settings and those of a style, and no others.

    It reads a file `matplotlibrc` in the current folder, which may be somebody else's, and by which it may run LaTeX.
    """
    with mpl.rc_context(), _without_warnings():
        with warnings.catch_warnings(action="ignore"):  # of settings that will be removed
            mpl.rcParams.update({key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"})
        mpl.rcParams.update(style.rc)
        yield


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Let a letter of a name that the font lacks be an empty box, and no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")
        yield


def _prepared(
    results: Sequence[Result], kind: str, options: Options, names: Sequence[str] | None
) -> tuple[list[Panel], Options, Kind]:
    """Return the panels of a figure of those runs that the options select, the options, which are checked, and KIND."""
    results = select_runs(results, options)
    options = _checked(results, kind, options)
    found: Kind = import_module(f"fredsim.show.plots.kinds.{kind}").KIND
    if names is not None:
        panels = [single_panel(results, names)]
    elif found.panel_per_run:
        panels = by_run(results)
    else:
        one = found.axes and not found.columns
        panels = group(results, options.by, [] if one else options.panel, options.axis, found.panels, found.shows)
    return panels, options, found


def draw(
    results: Sequence[Result],
    kind: str = "curves",
    options: Options | None = None,
    names: Sequence[str] | None = None,
) -> tuple[Figure, Drawing]:
    """Draw a figure of recorded runs; return it with its caption and tables.

    `names`: names of the runs, each of which is a line in a single panel; None: runs are grouped, and named by what
    differs. A row has two panels, or one if the figure is for one column of a paper. Raises ConfigError for a kind,
    column or key that does not exist, OutputError if results cannot be read.
    """
    panels, options, found = _prepared(results, kind, options or Options(), names)
    subject = subject_of(panels)
    panels = coloured(panels, subject)
    style = style_of(options)
    count = found.axes or len(panels)
    columns = 1 if found.panel_per_run else min(count, style.columns)
    rows = -(-count // columns)
    with _settings(style):
        width = style.width or (ALONE if columns == 1 and not found.panel_per_run else WIDEST)
        size = width, style.alone if rows == 1 else style.row * rows
        figure = ShownFigure(figsize=size, dpi=style.dpi, layout="constrained")
        grid = figure.subplots(rows, columns, sharex=found.shared, sharey=found.shared, squeeze=False)
        drawing = found.draw(list(grid.flat[:count]), panels, options)
        drawing = replace(drawing, tables=[_named(table, options.axis or "") for table in drawing.tables])
        for empty in grid.flat[count:]:
            empty.set_visible(False)
        shown = list(grid.flat[:count])
        if found.shared:
            _share_labels(shown, columns)
        heads = [] if found.axes else [head(panel.title) for panel in panels]
        _write_heads(figure, shown, heads, style)
        take_literally(figure)
        place = "beside" if found.axes or found.beside else "inside"
        texts = {label: drawing.merged.get(label, text) for label, text in subject.entries.items()}
        words = _words(subject, texts, drawing, len(panels))
        if not drawing.named and not add_legend(figure, shown, drawing.published, place, style, words):
            note = "There are too many lines to name; --by says which runs to take together."
            drawing = replace(drawing, caption=f"{drawing.caption} {note}")
        if text := next(filter(None, (alike(line.runs) for panel in panels for line in panel.lines)), ""):
            drawing = replace(drawing, caption=f"{drawing.caption} {text[0].upper()}{text[1:]}.")
        if options.caption:
            _add_caption(figure, drawing.caption, options.command)
        _add_title(figure, options, drawing, style)
        avoid_overlap(figure, shown, drawing.published, style, words)
        put_below_title(figure)
        _write_heads(figure, shown, heads, style)  # a legend beside the panels takes room from them
        if drawing.better and not options.style:
            add_direction(shown, drawing.better)
    return figure, drawing


def _share_labels(grid: Sequence[Axes], columns: int) -> None:
    """Leave out the labels of axes that the panel below, or the one on the left, has, too."""
    for number, axes in enumerate(grid):
        below = number < len(grid) - columns
        axes.tick_params(labelbottom=not below)
        if below:
            axes.set_xlabel("")
        if number % columns:
            axes.set_ylabel("")


def _write_heads(figure: Figure, grid: Sequence[Axes], heads: Sequence[str], style: Style) -> None:
    """Write the titles of panels in lines that leave room to the next panel, and make the figure high enough."""
    spec = grid[0].get_subplotspec()
    rows, columns = spec.get_geometry()[:2] if spec is not None else (1, 1)
    beside = sum(legend.get_window_extent().width for legend in figure.legends) if style.width is None else 0.0
    letters = int(HEAD_LETTERS * (figure.get_figwidth() - beside / figure.dpi - LABELS) / columns)
    before = max(axes.get_title().count("\n") for axes in grid)
    for axes, text in zip(grid, heads, strict=False):
        axes.set_title(cut_lines(visible(text, SHOWN), letters))
    more = max(axes.get_title().count("\n") for axes in grid) - before
    figure.set_figheight(figure.get_figheight() + rows * more * HEAD_LINE)


def _named(table: Table, axis: str) -> Table:
    """Return a table with what the figure calls its lines, its panels and the words of its x axis, which is a key."""
    columns: dict[str, Callable[[str], str]] = {"line": said, "of": said, "panel": head}
    columns[axis] = lambda text: spoken(value_name(axis, text))
    names: dict[str, dict[str, str]] = {}
    for name, called in columns.items():
        names[name] = {row[name]: called(row[name]) for row in table.rows if isinstance(row.get(name), str)}
    return replace(table, names=names)


def _add_title(figure: Figure, options: Options, drawing: Drawing, style: Style) -> None:
    """Write the title: the one that the options give, else for a page of results the question; below it the answer.

    A style of papers has no answer. A title that is given is the only text that may have formulas.
    """
    if options.style:
        figure.suptitle(visible(options.title, "\n"), fontsize=style.title)
        return
    letters, place = int(TITLE_LETTERS * figure.get_figwidth()), EDGE / figure.get_figwidth()
    lines = visible(options.title, "\n").split("\n") if options.title else []
    lines = lines or balanced(visible(drawing.question, SHOWN), letters)
    if not lines:
        return
    answer, room = visible(drawing.answer, SHOWN), int(1.25 * letters)
    answer = shortened(answer, room)
    text = "\n".join([*lines, *(" " for _ in answer.splitlines())])
    title = figure.suptitle(text, x=place, fontsize=style.title, fontweight="bold", ha="left")
    if not options.title:
        take_literally(title)
    if answer:  # in the room of the last, empty lines
        pad = figure.get_layout_engine().get()["h_pad"]  # type: ignore[union-attr]  # where the layout puts titles
        below = pad + (len(lines) * LINE_OF_TITLE + 0.2) * style.title / 72
        at = figure.transFigure + ScaledTranslation(EDGE, -below, figure.dpi_scale_trans)  # however high it becomes
        size = style.title - 1
        line = figure.text(0, 1, answer, va="top", ha="left", fontsize=size, color="0.25", transform=at)
        line.set_in_layout(False)
        take_literally(line)


def balanced(text: str, letters: int) -> list[str]:
    """Return a text in as few lines of up to so many letters as possible, of about the same length."""
    lines = textwrap.wrap(text, letters)
    width = letters
    while width > 1 and len(shorter := textwrap.wrap(text, width - 1)) == len(lines) > 1:
        lines, width = shorter, width - 1
    return lines


def _words(subject: Subject, names: dict[str, str], drawing: Drawing, panels: int) -> Words:
    """Return the legend's words; the lines of a sweep are in its order, others in that of the results."""
    title = drawing.heading or subject.title
    if subject.values or drawing.heading or len(drawing.order) < 2:
        return Words(title, names)
    first = drawing.first if drawing.answer else ""
    if first and panels > 1:
        first = MOST_WINS if first == BEST_FIRST else f"{first} by mean rank"
    if drawing.answer:
        names = names | {label: f"{names.get(label, label)} (not compared)" for label in drawing.apart}
    return Words(f"{title} ({first})" if title and first else title or first, names, drawing.order)


def _add_caption(figure: Figure, caption: str, command: str) -> None:
    """Write the caption, and the command that makes the figure, below the figure."""
    parts = [caption, f"$ {command}" if command else ""]
    width = int(LETTERS_PER_INCH * figure.get_figwidth())
    text = "\n".join(line for part in parts for line in textwrap.wrap(part, width))
    take_literally(figure.supxlabel(text, x=0.01, ha="left", fontsize=6.5, color="0.35"))


def select_runs(results: Sequence[Result], options: Options) -> Sequence[Result]:
    """Return the runs that `where` and `best` select. Raises ConfigError or OutputError if there are none."""
    every = [flatten(with_defaults(run.config)) for run in results] if options.where else []
    for key, wanted in options.where.items():
        if not any(has_key(one, key) for one in every):
            known = dict.fromkeys(name for one in every for name in one)
            raise ConfigError(f"{option('where')}: no run has a key '{key}'{nearest(key, known)}")
        values = [value_at(one, key) for one in every]
        chosen = [is_wanted(value, wanted) for value in values]
        results, every = list(compress(results, chosen)), list(compress(every, chosen))
        if not results:
            some = wanted if isinstance(wanted, list) else [wanted]
            shown = ", ".join(map(str, some)), ", ".join(dict.fromkeys(map(str, values)))
            raise ConfigError(f"{option('where')}: {key} is {shown[0]} in no run (known: {shown[1]})")
    if not options.best:
        return results
    names = {folder: {*Results(folder).chosen} for folder in {run.folder.parent for run in results}}
    found = [run for run in results if run.folder.name in names[run.folder.parent]]
    if not found:
        raise OutputError(
            f"{option('best')}: `select` chose none of {', '.join(str(run.folder) for run in results[:3])}"
        )
    return found


def _checked(results: Sequence[Result], kind: str, options: Options) -> Options:
    """Return the options; if runs have no error, y becomes the gap, on a logarithmic axis, or else the loss.

    Raises ConfigError if they are not valid for this kind of figure, or if a run lacks what they name.
    """
    recorded: list[str] = []
    if options.y not in Y:
        columns = dict.fromkeys(name for run in results for name in run.metrics.select_dtypes("number").columns)
        recorded = [name for name in columns if name not in {"iteration", "timestamp"}]
    if problem := next(option_problems(kind, options, recorded), None):
        name, text = problem
        raise ConfigError(f"{option(name)}: {text}")
    for run in results if options.x == "seconds" else ():
        if not run.timed:
            remedy = "give its experiment `dispatcher: {name: clock}`, or choose iterations, updates or bytes"
            raise ConfigError(f"{option('x')} is 'seconds', and {run.folder} has no clock; {remedy}")
    if "y" not in KINDS[kind].takes:
        return options
    options = replace(options, nats=in_nats(results))
    if options.y == "validation_error" and (y := default_y(results)) != options.y:
        options = replace(options, y=y, log=True if options.log is None and y == "gap" else options.log)
    if options.log is None and any(run.larger_is_better(options.y) for run in results):
        options = replace(options, log=False)  # what counts is near the largest value
    for run in results:
        if options.y not in run.metrics:
            rest = f" (all runs have: {', '.join(available_y(results))})"
            if options.y not in Y:  # some run has it
                such = (
                    "--where server.name=mymodule:Plain"
                    if on_command_line()
                    else "where={'server.name': 'mymodule:Plain'}"
                )
                rest = f"; {option('where')} draws those that have, such as {such}"
            raise ConfigError(f"{option('y')}: is '{options.y}', which {run.folder} has not recorded{rest}")
    if options.y not in Y and not any(run.metrics[options.y].notna().any() for run in results):
        what = f"is '{options.y}', which is nan in every row of these runs"
        raise ConfigError(f"{option('y')}: {what} (they have values of: {', '.join(available_y(results))})")
    return options
