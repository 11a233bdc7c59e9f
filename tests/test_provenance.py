"""What summary.json says of a run: what it was computed from, and where; nothing else of its folder says when."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.numerics import CONTRACT
from fredsim.runs.folder.run_files import summary_text
from fredsim.system.machine import git_commit

Command = Callable[..., tuple[int, str, str]]
ARRAYS: dict[str, Any] = {
    "x_train": np.arange(60 * 3, dtype=np.float32).reshape(60, 3) / 180, "y_train": np.arange(60) % 2,
    "x_test": np.ones((4, 3), np.float32), "y_test": np.arange(4) % 2,
}  # fmt: skip


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()


def test_data_processor_contract_and_commit(command: Command, small_yaml: Path) -> None:
    git_commit.cache_clear()
    np.savez("own.npz", **ARRAYS)
    git("init", "-q")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first")
    words = ("run", small_yaml, "data={name: 'npz:own.npz', train: 40, validation: 10}", "--quiet", "--out")
    assert command(*words, "one") == (0, "", "")
    git_commit.cache_clear()
    git("add", "own.npz")
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
