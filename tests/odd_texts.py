"""Texts that are more than text to what shows them, folders of results that have one in each place, and the judges.

`forge` puts a text where a run's folder holds one, and seals the folder again, so that the text reaches what shows it.
The judges say what is wrong with an output or a file, "" if nothing is. They know the formats, not fredsim.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fredsim.config.document import read_document
from tests.reports import data_in, texts_in, unpacked
from tests.sealing import seal

__all__ = [
    "BAD",
    "IN_CONFIG",
    "PLACES",
    "TEXTS",
    "TOKEN",
    "a_text",
    "forge",
    "judge_file",
    "judge_output",
    "judge_page",
    "literal",
]

TOKEN = "zq7"  # stands in most of them, so that they are found again
BAD = "window.__pwned=1"
TEXTS = (
    # HTML
    f"<script>{BAD}</script>zq7", f'"><img src=x onerror="{BAD}">zq7', f"' onmouseover='{BAD}' zq7", "<!--zq7",
    f"</script><script>{BAD}//zq7", f"</title></style><svg onload={BAD}>zq7", "<b>zq7</b>", "&lt;zq7&amp;",
    f"<a href='javascript:{BAD}'>zq7</a>", "<br>zq7<sup>2</sup>", "{{plotly}}zq7",
    f"</pre></textarea><iframe srcdoc='<script>{BAD}'>zq7",
    # Rich's markup, and a terminal
    "[/x]zq7", "[bold]zq7[/bold]", "[link=https://example.com]zq7[/link]", ":smile:zq7", "[red zq7", "[/]zq7",
    "\\[zq7]", "\x1b[31mzq7", "\x1b]0;zq7\x07", "\x9b31mzq7", "\rzq7: same bits", "zq7\nsame bits", "\b\bzq7",
    "\x7fzq7", "\x85zq7", "\u202ezq7", "\u2066zq7\u2069", "\u2028zq7", "\u2029zq7", "\ufeffzq7", "\u200bzq7",
    "\x0czq7", "\U000e0041zq7",
    # Formulas and LaTeX
    "$zq7$", "$\\frac{zq7$", "$$zq7$$", "\\$zq7$", "\\input{/etc/passwd}zq7", "zq7 % & # _ ~ ^ { } \\", "{zq7", "}zq7",
    "^^M\\zq7", "*zq7", "[zq7]", "\\end{tabular}zq7", "$zq7", "\\zq7", "@misc{zq7,", "zq7}}\n@misc{x,",
    # Spreadsheets
    "=1+1zq7", "+zq7", "-zq7", "@zq7", "\t=zq7", "\r=zq7", ' =HYPERLINK("http://x";"zq7")', "=cmd|' /C calc'!A0zq7",
    "-0.5", "＝1+1zq7", "'=zq7", 'zq7",=1+1', "1e5", "nan",
    # Format strings, paths, quotes, Markdown, YAML
    "%s%n{0}{zq7}", "%(zq7)s", "{0.__class__}zq7", "../../zq7", "/zq7", "C:\\zq7", "-rf zq7", "--help zq7", "~zq7",
    "'zq7\"", "`zq7`", "| zq7 |", "[zq7](javascript:alert)", "# zq7", "null", "zq7: {a", "- zq7", "&zq7", "*zq7",
    "!zq7", "%zq7", ".zq7",
    # Letters, and none
    "", " ", "zq7" * 300, "🙂zq7👩\u200d💻", "Ω≈zq7ç", "漢字zq7", "zq7\u0301\u0301\u0301", "_zq7", "zq7\\x1b",
    "\udcffzq7",
)  # fmt: skip


def a_text(rng: random.Random) -> str:
    """Return one of the texts, or two or three of them together."""
    return "".join(rng.choices(TEXTS, k=rng.choice((1, 1, 1, 1, 2, 3))))


# Places in the folder of a run


def _name(data: dict[str, Any], text: str) -> None:
    data["name"] = text


def _server(data: dict[str, Any], text: str) -> None:
    data["server"]["name"] = text


def _key(data: dict[str, Any], text: str) -> None:
    data["server"]["".join(filter(str.isprintable, text))[:200] or "x"] = text


def _data(data: dict[str, Any], text: str) -> None:
    data["data"]["name"] = text


def _noise(data: dict[str, Any], text: str) -> None:
    data["dispatcher"]["compute"] = {"noise": {"name": text}}


def _published(data: dict[str, Any], text: str) -> None:
    series = [{"where": {}, "points": [[20, 0.5], [30, 0.4]]}]
    data["published"] = {"source": text, "x": "iterations", "y": "validation_error", "series": series}


def _title(data: dict[str, Any], text: str) -> None:
    data["figures"] = [{"name": "error", "title": text}]


def _where(data: dict[str, Any], text: str) -> None:
    data["figures"] = [{"name": "error", "where": {"server.name": text}}]


def _by(data: dict[str, Any], text: str) -> None:
    data["figures"] = [{"name": "error", "by": [text or "x"]}]


def _column(data: dict[str, Any], text: str) -> None:
    data.setdefault("evaluation", {})["metrics"] = [{"name": "their:function", "column": text}, f"their:{text}"]


def _loss(data: dict[str, Any], text: str) -> None:
    data["loss"] = {"name": f"their:{text}", "delta": text}


def _optimizer(data: dict[str, Any], text: str) -> None:
    data["clients"]["optimizer"] = {"name": text}


def _model(data: dict[str, Any], text: str) -> None:
    data["model"] = {"name": f"torch:{text}", "initial": text, "trainable": text}


def _augment(data: dict[str, Any], text: str) -> None:
    data["data"]["augment"] = text


def _of_summary(key: str) -> Callable[[dict[str, Any], str], None]:
    def change(summary: dict[str, Any], text: str) -> None:
        summary[key] = text

    return change


def _versions(summary: dict[str, Any], text: str) -> None:
    summary["versions"] |= {text: text, "fredsim": text}


def _metrics(summary: dict[str, Any], text: str) -> None:
    summary["metrics"] = {text: 0.5, "top5": 0.25}


def _files(summary: dict[str, Any], text: str) -> None:
    summary["model_files"] = {text: "0" * 64}


def _another(summary: dict[str, Any], text: str) -> None:
    summary |= {text: text, "code": {text: text}}


IN_CONFIG: dict[str, Callable[[dict[str, Any], str], None]] = {
    "name": _name, "server": _server, "key": _key, "data": _data, "noise": _noise, "published": _published,
    "title": _title, "where": _where, "by": _by, "metric": _column, "loss": _loss, "optimizer": _optimizer,
    "model": _model, "augment": _augment,
}  # fmt: skip
TEXTS_OF_SUMMARY = ("processor", "machine", "git", "device", "path_why", "numerics", "data", "experiment")
IN_SUMMARY: dict[str, Callable[[dict[str, Any], str], None]] = {
    "versions": _versions, "another": _another, "metrics": _metrics, "model_files": _files,
    **{key: _of_summary(key) for key in TEXTS_OF_SUMMARY},
}  # fmt: skip
#: Everything that `forge` can change.
PLACES = (*IN_CONFIG, *IN_SUMMARY, "status", "heading", "column")


#: Characters that no YAML file may have (docs/experiment.md), so that they cannot be in a configuration.
UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def forge(folder: Path, places: Sequence[str], text: str) -> None:
    """Put a text into these places of a run's folder, and seal it again."""
    config = folder / "config.yaml"
    document = read_document(config)
    data, heading = json.loads(json.dumps(document.data)), document.heading
    for place in places:
        if place in IN_CONFIG:
            IN_CONFIG[place](data, UNREADABLE.sub("", text))
    if "heading" in places:
        heading = f"# {' '.join(UNREADABLE.sub('', text).split())}\n#\n# {TOKEN}\n"
    text_of = json.dumps(data, ensure_ascii=False)  # which is YAML, too, and has no trouble with odd keys
    escaped = "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in text_of)
    config.write_text(f"{heading}{escaped}\n", encoding="utf-8")
    summary = json.loads((folder / "summary.json").read_bytes())
    for place in places:
        if place in IN_SUMMARY:
            IN_SUMMARY[place](summary, text)
    if "status" in places:
        summary["status"] = text
    if "column" in places:
        path = folder / "metrics.csv"
        head, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            name = text.encode(errors="ignore").decode() or "x"
            writer.writerows([[*head, name], *([*row, "0.5"] for row in rows)])
    seal(folder, summary)


