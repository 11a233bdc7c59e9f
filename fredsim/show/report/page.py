"""The HTML page of a report: its sections, with plotly.js, the figures' data and page.js embedded."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from fredsim.config.document import Document, read_document
from fredsim.config.figure_options import X, Y
from fredsim.errors import ConfigError, OutputError, how_to_install
from fredsim.runs.results import Result, load
from fredsim.show.distinct import distinct, note_alike
from fredsim.show.escaping import escape_html
from fredsim.show.plots.groups import Panel, differences, group, labels
from fredsim.show.report.sections import Section, sections
from fredsim.show.tables import Table, short
from fredsim.system.files import write_atomic, write_errors

__all__ = ["report"]

VALUES = 8  # the most values that are listed for a key in which the runs differ
RUN_COLUMNS = (
    "status", "iterations", "updates", "time", "validation_loss", "validation_error", "test_error", "bytes_pushed",
    "bytes_fetched", "gap",
)  # fmt: skip
PROVENANCE = ("backend", "device", "numerics", "path", "path_why", "machine", "processor", "git", "data")
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
    note_alike(results)
    panels = group(results, by, panel)
    text = _page(results, failures, list(filter(None, headings)), sweeps, panels, program, log=log)
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
    return str(get_plotlyjs())


def _page(
    results: Sequence[Result],
    failures: Sequence[tuple[str, str]],
    headings: Iterable[str],
    sweeps: Sequence[Document],
    panels: Sequence[Panel],
    program: str,
    *,
    log: bool,
) -> str:
    names = ", ".join(dict.fromkeys(result.config["name"] for result in results))
    found = list(sections(panels))
    drawn = {f"{section.key}-{n}": figure for section in found for n, figure in enumerate(section.figures)}
    data = json.dumps(drawn, allow_nan=False, separators=(",", ":"))
    style, own = _file("page.css"), _file("page.js")
    parts = {
        "policy": _policy(scripts=(program, own), styles=(style, "")),
        "title": escape_html(names),
        "style": style,
        "question": _question(names, headings),
        "facts": _facts(results, failures),
        "runs": _runs(results, failures),
        "legend": _legend(panels),
        "sections": "".join(_section(section, log=log) for section in found),
        "configuration": _configuration(results, sweeps),
        "provenance": _provenance(results),
        "unused": "".join(f'<template id="{name}"></template>' for name in dict.fromkeys(STYLES.findall(program))),
        "plotly": program,
        "figures": data.replace("<", "\\u003c"),  # a label may contain </script>
        "program": own,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


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
    return resources.files("fredsim.show.report").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section, *, log: bool) -> str:
    controls = _controls(section, log=log) if section.key == "curves" else ""
    plots = "".join(
        f"<figure><figcaption>{escape_html(figure['panel'])}</figcaption>"
        f'<div class="plot" id="{section.key}-{n}"></div></figure>'
        for n, figure in enumerate(section.figures)
    )
    return (
        f'<section id="{section.key}"><h2>{section.title}</h2>{controls}<div class="figures">{plots}</div>'
        f'<p class="caption">{escape_html(section.caption)}</p>{_table(section.table)}</section>\n'
    )


def _controls(section: Section, *, log: bool) -> str:
    """Return the controls: choices of y and of x, with the section's first ones selected, and of the scale."""
    groups = []
    for name, known, offered in (("y", Y, section.y), ("x", X, section.x)):
        choices, first = [one for one in known if one in offered], offered[0]
        buttons = "".join(
            f'<label><input type="radio" name="{name}" value="{choice}"{" checked" if choice == first else ""}>'
            f"{choice.replace('_', ' ')}</label>"
            for choice in choices
        )
        groups.append(f'<span class="choice">{buttons}</span>')
    checked = " checked" if log else ""
    box = f'<label class="choice"><input type="checkbox" name="log"{checked}>logarithmic</label>'
    return f'<p class="controls">{" against ".join(groups)} {box}</p>'


def _question(names: str, headings: Iterable[str]) -> str:
    """Return the name, and the comments above the experiments: a line, then paragraphs."""
    parts = [f"<h1>{escape_html(names)}</h1>"]
    for heading in headings:
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in heading.splitlines())
        first, *rest = (part.strip() for part in text.replace("\n", "\n\n", 1).split("\n\n"))
        parts.append(f'<p class="question">{escape_html(first)}</p>')
        parts += [f"<p>{escape_html(part)}</p>" for part in rest if part]
    return "".join(parts)


