"""A user's modules are found in the current folder, beside the experiment's file, and where its run found them."""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
from safetensors.numpy import load_file

import fredsim
from fredsim.config.shipped import shipped
from fredsim.plugins.discovery import Classes
from fredsim.plugins.modules import import_named

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
OwnServer = Callable[..., str]

SCHEDULE = """


def halved(t, base):
    return base / (1 + t)
"""


@pytest.fixture
def apart(small_yaml: Path, own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The experiment and a user's module in one folder, `with`; the current folder is another."""
    (small_yaml.parent / "with").mkdir()
    (small_yaml.parent / "without").mkdir()
    path = small_yaml.rename(small_yaml.parent / "with" / "small.yaml")
    path.with_name("own_beside.py").write_text(own_server() + SCHEDULE, encoding="utf-8")
    monkeypatch.chdir(small_yaml.parent / "without")
    return path


@pytest.fixture
def fresh(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Call `fredsim` as a new process would: nothing of a user's was imported before."""
    path = list(sys.path)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "path", list(path))
        sys.modules.pop("own_beside", None)
        return command(*words)

    return call


def test_beside_the_file(apart: Path, fresh: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    lr = "{name: 'own_beside:halved', base: 0.1}"
    sweep = f"sweep={{server: [{{name: 'own_beside:Plain', lr: 0.1}}, {{name: asgd, lr: {lr}}}]}}"
    results = apart.parent / "results"
    for jobs in (1, 2):
        words = ("--quiet", "--jobs", jobs, "--out", results / str(jobs))
        assert fresh("run", apart, sweep, "iterations=20", *words) == (0, "", "")
    assert fresh("compare", results / "1", results / "2")[0] == 0
    monkeypatch.chdir(apart.parent.parent)
    run = next(path.parent for path in results.glob("1/*Plain*/config.yaml"))
    assert fresh("verify", run)[0] == 0
    assert fresh("show", run)[0] == 0
    far = run.rename(Path("far").absolute())
    assert fresh("verify", far)[0] == 0  # the module is where it was
    module = apart.with_name("own_beside.py").rename("own_beside.py")
    for command in ("verify", "show"):
        code, _, messages = fresh(command, far)
        assert code == 2
        assert "cannot import 'own_beside' (ModuleNotFoundError: No module named 'own_beside')" in messages
        assert f"it is looked up from {apart.parent.parent / 'without'}, {apart.parent}, " in messages
        assert "give --allow-code to look here" in messages
        assert fresh(command, far, "--allow-code")[0] == 0
        assert fresh(command, far)[0] == 2
    module.rename(apart.with_name("own_beside.py"))
    Path("own_beside.py").write_text("", encoding="utf-8")  # the current folder comes first
    assert "module 'own_beside' has no 'Plain'" in fresh("show", apart, "server.name=own_beside:Plain")[2]


def test_another_module_of_the_same_name_is_not_taken_for_it(apart: Path, refused: Refused) -> None:
    other = apart.parent.parent / "other" / "own_beside.py"
    other.parent.mkdir()
    other.write_bytes(apart.with_name("own_beside.py").read_bytes())
    same = apart.rename(other.with_name("same.yaml"))
    fredsim.run(same, ["server.name=own_beside:Plain", "iterations=20"], out="out")
    apart.write_bytes(same.read_bytes())
    assert fredsim.run(apart, ["server.name=own_beside:Plain", "iterations=20"], out="again").summary
    other.write_text(other.read_text(encoding="utf-8").replace("-=", "+="), encoding="utf-8")
    says = (f"{other} was imported before under this name; {apart.with_name('own_beside.py')} is another",)
    refused("show", apart, "server.name=own_beside:Plain", says=says)


def test_modules_of_packages_of_the_same_name(small_yaml: Path, own_server: OwnServer, refused: Refused) -> None:
    """Packages whose own files are equal, but not what is in them."""
    for folder, text in {"one": own_server(), "two": own_server().replace("-=", "+="), "three": own_server()}.items():
        package = Path(folder, "own_twice")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "inner.py").write_text(text, encoding="utf-8")
        Path(folder, "small.yaml").write_bytes(small_yaml.read_bytes())
    server = "server.name=own_twice.inner:Plain"
    fredsim.run(Path("one/small.yaml"), [server], out="first")
    says = "one/own_twice/inner.py was imported before under this name; "
    refused("show", "two/small.yaml", server, says=(says, "two/own_twice/inner.py is another: give it another name"))
    assert fredsim.run(Path("three/small.yaml"), [server], out="third").summary
    Path("three/own_twice/more.py").write_text(own_server(), encoding="utf-8")
    says = "a package that lacks it was imported before under this name; "
    refused("show", "three/small.yaml", "server.name=own_twice.more:Plain", says=(says, "three/own_twice/more.py is"))


def test_the_folder_of_the_experiment_comes_before_those_of_others(small_yaml: Path, own_server: OwnServer) -> None:
    for folder, rate in {"one": "grad", "two": "2 * grad"}.items():
        Path(folder).mkdir()
        Path(folder, "small.yaml").write_bytes(small_yaml.read_bytes())
        for name in ("own_both", f"own_{folder}"):
            text = own_server().replace("grad", rate) if name == "own_both" else own_server()
            Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
    for folder, name in (("one", "own_one"), ("two", "own_two"), ("one", "own_both")):
        fredsim.run(Path(folder, "small.yaml"), [f"server.name={name}:Plain"], out=name)
    first, both = (load_file(Path(name, "params.safetensors")) for name in ("own_one", "own_both"))
    assert all((first[name] == both[name]).all() for name in first)


def test_the_version(command: Command) -> None:
    assert command("--version") == (0, f"fredsim {version('fredsim')}\n", "")


def test_what_is_offered_stands_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a file imports, or what has the idea of another, is not offered under that file's name."""
    folder = tmp_path / "own_package"
    folder.mkdir()
    for name, text in {
        "__init__": "class Base: idea = ''",
        "one": "from own_package import Base\nclass One(Base): idea = 'first'",
        "two": "from own_package.one import One\nclass Helper(One): pass",
    }.items():
        (folder / f"{name}.py").write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert [(name, kind.__name__) for name, kind in Classes("own_package", object).items()] == [("one", "One")]


@pytest.mark.parametrize("kind", ["servers", "dispatchers", "dispatchers.gates", "compressors"])
def test_what_is_offered_is_an_attribute_of_its_package(kind: str) -> None:
    package = import_module(f"fredsim.{kind}")
    (classes,) = [value for name, value in vars(package).items() if name == kind.rpartition(".")[2].upper()]
    assert [getattr(package, offer.__name__) for offer in classes.values()] == list(classes.values())
    with pytest.raises(AttributeError, match=f"module 'fredsim.{kind}' has no attribute 'Nothing'"):
        package.Nothing  # noqa: B018


def test_experiments_lie_beside_a_package_that_has_no_link_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a source distribution is installed with `-e`, or a checkout on Windows."""
    names = list(shipped())
    (tmp_path / "fredsim").mkdir()
    (tmp_path / "experiments").symlink_to(Path(__file__).parents[1] / "experiments")
    monkeypatch.setattr("fredsim.config.shipped.__file__", str(tmp_path / "fredsim/config/shipped.py"))
    assert list(shipped()) == names
    assert shipped()["quickstart"] == tmp_path / "experiments" / "quickstart.yaml"


def test_a_module_that_was_deleted_and_edited_is_imported_once(small_yaml: Path) -> None:
    """As a notebook's user does who wants it anew: what is then given to the module must not be lost."""
    del small_yaml
    for text in ("class Class: number = 1\n", "class Class: number = 2\n"):
        Path("own_again.py").write_text(text, encoding="utf-8")
        sys.modules.pop("own_again", None)
        first = import_named("own_again:Class", "package.module:Class")
        assert import_named("own_again:Class", "package.module:Class") is first
    assert first.number == 2


@pytest.mark.parametrize("number", [1, 2])
def test_modules_of_other_tests_are_forgotten(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which tests one process has is a matter of time."""
    monkeypatch.chdir(tmp_path)
    Path("own_of_both.py").write_text(f"class Class: number = {number}\n", encoding="utf-8")
    assert import_named("own_of_both:Class", "package.module:Class").number == number
