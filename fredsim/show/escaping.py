"""Makes a text that is not fredsim's own harmless in what shows it: one function for each medium.

Names, keys, values, errors and paths may come from a folder that someone else made. For the terminal there is
fredsim.show.terminal.
"""

from __future__ import annotations

import html
import re
from typing import Any

from fredsim.errors import visible

__all__ = ["escape_cell", "escape_html", "escape_latex", "escape_markdown", "escape_title"]

FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")  # how a cell begins that a spreadsheet computes
LINES = "\n\t"
#: What LaTeX would obey.
SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\textbraceleft{}", "}": r"\textbraceright{}", "$": r"\$", "&": r"\&",
    "#": r"\#", "_": r"\_", "%": r"\%", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}", "–": "--", "—": "---",
    "…": r"\ldots{}", "“": "``", "”": "''", "’": "'",
}  # fmt: skip
#: Characters that LaTeX needs as mathematics: those in fredsim's own labels, captions and tables.
SYMBOLS = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon", "η": r"\eta", "θ": r"\theta",
    "κ": r"\kappa", "λ": r"\lambda", "µ": r"\mu", "μ": r"\mu", "ρ": r"\rho", "σ": r"\sigma", "τ": r"\tau",
    "Δ": r"\Delta", "Λ": r"\Lambda", "Σ": r"\Sigma", "×": r"\times", "÷": r"\div", "±": r"\pm", "−": "-", "·": r"\cdot",
    "≤": r"\leq", "≥": r"\geq", "≈": r"\approx", "→": r"\rightarrow", "←": r"\leftarrow", "√": r"\surd",
    "∞": r"\infty", "‖": r"\Vert", "∇": r"\nabla", "∈": r"\in", "°": r"^\circ", "₀": "_0", "₁": "_1", "₂": "_2",
    "²": "^2", "³": "^3", "⁰": "^0", "⁻": "^-", "½": r"\frac{1}{2}",
}  # fmt: skip
CHARACTERS = {**SPECIAL, **{character: rf"\ensuremath{{{symbol}}}" for character, symbol in SYMBOLS.items()}}


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
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        text = visible(value)
        return f"'{text}" if FORMULA.match(text) else text
    return value


def escape_title(name: str) -> str:
    """Return a name as the title of a figure, which may otherwise have formulas between dollar signs."""
    return name.replace("$", "\\$")


def escape_latex(text: str) -> str:
    """Return LaTeX that shows a text as it is; letters with accents stay, as every LaTeX since 2018 reads UTF-8.

    Its braces are balanced, as BibTeX requires; [ and * are in braces, as the end of the row above would take them.
    """
    return "".join(CHARACTERS.get(character, character) for character in visible(re.sub(r"\s+", " ", text)))
