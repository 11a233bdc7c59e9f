"""The notebooks: `python -m docs.generate.notebook` runs their cells again, and saves what they print and draw."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

from docs.generate.links import ROOT

__all__ = ["FOLDER", "execute", "read", "texts"]

FOLDER = ROOT / "docs/notebooks"


def read(path: Path) -> dict[str, Any]:
    """Return a notebook."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def texts(notebook: dict[str, Any]) -> list[str]:
    """Return the text that each code cell printed."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return ["".join(line for one in cell["outputs"] for line in one.get("text", ())) for cell in cells]


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook with new outputs, after running its code cells one after another in the current folder."""
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile("".join(cell["source"]), f"cell {count}", "exec"), names)
            outputs = [_stream(printed.getvalue())] if printed.getvalue() else []
            cell = {**cell, "execution_count": count, "outputs": [*outputs, *_pictures()]}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _stream(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}


def _pictures() -> Iterator[dict[str, Any]]:
    """Yield the figures that a cell left open, and close them."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        content = io.BytesIO()
        pyplot.figure(number).savefig(content, format="png", dpi=72, metadata={"Software": None})
        pyplot.close(number)
        picture = base64.b64encode(content.getvalue()).decode() + "\n"
        yield {"data": {"image/png": picture}, "metadata": {}, "output_type": "display_data"}


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            made = execute(read(path))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(os.path.relpath(path), *texts(made), sep="\n")
