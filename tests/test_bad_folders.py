"""Folders of results that hold something else, nothing or damage: a message, and what they hold stays as it is."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fredsim
from fredsim.errors import OutputError
from fredsim.runs.folder.folders import claim, locked

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def done(small_yaml: Path) -> Path:
    """A finished run in the current folder."""
    fredsim.run(small_yaml, out="done")
    return Path("done")


@pytest.fixture
def sweep_yaml(small_yaml: Path) -> Path:
    path = small_yaml.with_name("sweep.yaml")
    path.write_text(small_yaml.read_text(encoding="utf-8") + "sweep: {seed: [0, 1]}\n", encoding="utf-8")
    return path


def test_what_is_refused_late_takes_nothing_away(done: Path, small_yaml: Path, refused: Refused) -> None:
    """That a run cannot take a path, or asks for more values than there are, shows only beside the data."""
    before = snapshot(done)
    refused("run", small_yaml, "path=fused", "backend=numpy", "--out", done, says=("path is fused",))
    assert snapshot(done) == before
    refused("run", small_yaml, "compress={name: top_k, k: 9999}", "--out", "new", says=("compress.k is 9999",))
    assert not Path("new").exists()


def test_a_folder_that_holds_another_run(done: Path, small_yaml: Path, refused: Refused) -> None:
    before = snapshot(done)
    says = ("done holds another experiment (seed: 0 there, 3 here); ", "choose another folder by --out, or remove it")
    refused("run", small_yaml, "seed=3", "--out", done, says=says)
    assert snapshot(done) == before


@pytest.mark.parametrize(
    ("content", "differs"),
    [(b"seed: 3\n", "seed: 3 there, 0 here"), (b'seed: "a\\nb"\n', r"seed: 'a\nb' there, 0 here"), (b"a: [", ""),
     (b"\xff\xfe", ""), (b"", "")],
)  # fmt: skip
def test_a_folder_with_a_configuration_of_something_else(
    content: bytes, differs: str, small_yaml: Path, refused: Refused
) -> None:
    Path("other").mkdir()
    Path("other/config.yaml").write_bytes(content)
    refused("run", small_yaml, "--out", "other", says=(f"other holds another experiment ({differs}",))
    assert snapshot(Path("other")) == {"config.yaml": content}


@pytest.mark.parametrize("name", ["small.yaml", "sweep.yaml"])
@pytest.mark.usefixtures("sweep_yaml")
def test_a_folder_with_foreign_files(name: str, refused: Refused) -> None:
    Path("thesis/chapter").mkdir(parents=True)
    Path("thesis/chapter/one.tex").write_text("dear to somebody", encoding="utf-8")
    refused("run", name, "--out", "thesis", says=("thesis is not empty", "choose another folder by --out"))
    assert snapshot(Path("thesis")) == {"chapter/one.tex": b"dear to somebody"}


def test_a_file_of_ones_own_that_is_called_sweep_yaml(small_yaml: Path, refused: Refused) -> None:
    """It is no sweep that could grow."""
    Path("mine").mkdir()
    Path("mine/sweep.yaml").write_text("dear: to somebody", encoding="utf-8")
    refused("run", small_yaml, "sweep={seed: [0, 1]}", "--resume", "--out", "mine", says=("mine holds another",))
    assert snapshot(Path("mine")) == {"sweep.yaml": b"dear: to somebody"}


def test_runs_and_sweeps_do_not_mix(done: Path, small_yaml: Path, sweep_yaml: Path, refused: Refused) -> None:
    fredsim.run(sweep_yaml, out="swept")
    before = snapshot(done), snapshot(Path("swept"))
    refused("run", sweep_yaml, "--out", done, says=("done is not empty and holds no sweep.yaml",))
    refused("run", small_yaml, "--out", "swept", says=("swept is not empty and holds no config.yaml",))
    changes = {
        ("seed=[0,1,2]",): "sweep.seed: [0, 1] there, [0, 1, 2] here",
        ("seed=[1,2]", "--resume"): "sweep.seed: [0, 1] there, [1, 2] here",
        ("iterations=60",): "iterations: 50 there, 60 here",
        ("iterations=60", "--resume"): "iterations: 50 there, 60 here",
    }
    for words, differs in changes.items():
        refused("run", sweep_yaml, *words, "--out", "swept", says=(f"swept holds another experiment ({differs}); ",))
    several = ("server={name: sasgd, lr: 0.2}", "clients.count=4", "window=7", "path=snapshots", "data.train=9")
    refused("run", small_yaml, *several, "--out", done, says=("(data.train: 1200 there, 9 here; ", "; and 2 more); "))
    assert (snapshot(done), snapshot(Path("swept"))) == before


FAILS = "raise ValueError('no')\n"


@pytest.mark.parametrize("sweep", [(), ("sweep={seed: [0, 1]}",)], ids=["run", "sweep"])
def test_what_failed_gives_way_to_what_is_corrected(
    sweep: tuple[str, ...], small_yaml: Path, own_server: Callable[..., str], command: Command, refused: Refused
) -> None:
    """But not while somebody writes there, nor beside a file of another kind, nor to what has ended."""
    Path("own_failing.py").write_text(own_server(FAILS), encoding="utf-8")
    words = ("run", small_yaml, *sweep, "--quiet", "--out", "out")
    assert command(*words, "server.name=own_failing:Plain")[0] == 2
    begun = snapshot(Path("out"))
    assert any(name.endswith("metrics.csv") for name in begun)
    run = next(Path("out").rglob("metrics.csv")).parent
    with locked(run):
        refused(*words, says=(f"{run}: another process writes into it",))
    Path("out/notes.txt").write_text("dear to somebody", encoding="utf-8")
    refused(*words, says=("out holds another experiment (server.name: ",))
    Path("out/notes.txt").unlink()
    assert snapshot(Path("out")) == begun

    assert command(*words) == (0, "", "")
    assert command(*words[:-1], "new") == (0, "", "")
    ours, new = ({name: b for name, b in snapshot(Path(of)).items() if "summary" not in name} for of in ("out", "new"))
    assert ours == new
    refused(*words, "server.lr=0.2", says=("out holds another experiment (server.lr: 0.1 there, 0.2 here); ",))


def test_a_sweep_one_of_whose_runs_has_ended_gives_no_way(
    small_yaml: Path, own_server: Callable[..., str], command: Command, refused: Refused
) -> None:
    Path("own_failing.py").write_text(own_server(FAILS), encoding="utf-8")
    words = ("run", small_yaml, "--quiet", "--out", "out", "sweep={server.name: ['own_failing:Plain', asgd]}")
    assert command(*words)[0] == 2
    before = snapshot(Path("out"))
    refused(*words, "seed=1", says=("out holds another experiment (seed: nothing there, 1 here); ",))
    assert snapshot(Path("out")) == before


#: The files of a run that was killed, and of a sweep of which every run failed: both give way.
KILLED = {"config.yaml": b"name: other\n", "metrics.csv": b""}
FAILED = {"sweep.yaml": b"name: other\n", "runs.csv": b"run,status\na,failed\n"}
FAILED |= {f"a-01234567/{name}": content for name, content in KILLED.items()}
DEAR = b"dear to somebody"


@pytest.mark.parametrize(
    ("files", "more"),
    [
        (KILLED, {"chapter/one.tex": DEAR}), (KILLED, {"checkpoint/000000000040.json": DEAR}),
        (FAILED, {"a-01234567/notes.txt": DEAR}), (FAILED, {"a-01234567/chapter/one.tex": DEAR}), (FAILED, {}),
        (FAILED, {"empty/": b""}),
        (FAILED, {"runs.csv": b"run,status\na,failed\nlost,finished\n"}), (FAILED, {"runs.csv": b"\xff\xfe"}),
    ],
)  # fmt: skip
def test_what_is_beside_what_failed_stays(
    files: dict[str, bytes], more: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the folders of the runs, too, which may be a link (where nothing is added); so do rows of runs that ended."""
    monkeypatch.chdir(tmp_path)
    name = next(iter(files))
    for folder, found in {"gives way": files, "stays": files | more}.items():
        for file, content in found.items():
            made = Path(folder, file) if file.endswith("/") else Path(folder, file).parent
            made.mkdir(parents=True, exist_ok=True)
            if not file.endswith("/"):
                Path(folder, file).write_bytes(content)
    if not more:
        Path("stays/a-01234567").rename("elsewhere")
        Path("stays/a-01234567").symlink_to(Path("elsewhere").absolute())
    claim(Path("gives way"), name, "name: mine\n")
    assert snapshot(Path("gives way")) == {name: b"name: mine\n"}
    before = snapshot(Path("stays")), snapshot(Path("elsewhere"))
    with pytest.raises(OutputError, match=r"^stays holds another experiment"):
        claim(Path("stays"), name, "name: mine\n")
    assert (snapshot(Path("stays")), snapshot(Path("elsewhere"))) == before
    assert all(Path("stays", file).exists() for file in files | more)


