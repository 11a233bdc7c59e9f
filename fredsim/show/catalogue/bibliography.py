"""The BibTeX entries in references.bib, and the way from a citation in the code to its entries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from itertools import chain, count
from string import ascii_lowercase

from fredsim.show.escaping import escape_latex

__all__ = ["bibliography", "entries_of", "keys_of"]

NUMBER = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
AUTHOR = re.compile(r"^([^\W\d_][\w'-]*)[^;()]*?\b((?:19|20)\d\d)\b")
#: What follows the year in a citation and is no title: a place in the paper.
PLACE = re.compile(
    r"(?:fig(?:ure)?|tab(?:le)?|sec(?:tion)?|alg(?:orithm)?|eq(?:uation)?|app(?:endix)?|theorem|lemma|chapter|page|pp?)"
    r"s?\b", re.IGNORECASE
)  # fmt: skip


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


def keys_of(part: str, *, own: bool = False) -> list[str]:
    """Return the keys of the entries that a part of a citation names, by arXiv number or by first author and year.

    `own`: it is a user's text, whose title, if it has one, must be the entry's: an author has several papers a year.
    """
    numbers = NUMBER.findall(part)
    if numbers:
        return [_by_number()[number] for number in numbers if number in _by_number()]
    author = AUTHOR.match(part.strip())
    if author is None or (key := f"{_plain(author[1])}{author[2]}") not in bibliography():
        return []
    return [key] if not own or _may_be(part.strip()[author.end() :], bibliography()[key]) else []


def _may_be(rest: str, entry: str) -> bool:
    """Return whether what follows the year in a citation names no title, or that of an entry, or how it begins."""
    title = re.split(r"[,(]", rest.strip(" ,.:"))[0].strip(" \"'“”‘’.")
    if not title[:1].isupper() or PLACE.match(title):
        return True
    written = re.search(r"title = \{(.*?)\},\n", entry, re.DOTALL)
    one, other = (" ".join(re.findall(r"[a-z0-9]+", _plain(text))) for text in (title, written[1] if written else ""))
    return f"{other} ".startswith(f"{one} ")


def entries_of(
    citation: str, known: Mapping[str, str] | None = None, *, own: bool = False
) -> dict[str, tuple[str, str]]:
    """Return the entries that a citation names, by key: each with the remark in parentheses that follows it, or "".

    The parts of a citation are separated by semicolons. A part that is not in references.bib, such as that of a user's
    own class, becomes an entry whose title is the whole part, and whose key is no other source's. `known`: the entries
    that there are already, by key; `own`: as for `keys_of`.
    """
    found: dict[str, tuple[str, str]] = {}
    for part in filter(str.strip, citation.split(";")):
        about = re.search(r" \(([^()]*)\)\s*$", part)
        keys = keys_of(part, own=own)
        found |= {key: (bibliography()[key], about[1] if about else "") for key in keys}
        if not keys:
            there = {**bibliography(), **(known or {}), **{key: entry for key, (entry, _) in found.items()}}
            key, entry = next((key, entry) for key, entry in _misc(part) if there.get(key) in (None, entry))
            found[key] = entry, ""
    return found


def _misc(part: str) -> Iterator[tuple[str, str]]:
    """Yield the entry of a part of a citation that is not in references.bib, with each of the keys it may have."""
    first = "".join(re.findall(r"[a-z0-9]+", _plain(part))[:4])[:40] or "source"
    numbers = [f"  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n" for number in NUMBER.findall(part)[:1]]
    for more in chain([""], ascii_lowercase[1:], map(str, count(27))):
        yield (
            (key := first + more),
            f"@misc{{{key},\n  title = {{{{{escape_latex(part.strip())}}}}},\n{''.join(numbers)}}}",
        )


def _plain(text: str) -> str:
    """Return a text in lower-case ASCII letters, without accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
