"""The manual: its pages are what the code gives, nothing is left out, links lead somewhere."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.main import get_command

import fredsim
from docs.generate.algorithms import changes_for, example_for, known
from docs.generate.copies import contents, pointed
from docs.generate.formulas import display, tex
from docs.generate.groups import GROUPS, facts
from docs.generate.keys import all_keys, meaning_of
from docs.generate.links import COPIES, anchors, documents, links
from docs.generate.pages import ROOT, generated_files
from docs.generate.paths import PLAIN as EVERYDAY
from docs.generate.paths import supported_paths
from docs.generate.pictures import FOLDER, FROM_COMMANDS, FROM_PAGES
from fredsim.cli import app
from fredsim.config.figures.choice import FigureChoice
from fredsim.config.figures.options import KINDS
from fredsim.config.yaml.plain_yaml import parse_yaml
from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result
from fredsim.runs.live.live_csv import COLUMNS as LIVE
from fredsim.runs.single.opening import open_expansion
from fredsim.servers import SERVERS
from fredsim.show.catalogue.listing import LISTINGS
from tests.test_schema import PLAIN, SCHEMA, problems

DRAWN = ("least_squares", "mishchenko", "quadratic")  # data sets that no file holds


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_what_is_made_from_the_code_is_what_is_committed() -> None:
    stale = [name for name, text in generated_files() if (ROOT / name).read_text(encoding="utf-8") != text]
    assert stale == [], "run `python -m docs.generate` in the repository's root, and commit what it writes"


def test_every_key_has_a_meaning_and_an_example_that_is_valid() -> None:
    for place in all_keys():
        key = place.key.name
        assert meaning_of(place.key).endswith("."), f"{key} has no docstring below it"
        example = parse_yaml(place.example(), key)
        base = {"sweep": {"seed": [0]}, **PLAIN} if key.startswith(("select", "overrides")) else dict(PLAIN)
        if key in {"updates", "epochs", "seconds"}:
            del base["iterations"]
        if key.startswith("problem"):
            del base["data"]
        assert problems(base | example) == [], place.example()


SMALL = {
    "name": "small", "iterations": 10, "data": {"name": "digits"}, "model": {"hidden": [16]},
    "clients": {"count": 8, "batch_size": 2}, "server": {"name": "fasgd", "lr": 0.1},
    "dispatcher": {"name": "clock"}, "events": True,
}  # fmt: skip


def test_every_example_of_a_key_is_an_experiment() -> None:
    """With what it needs in other sections; but for modules of the reader's, and what only a recorded sweep has."""
    refused = []
    for place in all_keys():
        key, example = place.key.name, dict(parse_yaml(place.example(), place.key.name))
        base: dict[str, Any] = dict(SMALL)
        if example.get("data", {}).get("name") in {"least_squares", "quadratic"}:
            base |= {"model": {"name": "linear"}, "clients": {"count": 4, "batch_size": 1}}
        if example.get("model", {}).get("name") == "linear" or key == "until.gap":
            base |= {"model": {"name": "linear"}, "data": {"name": "least_squares"}}
        if key.startswith("until.test_"):
            base["evaluation"] = {"test": True}
        if key in {"updates", "epochs", "seconds"}:
            del base["iterations"]
        if key.startswith("problem"):
            del base["data"], base["model"]
        if key.startswith("select"):
            base["sweep"] = {"server.name": ["asgd", "sasgd"], "server.lr": [0.1, 0.2]}
        if key.startswith("figures"):
            base["sweep"] = {"server.name": ["asgd", "sync"], "server.lr": [0.1, 0.2]}
            base["select"] = {"best": "validation_error", "over": "server.lr"}
        if key == "overrides" or "torch:" in place.example():
            continue
        try:
            open_expansion(base | example)
        except ConfigError as error:
            refused += [] if "cannot import 'my_" in str(error) else [f"{place.example()}: {error}"]
    assert refused == []


def test_every_key_that_an_editor_knows_has_a_place() -> None:
    settings = json.loads(SCHEMA.read_text(encoding="utf-8"))["definitions"]["settings"]["properties"]
    pages = {"server": "servers", "dispatcher": "dispatchers", "compress": "compressors", "average": "averages"}
    for key in settings:
        top, _, below = key.partition(".")
        names = sorted((ROOT / "docs/reference" / pages.get(top, "-")).glob("*.md"))
        own = "".join(path.read_text(encoding="utf-8") for path in names)
        shown = [page("reference/keys.md"), page(f"reference/{pages[top]}.md") + own if top in pages else ""]
        assert f"`{key}`" in shown[0] or (below == "name" and top != "clients") or f"| `{below}` |" in shown[1], key


