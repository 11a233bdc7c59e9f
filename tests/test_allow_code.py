"""A folder of results is data: its code is run only if this user has run the experiment here, or allows it."""

import hashlib
import json
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fredsim
from fredsim.config.document import read_document
from fredsim.config.experiment import config_digest
from fredsim.config.registry import find_class
from fredsim.errors import ConfigError, FredsimWarning
from fredsim.plugins.modules import import_named, look_as_recorded, look_in
from fredsim.plugins.own_runs import folders_of, note_own_run
from tests.forked import Forked

Command = Callable[..., tuple[int, str, str]]

MODULE = """
from pathlib import Path

Path("/").joinpath({marker!r}).touch()


class Class:
    def __init__(self, **hyper):
        pass

    def init(self, *given):
        self.params, self.clients = given[0], given[0]

    def apply_update(self, grad, client_id, timestamp):
        self.params -= 0.1 * grad

    def choose(self, step):
        return step % self.clients

    def hold(self, client): ...

    def release(self, client): ...

    def passes(self, step, client, statistics):
        return True

    def compress(self, push, client, step):
        return push, 4

    def begin(self, client, params): ...

    def step(self, client, params, grad, k):
        return params


def rate(t):
    return 0.1


def same(x, generator):
    return x


def measure(output, y):
    return 0.5


def module(classes, shape):
    from torch import nn
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Softshrink())


def loss(output, y):
    from torch import nn
    return nn.functional.cross_entropy(output, y, reduction="none")


class Rows:
    shape, dtype = (3,), "float32"

    def len(self, part):
        return {{"train": 40, "test": 8}}.get(part, 0)

    def rows(self, part, numbers):
        import numpy
        return numpy.float32(numbers[:, None] % 5 + [0, 1, 2]), numbers % 2


def differences(output, y):
    import numpy
    wanted = numpy.eye(output.shape[1], dtype="float32")[y]
    return ((output - wanted) ** 2).sum(axis=1), 2 * (output - wanted)


class Bowl:
    def initial(self, rng):
        return rng.standard_normal(3).astype("float32")

    def gradient(self, params, draw):
        return params, params @ params / 2

    def evaluate(self, params):
        return {{"height": float(params @ params)}}
"""
LOCAL = {"count": 4, "batch_size": 2, "sampling": "iid", "local_steps": 2}
#: The places where an experiment may name code of a user's.
NAMED: dict[str, dict[str, Any]] = {
    "server": {"server": {"name": "their_code:Class"}},
    "dispatcher": {"dispatcher": {"name": "their_code:Class"}},
    "push gate": {"dispatcher": {"push": {"their_code:Class": {}}}},
    "fetch gate": {"dispatcher": {"fetch": {"their_code:Class": {}}}},
    "compressor": {"compress": {"name": "their_code:Class"}},
    "schedule": {"server": {"name": "asgd", "lr": {"name": "their_code:rate"}}},
    "data": {"data": {"name": "python:their_code:Rows"}},
    "augmentation": {"data": {"name": "digits", "augment": "their_code:same"}},
    "metric": {"evaluation": {"every": 10, "metrics": ["their_code:measure"]}},
    "optimizer": {"clients": LOCAL | {"optimizer": {"name": "their_code:Class"}}},
    "module and loss": {"model": {"name": "torch:their_code:module"}, "loss": "their_code:loss", "threads": 1},
    "loss": {"loss": "their_code:differences"},
    "problem": {"problem": {"name": "their_code:Bowl"}, "data": None, "model": None, "clients": {"count": 4}},
    "sweep": {"sweep": {"server.lr": [{"name": "their_code:rate"}, 0.1]}},
}
#: With these, what was recorded is verified, in one more process for the run; with the others it is run again.
VERIFIED = {"server", "metric", "module and loss", "sweep"}
#: With these it is tried that code is run unasked once it was noted, and not before; with the others, what is noted.
TRIED = {"server", "metric", "sweep", "problem"}