@pytest.mark.parametrize("out", ["taken", "taken/below"])
def test_a_file_in_the_way(out: str, small_yaml: Path, refused: Refused) -> None:
    Path("taken").write_text("dear to somebody", encoding="utf-8")
    refused("run", small_yaml, "--out", out, says=(f"{out}: cannot be written (", "choose another folder by --out"))
    assert Path("taken").read_text(encoding="utf-8") == "dear to somebody"


@pytest.mark.usefixtures("done")
@pytest.mark.parametrize("words", [("verify",), ("compare", "done"), ("plot",)], ids=" ".join)
@pytest.mark.parametrize(
    ("name", "says"),
    {
        "absent": ("absent: is no folder", "name the folder of a run or of a sweep"),
        "small.yaml": ("small.yaml: is no folder", "name the folder of a run or of a sweep"),
        "empty": ("empty: holds no results (neither config.yaml nor runs.csv)", "name the folder of a run"),
        "foreign": ("foreign: holds no results (neither config.yaml nor runs.csv)", "name the folder of a run"),
    }.items(),
)
def test_no_results(words: tuple[str, ...], name: str, says: tuple[str, ...], refused: Refused) -> None:
    Path("empty").mkdir()
    Path("foreign").mkdir()
    Path("foreign/file.txt").write_text("", encoding="utf-8")
    refused(*words, name, says=says)


