"""No text of a folder, a file or an option is obeyed: by a browser, a terminal, Rich, LaTeX or a spreadsheet."""

import ast
import csv
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from matplotlib.cbook import is_math_text
from matplotlib.figure import Figure
from matplotlib.text import Text

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.errors import visible
from fredsim.show.console import PlainConsole
from fredsim.show.escaping import escape_cell, escape_html, escape_latex, escape_markdown, escape_title
from fredsim.show.tables import Table
from tests.bad_results import results
from tests.odd_texts import (
    IN_CONFIG,
    PLACES,
    TEXTS,
    TOKEN,
    a_text,
    forge,
    judge_file,
    judge_output,
    judge_page,
    literal,
)
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
FREDSIM = Path(fredsim.__file__).parent
#: The places whose text a report shows.
SHOWN = {
    "name", "server", "data", "published", "heading", "processor", "machine", "git", "device", "path_why", "numerics",
    "versions",
}  # fmt: skip
KINDS = ("curves", "ends", "matrix", "staleness", "copies", "probe", "tensors", "shards", "timeline", "waits")


def written(name: str, folder: Path) -> Path:
    """Write recorded runs (tests/bad_results.py) into a folder."""
    for file, content in results()[name].items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(rng: random.Random, folder: str, text: str) -> Iterator[list[str]]:
    """Yield commands that show a folder or a text, a few of all."""
    kind = rng.choice(KINDS)
    options = ["--reach", "0.9"] if kind == "matrix" else []
    some = rng.choice(
        (["--title", text], ["--where", f"name={text}"], ["--by", text], ["--y", text], ["--x", text], [])
    )
    choices = [
        ["report", folder, "-o", "r.html"],
        ["report", folder, "-o", "r.html", "--by", rng.choice(("name", "server.name", "data.name", text))],
        [
            "plot",
            folder,
            "-o",
            "x.svg",
            "--latex",
            "--kind",
            kind,
            *options,
            f"--style={rng.choice(('column', 'page'))}",
        ],
        ["plot", folder, "-o", "x.svg", "--latex", "--kind", kind, *options, *some],
        ["plot", folder, "other", "-o", "x.svg", "--latex", "--y", text],
        ["plot", folder, "-o", "x.json", "--kind", "timeline"],
        ["plot", folder],
        ["plot", folder, "-o", f"{text[:80]}.svg"],
        ["verify", folder],
        ["compare", folder, "other", *rng.choice(([], ["--no-replay"]))],
        ["compare", folder, text],
        ["cite", folder],
        ["ls"],
        ["ls", folder],
        ["ls", text],
        ["new", text[:80]],
        ["run", "x.yaml", f"loss={text}", "--out", "new"],
        ["run", "x.yaml", f"evaluation.metrics=['their:{text}']", "--out", "new"],
        ["run", "x.yaml", f"clients.optimizer={text}", "--out", "new"],
        ["run", "x.yaml", f"model.initial={text}", "--out", "new"],
        ["show", folder],
        ["show", folder, f"published={json.dumps({'source': text, 'series': []})}"],
        ["show", "x.yaml", f"{text}=1"],
        ["plan", folder],
        ["plan", "x.yaml", f"name={text}"],
        ["run", "x.yaml", f"data.name={text}", "--out", "new"],
        ["run", "x.yaml", f"server.name={text}", "--out", text[:80]],
        ["run", folder, "--out", f"n{text[:80]}"],
        ["export", folder, "--to", "tensorboard", "-o", "tb"],
        ["export", folder, "--to", text],
        ["list", text],
        [text],
        ["plot", "--kind", text, folder],
        ["live", "x.yaml", f"server.name={text}"],
        ["calibrate", folder],
    ]
    yield from rng.sample(choices, 3)


