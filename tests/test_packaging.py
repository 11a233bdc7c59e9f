"""House rules that a machine can check: what is packaged, what is imported, how kernels are compiled."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("dispatchers", "experiments", "servers")
SOURCES = [path for folder in ("fredsim", "servers", "dispatchers") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_the_package_list_names_every_folder() -> None:
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    places = {"fredsim": ROOT / "fredsim", **{f"fredsim.{room}": ROOT / room for room in ROOMS}}
    found = set()
    for name, place in places.items():
        for folder, _, files in os.walk(place):  # does not follow the links
            if "__init__.py" in files or any(file.endswith(".yaml") for file in files):
                inner = Path(folder).relative_to(place).parts
                found.add(".".join((name, *inner)))
    assert listed == found


def test_the_map_and_the_links_agree() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    for room in ROOMS:
        assert mapped[f"fredsim.{room}"] == room
        if (ROOT / "PKG-INFO").exists():
            continue  # a source distribution has no links
        link = ROOT / "fredsim" / room
        assert link.is_symlink()
        assert link.readlink() == Path("..") / room


def test_yaml_files_are_package_data() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    for path in (ROOT / "experiments").rglob("*.yaml"):
        package = ".".join(("fredsim", "experiments", *path.parent.relative_to(ROOT / "experiments").parts))
        assert "*.yaml" in data[package]


def test_the_conda_recipe_has_the_same_requirements() -> None:
    text = (ROOT / "recipe/meta.yaml").read_text(encoding="utf-8")
    recipe = YAML(typ="safe").load(text.replace("{{ version }}", "").replace("{{ PYTHON }}", "").partition("%}\n")[2])
    needed = [one.replace("matplotlib", "matplotlib-base") for one in PROJECT["project"]["dependencies"]]
    wanted = {re.sub("(?=[<>=])", " ", one, count=1) for one in needed}
    wanted.add(f"python {PROJECT['project']['requires-python']}")
    assert {*recipe["requirements"]["run"]} == wanted
    assert f'version = "{PROJECT["project"]["version"]}"' in text
    ((name, home),) = PROJECT["project"]["scripts"].items()
    assert recipe["build"]["entry_points"] == [f"{name} = {home}"]


def test_the_release_workflow_builds_and_checks_and_publishes_nothing() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = YAML(typ="safe").load(text)["jobs"]
    steps = {job: " ".join(step.get("run", step.get("uses", "")) for step in jobs[job]["steps"]) for job in jobs}
    assert ["python -m build" in steps["build"], "twine check --strict" in steps["build"]] == [True, True]
    assert all(part in steps["install"] for part in ("pip install dist/*.whl", "pip check", "verify smoke"))
    assert not re.search("twine upload|pypi-publish|secrets|gh release|id-token", text)
    pythons = jobs["install"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={min(pythons, key=lambda version: int(version.split('.')[1]))}"


def test_the_readme_installs_into_an_environment() -> None:
    """As .ci/run does it: Debian's and Homebrew's Python install nothing beside their own packages."""
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    for block in blocks[:2]:
        words = block.removeprefix("$ ").split()
        assert words[:5] == ["python3", "-m", "venv", ".venv", "&&"]
        assert all(word.startswith(".venv/bin/") for before, word in pairwise(words) if before == "&&")


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