def test_every_algorithm_has_its_section() -> None:
    for kind, classes in known().items():
        text = page(f"reference/{kind}s.md")
        sections = {part.partition("`")[0]: part for part in text.split("\n## `")[1:]}
        if kind in GROUPS:
            sections = {name: page(f"reference/{kind}s/{name}.md") for name in classes}
            assert sorted(path.stem for path in (ROOT / f"docs/reference/{kind}s").iterdir()) == sorted(classes)
            assert [name for name in classes if text.count(f"\n| [`{name}`]({kind}s/{name}.md) |") != 1] == []
        assert list(sections) == list(classes)
        for name, found in classes.items():
            fields = getattr(found, "Hyper", found).model_fields
            missing = [key for key in fields if key != "name" and f"| `{key}` |" not in sections[name]]
            assert missing == [], (name, missing)
            assert getattr(found, "citation", "").partition(",")[0] in sections[name]


def test_every_command_and_option_has_its_place() -> None:
    group: Any = get_command(app)
    sections = {part.partition("`")[0]: part for part in page("reference/command_line.md").split("\n## `fredsim ")}
    assert set(sections) >= set(group.commands)
    for name, command in group.commands.items():
        for one in command.params:
            names = [one.name.upper()] if one.param_type_name == "argument" else [*one.opts, *one.secondary_opts]
            assert [word for word in names if f"`{word}`" not in sections[name]] == []
            assert one.help, f"{name} {one.name} says nothing"
            assert Text.from_markup(one.help).plain == one.help  # rich takes [words] for markup, and they are lost


def test_every_other_name_has_its_place() -> None:
    """Data sets, models, figures, what a live run writes, what Python has, and the environment's variables."""
    named = {
        "own_data.md": [name.partition(":")[0] for name in LISTINGS["datasets"]() if name not in DRAWN],
        "models.md": [*(name.partition(":P")[0] for name in LISTINGS["models"]()), *DRAWN],
        "plots.md": [*KINDS, *(name.rstrip("_") for name in FigureChoice.model_fields)],
        "live.md": [*LIVE],
        "reference/python.md": [name for name in fredsim.__all__ if not name.startswith("_")],
        "reference/command_line.md": {
            name
            for path in (ROOT / "fredsim").rglob("*.py")
            for name in re.findall(r"FREDSIM_[A-Z]+", path.read_text(encoding="utf-8"))
        },
    }
    for name, words in named.items():
        assert [word for word in words if not re.search(rf"[`. {{]{word}\b", page(name))] == [], name


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in links(document):
        if "://" not in link:
            name, _, anchor = link.partition("#")
            target = document.parent / name if name else document
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_every_picture_of_the_results_stands_on_a_page() -> None:
    results = ROOT / "results/reference"
    known = {(page.parent / link).resolve() for page in results.rglob("*.md") for link in links(page)}
    assert [path for path in results.rglob("*.png") if path not in known] == []


def test_every_page_belongs_to_a_part_of_the_manual() -> None:
    parts = re.split(r"^## ", page("index.md"), flags=re.MULTILINE)[1:]
    entries = [re.findall(r"^- \[(.+)\]\((.*)\)\\\n  (\S.*[.?])$", part, re.MULTILINE) for part in parts]
    assert [len(found) for found in entries] == [part.count("\n- ") for part in parts]  # each says what it is for
    listed = [link for found in entries for _, link, _ in found]
    pages = {
        path.relative_to(ROOT / "docs").as_posix()
        for path in (ROOT / "docs").rglob("*.*")
        if path.suffix in {".md", ".ipynb"} and COPIES not in path.parents
    }
    below = {name for name in pages if re.match(r"reference/(servers|dispatchers)/", name)}
    assert sorted(link for link in listed if not link.startswith("../")) == sorted(pages - {"index.md"} - below)
    reached = {(ROOT / "docs" / link).resolve() for link in listed}
    for path in [path for path in reached if path.suffix == ".md"]:
        reached |= {(path.parent / link.partition("#")[0]).resolve() for link in links(path)}
    results = {path for path in documents() if ROOT / "results" in path.parents and not path.stem.endswith("-table")}
    assert results - reached == set()


