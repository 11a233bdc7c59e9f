"""House rules that a machine can check: what is packaged, what is imported, how kernels are compiled."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("dispatchers", "experiments", "servers")
SOURCES = [path for folder in ("fredsim", "servers", "dispatchers") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.fixture(scope="module")
def packages() -> dict[str, Path]:
    """Return where setup.py finds each package, by name."""
    program = "import setuptools, json, sys; setuptools.setup = lambda **given: print(json.dumps(given)); import setup"
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    given = json.loads(ran.stdout)
    places = {name: ROOT / folder for name, folder in given["package_dir"].items()}
    for name in sorted(given["packages"]):
        above, _, last = name.rpartition(".")
        places.setdefault(name, places[above] / last if above else ROOT / last)
    return {name: places[name] for name in given["packages"]}


def test_the_conda_recipe_has_the_same_version_and_requirements() -> None:
    """Between two releases, too: installing.md tells to build it in a checkout."""
    text = (ROOT / "recipe/meta.yaml").read_text(encoding="utf-8")
    recipe = YAML(typ="safe").load(text.replace("{{ version }}", "").replace("{{ PYTHON }}", "").partition("%}\n")[2])
    needed = [one.replace("matplotlib", "matplotlib-base") for one in PROJECT["project"]["dependencies"]]
    wanted = {re.sub("(?=[<>=])", " ", one, count=1) for one in needed}
    wanted.add(f"python {PROJECT['project']['requires-python']}")
    assert {*recipe["requirements"]["run"]} == wanted
    assert f'{{% set version = "{PROJECT["project"]["version"]}" %}}\n' in text
    ((name, home),) = PROJECT["project"]["scripts"].items()
    assert recipe["build"]["entry_points"] == [f"{name} = {home}"]


def test_between_releases_the_version_is_that_of_none() -> None:
    """Records, checkpoints and workers of a checkout tell themselves apart from those of what was released."""
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, (newest, date) = "## Unreleased\n" in log, re.findall(r"^## (\d\S*) \((\S+)\)$", log, re.M)[0]
    version = PROJECT["project"]["version"]
    assert (version == newest) is not unreleased
    assert not unreleased or re.fullmatch(r"\d+\.\d+\.\d+\.dev0", version)
    numbers = [tuple(map(int, one.split(".")[:3])) for one in (newest, version)]
    assert numbers == sorted(numbers)
    cited = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], str(cited["date-released"])) == (newest, date)


def files() -> Iterator[Path]:
    """Yield the files of the packages, without following links."""
    for top in ("fredsim", *ROOMS):
        for folder, _, names in os.walk(ROOT / top):
            yield from (Path(folder, name) for name in names if not name.endswith(".pyc"))


def test_every_folder_with_modules_is_a_package(packages: dict[str, Path]) -> None:
    assert set(packages.values()) == {path.parent for path in files() if path.suffix == ".py"} | {ROOT / "experiments"}
    assert len(set(packages.values())) == len(packages)


def test_a_folder_has_at_most_twenty_modules() -> None:
    """So that its name says what they do; each server and dispatcher has a file of its own."""
    counts = Counter(path.parent.relative_to(ROOT) for path in files() if path.suffix == ".py")
    assert {folder for folder, count in counts.items() if count > 20} <= {Path("servers"), Path("dispatchers")}


def test_the_links_agree(packages: dict[str, Path]) -> None:
    for room in ROOMS:
        assert packages[f"fredsim.{room}"] == ROOT / room
        if (ROOT / "PKG-INFO").exists():
            continue  # a source distribution has no links
        link = ROOT / "fredsim" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room


def test_files_that_are_no_modules_are_package_data(packages: dict[str, Path]) -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for path in (path for path in files() if path.suffix != ".py"):
        inside = [name for name, place in packages.items() if path.is_relative_to(place)]
        package = max(inside, key=lambda name: len(packages[name].parts))
        assert any(path in packages[package].glob(pattern) for pattern in data[package]), path


@pytest.mark.parametrize("room", ["servers", "dispatchers"])
def test_a_room_refuses_to_be_imported_under_another_name(room: str) -> None:
    spec = importlib.util.spec_from_file_location(room, ROOT / room / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match=f"fredsim.{room}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_importing_fredsim_is_light() -> None:
    program = "import sys, fredsim; fredsim.Result; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"torch", "matplotlib", "sklearn", "numba", "pandas", "dask", "plotly", "scipy"}
    assert not heavy & set(ran.stdout.split())


def test_the_numpy_backend_needs_no_numba(tmp_path: Path) -> None:
    program = (
        "import sys, fredsim\n"
        "fredsim.run({'iterations': 3, 'data': {'name': 'digits'}, 'clients': {'count': 2, 'batch_size': 2},\n"
        "    'model': {'hidden': []}, 'server': {'name': 'asgd', 'lr': 0.1}, 'backend': 'numpy'}, out=sys.argv[1])\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert not {"numba", "torch", "matplotlib", "sklearn"} & set(ran.stdout.split())


def test_no_kernel_uses_fast_math_or_numbas_own_threads() -> None:
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if re.search("fastmath|parallel|prange", text) else ():
            if isinstance(node, ast.keyword):
                assert node.arg not in {"fastmath", "parallel"}, path
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert name != "prange", path


def test_only_the_registry_knows_the_servers_by_name() -> None:
    for path in (ROOT / "fredsim").rglob("*.py"):
        if path.parent.name not in {"servers", "dispatchers"} and path.name not in {"registry.py", "listing.py"}:
            assert not re.search(r"\b(SERVERS|DISPATCHERS)\b", path.read_text(encoding="utf-8")), path


def test_functions_are_short() -> None:
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                assert node.end_lineno - node.lineno < 60, (path, node.name)
