"""The links in the documents; `python -m docs.generate.links` lists those to other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

__all__ = ["COPIES", "ROOT", "anchors", "documents", "links"]

ROOT = Path(__file__).parents[2]
COPIES = ROOT / "docs/repository"  # what a build of the manual leaves there; git ignores it


def documents() -> list[Path]:
    """Return the repository's Markdown files."""
    folders = (ROOT.glob("*.md"), (ROOT / "docs").rglob("*.md"), (ROOT / "results/reference").rglob("*.md"))
    found = [ROOT / "results/README.md", *(path for folder in folders for path in folder)]
    return sorted(path for path in found if COPIES not in path.parents)


def links(path: Path) -> Iterator[str]:
    """Yield the target of each link and picture in a document."""
    for token in _tokens(path):
        for inner in token.children or ():
            target = inner.attrGet("href") or inner.attrGet("src")
            if target is not None:
                yield str(target)


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and the manual form them."""
    found: list[str] = []
    tokens = _tokens(path)
    for token, content in pairwise(tokens):
        if token.type == "heading_open":
            text = "".join(inner.content for inner in content.children or () if inner.type in {"text", "code_inline"})
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


@cache
def _tokens(path: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    outside: dict[str, list[str]] = {}
    for document in documents():
        for link in links(document):
            if "://" in link:
                outside.setdefault(link, []).append(document.relative_to(ROOT).as_posix())
    for link, places in sorted(outside.items()):
        print(link, *dict.fromkeys(places))
