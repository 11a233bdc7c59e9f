"""BibTeX entries of what fredsim's citations name: references.bib, which stands beside this file."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import resources

from fredsim.show.latex import escaped

__all__ = ["bibliography", "entries_of", "keys_of"]

NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
AUTHOR = re.compile(r"^([^\W\d_][\w'-]*)[^;()]*?\b((?:19|20)\d\d)\b")


@cache
def bibliography() -> Mapping[str, str]:
    """Return all entries by their keys."""
    text = resources.files("fredsim.show").joinpath("references.bib").read_text(encoding="utf-8")
    return {found[1]: found[0] for found in re.finditer(r"^@\w+\{([^,]+),\n.*?^\}$", text, re.MULTILINE | re.DOTALL)}


@cache
def _by_number() -> Mapping[str, str]:
    """Return the keys of those that are on arXiv, by their numbers there."""
    found = {key: re.search(r"eprint = \{(.*?)\}", entry) for key, entry in bibliography().items()}
    return {number[1]: key for key, number in found.items() if number}


def keys_of(part: str) -> list[str]:
    """Return the keys of the entries that a part of a citation names: by number, else by first author and year."""
    numbers = NUMBER.findall(part)
    if numbers:
        return [_by_number()[number] for number in numbers if number in _by_number()]
    author = AUTHOR.match(part.strip())
    key = f"{_plain(author[1])}{author[2]}" if author else ""
    return [key] if key in bibliography() else []


def entries_of(citation: str) -> dict[str, tuple[str, str]]:
    """Return what a citation names, by key: the entry, and what its part says in parentheses, if anything.

    Parts of a citation stand between semicolons. Of one that is not known, as a class of a user's own may have, all
    that it says becomes the title of an entry.
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
            found[key] = f"@misc{{{key},\n  title = {{{{{escaped(part.strip())}}}}},\n{''.join(numbers)}}}", ""
    return found


def _plain(text: str) -> str:
    """Return a text in small ASCII letters, without its accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