class Place:
    """The folder of a user's, where an experiment was run; and one of another user's, who got the results."""

    def __init__(self, forked: Forked, folder: Path, data: dict[str, Any], named: str) -> None:
        self._forked = forked
        self.marker = folder / "code was run"
        self.mine, self.theirs = folder / "mine", folder / "theirs"
        self.mine.mkdir()
        data = {**data, "iterations": 20, "backend": "numpy"}
        text = MODULE.format(marker=str(self.marker)[1:])
        (self.mine / "their_code.py").write_text(text, encoding="utf-8")
        found = {key: value for key, value in {**data, **NAMED[named]}.items() if value is not None}
        (self.mine / "a.json").write_text(json.dumps(found), encoding="utf-8")
        self.states = {self.mine: folder / "state", self.theirs: folder / "state of another"}
        assert self(self.mine, "run", "a.json", "--out", "results/a", "--quiet")[0] == 0
        assert self.was_run()
        shutil.copytree(self.mine / "results/a", self.theirs / "got/a")
        shutil.copy(self.mine / "their_code.py", self.theirs / "got/a")
        for above in ("got", "."):
            shutil.copy(self.mine / "their_code.py", self.theirs / above)

    def __call__(self, folder: Path, *words: str) -> tuple[int, str]:
        """Call the command in a process, in one of the folders; return its exit code and all that it says."""
        return self._forked(folder, *words, FREDSIM_STATE=str(self.states[folder]))

    def noted(self, folder: Path, results: str) -> bool:
        """Return whether it is noted that the user of this folder has run what these results are of."""
        sweep, notes = folder / results / "sweep.yaml", self.states[folder] / "own_runs.jsonl"
        file = sweep if sweep.exists() else sweep.with_name("config.yaml")
        return notes.exists() and config_digest(read_document(file).data) in notes.read_text(encoding="utf-8")

    def was_run(self) -> bool:
        """Return whether the code has been run since the last call."""
        found = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return found


@pytest.fixture(scope="module")
def forked() -> Iterator[Forked]:
    """`fredsim`, in processes that have imported nothing of a user's."""
    forked = Forked("fredsim.show.plots", "fredsim.show.report")
    yield forked
    forked.close()


@pytest.mark.parametrize("named", NAMED)
def test_code_of_others_is_not_run(
    named: str, tmp_path: Path, digits_experiment: dict[str, Any], forked: Forked, request: pytest.FixtureRequest
) -> None:
    if named == "module and loss":
        pytest.importorskip("torch", reason="needs PyTorch")
    place = Place(forked, tmp_path, digits_experiment, named)
    words = ("verify", "{}") if named in VERIFIED else ("run", "{}", "--out", "again")
    mine, theirs = ([word.format(folder) for word in words] for folder in ("results/a", "got/a"))
    tried = named in TRIED or request.config.getoption("--slow")
    assert place.noted(place.mine, "results/a")
    if tried:  # who has run it is not asked
        assert place(place.mine, *mine)[0] == 0
        assert place.was_run()
    code, said = place(place.theirs, "verify", "got/a")
    assert (code, said[:7]) == (2, "error: ")
    digest = hashlib.sha256((place.theirs / "their_code.py").read_bytes()).hexdigest()
    for part in ("their_code", str(place.theirs / "their_code.py"), digest, "--allow-code"):
        assert part in said
    assert not place.was_run()
    assert place(place.theirs, *theirs, "--allow-code")[0] == 0
    assert place.was_run()
    assert not place.noted(place.theirs, "got/a")
    if tried:  # what was allowed once is asked for again
        assert place(place.theirs, *theirs)[0] == 2
        assert not place.was_run()


def test_no_command_runs_it(tmp_path: Path, digits_experiment: dict[str, Any], forked: Forked) -> None:
    place = Place(forked, tmp_path, digits_experiment, "server")
    shutil.copytree(place.theirs / "got/a", place.theirs / "got/b")
    refused = ["show got/a", "plan got/a", "cite got/a", "run got/a", "run got/a --resume --out c", "verify got/a"]
    for words in (*refused, "verify got/a --jobs 2"):
        code, said = place(place.theirs, *words.split())
        assert (code, said.count("--allow-code")) == (2, 1), words
    read = ["plot got/a got/b -o a.png", "report got/a -o a.html", "compare got/a got/b", "plot got/a --kind shards"]
    for words in (*read, "plot got/a --kind ends", "compare got/a got/b --no-replay"):
        place(place.theirs, *words.split())
    (place.theirs / "a.yaml").write_text(json.dumps({**digits_experiment, "iterations": 20}), encoding="utf-8")
    assert place(place.theirs, "run", "a.yaml", "--out", "got/a")[0] == 2  # it holds another experiment
    assert not place.was_run()
    for words in ("show got/a", "plan got/a", "cite got/a", "run got/a --resume"):
        assert place(place.theirs, *words.split(), "--allow-code")[0] == 0, words
        assert place.was_run(), words