def _facts(results: Sequence[Result], failures: Sequence[object]) -> str:
    """Return how many runs there are, how they ended, and in what they differ."""
    ended = Counter(result.ending for result in results)
    ended["failed"] += len(failures)
    how = ", ".join(f"{count} {status}" for status, count in ended.items() if count)
    total = ended.total()
    text = f"<p>{total} run{'s' if total > 1 else ''}: {how}.</p>"
    rows = [{"differs": key, "values": _listed(values)} for key, values in differences(results).items()]
    return text + (_table(Table(rows)) if rows else "")


def _listed(values: Sequence[Any]) -> str:
    shown = [str(value) for value in values]
    if len(shown) > VALUES:
        shown = [*shown[: VALUES - 2], f"… {shown[-1]} ({len(shown)} values)"]
    return ", ".join(shown)


def _runs(results: Sequence[Result], failures: Sequence[tuple[str, str]]) -> str:
    rows: list[dict[str, Any]] = []
    timed, gaps = any(result.timed for result in results), any("gap" in result.summary for result in results)
    for result, label in zip(results, labels(results), strict=True):
        left_out = {*(() if timed else ("time",)), *(() if gaps else ("gap",))}
        outcome = result.outcome | {"status": result.ending}
        columns = {key.replace("_", " "): outcome.get(key) for key in RUN_COLUMNS if key not in left_out}
        rows.append({"run": label, **columns, "digest": result.summary["digest"][:12]})
    rows += [{"run": name, "status": "failed", "error": error} for name, error in failures]
    return _table(Table(rows))


def _legend(panels: Sequence[Panel]) -> str:
    """Return one button per line, which hides and shows it in every figure."""
    buttons = []
    for line in {line.label: line for panel in panels for line in panel.lines}.values():
        dash = {"-": "none", "--": "8 4", "-.": "8 3 2 3", ":": "2 3"}[line.dash]
        stroke = f'stroke="{line.colour}" stroke-width="3" stroke-dasharray="{dash}"'
        mark = f'<svg width="28" height="8" aria-hidden="true"><line x1="0" x2="28" y1="4" y2="4" {stroke}/></svg>'
        label = escape_html(line.label)
        buttons.append(f'<button type="button" aria-pressed="true" data-line="{label}">{mark}{label}</button>')
    return "".join(buttons)


def _configuration(results: Sequence[Result], sweeps: Sequence[Document]) -> str:
    """Return the text of the configurations, all of which have been read as such."""
    texts = [("the sweep, with its overrides", document.text) for document in sweeps]
    texts += [
        (label, read_document(result.folder / "config.yaml").text)
        for result, label in zip(results, labels(results), strict=True)
    ]
    details = "".join(
        f"<details><summary>{escape_html(title)}</summary><pre>{escape_html(text)}</pre></details>"
        for title, text in texts
    )
    return f'<div class="wide">{details}</div>'


def _provenance(results: Sequence[Result]) -> str:
    """Return a table of backends, versions and the like, with each value once if all runs agree, and the digests."""
    facts: dict[str, Counter[str]] = {}
    for result in results:
        versions = result.summary.get("versions", {})
        for key, value in (*versions.items(), *((key, result.summary.get(key)) for key in PROVENANCE)):
            if value is not None:
                facts.setdefault(key.replace("_", " "), Counter())[str(value)] += 1
    rows = [
        {"": key, "value": "; ".join(f"{value} ({n} runs)" if len(found) > 1 else value for value, n in found.items())}
        for key, found in facts.items()
    ]
    digests = [
        {"run": label, "folder": result.folder.resolve().name, "SHA-256 of the parameters": result.summary["digest"]}
        for result, label in zip(results, labels(results), strict=True)
    ]
    return f"{_table(Table(rows))}<details><summary>digests</summary>{_table(Table(digests))}</details>"


def _table(table: Table) -> str:
    rows = [{name: row.get(name) for name in table.columns} for row in table.rows]
    text_columns = {name for name in table.columns if any(isinstance(row[name], str) for row in rows)}

    def cell(tag: str, name: str, text: str) -> str:
        number = "" if name in text_columns else ' class="number"'
        return f"<{tag}{number}>{escape_html(text)}</{tag}>"

    head = "".join(cell("th", name, name.replace("_", " ")) for name in table.columns)
    body = "".join(f"<tr>{''.join(cell('td', name, short(row[name])) for name in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
