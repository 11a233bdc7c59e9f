"""What summary.json says of a run: what it was computed from, and where; nothing else of its folder says when."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.numerics import CONTRACT
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import summary_text
from fredsim.runs.many.runner import run_expansion
from fredsim.runs.processes.observer import Monitor, Observer
from fredsim.runs.single.opening import open_expansion
from fredsim.runs.single.provenance import changed_provenance
from fredsim.system.machine import git_commit, processor_name
from tests.test_going_on import DATA

Command = Callable[..., tuple[int, str, str]]
ARRAYS: dict[str, Any] = {
    "x_train": np.arange(60 * 3, dtype=np.float32).reshape(60, 3) / 180, "y_train": np.arange(60) % 2,
    "x_test": np.ones((4, 3), np.float32), "y_test": np.arange(4) % 2,
}  # fmt: skip


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def test_data_processor_contract_and_commit(command: Command, small_yaml: Path) -> None:
    np.savez("own.npz", **ARRAYS)
    git("init", "-q")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
    words = ("run", small_yaml, "data={name: 'npz:own.npz', train: 40, validation: 10}", "--quiet", "--out")
    assert command(*words, "one") == (0, "", "")
    git("add", "own.npz")  # as between two commands of a notebook, which is one process
    assert command(*words, "two") == (0, "", "")
    one, two = (json.loads(Path(name, "summary.json").read_text(encoding="utf-8")) for name in ("one", "two"))
    train, labels = ARRAYS["x_train"], ARRAYS["y_train"].astype(np.int64)
    parts = train[:40], labels[:40], train[50:], labels[50:], ARRAYS["x_test"], ARRAYS["y_test"].astype(np.int64)
    assert one["data"] == two["data"] == hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    assert (one["contract"], one["numerics"]) == (CONTRACT, "portable")
    assert one["processor"]
    assert (one["git"], two["git"]) == (git("rev-parse", "HEAD"), git("rev-parse", "HEAD") + "-dirty")
    assert {path.name for path in Path("one").iterdir()} == {path.name for path in Path("two").iterdir()}
    for path in Path("one").iterdir():  # two equal runs are equal files but for one
        assert path.name == "summary.json" or path.read_bytes() == Path("two", path.name).read_bytes()
    git_commit.cache_clear()


@pytest.mark.skipif(sys.platform == "win32", reason="nobody can remove a current folder there")
def test_the_commit_is_of_where_and_when_the_run_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is removed during the run, which has all else by its whole path."""
    for name in ("here", "there"):
        Path(tmp_path, name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    git("init", "-q")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
    commit = git("rev-parse", "HEAD")

    class Removing(Monitor):
        def observer(self) -> Observer:
            made = Observer()
            setattr(made, "advance", lambda *_: shutil.rmtree(tmp_path / "here", ignore_errors=True))  # noqa: B010
            return made

    expansion = open_expansion(DATA | {"backend": "numpy", "clients": {"count": 2, "batch_size": 2}})
    result = run_expansion(expansion, tmp_path / "there", monitor=Removing())
    assert isinstance(result, Result)
    assert (result.summary["status"], result.summary["git"]) == ("finished", commit)
    assert not (tmp_path / "here").exists()
    monkeypatch.chdir(tmp_path)


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git_commit.cache_clear()
    assert git_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    git_commit.cache_clear()
    assert git_commit(tmp_path) is None
    git_commit.cache_clear()


def test_verify_says_that_the_data_is_another(small_yaml: Path, command: Command) -> None:
    np.savez("own.npz", **ARRAYS)
    words = ("data={name: 'npz:own.npz', train: 40, validation: 10}", "--quiet", "--out", "one")
    assert command("run", small_yaml, *words) == (0, "", "")
    assert command("verify", "one")[0] == 0
    summary = json.loads(Path("one/summary.json").read_text(encoding="utf-8"))
    Path("one/summary.json").write_text(summary_text(summary | {"data": "0" * 64}), encoding="utf-8")
    code, output, messages = command("verify", "one")
    assert (code, "different: summary.json: data is 000000" in output) == (1, True)
    assert "warning: one: the data is another than the run had" in messages


def test_what_gradients_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.runs.single.provenance.package_version", lambda name: f"{name} 2")
    here: dict[str, Any] = {"processor": processor_name(), "device": None, "versions": {"numpy": "1"}}
    assert changed_provenance(here) == changed_provenance(here | {"versions": {"torch": "torch 2"}}) == []
    there = {"processor": "x", "device": "y", "versions": {"torch": "torch 1"}}
    said = ["its gradients were computed on y", f"processor was x and is {processor_name()}"]
    assert changed_provenance(here | there) == [*said, "PyTorch was torch 1 and is torch 2"]


PROGRAMS = """
[core]
    fsmonitor = "touch {marks}/fsmonitor; false"
    sshCommand = "touch {marks}/ssh"
[filter "theirs"]
    clean = "touch {marks}/filter; cat"
    required = true
"""


def test_a_repository_of_somebody_else_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git runs programs that a repository's own configuration and hooks name, when it is asked what has changed."""
    folder, marks = tmp_path / "theirs", tmp_path / "marks"
    for path in (folder, marks):
        path.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q")
    Path("a").write_text("one", encoding="utf-8")
    git("add", "a")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    Path(".gitattributes").write_text("* filter=theirs\n", encoding="utf-8")
    with Path(".git/config").open("a", encoding="utf-8") as file:
        file.write(PROGRAMS.format(marks=marks))
    hook = Path(".git/hooks/post-index-change")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {marks}/hook\n", encoding="utf-8")
    hook.chmod(0o755)

    def touch(content: str) -> None:
        Path("a").write_text(content, encoding="utf-8")
        os.utime("a", (10**9, 10**9))
        git_commit.cache_clear()

    touch("one")
    assert (git_commit(folder), [*marks.iterdir()]) == (commit, [])
    touch("two")
    assert (git_commit(folder), [*marks.iterdir()]) == (f"{commit}-dirty", [])
    git_commit.cache_clear()
    git("describe", "--always", "--dirty")  # these do run otherwise
    assert {path.name for path in marks.iterdir()} >= {"fsmonitor", "filter", "hook"}


def test_a_repository_within_one_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git asks it in turn what has changed there; its filters are not those of the repository around it."""
    marks, outer = tmp_path / "marks", tmp_path / "theirs"
    inner = outer / "inner"
    for path in (marks, inner):
        path.mkdir(parents=True)
    (inner / "a").write_text("one", encoding="utf-8")
    for folder, name in ((inner, "a"), (outer, "inner")):
        monkeypatch.chdir(folder)
        git("init", "-q")
        git("add", name)
        git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    (inner / ".gitattributes").write_text("* filter=theirs\n", encoding="utf-8")
    with (inner / ".git/config").open("a", encoding="utf-8") as file:
        file.write(PROGRAMS.format(marks=marks))
    os.utime(inner / "a", (10**9, 10**9))
    git_commit.cache_clear()
    assert (git_commit(outer), [*marks.iterdir()]) == (git("rev-parse", "HEAD"), [])
    git_commit.cache_clear()
    git("status", "--porcelain", "-uno")  # which does run them
    assert "filter" in {path.name for path in marks.iterdir()}