@pytest.mark.parametrize(("named", "file"), [("server", "config.yaml"), ("sweep", "sweep.yaml")])
def test_naming_its_file_is_naming_the_folder(
    named: str,
    file: str,
    tmp_path: Path,
    digits_experiment: dict[str, Any],
    forked: Forked,
    request: pytest.FixtureRequest,
) -> None:
    """Every name with `run`, and the first with every command; all with all behind --slow."""
    place = Place(forked, tmp_path, digits_experiment, named)
    got = place.theirs / "got/a"
    (place.theirs / "link.yaml").symlink_to(got / file)
    (got / "both.yaml").symlink_to(file)
    place.states[got] = place.states[place.theirs]
    names = ((place.theirs, f"got/a/{file}"), (got, file), (got, f"../a/{file}"), (place.theirs, "link.yaml"))
    commands = ["show", "plan", "cite", "run"]
    for folder, name in (*names, (got, "both.yaml")):
        for command in commands:
            code, said = place(folder, command, name)
            assert (code, said.count("--allow-code")) == (2, 1), (command, name)
            assert str(place.theirs) in said
            assert not place.was_run(), (command, name)
        assert place(folder, "show", name, "--allow-code")[0] == 0
        assert place.was_run()
        commands = commands if request.config.getoption("--slow") else ["run"]
    assert place(place.mine, "show", f"results/a/{file}")[0] == 0  # who has run it is not asked
    assert place.was_run()
    shutil.copy(place.mine / "a.json", place.mine / file)  # an experiment of this name, without results beside it
    for words in (("show", file), ("run", file, "--out", "b")):
        assert place(place.mine, *words)[0] == 0
        assert place.was_run()


def test_every_file_of_a_package_is_named(tmp_path: Path, digits_experiment: dict[str, Any], forked: Forked) -> None:
    files = {"pack/__init__.py": "", "pack/inner/__init__.py": "# inner\n", "pack/inner/code.py": "class Class: ...\n"}
    files |= {
        "bare/code.py": "class Class: ...  # in a package without a file\n",
        "built.cpython.py": "",
        "plain.py": "1",
    }
    files |= {f"built{EXTENSION_SUFFIXES[0]}": "no library", "built.py": "2"}
    for name, text in files.items():
        (tmp_path / "got" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "got" / name).write_text(text, encoding="utf-8")
    expected = {
        "pack.inner.code": ["pack/__init__.py", "pack/inner/__init__.py", "pack/inner/code.py"],
        "pack.inner": ["pack/__init__.py", "pack/inner/__init__.py"],
        "pack.absent": ["pack/__init__.py"],
        "bare.code": ["bare/code.py"],
        "built": [f"built{EXTENSION_SUFFIXES[0]}"],
        "plain": ["plain.py"],
        "plain.code": ["plain.py"],
    }
    for module, names in expected.items():
        data = {**digits_experiment, "server": {"name": f"{module}:Class"}}
        (tmp_path / "got/config.yaml").write_text(json.dumps(data), encoding="utf-8")
        code, said = forked(tmp_path, "show", "got", FREDSIM_STATE=str(tmp_path / "state"))
        digests = [hashlib.sha256(files[name].encode()).hexdigest() for name in names]
        pairs = zip(names, digests, strict=True)
        listed = ", ".join(f"{tmp_path}/got/{name} (SHA-256 {digest})" for name, digest in pairs)
        assert f"{module}:Class: {listed}. You have not" in said
        assert code == 2


#: Functions of fredsim's that would run what a folder brings along, or would change what is allowed.
OBEDIENT: dict[str, dict[str, Any]] = {
    "fredsim.api:run": {"problem": {"source": "theirs.yaml", "allow_code": True}},
    "fredsim:run": {"problem": {"source": "theirs.yaml", "allow_code": True}},
    "fredsim.servers.schedules:import_named": {"problem": {"form": ""}},
    "fredsim.plugins.own_runs:note_own_run": {"server": {"lr": {"folders": ["got"]}}},
}


