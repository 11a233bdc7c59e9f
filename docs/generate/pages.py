"""All generated files that are committed, by path in the repository."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from docs.generate.algorithms import algorithm_pages
from docs.generate.commands import commands_page
from docs.generate.keys import keys_page, with_key_table
from docs.generate.names import names_text
from docs.generate.operators import operators_page
from fredsim.config.document import MODELINE
from fredsim.config.schema.experiments import as_text

__all__ = ["ROOT", "generated_files"]

ROOT = Path(__file__).parents[2]
SCHEMA = "experiments/schema.json"
NAMES = "fredsim/show/catalogue/names.json"


def generated_files() -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each file that is generated, as a whole or in part."""
    yield SCHEMA, as_text()
    yield NAMES, names_text()
    yield "docs/reference/keys.md", keys_page()
    yield "docs/reference/command_line.md", commands_page()
    yield "docs/reference/operators.md", operators_page()
    for name, text in algorithm_pages():
        yield f"docs/reference/{name}", text
    yield "docs/experiment.md", with_key_table((ROOT / "docs/experiment.md").read_text(encoding="utf-8"))
    for path in sorted((ROOT / "experiments").rglob("*.yaml")):
        yield path.relative_to(ROOT).as_posix(), _with_modeline(path)


def _with_modeline(path: Path) -> str:
    """Return an experiment's file with a first line that names the path of its schema, for editors."""
    text = path.read_text(encoding="utf-8")
    rest = text.partition("\n")[2] if text.startswith(MODELINE) else text
    return f"{MODELINE}{Path(os.path.relpath(ROOT / SCHEMA, path.parent)).as_posix()}\n{rest}"
