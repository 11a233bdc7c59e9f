"""Makes a text that is not fredsim's own harmless in what shows it: one function for each medium.

Names, keys, values, errors and paths may come from a folder that someone else made. For the terminal there is
fredsim.show.terminal, for LaTeX fredsim.show.latex.
"""

from __future__ import annotations

import html
import re
from typing import Any

from fredsim.errors import visible

__all__ = ["escape_cell", "escape_html", "escape_markdown", "escape_title"]

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")  # how a cell begins that a spreadsheet computes
LINES = "\n\t"


def escape_html(text: str) -> str:
    """Return the HTML that shows a text, also as an attribute's value in quotes; line feeds and tabs stay."""
    return html.escape(visible(text, LINES))


def escape_markdown(text: str) -> str:
    """Return the Markdown that shows a text on one line, also in a cell of a table: without HTML, links and code."""
    return re.sub(r"([\\`*|<>\[\]&$@]|:(?=//)|(?<=www)\.)", r"\\\1", visible(text), flags=re.IGNORECASE)


def escape_cell(value: Any) -> Any:
    """Return a value for a CSV file that people open in a spreadsheet: with ' before a text that it would compute.

    Numbers stay as they are, also those that are texts.
    """
    if not isinstance(value, str) or _is_number(value):
        return value
    text = visible(value)
    return f"'{text}" if FORMULA.match(text) else text


def escape_title(name: str) -> str:
    """Return a name as the title of a figure, which may otherwise have formulas between dollar signs."""
    return name.replace("$", "\\$")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