# Judges


def literal(text: str) -> str:
    """Return how a line shows a text: what cannot be printed as an escape of Python."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def judge_output(output: str, text: str) -> str:
    """Judge what a command printed, where it was given this text."""
    if "Traceback" in output:
        return f"a traceback: {output[-1500:]}"
    for line in output.split("\n"):
        if not line.isprintable():
            return f"a character that is no text: {line!r}"
        if line.startswith("same bits"):
            return f"a line that a name made: {line!r}"
    flat, text = (re.sub(r"/+", "/", re.sub(r"\s", "", one)) for one in (output, text))  # a table may break it
    for mark in ("[bold]", "[link=https:/example.com]", ":smile:", "[/x]", "[/]"):
        if f"{mark}{TOKEN}" in text and TOKEN in flat and f"{mark}{TOKEN}" not in flat:
            return f"{mark} was taken for markup: {output}"
    return ""


#: The elements of a report, with their attributes.
ELEMENTS = {
    "html": {"lang"}, "meta": {"charset", "name", "content", "http-equiv"}, "nav": {"aria-label", "class"},
    "section": {"id"}, "div": {"class", "id", "role", "aria-label"}, "p": {"class"},
    "span": {"class", "role", "aria-label"}, "label": {"class"},
    "table": set[str](), "input": {"type", "name", "value", "checked", "min", "max", "step"}, "output": {"id"},
    "template": {"id"}, "th": {"class", "scope"}, "td": {"class"}, "script": {"type", "id"},
    **{tag: set() for tag in (
        "head", "title", "style", "body", "main", "header", "h1", "h2", "noscript", "footer", "code", "figure",
        "figcaption", "thead", "tbody", "tr", "details", "summary", "pre",
    )},
}  # fmt: skip


class _Page(HTMLParser):
    """Collects the elements, the scripts and styles, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.policy, self.shown, self.inside = "", "", ""
        self.code: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in ELEMENTS or not found.keys() <= ELEMENTS[tag]:
            self.wrong.append(f"<{tag} {found}>")
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        self.inside = "data" if found.get("type") == "text/plain" else tag

    def handle_data(self, data: str) -> None:
        if self.inside in self.code:
            self.code[self.inside].append(data)
        elif self.inside != "data":
            self.shown += data

    def handle_endtag(self, tag: str) -> None:
        del tag
        self.inside = ""

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"<!--{data}-->")


