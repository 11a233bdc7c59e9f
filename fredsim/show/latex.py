"""Escapes text for LaTeX."""

from __future__ import annotations

import re

from fredsim.errors import visible

__all__ = ["escape_latex"]

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


def escape_latex(text: str) -> str:
    """Return LaTeX that shows a text as it is; letters with accents stay, as every LaTeX since 2018 reads UTF-8.

    Its braces are balanced, as BibTeX requires; [ and * are in braces, as the end of the row above would take them.
    """
    return "".join(CHARACTERS.get(character, character) for character in visible(re.sub(r"\s+", " ", text)))
