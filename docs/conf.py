"""The manual as HTML: `python -m sphinx -W docs build/docs`. Nothing is fetched, neither to build it nor to read it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.generate.copies import contents, pointed, write_copies
from docs.generate.links import COPIES

project = "fredsim"
author = "the authors of fredsim"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["generate", "_static", "notebooks", "pictures"]

# Headings have the anchors that the repository's own pages give them, and fenced mathematics is mathematics there, too.
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]

# A button copies what a reader types: no prompts, and no output.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"

default_role = "code"  # docstrings have Markdown's backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "fredsim"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_show_copyright = False
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False


def _set(translator: Any, node: Any) -> None:
    block = isinstance(node, nodes.math_block)
    found = tex2mathml(node.astext(), as_block=block)
    # An index of a word stands below it, as that of a sum does: beside it is better.
    found = re.sub(
        r"<munder>(\s*<mtext) movablelimits=.*?(>.*?)</munder>", r"<msub>\1\2</msub>", found, flags=re.DOTALL
    )
    translator.body.append(f'<div class="math">{found}</div>' if block else found)
    raise nodes.SkipNode


def _read(app: Any, name: str, source: list[str]) -> None:
    """Add a page's part of the sidebar, and let links lead to pages of the manual, or to downloads."""
    page = Path(app.srcdir) / f"{name}.md"
    if name == "index":
        source[0] += contents(source[0], page)
    if name in {"reference/servers", "reference/dispatchers"}:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n" + f"{Path(name).name}/*\n```\n"
    if not page.is_relative_to(COPIES):  # theirs lead there already
        source[0] = pointed(source[0], page, page)


PLAIN: dict[str, list[str]] = {}  # docstrings of properties: what stands before a colon in one is no type


def _keep_plain(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    del app, found, options
    if what in {"attribute", "property"}:
        PLAIN[name] = list(lines)


def _put_plain(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    del app, what, found, options
    lines[:] = PLAIN.pop(name, lines)


def setup(app: Any) -> None:
    """Set mathematics as MathML, which browsers show without a script."""
    write_copies()
    app.add_html_math_renderer("mathml", inline_renderers=(_set, None), block_renderers=(_set, None))
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _keep_plain, priority=400)  # napoleon's is 500
    app.connect("autodoc-process-docstring", _put_plain, priority=600)