@pytest.mark.parametrize("name", OBEDIENT)
def test_nothing_of_fredsim_does_it_instead(
    name: str, tmp_path: Path, digits_experiment: dict[str, Any], forked: Forked
) -> None:
    text = MODULE.format(marker=str(tmp_path / "code was run")[1:])
    (tmp_path / "their_code.py").write_text(text, encoding="utf-8")
    theirs = {**digits_experiment, "iterations": 5, "server": {"name": "their_code:Class"}}
    (tmp_path / "theirs.yaml").write_text(json.dumps(theirs), encoding="utf-8")
    (tmp_path / "base.yaml").write_text(json.dumps(digits_experiment), encoding="utf-8")
    data: dict[str, Any] = {**digits_experiment, "iterations": 5}
    if "problem" in OBEDIENT[name]:
        data = {key: data[key] for key in ("name", "server", "backend") if key in data}
        data |= {"iterations": 5, "clients": {"count": 4}, "problem": {"name": name, **OBEDIENT[name]["problem"]}}
    else:
        data["server"] = {"name": "asgd", "lr": {"name": name, **OBEDIENT[name]["server"]["lr"]}}
    (tmp_path / "got").mkdir()
    (tmp_path / "got/config.yaml").write_text(json.dumps(data), encoding="utf-8")
    (tmp_path / "got/summary.json").write_text("{}", encoding="utf-8")
    for words in ("show got", "plan got", "run got --out a", "show got/config.yaml", "run base.yaml --out got"):
        code, said = forked(tmp_path, *words.split(), FREDSIM_STATE=str(tmp_path / "state"))
        assert code == 2, words
        assert "base.yaml" in words or f"names code, {name}: which is no part of an experiment" in said
        assert not (tmp_path / "code was run").exists(), words
        assert not (tmp_path / "state").exists(), words


