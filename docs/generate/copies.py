"""Copies of the repository's other documents and notebooks in docs/repository, so that the manual has them as pages.

Sphinx takes pages from docs/ alone. The copies are made whenever the manual is built, and git ignores them. Their links
are changed to lead where the original ones lead; what is no page, such as a table's CSV, is a download.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from docs.generate.links import COPIES, ROOT, documents
from docs.generate.notebook import FOLDER, read

__all__ = ["contents", "page_of", "pointed", "write_copies"]

DOCS = ROOT / "docs"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*)\)")


def write_copies() -> None:
    """Write all copies, and remove others; those that are as they should be stay, so that Sphinx reads them once."""
    written = dict(_copies())
    for path, content in written.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for path in COPIES.rglob("*"):
        if path.is_file() and path not in written:
            path.unlink()


def contents(text: str, page: Path) -> str:
    """Return the manual's sidebar: the groups and names of the first page, whose text and file are given."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    found = ""
    for heading, part in zip(parts[1::2], parts[2::2], strict=True):
        entries = ""
        for name, link in re.findall(r"^- \[(.*)\]\((.*)\)\\?$", part, flags=re.MULTILINE):
            shown = page_of((page.parent / link).resolve())
            if shown is None:
                raise ValueError(f"{page.name}: {link} is no page")
            entries += f"{name} <{_relative(shown.with_suffix(''), page)}>\n"
        found += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{entries}```\n"
    return found


def _copies() -> Iterator[tuple[Path, bytes]]:
    for document in sorted(_outside()):
        copy = _place(document)
        text = pointed(document.read_text(encoding="utf-8"), document, copy)
        if document.name.endswith("-table.md"):
            text = f"# {document.stem.removesuffix('-table')} of {_folder(document)}\n\n{text}"
        yield copy, f"---\norphan: true\n---\n\n{text}".encode()
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        yield from _notebook(notebook)


def _folder(document: Path) -> str:
    return document.parent.relative_to(ROOT / "results/reference").as_posix()


def _place(path: Path) -> Path:
    return (COPIES / path.relative_to(ROOT)).with_suffix(".md")


@cache
def _outside() -> frozenset[Path]:
    return frozenset(document for document in documents() if not document.is_relative_to(DOCS))


def page_of(path: Path) -> Path | None:
    """Return the manual's page that shows a file of the repository, or None if there is none."""
    if path.is_dir():
        path /= "README.md"
    if path.is_relative_to(DOCS) and path.suffix == ".md":
        return path if path.is_file() else None
    copied = path in _outside() or (path.parent == FOLDER and path.suffix == ".ipynb")
    return _place(path) if copied else None


def pointed(text: str, source: Path, page: Path) -> str:
    """Return the text of a document with links that fit the place of its page.

    `source` is the document, and `page` the file that Sphinx reads; they are the same for a page of docs/.
    """

    def change(link: re.Match[str]) -> str:
        sign, words, target = link.groups()
        name, mark, anchor = target.partition("#")
        if "://" in target or not name:
            return link[0]
        path = (source.parent / name).resolve()
        found = page_of(path)
        if found is not None:
            if not sign and re.fullmatch(r"(?:[\w-]+/)*[\w-]+\.md", words):
                words = ""  # the page's heading stands there instead of the file's name
            return f"{sign}[{words}]({_relative(found, page)}{mark}{anchor})"
        if sign or not path.is_file():
            return f"{sign}[{words}]({_relative(path, page)})" if sign else words
        return f"{{download}}`{words.replace('`', '')} <{_relative(path, page)}>`"

    return _outside_code(text, lambda part: LINK.sub(change, part))


def _relative(path: Path, page: Path) -> str:
    return Path(os.path.relpath(path, page.parent)).as_posix()


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text changed outside of its fenced blocks."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _notebook(path: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield a page with a notebook's cells and what they printed and drew, and the pictures."""
    copy = _place(path)
    parts, count = [], 0
    for cell in read(path)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(pointed(source, path, copy))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif picture := _picture(output):
                count += 1
                name = f"{path.stem}-{count}.png"
                yield copy.with_name(name), picture
                parts.append(f"![What the cell draws]({name})")
    link = f"{{download}}`Download the notebook <{_relative(path, copy)}>`, or read it here."
    head, _, rest = "\n\n".join(parts).partition("\n\n")
    head, _, below = head.partition("\n")
    yield copy, f"---\norphan: true\n---\n\n{head}\n\n{link}\n{below}\n\n{rest}\n".encode()


def _picture(output: dict[str, Any]) -> bytes | None:
    found = output.get("data", {}).get("image/png")
    return base64.b64decode("".join(found)) if found else None