EVERY = ("verify", "compare", "plot")
DAMAGES: dict[str, tuple[str, bytes | None, tuple[str, ...], str]] = {
    "no summary": ("summary.json", None, EVERY, "bad: has no summary.json: the run did not end; run it again"),
    "half a summary": ("summary.json", b'{"status": ', EVERY, "bad/summary.json: is damaged (Expecting value"),
    "a summary that is a list": ("summary.json", b"[]", EVERY, "bad/summary.json: is damaged (it holds no mapping)"),
    "an empty summary": ("summary.json", b"{}", EVERY, "bad/summary.json: is damaged (status is None)"),
    "a summary of bytes": ("summary.json", b"\xff\xfe", EVERY, "bad/summary.json: is damaged ('utf-8' codec"),
    "a strange summary": (
        "summary.json",
        b'{"status": "interrupted", "digest": "", "iterations": "x"}',
        EVERY,
        "bad/summary.json: is damaged (iterations is 'x'); run the experiment again",
    ),
    "strange code": (
        "summary.json",
        b'{"status": "finished", "digest": "", "iterations": 50, "code": "x"}',
        EVERY,
        "bad/summary.json: is damaged (code is 'x')",
    ),
    "no metrics": ("metrics.csv", None, EVERY, "bad/metrics.csv: cannot be read (No such file or directory); "),
    "empty metrics": ("metrics.csv", b"", EVERY, "bad/metrics.csv: "),
    "other metrics": (
        "metrics.csv",
        b"a,b\n1,2\n",
        EVERY,
        "bad/metrics.csv: is damaged (it has no column 'iteration')",
    ),
    "metrics of bytes": ("metrics.csv", b"\xff\xfe", EVERY, "'utf-8' codec can't decode"),
    "no parameters": ("params.safetensors", None, EVERY[:2], "bad/params.safetensors: cannot be read ("),
    "other parameters": ("params.safetensors", b"12345678", EVERY[:2], "bad/params.safetensors: cannot be read ("),
    "no staleness": ("staleness.csv", None, EVERY[:2], "bad/staleness.csv: cannot be read ("),
    "half a configuration": ("config.yaml", b"seed: [\n", EVERY, "bad/config.yaml:2:1: not valid YAML"),
    "an old configuration": ("config.yaml", b"sead: 1\n", ("verify",), "bad/config.yaml:1: sead: unknown key; did you"),
}


@pytest.mark.parametrize(("file", "content", "commands", "says"), DAMAGES.values(), ids=DAMAGES)
def test_damage(
    file: str, content: bytes | None, commands: tuple[str, ...], says: str, done: Path, refused: Refused
) -> None:
    shutil.copytree(done, "bad")
    if content is None:
        Path("bad", file).unlink()
    else:
        Path("bad", file).write_bytes(content)
    for name in commands:
        refused(name, *(["done"] if name == "compare" else []), "bad", says=(says,))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "swept/runs.csv: cannot be read (No columns"),
        (b"name\n1\n", "swept/runs.csv: is damaged (it has no column 'run')"),
        (b"run\n", "swept/runs.csv: names no run: none has ended yet; let one end, or run"),
        (b"run\nlost\n", "swept/runs.csv"),
        (b"run,status\nlost,finished", "swept/runs.csv: is damaged (line 2 is cut off)"),
        (b"run\na\nb\na\n", "swept/runs.csv: is damaged (it has the run a twice); run the experiment again"),
    ],
)
@pytest.mark.parametrize("name", EVERY)
def test_damage_of_a_sweep(content: bytes, says: str, name: str, sweep_yaml: Path, refused: Refused) -> None:
    fredsim.run(sweep_yaml, out="swept")
    shutil.copytree("swept", "whole")
    Path("swept/runs.csv").write_bytes(content)
    if name == "compare" and b"lost" in content:
        Path("whole/runs.csv").write_bytes(content)
    refused(name, "swept", *(["whole"] if name == "compare" else []), says=(f"error: {says}",))


@pytest.mark.parametrize("file", ["figure.jpg", "figure", "figure.PDF"])
def test_a_figure_of_an_unknown_kind(file: str, done: Path, refused: Refused) -> None:
    refused("plot", done, "-o", file, says=(f"{file}: unknown suffix", "choose .pdf, .svg, .png"))
    assert not Path(file).exists()


def test_a_figure_that_cannot_be_written(done: Path, refused: Refused) -> None:
    refused("plot", done, "-o", "small.yaml/figure.pdf", says=("small.yaml/figure.pdf: cannot be written (",))


def test_verify_on_an_unknown_backend(done: Path, refused: Refused) -> None:
    refused(
        "verify", done, "--backend", "gpu", says=("backend: is 'gpu'; it must be 'auto', 'numpy', 'numba' or 'cuda'",)
    )