def test_parts_of_fredsim_need_no_flag(tmp_path: Path, digits_experiment: dict[str, Any], forked: Forked) -> None:
    (tmp_path / "got").mkdir()
    for name in ("fredsim.servers.asgd:ASGD", "fredsim.servers:ASGD"):
        data = {**digits_experiment, "server": {"name": name, "lr": 0.1}}
        (tmp_path / "got/config.yaml").write_text(json.dumps(data), encoding="utf-8")
        assert forked(tmp_path, "show", "got", FREDSIM_STATE=str(tmp_path / "state"))[0] == 0


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.usefixtures("small_yaml")
def test_names_that_no_import_could_have(named: str, digits_experiment: dict[str, Any], command: Command) -> None:
    """What is imported under such a name would be neither recorded nor run apart: it is not imported."""
    if named == "module and loss":
        pytest.importorskip("torch", reason="needs PyTorch")
    found = {**digits_experiment, **NAMED[named]}
    text = json.dumps({key: value for key, value in found.items() if value is not None})
    others = {"their-code": "their_code", "2nd.code": "_2nd", "pack.sp ace": "sp_ace"}
    for module, other in others.items() if named == "server" else [("their-code", "their_code")]:
        part = next(part for part in module.split(".") if not part.isidentifier())
        file = Path(f"{module.replace('.', '/')}.py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(MODULE.format(marker=str(Path("code was run").absolute())[1:]), encoding="utf-8")
        Path("a.json").write_text(text.replace("their_code:", f"{module}:"), encoding="utf-8")
        code, _, messages = command("run", "a.json", "--out", "b")
        assert code == 2
        assert messages.count(f"'{part}' is no identifier") == messages.count("error") == 1, messages
        assert f"rename the file, for example to {other}" in messages
        assert not Path("code was run").exists()
        assert not Path("b").exists()


@pytest.mark.parametrize("module", ["größe", "℘", "pack.größe", "_"])  # Python's import could name these
@pytest.mark.usefixtures("small_yaml")
def test_names_that_an_import_could_have(module: str, digits_experiment: dict[str, Any], command: Command) -> None:
    file = Path(f"{module.replace('.', '/')}.py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(MODULE.format(marker=str(Path("code was run").absolute())[1:]), encoding="utf-8")
    data = {**digits_experiment, "iterations": 5, "server": {"name": f"{module}:Class"}, "backend": "numpy"}
    Path("a.json").write_text(json.dumps(data), encoding="utf-8")
    assert command("run", "a.json", "--out", "b", "--quiet") == (0, "", "")
    recorded = json.loads(Path("b/summary.json").read_text(encoding="utf-8"))["code"]
    assert recorded == {module: hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "antigravity:x", "builtins:exec", "shutil:rmtree"])
def test_nothing_of_python_is_called(name: str, small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "--quiet", "--out", "a")[0] == 0
    text = Path("a/config.yaml").read_text(encoding="utf-8").replace("name: asgd", f"name: '{name}'")
    Path("a/config.yaml").write_text(text, encoding="utf-8")
    Path("a/summary.json").unlink()
    for words in (("show", "a"), ("run", "a"), ("plan", "a")):
        code, _, messages = command(*words)
        assert code == 2
        assert "--allow-code" in messages
        assert "where Python looks" in messages


def test_from_python(
    tmp_path: Path, digits_experiment: dict[str, Any], monkeypatch: pytest.MonkeyPatch, forked: Forked
) -> None:
    place = Place(forked, tmp_path, digits_experiment, "compressor")
    monkeypatch.chdir(place.theirs)
    with pytest.raises(ConfigError, match="names code, their_code:Class"):
        fredsim.run("got/a", out="again")
    assert not place.was_run()
    fredsim.run("got/a", out="again", allow_code=True)
    assert place.was_run()
    with pytest.raises(ConfigError, match="names code"):
        fredsim.run("got/a", out="again")


def test_code_of_an_installed_package_is_code_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREDSIM_STATE", str(tmp_path / "state"))
    loaded: list[bool] = []
    point = SimpleNamespace(name="theirs", module="their_package", load=lambda: loaded.append(True))
    monkeypatch.setattr("fredsim.config.registry.entry_points", lambda group: [point])
    look_as_recorded(tmp_path, "0" * 64)
    try:
        with pytest.raises(ConfigError, match="names code, theirs of an installed package: "):
            find_class("server", "theirs")
    finally:
        look_in()
    assert loaded == []


def test_the_file_of_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREDSIM_STATE", str(tmp_path / "state"))
    assert folders_of("a" * 64) is None
    note_own_run("a" * 64, [tmp_path])
    note_own_run("b" * 64, [tmp_path / "b"])
    note_own_run("a" * 64, [tmp_path])
    (path,) = (tmp_path / "state").iterdir()
    assert len(path.read_text().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (folders_of("a" * 64), folders_of("c" * 64)) == ([tmp_path], None)
    for folder in (tmp_path / "moved", tmp_path):  # it is where it was last
        note_own_run("a" * 64, [folder])
        assert folders_of("a" * 64) == [folder]
    with path.open("a") as file:
        file.write('{"config": "' + "c" * 64)  # a kill may leave half a line
        file.write('\n[]\n"x"\n{"config": 3}\n')
    assert (folders_of("b" * 64), folders_of("c" * 64)) == ([tmp_path / "b"], None)
    monkeypatch.setenv("FREDSIM_STATE", str(path))  # no folder: nothing is noted, and nothing fails
    note_own_run("d" * 64, [tmp_path])
    assert folders_of("d" * 64) is None


def test_a_list_that_somebody_else_may_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says whose code is run unasked: a folder of results may have one, and so may who shares a folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FREDSIM_STATE", "~/state")
    note_own_run("a" * 64, [tmp_path])
    assert (tmp_path / "home/state/own_runs.jsonl").exists()
    assert folders_of("a" * 64) == [tmp_path]
    for folder in ("state", "./~/state"):
        shutil.copytree("home/state", folder)
        monkeypatch.setenv("FREDSIM_STATE", folder)
        with pytest.raises(ConfigError, match=r"would be in '.*state', below the current folder; let FREDSIM_STATE"):
            folders_of("a" * 64)
        with pytest.raises(ConfigError, match="below the current folder"):
            note_own_run("b" * 64, [tmp_path])
    monkeypatch.setenv("FREDSIM_STATE", str(tmp_path / "home/state"))
    for path in (tmp_path / "home/state", tmp_path / "home/state/own_runs.jsonl"):
        before = path.stat().st_mode
        path.chmod(before | stat.S_IWGRP)
        with pytest.warns(FredsimWarning, match=f"{path} can be written by others, so that"):
            assert folders_of("a" * 64) is None
        path.chmod(before)
    assert folders_of("a" * 64) == [tmp_path]


def test_what_python_would_find_in_a_received_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One's own code has moved, and sys.path has the current folder, as with `python -m fredsim` and in a notebook."""
    monkeypatch.setenv("FREDSIM_STATE", str(tmp_path / "state"))
    mine, got = tmp_path / "mine", tmp_path / "got"
    for folder in (mine, got, tmp_path / "elsewhere"):
        folder.mkdir()
    for name in ("moved_code", "moved_package/__init__"):
        (got / name).parent.mkdir(exist_ok=True)
        (got / f"{name}.py").write_text("raise SystemExit('it was run')\n")
    note_own_run("0" * 64, [mine])
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    try:
        for here in (got, tmp_path / "elsewhere"):
            monkeypatch.chdir(here)
            sys.path[0] = str(got)
            look_as_recorded(got, "0" * 64)
            for name in ("moved_code:Class", "moved_package:Class"):
                with pytest.raises(ConfigError, match=r"it is looked up from .*mine, and where Python looks; if"):
                    import_named(name, "package.module:Class")
        (mine / "moved_code.py").write_text("Class = 1\n")
        assert import_named("moved_code:Class", "package.module:Class") == 1
    finally:
        look_in()
