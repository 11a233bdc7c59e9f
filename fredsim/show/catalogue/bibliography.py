"""The BibTeX entries in references.bib, and the way from a citation in the code to its entries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import resources

from fredsim.show.escaping import escape_latex

__all__ = ["bibliography", "entries_of", "keys_of"]

NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
AUTHOR = re.compile(r"^([^\W\d_][\w'-]*)[^;()]*?\b((?:19|20)\d\d)\b")


@cache
def bibliography() -> Mapping[str, str]:
    """Return all entries, by key."""
    text = resources.files("fredsim.show.catalogue").joinpath("references.bib").read_text(encoding="utf-8")
    return {found[1]: found[0] for found in re.finditer(r"^@\w+\{([^,]+),\n.*?^\}$", text, re.MULTILINE | re.DOTALL)}


@cache
def _by_number() -> Mapping[str, str]:
    """Return the keys of the entries on arXiv, by arXiv number."""
    found = {key: re.search(r"eprint = \{(.*?)\}", entry) for key, entry in bibliography().items()}
    return {number[1]: key for key, number in found.items() if number}


def keys_of(part: str) -> list[str]:
    """Return the keys of the entries that a part of a citation names, by arXiv number or by first author and year."""
    numbers = NUMBER.findall(part)
    if numbers:
        return [_by_number()[number] for number in numbers if number in _by_number()]
    author = AUTHOR.match(part.strip())
    key = f"{_plain(author[1])}{author[2]}" if author else ""
    return [key] if key in bibliography() else []


def entries_of(citation: str) -> dict[str, tuple[str, str]]:
    """Return the entries that a citation names, by key: each with the remark in parentheses that follows it, or "".

    The parts of a citation are separated by semicolons. A part that is not in references.bib, such as that of a user's
    own class, becomes an entry whose title is the whole part.
    """
    found: dict[str, tuple[str, str]] = {}
    for part in filter(str.strip, citation.split(";")):
        about = re.search(r" \(([^()]*)\)\s*$", part)
        for key in keys_of(part):
            found[key] = bibliography()[key], about[1] if about else ""
        if not keys_of(part):
            words = re.findall(r"[a-z0-9]+", _plain(part))
            key = "".join(words[:4])[:40] or "source"
            numbers = [
                f"  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n" for number in NUMBER.findall(part)[:1]
            ]
            found[key] = f"@misc{{{key},\n  title = {{{{{escape_latex(part.strip())}}}}},\n{''.join(numbers)}}}", ""
    return found


def _plain(text: str) -> str:
    """Return a text in lower-case ASCII letters, without accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