@pytest.mark.parametrize(
    ("count", "seed"),
    [(30, 0), pytest.param(1000, 1, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_random_ones(count: int, seed: int, here: Path, command: Command, drawn: list[Figure]) -> None:
    failed = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        shutil.rmtree(here / "case", ignore_errors=True)
        (here / "case").mkdir()
        text = a_text(rng)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here / "case")
            folder = a_folder(rng, text)
            written("one", Path("other"))
            Path("x.yaml").write_text(dump_yaml(results_data()), encoding="utf-8")
            for words in commands(rng, folder, text):
                drawn.clear()
                if wrong := tried(words, text, command) or judge_figures(drawn):
                    failed.append(f"{seed} {number} {text!r} {words}: {wrong}")
    assert failed == []


def results_data() -> dict[str, Any]:
    """Return a small experiment."""
    return {
        "name": "x", "iterations": 6, "data": {"name": "digits", "train": 12, "validation": 3},
        "model": {"hidden": [3]}, "clients": {"count": 3, "batch_size": 2}, "server": {"name": "fasgd", "lr": 0.01},
        "backend": "numpy", "evaluation": {"every": 3},
    }  # fmt: skip


def a_folder(rng: random.Random, text: str) -> str:
    """Write the folder of a run that holds a text in a few places, among them its own name; return its path."""
    name = text if rng.random() < 0.5 and text.strip(". ") and "/" not in text else "run"
    name = os.fsdecode(os.fsencode(name)[:200])
    if name.startswith("-"):
        name = f"./{name}"
    forge(written(rng.choice(("one", "clock")), Path(name)), rng.sample(PLACES, rng.choice((0, 1, 1, 2, 4))), text)
    return name


def tried(words: list[str], text: str, command: Command) -> str:
    """Call a command with a text; return what is wrong with what it prints and writes."""
    code, output, messages = command(*words)
    if code not in (0, 1, 2):
        return f"exit code {code}: {messages}"
    if found := judge_output(output + messages, text):
        return found
    if words[0] == "cite" and code == 0 and (found := judge_file("used.bib", output)):
        return found
    if code == 0 and Path("r.html").is_file():
        return judge_page(Path("r.html").read_text(encoding="utf-8"), text, shows=False)
    files = [path for path in Path().glob("*") if path.is_file() and path.name != "x.yaml"]
    readable = [path for path in files if path.suffix in {".csv", ".md", ".tex", ".svg"}]
    return next(filter(None, (judge_file(path.name, path.read_text(encoding="utf-8")) for path in readable)), "")


def judge_figures(figures: list[Figure]) -> str:
    """Say which text of a figure is taken for a formula, though it is no title and no number beside a tick."""
    for figure in figures:
        for text in figure.findobj(Text):
            assert isinstance(text, Text)
            shown = text.get_text()
            if TOKEN in shown and text.get_parse_math() and is_math_text(shown) and not is_title(figure, shown):
                return f"a formula: {shown!r}"
    return ""


def is_title(figure: Figure, shown: str) -> bool:
    """Return whether a text is that of the title, which alone may have formulas."""
    return shown in {figure.get_suptitle(), *(axes.get_title(loc="left") for axes in figure.axes)}


def test_every_place_of_a_report(here: Path, command: Command) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    del here
    for text in (TEXTS[0], TEXTS[1], "$\\frac{zq7$", "\x1b[31mzq7"):
        shutil.rmtree("run", ignore_errors=True)
        written("one", Path("run"))
        for place in PLACES:
            if place not in {"status", "metrics"}:  # which are refused
                forge(Path("run"), [place], f"{text} as {place}")
        assert command("report", "run", "-o", "r.html") == (0, "r.html\n", "")
        page = Path("r.html").read_text(encoding="utf-8")
        for place in sorted(SHOWN):
            shows = text.isprintable() or place not in {*IN_CONFIG, "heading"}  # YAML has no such characters
            assert judge_page(page, f"{text} as {place}", shows=shows) == "", place


def test_a_status_that_no_run_has(here: Path, refused: Refused) -> None:
    """One clear error, in a summary and in the table of a sweep, whoever reads it."""
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    del here
    written("sweep", Path("sweep"))
    path = Path("sweep/runs.csv")
    before = path.read_text(encoding="utf-8")
    for status in ("<b>done</b>", "Finished", "", "finished\x1b[31m"):
        path.write_text(before.replace("finished", status, 1), encoding="utf-8")
        for words in (["verify"], ["report"], ["plot"], ["compare", "sweep"], ["export", "--to", "tensorboard"]):
            refused(*words, "sweep", says=["sweep/runs.csv: is damaged", repr(status), "run the experiment again"])
    for key, value, word in (
        ("status", "finishd", "finished"),
        ("backend", "numbaa", "numba"),
        ("path", "handd", "hand"),
    ):
        shutil.rmtree("run", ignore_errors=True)
        summary = json.loads((written("one", Path("run")) / "summary.json").read_bytes())
        seal(Path("run"), summary | {key: value})
        for words in (["verify"], ["report"], ["plot"]):
            refused(*words, "run", says=[f"summary.json: is damaged ({key} is '{value}'; did you mean '{word}'?"])


def test_a_run_in_an_odd_folder(here: Path, command: Command) -> None:
    """A file, the module of a server, what it raises and its numbers, and the folder of the results have odd names."""
    del here
    for text in ("[/x]zq7", "[bold]zq7[/bold]", "\x1b[31mzq7", "zq7\nsame bits", "$zq7$", "\u202ezq7", "\udcffzq7"):
        Path(text).mkdir(parents=True)
        data = results_data() | {"dispatcher": {"name": "trace", "file": f"{text}/trace.csv"}}
        Path(text, "trace.csv").write_text("client\n" + "0\n1\n2\n" * 2, encoding="utf-8")
        Path("trace.yaml").write_text(json.dumps(data), encoding="utf-8")
        Path("plain.yaml").write_text(json.dumps(results_data()), encoding="utf-8")
        code, output, messages = command("run", "trace.yaml", "sweep={seed: [0, 1]}", "--out", f"{text}/sweep")
        readable = text.isprintable()  # YAML has no other characters
        assert (code, judge_output(output + messages, text)) == (0 if readable else 2, ""), output + messages
        code, output, messages = command("run", "plain.yaml", "--out", f"{text}/run")
        assert (code, judge_output(output + messages, text)) == (0, "")
        assert command("verify", f"{text}/run")[:2] == (0, f"{literal(text)}/run: same bits\n")


def test_an_error_with_an_odd_text(small_yaml: Path, own_server: Callable[..., str], command: Command) -> None:
    """It stands in the messages, in runs.csv and in the report."""
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    for number, text in enumerate(("[/x]zq7", "\x1b]0;zq7\x07", "<script>zq7</script>", "=1+1zq7", "zq7\nsame bits")):
        raising = f"if self.lr > 0.2:\n    raise ValueError({text!r})\n"
        Path(f"own{number}.py").write_text(own_server(raising), encoding="utf-8")
        words = (
            "run",
            small_yaml,
            f"server.name=own{number}:Plain",
            "sweep={server.lr: [0.1, 0.3]}",
            "--out",
            f"out{number}",
        )
        code, output, messages = command(*words)
        assert (code, judge_output(output + messages, text)) == (2, "")
        assert literal(text).split("\\n")[0] in output + messages
        code, output, messages = command("report", f"out{number}", "-o", "r.html")
        assert (code, judge_output(output + messages, text)) == (0, "")
        assert judge_page(Path("r.html").read_text(encoding="utf-8"), text, shows=True) == ""


def test_what_is_asked_for_wrongly(here: Path, command: Command) -> None:
    """What Typer itself says of wrong arguments, which may be names of files."""
    del here
    for text in TEXTS[::5]:
        for words in (
            [text],
            ["plot", f"--{text}"],
            ["verify", "a", text],
            ["plot", "x", "--reach", text],
            ["run", "x", "--jobs", text],
        ):
            code, output, messages = command(*words)
            assert code in (0, 1, 2)
            assert judge_output(output + messages, text) == "", words


def test_a_message_has_the_lines_that_fredsim_gives_it(here: Path, command: Command) -> None:
    """A line feed in a name begins none; each problem of an experiment has its own."""
    del here
    code, output, messages = command("verify", "x\nerror: y")
    assert (code, output) == (2, "")
    assert messages.splitlines() == ["error: x\\nerror: y: is no folder; name the folder of a run or of a sweep"]
    Path("x.yaml").write_text(dump_yaml(results_data() | {"seed": "x", "threads": "y"}), encoding="utf-8")
    messages = command("show", "x.yaml")[2]
    assert [line.partition(": is")[0] for line in messages.splitlines()] == [
        "error: x.yaml:10: seed",
        "error: x.yaml:11: threads",
    ]


def test_on_a_terminal() -> None:
    """Rich's own control codes are there, those of a text are not."""
    for text in TEXTS:
        file = StringIO()
        console = PlainConsole(file=file, force_terminal=True, color_system="truecolor", width=2000)
        console.print(Table([{text: text, "n": 1}], title=text).printed())
        console.print(text, soft_wrap=True)
        shown = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())  # its styles
        assert all(line.isprintable() for line in shown.split("\n"))
        flat = re.sub(r"\s", "", shown)
        assert flat.count(re.sub(r"\s", "", literal(text))) >= 4 or not text.strip()
        assert "\x1b]8" not in file.getvalue()  # a link
        file.seek(0)
        file.truncate()
        with console.status(text) as status:
            status.update(text)
            console.print(status.renderable)
        line = re.sub(r"\x1b\[[?\d;]*[A-Za-z]|\r", "", file.getvalue())  # its styles, and where the cursor goes
        assert all(one.isprintable() for one in line.split("\n"))
        assert re.sub(r"\s", "", line).count(re.sub(r"\s", "", literal(text))) >= 2 or not text.strip()


def test_tables() -> None:
    for text in TEXTS:
        table = Table([{"name": text, text or "x": -0.5, "n": 3}])
        for name, content in (("t.csv", table.csv()), ("t.md", table.markdown()), ("t.tex", table.latex())):
            assert judge_file(name, content) == "", text
        head, row = csv.reader(StringIO(table.csv()))
        assert row[1:] == ["-0.5", "3"]
        assert (row[0].removeprefix("'"), head[1].removeprefix("'")) == (
            literal(text).removeprefix("'"),
            literal(text or "x").removeprefix("'"),
        )
    for value in (-0.5, 3, None, True, "-0.5", "1e5", "+3", "nan", "a=b", "λ = 4", "–"):
        assert escape_cell(value) == value
    for value in ("=1", "+a", "-a", "@a", " =1", "-1+cmd"):
        assert escape_cell(value) == f"'{value}"
    assert escape_cell("\t=1\r") == "\\t=1\\r"


def test_the_escapes_by_themselves() -> None:
    assert visible("a\x1b\n\u202e\udcffb") == r"a\x1b\n\u202e\udcffb"
    assert visible("a\nb\t", "\n\t") == "a\nb\t"
    assert escape_html("<a href='x'>&\x00") == "&lt;a href=&#x27;x&#x27;&gt;&amp;\\x00"
    assert escape_markdown("[a](b) <c> `d` | $e$ \\") == r"\[a\](b) \<c\> \`d\` \| \$e\$ \\"
    for text in ("see https://a.b/c", "WWW.a.b", "a@b.c"):  # which Markdown makes links of, too
        assert [escape_markdown(text).replace("\\", ""), "\\" in escape_markdown(text)] == [text, True]
    assert escape_markdown("torch:a.b:C d/e 0.5") == "torch:a.b:C d/e 0.5"
    assert escape_latex("[a] {b} *\n\x1b") == r"{[}a{]} \textbraceleft{}b\textbraceright{} {*} \textbackslash{}x1b"
    assert escape_title("$a$") == r"\$a\$"


def test_only_a_title_may_have_formulas(here: Path, command: Command, refused: Refused, drawn: list[Figure]) -> None:
    """One that cannot be read is one clear error, also in a received folder."""
    del here
    forge(written("one", Path("run")), ["published"], "$zq7$")
    assert command("plot", "run")[0] == 0
    assert drawn[-1].get_suptitle().startswith("How low does the validation error")
    assert command("plot", "run", "-o", "x.svg", "--title", "$\\lambda$")[0] == 0
    assert is_math_text(drawn[-1].get_suptitle())
    for title in ("$\\frac{$", "$$", "$" + "{" * 3000 + "$", "$\\hspace{zq7}$", "$^^$"):
        refused("plot", "run", "-o", "x.svg", "--title", title, says=["--title: is '", "whose formula cannot be read"])
        if len(title) < 1000:
            forge(written("one", Path("bad")), ["title"], title)
            refused("plot", "bad", says=["whose formula cannot be read"])


def dotted(node: ast.expr) -> str:
    """Return the name that an expression is, such as `csv.writer`; "" if it is none."""
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def test_there_is_one_place_for_each_medium() -> None:
    """Nothing else in fredsim writes to the terminal, to HTML or to a table's file."""
    roots = [FREDSIM, FREDSIM.parent / "servers", FREDSIM.parent / "dispatchers"]
    paths = sorted({path for root in roots for path in root.rglob("*.py")})
    assert len(paths) > 200
    calls: dict[str, set[str]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            words = []
            if isinstance(node, ast.Call):
                words = [dotted(node.func)]
            elif isinstance(node, ast.ImportFrom):
                words = [f"{node.module}.{name.name}" for name in node.names]
            elif isinstance(node, ast.Import):
                words = [name.name for name in node.names]
            elif isinstance(node, ast.keyword):
                words = [node.arg or ""]
            for word in words:
                calls.setdefault(word, set()).add(path.relative_to(FREDSIM.parent).as_posix())
    terminal, escaping = "fredsim/show/terminal.py", "fredsim/show/escaping.py"
    only = {
        "typer.echo": terminal, "rich.console.Console": "fredsim/show/console.py", "html": escaping,
        "parse_math": "fredsim/show/plots/styles.py",
    }  # fmt: skip
    assert {word: calls[word] for word in only} == {word: {path} for word, path in only.items()}
    never = {
        "print",
        "typer.secho",
        "click.echo",
        "sys.stdout.write",
        "sys.stderr.write",
        "rich.print",
        "html.escape",
        "rich.get_console",
    }
    assert {word: calls[word] for word in never & calls.keys()} == {"html.escape": {escaping}}
    in_show = {
        path for path in calls["csv.writer"] | calls.get("csv.DictWriter", set()) if path.startswith("fredsim/show")
    }
    assert in_show == {"fredsim/show/tables.py"}
