"""The HTML page of a report: its sections, with plotly.js, the data and the page's own scripts embedded."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fredsim.config.document import Document, read_document
from fredsim.errors import ConfigError, OutputError, how_to_install
from fredsim.runs.folder.results import Result, load
from fredsim.show.distinct import distinct
from fredsim.show.escaping import escape_html
from fredsim.show.plots.groups import group
from fredsim.show.report import parts
from fredsim.show.report.compression import packed, packed_json
from fredsim.show.report.data import Given, data_of, lines_of
from fredsim.show.report.sections import sections
from fredsim.system.files import write_atomic, write_errors

__all__ = ["report"]

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
    read or the file cannot be written.
    """
    program = _plotly()
    results: list[Result] = []
    failures: list[tuple[str, str]] = []
    headings: dict[str, None] = {}
    sweeps: list[Document] = []
    for folder in folders:
        loaded = load(folder)
        if isinstance(loaded, Result):
            results.append(loaded)
        else:
            results += loaded
            failures += loaded.failures
        document = read_document(folder / ("config.yaml" if isinstance(loaded, Result) else "sweep.yaml"))
        headings[document.heading] = None
        sweeps += [] if isinstance(loaded, Result) else [document]
    if not results:
        raise OutputError(f"{folders[0]}: all its runs failed; {folders[0] / 'runs.csv'} says why")
    results = distinct(results)
    panels = group(results, by, panel)
    given = Given(results, failures, list(filter(None, headings)), sweeps, panels, several=len(folders) > 1)
    text = _page(given, program, log=log)
    with write_errors(path, "choose another place for it"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)


def _plotly() -> str:
    """Return the text of plotly.js. Raises ConfigError if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ConfigError(
            f"fredsim report needs plotly, which cannot be imported ({error}); {how_to_install('report')}"
        ) from None
    return parsed_once(str(get_plotlyjs()))


def parsed_once(program: str) -> str:
    """Return plotly.js with parentheses around the function that it is: a browser then parses it once, not twice.

    Without them it reads the function to its end, as one that may never be called, and again when it is called. A
    program of another form is returned as it is.
    """
    return PROGRAM.sub(r"\1(\2)\3", program)


def _page(given: Given, program: str, *, log: bool) -> str:
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
        "facts": parts.facts(given.results, given.failures),
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
