"""The parts of a report that are plain HTML: its heading, who won, its controls, tables and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fredsim.config.figures.options import LOG_FROM, X, Y
from fredsim.runs.folder.results import Result
from fredsim.show.escaping import escape_html
from fredsim.show.plots.groups import Panel, differences, labels
from fredsim.show.report.sections import Section
from fredsim.show.report.values import shown
from fredsim.show.report.winner import verdict, winner_table
from fredsim.show.tables import Table
from fredsim.system.given import real_path

__all__ = ["facts", "provenance", "question", "section_html", "table_html", "winner"]

VALUES = 8  # the most values that are listed for a key in which the runs differ
FEW_LINES = 6  # up to so many lines have bands at first
PROVENANCE = ("backend", "device", "numerics", "path", "path_why", "machine", "processor", "git", "data")


def question(names: str, headings: Iterable[str]) -> str:
    """Return the name, and the comments above the experiments: a line, then paragraphs."""
    parts = [f"<h1>{escape_html(names)}</h1>"]
    for heading in headings:
        text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in heading.splitlines())
        first, *rest = (part.strip() for part in text.replace("\n", "\n\n", 1).split("\n\n"))
        parts.append(f'<p class="question">{escape_html(first)}</p>')
        parts += [f"<p>{escape_html(part)}</p>" for part in rest if part]
    return "".join(parts)


def facts(results: Sequence[Result], failures: Sequence[object], notes: Sequence[str] = ()) -> str:
    """Return how many runs there are, how they ended, and in what they differ; `notes`: what more there is to say."""
    ended = Counter(result.ending for result in results)
    ended["failed"] += len(failures)
    how = ", ".join(f"{count} {status}" for status, count in ended.items() if count)
    total = ended.total()
    said = " ".join([f"{total} run{'s' if total > 1 else ''}: {how}.", *notes])
    text = f"<p>{escape_html(said)}</p>"
    rows = []
    for key, values in differences(results).items():
        shown = [str(value) for value in values]
        if len(shown) > VALUES:
            shown = [*shown[: VALUES - 2], f"… {shown[-1]} ({len(shown)} values)"]
        rows.append({"differs": key, "values": ", ".join(shown)})
    if not rows:
        return text
    return f"{text}<details><summary>In what they differ</summary>{table_html(Table(rows))}</details>"


def winner(panels: Sequence[Panel]) -> str:
    """Return who won, as a sentence and a small table; only the sentence if there is a single line."""
    table, won = winner_table(panels)
    text = f'<p class="verdict">{escape_html(verdict(panels))}</p>'
    if stopped := sum(run.summary["status"] == "interrupted" for panel in panels for run in panel.runs):
        text += f'<p class="caption">Runs that were interrupted ({stopped:,}) count by what they had then.</p>'
    return text + (table_html(table, won) if len(table.rows) > 1 else "")


def section_html(section: Section, lines: int, *, log: bool) -> str:
    """Return a section with places for its figures, its caption and its table."""
    controls = _controls(section, lines, log=log) if section.key == "curves" else ""
    plots = "".join(_figure_html(section, n, figure) for n, figure in enumerate(section.figures))
    table = f"<details><summary>As a table</summary>{table_html(section.table)}</details>"
    return (
        f'<section id="{section.key}"><h2>{section.title}</h2>{controls}<div class="figures">{plots}</div>'
        f'<p class="caption">{escape_html(section.caption)}</p>{table}</section>\n'
    )


def _figure_html(section: Section, number: int, figure: Mapping[str, Any]) -> str:
    """Return the place of a figure: its panel's title, if it has one, and what a reader hears who cannot see it."""
    panel, what = figure["panel"], figure["y"].get("", {}).get("title", "")
    caption = f"<figcaption>{escape_html(panel)}</figcaption>" if panel else ""
    heard = ", ".join(filter(None, (f"{section.title}: {what}" if what else section.title, panel)))
    label = escape_html(f"{heard}; the table below has its numbers")
    attributes = f'class="plot" id="{section.key}-{number}" role="img" aria-label="{label}"'
    return f"<figure>{caption}<div {attributes}></div></figure>"


def _controls(section: Section, lines: int, *, log: bool) -> str:
    """Return the controls of curves: y and x, with the section's first ones chosen, scales, smoothing, bands."""
    groups = []
    for name, known, offered in (("y", Y, section.y), ("x", X, section.x)):
        first = offered[0]
        choices = [*(one for one in known if one in offered), *(one for one in offered if one not in known)]
        buttons = "".join(
            f'<label><input type="radio" name="{name}" value="{choice}"{" checked" if choice == first else ""}>'
            f"{choice.replace('_', ' ')}</label>"
            for choice in choices
        )
        groups.append(f'<span class="choice" role="radiogroup" aria-label="{name} axis">{buttons}</span>')
    span = section.figures[0]["y"][section.y[0]]["range"]
    least, largest, above = span or (0, 0, None)  # the smallest, the largest, and the smallest above 0
    is_wide = above is not None and least >= 0 and largest > LOG_FROM * above
    boxes = [("log", "logarithmic", log or (is_wide and not section.linear)), ("logx", "logarithmic x", False)]
    if any(trace["meta"]["is"] == "band" for figure in section.figures for trace in figure["data"]):
        boxes.append(("bands", "bands", lines <= FEW_LINES))
    shown = "".join(
        f'<label class="choice"><input type="checkbox" name="{name}"{" checked" if on else ""}>{text}</label>'
        for name, text, on in boxes
    )
    slider = (
        '<label class="choice">smoothing <input type="range" name="smooth" min="0" max="0.95" step="0.05" value="0">'
        '<output id="smoothed">0</output></label>'
    )
    return f'<p class="controls">{" against ".join(groups)} {shown}{slider}</p>'


def provenance(results: Sequence[Result]) -> str:
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
        {"run": label, "folder": real_path(result.folder).name, "SHA-256 of the parameters": result.summary["digest"]}
        for result, label in zip(results, labels(results), strict=True)
    ]
    return f"{table_html(Table(rows))}<details><summary>digests</summary>{table_html(Table(digests))}</details>"


def table_html(table: Table, won: Collection[int] = ()) -> str:
    """Return a table with numbers to the right, in a box that scrolls if it is wide; `won`: the rows in bold."""

    def cell(tag: str, name: str, text: str) -> str:
        number = "" if name in table.text_columns else ' class="number"'
        return f"<{tag}{number}>{escape_html(text)}</{tag.partition(' ')[0]}>"

    head = "".join(cell('th scope="col"', name, name.replace("_", " ")) for name in table.columns)
    rows = ("".join(cell("td", name, shown(row.get(name))) for name in table.columns) for row in table.rows)
    bold = [' class="won"' if number in won else "" for number in range(len(table.rows))]
    body = "".join(f"<tr{kind}>{row}</tr>" for kind, row in zip(bold, rows, strict=True))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