def judge_page(page: str, text: str, *, shows: bool) -> str:
    """Judge a report: it has only known elements and code, and, if it `shows` the text, shows it as it is."""
    found = _Page(page)
    if found.wrong:
        return f"unknown elements: {found.wrong}"
    if "unsafe" in found.policy or not found.policy.startswith("default-src 'none';"):
        return f"a policy that allows too much: {found.policy}"
    found.code["script"].append(unpacked(page, "plotly"))  # which runs as a script, too
    for kind, texts in found.code.items():
        allowed = re.findall(r"'sha256-([^']+)'", re.findall(rf"{kind}-src ([^;]*)", found.policy)[0])
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in texts]
        if not {*digests} <= {*allowed} or len(digests) != (3 if kind == "script" else 1):
            return f"a {kind} that is not allowed: {texts}"
    everything = "\n".join([found.shown, *texts_in(data_in(page))])
    if any(not (one.isprintable() or one in "\n\t") for one in everything):
        return "a character that is no text"
    wanted = literal(" ".join(text.split()))
    return "" if not shows or wanted in " ".join(everything.split()) else f"{wanted} is not shown"


MACROS = re.compile(
    r"\\text(?:backslash|braceleft|braceright|asciitilde|asciicircum|less|greater|bar)\{\}|\\ldots\{\}|\\[$&#_%]"
    r"|\{[\[\]*]\}|\\ensuremath\{(?:\\\w+|-|[\^_]-?\d?|\^\\circ|\\frac\{1\}\{2\})\}"
    r"|\$-?[\d.,{}]*(?: \\times 10\^\{-?\d+\})?\$|\$-?\\infty\$"
)


def _judge_latex(content: str) -> str:
    for line in content.split("\n"):
        if line.startswith("%") or re.fullmatch(
            r"\\begin\{tabular\}\{[lr]+\}|\\(top|mid|bottom)rule|\\end\{tabular\}|", line
        ):
            continue
        rest = MACROS.sub("", line.removesuffix(" \\\\").replace(" & ", " "))
        if not line.endswith(" \\\\") or re.search(r"[\\{}$&#_%~^\[\]*]", rest):
            return f"LaTeX would take a part of a name: {line}"
    return ""


def _judge_csv(content: str) -> str:
    for row in csv.reader(content.splitlines()):
        for cell in row:
            if cell.lstrip()[:1] in {*"=+-@＝＋－＠"} and cell.strip() and not _is_number(cell):
                return f"a spreadsheet would compute {cell!r}"
    return ""


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text)) or True
    except ValueError:
        return False


def _judge_markdown(content: str) -> str:
    found = re.search(r"(?<!\\)<|(?<!\\)\[[^\]]*\]\(", re.sub(r"```console\n.*\n```\n", "", content, count=1))
    return f"Markdown would take a part of a name: {found[0]}" if found else ""


def _judge_bib(content: str) -> str:
    depth = 0
    for place, letter in enumerate(content):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth < 0:
            return "a brace too many"
        if (
            letter == "@"
            and depth == 0
            and not re.match(r"@(misc|article|inproceedings|phdthesis|software)\{[\w-]+,\n", content[place:])
        ):
            return f"an entry that a name made: {content[place : place + 40]!r}"
    return "braces that are not closed" if depth else ""


def _judge_svg(content: str) -> str:
    root = ET.fromstring(content)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    return f"scripts or links: {tags}" if tags & {"script", "a", "foreignObject"} else ""


def judge_file(name: str, content: str) -> str:
    """Judge a file that a command wrote: `…-table.csv`, `….md`, `….tex`, `….bib` or `….svg`."""
    judges = {"csv": _judge_csv, "md": _judge_markdown, "tex": _judge_latex, "bib": _judge_bib, "svg": _judge_svg}
    if any(not (one.isprintable() or one in "\n\t") for one in content):
        return f"{name}: a character that is no text"
    found = judges[name.rpartition(".")[2]](content)
    return found and f"{name}: {found}"
