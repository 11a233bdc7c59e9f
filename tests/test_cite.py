"""`fredsim cite`: an entry of everything that is cited, which agrees with what docstrings and citations say."""

import json
import re
import shutil
import tomllib
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from docs.generate.algorithms import known
from fredsim.config.shipped import shipped
from fredsim.show.catalogue.bibliography import bibliography, entries_of, keys_of
from fredsim.show.catalogue.listing import LISTINGS, PUBLISHED_DATA
from tests.sealing import seal

ROOT = Path(__file__).parents[1]
PROJECT: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
Command = Callable[..., tuple[int, str, str]]

REQUIRED = {
    "article": {"author", "title", "journal", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "techreport": {"author", "title", "institution", "year"},
    "misc": {"author", "title", "year"},
}
ACCENTS = {r"{\'a}": "á", r"{\'e}": "é", r"{\"u}": "ü", r"{\"e}": "ë", r"{\'E}": "É"}


def fields(entry: str) -> tuple[str, str, dict[str, str]]:
    """Return an entry's type, key and fields, written out from its text."""
    head, *lines = entry.replace("\n            ", " ").splitlines()
    found = re.fullmatch(r"@(\w+)\{(\w+),", head)
    assert found is not None
    assert lines.pop() == "}"
    read = [re.fullmatch(r"  (\w+) = \{(.*)\},", line) for line in lines]
    assert None not in read, entry
    return found[1], found[2], {one[1]: one[2] for one in read if one}


def families(entry: str) -> list[str]:
    """Return the family names of an entry's authors."""
    authors = fields(entry)[2]["author"]
    for written, letter in ACCENTS.items():
        authors = authors.replace(written, letter)
    return [name.partition(",")[0].strip("{}") for name in authors.split(" and ")]


def plain(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


@pytest.mark.parametrize("key", bibliography())
def test_an_entry_is_whole(key: str) -> None:
    entry = bibliography()[key]
    kind, written, found = fields(entry)
    assert written == key
    assert found.keys() >= REQUIRED[kind]
    assert entry.isascii()
    depth = 0
    for character in entry:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    assert not re.search(r"(?<!\\)[&%#$_~^]", entry)
    if "eprint" in found:
        assert re.fullmatch(r"\d{4}\.\d{4,5}", found["eprint"])
        assert found["archivePrefix"] == "arXiv"
    if kind == "article" and "arXiv" in found["journal"]:
        assert found["journal"] == f"arXiv preprint arXiv:{found['eprint']}"
    if key != "fredsim":
        assert key.startswith(f"{plain(families(entry)[0]).lower()}{found['year']}")


def test_every_entry_is_found() -> None:
    """No entry of the file is lost by how it is read, and none has another's number."""
    text = (ROOT / "fredsim/show/catalogue/references.bib").read_text(encoding="utf-8")
    assert re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE) == list(bibliography())
    numbers = re.findall(r"eprint = \{(.*)\}", text)
    assert len(numbers) == len(set(numbers))


def citations() -> Iterator[tuple[str, str]]:
    for kind, classes in known().items():
        for name, found in classes.items():
            yield f"{kind} {name}", getattr(found, "citation", "")
            if kind == "schedule":
                yield f"{kind} {name}", "".join(re.findall(r"\(([A-Z][^()]*\d{4}[^()]*)\)", found.__doc__ or ""))
    for kind in ("models", "datasets"):
        yield from ((f"{kind} {name}", entry.citation) for name, entry in LISTINGS[kind]().items())
    yield from PUBLISHED_DATA.items()


def test_everything_that_is_cited_has_an_entry() -> None:
    parts = [(name, part.strip()) for name, citation in citations() for part in citation.split(";") if part.strip()]
    assert len(parts) > 60
    assert [one for one in parts if len(keys_of(one[1])) != 1] == []
    for name, part in parts:  # and the entry is of that author and year
        author, year = re.match(r"([^\W\d]+).*?(\d{4})", part).groups()  # type: ignore[union-attr]
        (key,) = keys_of(part)
        assert (plain(families(bibliography()[key])[0]), fields(bibliography()[key])[2]["year"]) == (author, year), name


NAMED = re.compile(
    r"((?:[A-Z][\w-]+)(?:, [A-Z][\w-]+)*(?: et al\.| and [A-Z][\w-]+)?) ((?:19|20)\d\d)"
    r"(?:(?!(?:19|20)\d\d\b(?!\.))[^;])*?arXiv:(\d{4}\.\d{4,5})"
)


def test_what_is_written_about_papers_agrees_with_the_entries() -> None:
    """In every docstring, comment and citation: the number is known; author or authors and year are the entry's."""
    files = [path for folder in ("servers", "dispatchers", "fredsim") for path in (ROOT / folder).rglob("*.py")]
    named = 0
    for path in [*files, *shipped().values()]:
        text = re.sub(r'\s*"\n\s*"|\s*\n[ #]*', " ", path.read_text(encoding="utf-8"))
        numbers = re.findall(r"arXiv:(\d{4}\.\d{4,5})", text)
        assert [number for number in numbers if not keys_of(f"arXiv:{number}")] == [], path
        for who, year, number in NAMED.findall(text):
            (key,) = keys_of(f"arXiv:{number}")
            entry = bibliography()[key]
            authors = [plain(name) for name in re.split(r", | and ", who.removesuffix(" et al."))]
            wanted = [plain(name) for name in families(entry)]
            assert (authors, year) == (wanted[:1] if who.endswith("et al.") else wanted, fields(entry)[2]["year"]), path
            named += 1
    assert named > 60


def test_an_experiment(command: Command, small_yaml: Path) -> None:
    changes = [
        "server={name: sync, inner: {name: adam, lr: {name: cosine, base: 0.1, steps: 9}, weight_decay: 0.1}}",
        "compress={name: ef21, inner: {name: top_k, k: 0.1}}",
        "average={name: window}",
        "clients.partition={name: dirichlet, alpha: 0.3}",
        "published={source: 'Odena 2016, Figure 1; by hand', series: [{where: {seed: 0}, points: [[1, 0.5]]}]}",
    ]
    code, output, messages = command("cite", small_yaml, *changes)
    assert (code, messages) == (0, "")
    keys = re.findall(r"^@\w+\{(\w+),", output, re.MULTILINE)
    wanted = "fredsim odena2016 chen2016 begunov2026 kingma2015 loshchilov2017 loshchilov2019 richtarik2021 stich2018"
    assert sorted(keys) == sorted([*wanted.split(), "srinet2017", "alpaydin1998", "pedregosa2011", "yurochkin2019"])
    assert "% published points, server sync (hard-sync)\n@article{odena2016," in output
    assert "\n% server adam\n@inproceedings{kingma2015," in output
    assert f"  note = {{Version {VERSION}}},\n" in output


def test_a_folder_of_results(command: Command, small_yaml: Path) -> None:
    grid = "sweep={server: [{name: asgd, lr: 0.1}, {name: gap_aware, lr: 0.1}]}"
    assert command("run", small_yaml, grid, "iterations=2", "--quiet", "--out", "out")[0] == 0
    output = command("cite", "out")[1]
    keys = re.findall(r"^@\w+\{(\w+),", output, re.MULTILINE)
    assert keys == ["fredsim", "bengio2003", "alpaydin1998", "pedregosa2011", "barkai2020"]
    name = next(path.name for path in Path("out").glob("server=gap_aware*"))
    assert "bengio2003" not in command("cite", f"out/{name}")[1]
    summary = json.loads(Path(f"out/{name}/summary.json").read_text(encoding="utf-8"))
    seal(Path(f"out/{name}"), summary | {"versions": summary["versions"] | {"fredsim": "0.3.1"}})
    assert f"  note = {{Version {VERSION}, 0.3.1}},\n" in command("cite", "out")[1]  # what computed each of the runs
    shutil.rmtree(f"out/{name}")
    assert command("cite", "out") == (0, output, "")  # the table and the experiment are enough


def test_classes_of_ones_own(command: Command, small_yaml: Path, own_server: Callable[..., str]) -> None:
    module = own_server() + "    citation = 'Müller & Co 2030, 50 % of {it}, arXiv:2999.12345; Odena 2016'\n"
    derived = "from fredsim.servers import ASGD\n\n\nclass Derived(ASGD):\n    pass\n"
    Path("cited_own.py").write_text(
        module + own_server(name="Silent").replace("lr)", "lr, weight_decay)", 1) + derived, encoding="utf-8"
    )
    code, output, _ = command("cite", small_yaml, "server={name: 'cited_own:Plain', lr: 0.1}")
    assert code == 0
    it = r"\textbraceleft{}it\textbraceright{}"  # BibTeX counts the braces of \{ and \}, too
    title = rf"  title = {{{{Müller \& Co 2030, 50 \% of {it}, arXiv:2999.12345}}}},"
    assert f"{title}\n  eprint = {{2999.12345}},\n  archivePrefix = {{arXiv}},\n}}\n" in output
    assert "% server cited_own:Plain\n@article{odena2016," in output
    for name in ("Silent", "Derived"):  # a citation of ASGD's is not one of what is derived from it
        server = f"server={{name: 'cited_own:{name}', lr: 0.1, weight_decay: 0.1}}"  # whatever it means by that
        output = command("cite", small_yaml, server)[1]
        assert output.endswith(f"% No source is known of: server cited_own:{name}.\n")
        assert "loshchilov2019" not in output
        assert "bengio2003" not in output + command("list", f"cited_own:{name}")[1]
    assert list(entries_of("nobody knows this")) == ["nobodyknowsthis"]


OWN_PARTS = """
import numpy as np


def loss(output, y):
    return (output**2).sum(axis=1), 2 * output


def metric(output, y):
    return 0.5


def rate(t):
    return 0.1


def noisy(x, generator):
    return x


def net(shape, classes):
    raise AssertionError("no model is built")


class Rows:
    shape, dtype = (3,), np.float32

    def len(self, part):
        return 8

    def rows(self, part, numbers):
        return np.ones((len(numbers), 3), np.float32), np.arange(len(numbers)) % 2


class Valley:
    def initial(self, rng):
        return np.ones(2, np.float32)

    def gradient(self, params, draw):
        return params

    def evaluate(self, params):
        return {"height": 1.0}

"""


@pytest.mark.parametrize(
    ("part", "name", "keys"),
    [
        ("loss", "loss", "loss='{}'"),
        ("metric", "metric", "evaluation={{every: 1, metrics: ['{}']}}"),
        ("schedule", "rate", "server={{name: asgd, lr: {{name: '{}'}}}}"),
        ("augmentation", "noisy", "data.augment='{}'"),
        ("data", "Rows", "data={{name: 'python:{}'}}"),
        ("model", "net", "model={{name: 'torch:{}', numerics: native}}"),
        ("problem", "Valley", "problem={{name: '{}'}}"),
    ],
)
def test_every_part_of_ones_own(part: str, name: str, keys: str, command: Command, small_yaml: Path) -> None:
    """A function or class says its source by `citation`, whatever part of the experiment it is; or it has none."""
    own = "\n\n%s.citation = 'Odena 2016'\n"
    if part == "model":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    for module, more in (("cited_parts", own % name), ("uncited_parts", "")):
        Path(f"{module}.py").write_text(OWN_PARTS + more, encoding="utf-8")
        text = keys.format(f"{module}:{name}")
        rest = ["data=null", "model=null", "clients={count: 2}"] if part == "problem" else []
        code, output, messages = command("cite", small_yaml, *rest, text)
        assert (code, messages) == (0, "")
        label = part + " " + text.split("'")[1]
        cited = f"% {label}\n@article{{odena2016," in output
        silent = f"% No source is known of: {label}." in output
        assert (cited, silent) == (bool(more), not more), output


CUT = "stages={{cuts: [W2], delay: {}}}"


@pytest.mark.parametrize(
    ("changes", "cited"),
    [
        (["dispatcher={name: clock}", "clients.local_steps={fastest: 5, by: speed}"], {
            "liu2024": "local steps by speed",
        }),
        (["dispatcher={name: clock}", "clients.local_steps={seconds: 2.0}"], {}),
        (["clients.prox=0.1"], {"li2020": "proximal term"}),
        ([CUT.format("pipedream")], {"narayanan2019": "delay pipedream"}),
        ([CUT.format("pipemare")], {"yang2021": "delay pipemare"}),
        ([CUT.format("one_step"), "stages.reschedule=9"], {
            "narayanan2021": "delay one_step", "yang2021": "corrections for stages",
        }),
        ([CUT.format("{forward: 1, backward: 0}"), "stages.correction=0.1"], {"yang2021": "corrections for stages"}),
        ([CUT.format("{forward: 1, backward: 0}")], {}),
    ],
)  # fmt: skip
def test_what_clients_do(changes: list[str], cited: dict[str, str], command: Command, small_yaml: Path) -> None:
    """Beside the entries of the experiment's server and data."""
    code, output, messages = command("cite", small_yaml, "clients.sampling=iid", *changes)
    assert (code, messages) == (0, "")
    found = {key: comment for comment, key in re.findall(r"^% (.*)\n@\w+\{(\w+),", output, re.MULTILINE)}
    of_data = {key: found.pop(key) for key in ("fredsim", "bengio2003", "alpaydin1998", "pedregosa2011")}
    assert (found, of_data["bengio2003"]) == (cited, "server asgd")


@pytest.mark.parametrize(
    ("citation", "key"),
    [
        ("Zhang, Choromanska and LeCun 2015, Deep learning with elastic averaging SGD", "zhangchoromanskaandlecun"),
        ("Zhang et al. 2015, Staleness-aware async-SGD for distributed deep learning", "zhang2015"),
        ("Zhang et al. 2015, Staleness-aware async-SGD", "zhang2015"),
        ("Zhang et al. 2015: \u201cStaleness-aware async-SGD\u201d, IJCAI", "zhang2015"),
        ("Li et al. 2020, FedDANE", "lietal2020"),
        ("Li et al. 2020, Federated optimization in heterogeneous networks", "li2020"),
        ("Odena 2016", "odena2016"),
        ("Odena 2016, Figure 1, one seed, read off to ±0.005", "odena2016"),
        ("Odena 2016 (hard-sync)", "odena2016"),
        ("Odena 2016, read off by hand", "odena2016"),
        ("Odena 2016, Approximate gradients", "odena2016approximategradients"),
        ("Dean et al. 2012, λ", "dean2012"),
    ],
)
def test_a_paper_of_the_same_author_and_year(citation: str, key: str) -> None:
    """A user's title must be that of the entry; otherwise the citation is an entry of its own."""
    ((found, (entry, _)),) = entries_of(citation, own=True).items()
    assert found == key
    assert (entry == bibliography().get(key)) == (key in bibliography())
    assert entry.startswith(f"@misc{{{key},\n  title = {{{{") or key in bibliography()


def test_no_source_is_lost(command: Command, small_yaml: Path, own_server: Callable[..., str]) -> None:
    """Of several whose first words are the same, in one citation and in two; one that is named twice is there once."""
    papers = [f"Smith and Jones 2024, {title}" for title in ("Fast", "Slow", "Steady", "Fast")]
    texts = {"A": f"{papers[0]}; {papers[1]}", "B": papers[2], "C": papers[3], "D": "Fredsim"}
    modules = [own_server(name=name) + f"    citation = {text!r}\n" for name, text in texts.items()]
    Path("alike.py").write_text("".join(modules), encoding="utf-8")
    servers = [f"{{name: 'alike:{name}', lr: 0.1}}" for name in texts]
    code, output, _ = command("cite", small_yaml, f"sweep={{server: [{', '.join(servers)}]}}")
    assert code == 0
    found = re.findall(r"% (.*)\n@misc\{(smith\w*|fredsim\w*),\n  title = \{\{(.*)\}\}", output)
    assert found == [
        ("server alike:A, server alike:C", "smithandjones2024", papers[0]),
        ("server alike:A", "smithandjones2024b", papers[1]),
        ("server alike:B", "smithandjones2024c", papers[2]),
        ("server alike:D", "fredsimb", "Fredsim"),
    ]


def test_the_citation_file() -> None:
    found: Any = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    entry = fields(bibliography()["fredsim"])[2]
    assert found["cff-version"] == "1.2.0"
    assert found["license"] == PROJECT["license"]  # the version: tests/test_packaging.py
    assert found["title"] == re.sub("[{}]", "", entry["title"]) == f"fredsim: {PROJECT['description']}"
    assert found["authors"] == [{"name": entry["author"].strip("{}")}]
    assert {"message", "type", "date-released"} <= found.keys()
    assert str(found["date-released"].year) == entry["year"]
