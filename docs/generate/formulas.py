"""Converts formulas from the Unicode of docstrings, such as `θ ← θ − α g`, to TeX.

The order of symbols is kept, and words stay words. A formula that matplotlib's parser of TeX refuses is left as text.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["display", "tex"]

GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "σ": "sigma",
    "τ": "tau", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta",
    "Λ": "Lambda", "Π": "Pi", "Σ": "sum", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
SIGNS = {
    "←": r"\leftarrow", "→": r"\rightarrow", "−": "-", "·": r"\cdot", "×": r"\times", "÷": r"\div", "≤": r"\leq",
    "≥": r"\geq", "≠": r"\neq", "≈": r"\approx", "±": r"\pm", "∞": r"\infty", "∈": r"\in", "∇": r"\nabla",
    "∂": r"\partial", "‖": r"\Vert", "⟨": r"\langle", "⟩": r"\rangle", "⌊": r"\lfloor", "⌋": r"\rfloor",
    "⌈": r"\lceil", "⌉": r"\rceil", "…": r"\ldots", "½": r"\frac{1}{2}", "%": r"\%", "&": r"\&", "#": r"\#",
    "{": r"\{", "}": r"\}", "⊙": r"\odot", "∘": r"\circ", "√": r"\sqrt",
}  # fmt: skip
ACCENTS = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u0307": "dot"}
FUNCTIONS = {"max", "min", "exp", "log", "cos", "sin"}
WIDEST = 72  # the most characters in a row
PAIRS = {"(": ")", "⟨": "⟩", "⌊": "⌋", "⌈": "⌉", "[": "]"}

TOKEN = re.compile(
    r"(?P<gap> {2,})|(?P<space> )|(?P<code>`[^`]*`|\"[^\"]*\")|(?P<word>[A-Za-z][A-Za-z']+(?:-[A-Za-z]+)*)|"
    r"(?P<number>\d+(?:[.,]\d+)*(?:e-?\d+)?)|(?P<assigns>[+−]=)|(?P<one>.)"
)


def display(lines: list[str]) -> str | None:
    """Return the lines of a formula as TeX, aligned at the left; None if TeX cannot show it."""
    rows = [row for line in lines if line.strip() for row in _rows(line)]
    if not rows or not all(map(_is_sound, rows)):
        return None
    if len(rows) == 1:
        return rows[0]
    body = " \\\\\n".join(f"& {row}" for row in rows)
    return f"\\begin{{aligned}}\n{body}\n\\end{{aligned}}"


def _rows(line: str) -> list[str]:
    """Return the rows of TeX for a line: a long line is broken at wide gaps."""
    rows = [""]
    for part in re.split(r"( {2,})", re.sub(r" {3,}", "   ", line.strip())):
        if part.strip() and rows[-1].strip() and len(rows[-1]) + len(part) > WIDEST:
            rows.append("")
        rows[-1] += part
    return [tex(rows[0]), *(rf"\qquad {tex(row)}" for row in rows[1:])]


def _is_sound(row: str) -> bool:
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(f"${row}$")
    except ValueError:
        return False
    return True


def _script(sign: str) -> tuple[str, str]:
    """Return `^` or `_` for a superscript or subscript, and the plain sign; two empty texts for any other sign."""
    kind, _, code = unicodedata.decomposition(sign[:1]).partition(" ") if sign else ("", "", "")
    return ({"<super>": "^", "<sub>": "_"}[kind], chr(int(code, 16))) if kind in {"<super>", "<sub>"} else ("", "")


def tex(text: str) -> str:
    """Return a line as TeX."""
    return _Line(unicodedata.normalize("NFD", text.strip())).tex()


class _Line:
    """A line of a formula, parsed from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = [(str(found.lastgroup), found.group()) for found in TOKEN.finditer(text)]
        self._at = 0

    def tex(self, closes: str = "") -> str:
        """Return TeX for the rest of the line, or up to the sign `closes`."""
        parts: list[str] = []
        depth = 0
        while self._at < len(self._tokens) and (depth or self._peek()[1] != closes):
            depth += (PAIRS.get(self._peek()[1]) == closes) - (self._peek()[1] == closes)
            parts.append(self._next())
        return " ".join(part for part in parts if part)

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at] if 0 <= at < len(self._tokens) else ("end", "")

    def _next(self) -> str:
        """Return TeX for the next symbol, with its accents, indices and powers."""
        kind, text = self._peek()
        if kind in {"space", "gap"}:
            self._at += 1
            return r"\quad" if kind == "gap" else ""
        if kind == "code" or self._is_prose():
            return self._prose()
        if text == "-":  # minus is −
            self._at += 1
            return r"\text{-}"
        if text == "√":
            self._at += 1
            return rf"\sqrt{{{self._argument()}}}"
        return self._with_indices(self._base())

    def _base(self, word: str = "operatorname") -> str:
        kind, text = self._peek()
        self._at += 1
        if kind == "word":
            named = self._peek()[1] == "_" and self._peek(1)[0] == "word"  # max_window is a name
            return rf"\{text}" if text in FUNCTIONS and not named else rf"\{word}{{{text}}}"
        if kind == "number":
            number, _, power = text.replace(",", "{,}").partition("e")
            return rf"{number.removesuffix('.0')} \cdot 10^{{{power}}}".removeprefix(r"1 \cdot ") if power else number
        if kind == "assigns":
            return rf"\;{{{SIGNS.get(text[0], text[0])}}}{{=}}\;"
        base = rf"\{GREEK[text]}" if text in GREEK else SIGNS.get(text, text)
        while self._peek()[1] in ACCENTS:
            base = rf"\{ACCENTS[self._peek()[1]]}{{{base}}}"
            self._at += 1
        return base

    def _with_indices(self, base: str) -> str:
        found = {"_": "", "^": ""}
        while True:
            text = self._peek()[1]
            where, letter = _script(text)
            if where:
                found[where] += letter.replace("−", "-")
                self._at += 1
            elif text in found and self._peek(1)[0] not in {"space", "gap", "end"}:
                self._at += 1
                found[text] += self._argument()
            else:
                return base + "".join(f"{sign}{{{what}}}" for sign, what in found.items() if what)

    def _argument(self) -> str:
        """Return TeX for the argument of an index, a power or a root: a group, or one symbol with its sign."""
        text = self._peek()[1]
        if text in PAIRS:
            self._at += 1
            inner = self.tex(PAIRS[text])
            self._at += 1
            return inner if text == "(" else f"{SIGNS.get(text, text)} {inner} {SIGNS.get(PAIRS[text], PAIRS[text])}"
        sign = ""
        if text in {"−", "-", "+"}:
            sign = text.replace("−", "-")
            self._at += 1
        return sign + self._base("text")

    def _is_prose(self, ahead: int = 0) -> bool:
        """Return whether the next word is prose, not a name in the formula."""
        kind, text = self._peek(ahead)
        if kind == "word":
            after = self._peek(ahead + 1)[1]
            return text not in FUNCTIONS and after not in {"_", "^", "("} and not _script(after)[0]
        return text == "a" and self._peek(ahead + 1)[0] == "space" and self._peek(ahead + 2)[0] == "word"

    def _prose(self) -> str:
        """Return TeX for the following words of prose, with the spaces around them."""
        before = " " if self._peek(-1)[0] in {"space", "gap"} else ""
        words = ""
        while True:
            kind, text = self._peek()
            ends = kind == "space" and not (self._is_prose(1) or self._peek(1)[0] == "code")
            if ends or not (kind in {"space", "code"} or self._is_prose()):
                break
            words += f"“{text[1:-1]}”" if text[:1] == '"' else text.strip("`")
            self._at += 1
        after = " " if self._peek()[0] in {"space", "gap"} else ""
        return rf"\text{{{before}{words}{after}}}"
