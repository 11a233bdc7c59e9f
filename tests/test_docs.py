"""What the documents show works as it stands there."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import fredsim
from fredsim.document import dump_yaml
from fredsim.experiment import Experiment, Plugin

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": ""}
    ran = subprocess.run(
        [sys.executable, "-m", "fredsim", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_server_in_twenty_lines(tmp_path: Path) -> None:
    plain, elementwise = blocks("docs/own_server.md", "python")
    assert len([line for line in plain.splitlines() if line.strip()]) <= 20
    (tmp_path / "my_servers.py").write_text(f"{plain}\n\n{elementwise}", encoding="utf-8")
    (tmp_path / "root.yaml").write_text(blocks("docs/own_server.md", "yaml")[0], encoding="utf-8")
    assert "my_servers:RootStaleness" in run(tmp_path, "run", "root.yaml", "iterations=300")
    smoothed = ["sweep=null", "server={name: 'my_servers:Smoothed', lr: 0.05}", "iterations=300", "--quiet"]
    run(tmp_path, "run", "root.yaml", *smoothed, "--out", "one")
    run(tmp_path, "run", "root.yaml", *smoothed, "backend=numpy", "--out", "other")
    assert "same bits" in run(tmp_path, "compare", "one", "other")


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = tmp_path / "example.yaml"
    example.write_text(blocks("README.md", "yaml")[0], encoding="utf-8")
    assert run(tmp_path, "show", str(example)).count("name: example") == 3
    program, own = blocks("README.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(program.replace('"seed=1"', '"seed=1", "iterations=50"'), "README.md", "exec"), {})
    assert len(fredsim.load("results/mine")) == 3  # type: ignore[arg-type]
    (tmp_path / "mymodule.py").write_text(own, encoding="utf-8")
    run(tmp_path, "run", "quickstart", "sweep=null", "server={name: 'mymodule:Plain', lr: 0.1}", "iterations=50")


def test_sweeps_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = {"iterations": 20, "data": {"name": "digits"}, "model": {"hidden": []}}
    base |= {"clients": {"count": 2, "batch_size": 2}, "server": {"name": "asgd", "lr": 0.1}}
    file = tmp_path / "sweep.yaml"
    file.write_text(dump_yaml(base) + blocks("docs/sweeps.md", "yaml")[0], encoding="utf-8")
    assert run(tmp_path, "show", str(file)).count("# count=") == 48
    file.write_text(dump_yaml(base) + blocks("docs/plots.md", "yaml")[0], encoding="utf-8")
    run(tmp_path, "run", "sweep.yaml", "--quiet")
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("docs/sweeps.md", "python")
    exec(compile(program.replace("overrides = [", 'overrides = ["iterations=50", '), "sweeps.md", "exec"), {})
    assert len(fredsim.load("results/chosen")) == 4  # type: ignore[arg-type]


def test_commands_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`fredsim (\w+)", text)):
        run(ROOT, name, "--help")


def test_every_key_is_explained() -> None:
    text = (ROOT / "docs/experiment.md").read_text(encoding="utf-8")

    def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
        for name, field in model.model_fields.items():
            inner = field.annotation
            explained = f"`{prefix}{name}`" in text
            if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Plugin and not explained:
                yield from keys(inner, f"{prefix}{name}.")
            else:
                yield prefix + name

    missing = [key for key in [*keys(Experiment), "cases", "sweep"] if f"`{key}`" not in text]
    assert not missing
