"""The HTML page of a report: its sections, with plotly.js, the data and the page's own scripts embedded."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fredsim.config.document import Document, read_document
from fredsim.errors import OutputError, needs
from fredsim.runs.folder.results import Result, load, nothing_ended
from fredsim.show.distinct import distinct
from fredsim.show.escaping import escape_html
from fredsim.show.lacking import did_not_end, unended
from fredsim.show.plots.groups import group
from fredsim.show.report import parts
from fredsim.show.report.compression import packed, packed_json
from fredsim.show.report.data import Given, data_of, lines_of
from fredsim.show.report.sections import sections
from fredsim.show.terminal import say
from fredsim.system.files import write_atomic, write_errors
from fredsim.system.given import real_path

__all__ = ["report"]

#: How names of other kinds of files end, which somebody may expect a report to be.
OTHERS = (".pdf", ".png", ".svg", ".md", ".csv", ".json", ".ipynb", ".docx")
#: The page's own scripts, in their order. They are one script, whose SHA-256 the page's policy has.
SCRIPTS = ("page", "legend", "ticks", "figures", "hover", "filters", "runs", "explore", "parallel")
#: How plotly.js begins and ends: it is a function, the last argument of the one that calls it.
PROGRAM = re.compile(r"(\A(?s:.{,1000}?), )(\(\) => \{\n(?s:.*)\})(\)\);\s*)\Z")
#: Where plotly.js adds a style for its maps, unless there is an element with this id.
STYLES = re.compile(r'document\.getElementById\("([0-9a-f]{64})"\)')


def report(
    folders: Sequence[Path],
    path: Path,
    by: Sequence[str] | None = None,
    panel: Sequence[str] | None = None,
    *,
    log: bool = False,
) -> None:
    """Write a report of the runs and sweeps in some folders to an HTML file.

    `by` and `panel` are dotted keys of the experiments (fredsim.show.plots.groups); `log`: the y axis of curves is
    logarithmic at first. Raises ConfigError if plotly is missing or no run has a key, OutputError if results cannot be
    read, or the file cannot be written or has the name of something else.
    """
    if path.suffix.lower() in OTHERS:
        raise OutputError(f"{path}: a report is a page of HTML; give a name that ends in .html")
    program = _plotly()
    results: list[Result] = []
    failures: list[tuple[str, str]] = []
    headings: dict[str, None] = {}
    sweeps: list[Document] = []
    left: dict[Path, tuple[Path, int]] = {}  # by the true path of a sweep: its folder, and how many runs did not end
    for folder in folders:
        loaded = load(folder)
        document = read_document(folder / ("config.yaml" if isinstance(loaded, Result) else "sweep.yaml"))
        headings[document.heading] = None
        if isinstance(loaded, Result):
            results.append(loaded)
            continue
        results += loaded
        if real_path(folder) not in left:  # otherwise it is named twice
            failures += loaded.failures
            sweeps.append(document)
            left[real_path(folder)] = (folder, unended(document, len(loaded) + len(loaded.failures)))
    if not results:
        raise nothing_ended(folders[0])
    results = distinct(results)
    panels = group(results, by, panel)
    drawn = {id(run) for one in panels for run in one.runs}
    shown = [run for run in results if id(run) in drawn]  # each of the others has the bits of one of these
    given = Given(shown, failures, list(filter(None, headings)), sweeps, panels, several=len(folders) > 1)
    text = _page(given, _left_out(list(left.values()), len(results) - len(shown)), program, log=log)
    with write_errors(path, "choose another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)


def _left_out(left: Sequence[tuple[Path, int]], again: int) -> list[str]:
    """Return the sentences about runs that are not shown; print which sweeps have some that did not end."""
    notes = []
    for folder, count in left:
        if count:
            say(f"note: {folder}: {did_not_end(count, 'shown')}", err=True)
    if total := sum(count for _, count in left):
        notes.append(f"Runs that did not end ({total:,}) are not shown.")
    if again:
        notes.append(f"Runs that are one of these again, say on another backend ({again:,}), are not shown.")
    return notes


def _plotly() -> str:
    """Return the text of plotly.js. Raises ConfigError if plotly is not installed."""
    with needs("fredsim report", "plotly", "report"):
        from plotly.offline import get_plotlyjs
    return parsed_once(str(get_plotlyjs()))


def parsed_once(program: str) -> str:
    """Return plotly.js with parentheses around the function that it is: a browser then parses it once, not twice.

    Without them it reads the function to its end, as one that may never be called, and again when it is called. A
    program of another form is returned as it is.
    """
    return PROGRAM.sub(r"\1(\2)\3", program)


def _page(given: Given, notes: Sequence[str], program: str, *, log: bool) -> str:
    names = ", ".join(dict.fromkeys(result.config["name"] for result in given.results))
    found = list(sections(given.panels))
    style, start, own = _file("page.css"), _file("start.js"), "".join(_file(f"{name}.js") for name in SCRIPTS)
    lines = lines_of(given.panels)
    contents = {
        "policy": _policy(scripts=(start, program, own), styles=(style, "")),
        "title": escape_html(names),
        "style": style,
        "start": start,
        "question": parts.question(names, given.headings),
        "facts": parts.facts(given.results, given.failures, notes),
        "winner": parts.winner(given.panels),
        "sections": "".join(parts.section_html(section, len(lines), log=log) for section in found),
        "provenance": parts.provenance(given.results),
        "unused": "".join(f'<template id="{name}"></template>' for name in dict.fromkeys(STYLES.findall(program))),
        "plotly": packed(program),
        "data": packed_json(data_of(given, found, lines)),
        "program": own,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: contents[place[1]], _file("page.html"))


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Return the Content-Security-Policy of the page: nothing but these scripts and styles, and images of its own.

    A browser compares the SHA-256 of each element's text. The styles have "", since plotly.js makes an empty element,
    to which it adds rules one by one. Images are those that plotly.js makes to save a figure.
    """

    def sources(texts: Sequence[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {sources(scripts)}; style-src {sources(styles)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return resources.files("fredsim.show.report").joinpath("assets", name).read_text(encoding="utf-8")