def test_the_sidebar_has_the_names_of_the_front_page() -> None:
    text = page("index.md")
    found = contents(text, ROOT / "docs/index.md")
    assert re.findall(r":caption: (.*)", found) == re.findall(r"^## (.*)", text, re.MULTILINE)
    names = [name for name, _ in re.findall(r"^(\S.*) <(.*)>$", found, re.MULTILINE)]
    assert names == re.findall(r"^- \[(.+)\]\(", text, re.MULTILINE)
    assert len(names) > 50


def test_links_of_copied_pages_lead_where_they_led() -> None:
    source, copy = ROOT / "results/reference/fasgd/README.md", COPIES / "results/reference/fasgd/README.md"
    cases = {
        "[a](../../../docs/time.md#traces)": "[a](../../../../time.md#traces)",
        "[b](../time/README.md)": "[b](../time/README.md)",
        "![c](fig1/error.png)": "![c](../../../../../results/reference/fasgd/fig1/error.png)",
        "[d](fig1/runs.csv)": "{download}`d <../../../../../results/reference/fasgd/fig1/runs.csv>`",
        "[e](../staleness)": "[e](../staleness/README.md)",
        "[f](#here)": "[f](#here)",
        "[docs/time.md](../../../docs/time.md)": "[](../../../../time.md)",  # its heading
        "[g](https://arxiv.org/abs/1601.04033)": "[g](https://arxiv.org/abs/1601.04033)",
        "```text\n[h](../staleness)\n```": "```text\n[h](../staleness)\n```",
    }
    for written, changed in cases.items():
        assert pointed(written, source, copy) == changed
    front = ROOT / "docs/index.md"
    assert pointed("[i](notebooks/strategies.ipynb)", front, front) == "[i](repository/docs/notebooks/strategies.md)"


@pytest.mark.parametrize(
    ("written", "set_"),
    [
        ("θ ← θ − α g", r"\theta \leftarrow \theta - \alpha g"),
        ("√(s / (1−ρᵗ)) + 1e-8", r"\sqrt{s / ( 1 - \rho^{t} )} + 10^{-8}"),
        ("Σ_j g̃_j,   θ_client^−a", r"\sum_{j} \tilde{g}_{j} , \quad \theta_{\text{client}}^{-a}"),
        ("max_l s_l where a copy is `late`", r"\max_{l} s_{l} \text{ where a copy is late}"),
        ("b_j += max_window", r"b_{j} \;{+}{=}\; \operatorname{max}_{\text{window}}"),
        ("sign(g)·‖g‖₁", r"\operatorname{sign} ( g ) \cdot \Vert g \Vert_{1}"),
    ],
)  # fmt: skip
def test_formulas_are_set(written: str, set_: str) -> None:
    assert tex(written) == set_
    assert display([written]) == set_


def test_a_formula_that_cannot_be_set_stays_text() -> None:
    assert display(["θ ← √"]) is None


@pytest.mark.parametrize("server", ["asgd", "sync", "dana", "bfasgd", "rescaled"])
def test_the_paths_are_those_that_runs_take(server: str, tmp_path: Path) -> None:
    changes = changes_for("server", server, example_for(server, SERVERS[server].Hyper))
    result = fredsim.run({**EVERYDAY, **changes, "iterations": 10}, out=tmp_path / "out")
    assert isinstance(result, Result)
    assert supported_paths(changes).startswith(f"`{result.summary['path']}`")


def test_pictures_are_those_that_pages_show() -> None:
    kept = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    made = [name for files in [*FROM_PAGES.values(), *FROM_COMMANDS.values()] for name in files.values()]
    shown = {Path(link).name for document in documents() for link in links(document) if "pictures/" in link}
    others = [
        "glyphs.png",
        "report.png",
    ]  # of docs.generate.samples_picture and report_picture; the rest is of pictures
    assert sorted([*made, *others]) == sorted(kept)
    assert shown == set(kept)
    assert sum(kept.values()) < 1_500_000


def test_a_server_that_collects_keeps_the_sum_of_a_batch() -> None:
    keeps = {name: facts(cls, example_for(name, cls.Hyper))["keeps"] for name, cls in SERVERS.items()}
    collecting = {"sync", "soft_sync", "fedbuff", "fadas", "ca2fl", "rennala", "slowmo", "mindflayer", "sign_majority"}
    assert {name for name, what in keeps.items() if what.endswith("the sum of a batch")} == collecting
    assert (keeps["sync"], keeps["fadas"]) == ("the sum of a batch", "3 P + the sum of a batch")
    assert (keeps["asgd"], keeps["ternary_sync"]) == ("nothing", "the gradients of a round")
