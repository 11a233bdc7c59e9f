"""Reads what a report holds: the page's packed parts, with the columns of its figures in their places."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["data_in", "hovered", "opened", "rows_in", "texts_in", "unpacked", "until"]


def unpacked(page: str, name: str) -> str:
    """Return the text of a packed part: `plotly` or `data`."""
    found = re.search(rf'<script type="text/plain" id="{name}">([A-Za-z0-9+/=]*)</script>', page)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1])).decode()


def data_in(page: str) -> dict[str, Any]:
    """Return the data of a page, where figures and runs have lists of numbers in place of their numbers in the pool."""
    data: dict[str, Any] = json.loads(unpacked(page, "data"))
    columns = data["columns"]
    traces = [trace for figure in data["figures"].values() for trace in figure["data"]]
    for trace in (*traces, *data["runs"]):
        for axis in ("x", "y"):
            at = trace[axis]
            trace[axis] = {key: columns[n] for key, n in at.items()} if isinstance(at, dict) else columns[at]
    return data


def rows_in(page: str) -> list[dict[str, Any]]:
    """Return the rows of a page's table of runs."""
    table = data_in(page)["table"]
    names = [column["name"] for column in table["columns"]]
    return [dict(zip(names, row, strict=True)) for row in table["rows"]]


def texts_in(value: Any) -> Iterator[str]:
    """Yield every text in plain data, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in texts_in(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in texts_in(part))


def opened(browser: Any, path: Path, width: int = 390, **options: Any) -> tuple[Any, list[str], list[str]]:
    """Open a report without a network; return the page, what it says in the console, and what it asks for."""
    said: list[str] = []
    asked: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 800}, **options)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(120_000)  # milliseconds, since the machine may be busy
    page.context.set_offline(True)
    page.goto(path.absolute().as_uri())
    page.wait_for_selector("html[data-drawn]")
    return page, said, asked


def until(page: Any, expression: str) -> None:
    """Wait until an expression of JavaScript is true in a page, whose policy forbids it to evaluate one itself."""
    for _ in range(4000):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"after a hundred seconds: {expression}")


def hovered(page: Any, figure: str, share: float) -> list[tuple[str, str]]:
    """Move the pointer to the middle of a figure, at a share of its width; return the values and labels of the box."""
    plot = page.locator(f"#{figure} .nsewdrag").first
    plot.scroll_into_view_if_needed()
    at = plot.bounding_box()
    page.mouse.move(at["x"] + share * at["width"] - 8, at["y"] + at["height"] / 2)
    page.mouse.move(at["x"] + share * at["width"], at["y"] + at["height"] / 2)
    box = page.locator(f"figure:has(#{figure}) .hover")
    box.wait_for()
    until(page, f"document.getElementById('{figure}')._hoverdata?.length > 0")
    cells = "rows => rows.map(row => [row.cells[1].textContent, row.cells[2].textContent])"
    return [(value, label) for value, label in box.locator("tr").evaluate_all(cells)]
