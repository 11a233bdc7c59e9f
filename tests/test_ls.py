"""`fredsim ls`: one line for each folder of results, whoever wrote it; it runs nothing and changes nothing."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredsim.config.sweep.expansion import expand, open_source
from fredsim.runs.checkpoint.checkpoints import EVERY_MINUTE
from fredsim.runs.folder.results import Results
from fredsim.runs.single.execution import execute
from fredsim.show.overview import overview

Command = Callable[..., tuple[int, str, str]]
RUN = ("--quiet", "--out")


def by_name(folder: str = "results") -> dict[str, dict[str, Any]]:
    return {Path(row["results"]).relative_to(folder).as_posix(): row for row in overview(Path(folder))}


def test_what_when_how_far_and_the_best(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "backend=numpy", *RUN, "results/one") == (0, "", "")
    words = ("backend=numpy", "sweep={server.lr: [0.01, 0.1, 1.0e+30]}")
    assert command("run", small_yaml, *words, *RUN, "results/paper/several") == (0, "", "")
    (run,) = expand(open_source(small_yaml), ["backend=numpy"]).runs
    execute(run.experiment, Path("results/stopped"), stop_at=20, policy=EVERY_MINUTE)
    os.utime("results/one/summary.json", (2_000_000_000, 2_000_000_000))
    found = by_name()
    assert next(iter(found)) == "one"  # the newest
    assert found["one"]["when"].startswith("2033-05-1")
    best = json.loads(Path("results/one/summary.json").read_text(encoding="utf-8"))["validation_error"]
    assert (found["one"]["state"], found["one"]["best"]) == ("finished", best)
    assert found["one"]["measure"] == "validation error"
    results = {one.folder.name: one.summary["validation_error"] for one in Results(Path("results/paper/several"))}
    name = min([*results][:2], key=lambda run: results[run])
    row = found["paper/several"]
    assert (row["state"], row["best"]) == ("3 runs: 2 finished, 1 diverged", results[name])
    assert name == f"{row['run']}-{name[-8:]}"
    assert found["stopped"]["state"] == "interrupted at 20 iterations"
    code, output, messages = command("ls")
    assert (code, messages) == (0, "")
    assert len(output.splitlines()) == 1 + len(found) + 1
    Path("results/one").rename(f"results/{'one_' * 12}")
    Path("results/paper/several").rename(f"results/paper/{'several_' * 5}")
    assert [line.split()[0] for line in command("ls")[1].splitlines()[1:-1]] == [
        row["results"] for row in overview(Path("results"))
    ]
    Path(f"results/{'one_' * 12}").rename("results/one")
    assert output.splitlines()[-1] == "to continue one: fredsim run results/stopped --resume"
    assert command("run", "results/stopped", "--resume", "--quiet")[0] == 0
    assert by_name()["stopped"]["state"] == "finished"


def test_losses_that_are_not_finite(small_yaml: Path, command: Command) -> None:
    """Of a regression, which has no error: a run that overflows has a NaN there."""
    words = ("backend=numpy", "loss=mse", "data.name=npz:r.npz", "data.train=null", "iterations=6")
    x = np.linspace(-1, 1, 200, dtype=np.float32).reshape(-1, 2)
    np.savez("r.npz", x_train=x, y_train=x, x_test=x[:9], y_test=x[:9])
    assert command("run", small_yaml, *words, "sweep={server.lr: [0.01, 1.0e+3]}", *RUN, "results/two")[0] == 0
    good, bad = Results(Path("results/two"))
    assert bad.ending == "finished, loss not finite"
    code, output, _ = command("run", small_yaml, *words, "server.lr=1000", "--out", "results/one")
    assert (code, "valid. loss" in output, "valid. error" in output) == (0, True, False)
    found = by_name()
    assert (found["two"]["best"], found["two"]["measure"]) == (good.summary["validation_loss"], "validation loss")
    assert (found["one"]["state"], found["one"]["best"]) == ("finished, loss not finite", None)


def test_runs_that_did_not_end(small_yaml: Path, command: Command) -> None:
    words = ("backend=numpy", "sweep={seed: [0, 1, 2]}")
    assert command("run", small_yaml, *words, *RUN, "results/three") == (0, "", "")
    table = Path("results/three/runs.csv")
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    table.write_text("".join(lines[:2]), encoding="utf-8")
    assert by_name()["three"]["state"] == "3 runs: 1 finished, 2 unfinished"
    table.unlink()
    assert by_name()["three"]["state"] == "3 runs: 3 unfinished"
    Path("results/three/summary.json").unlink(missing_ok=True)
    begun = Path("results/begun")
    begun.mkdir()
    (begun / "config.yaml").write_bytes(next(Path("results/three").glob("*/config.yaml")).read_bytes())
    assert by_name()["begun"]["state"] == "unfinished; goes on from the beginning"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"}{"), ("config.yaml", b"\xff\xfe"), ("config.yaml", b"a: &a [*a]"), ("summary.json", b"{}"),
        ("summary.json", b"[" * 100_000), ("sweep.yaml", b"sweep: 3"), ("sweep.yaml", b""), ("runs.csv", b"run\n1\n"),
        ("sweep.yaml", b"sweep: {seed: [0, 1]}\ncases: 7"), ("sweep.yaml", b"sweep: {a: [1], b: {}}"),
    ],
)  # fmt: skip
def test_a_damaged_folder_is_one_line(name: str, content: bytes, small_yaml: Path, command: Command) -> None:
    del small_yaml  # the fixture has changed the current folder
    Path("results/bad\x1b[31m").mkdir(parents=True)
    Path("results/bad\x1b[31m", name).write_bytes(content)
    code, output, messages = command("ls")
    assert (code, messages) == (0, "")
    head, line = output.splitlines()
    assert head.split() == ["results", "when", "state", "best", "measure", "run"]
    assert line.startswith(r"results/bad\x1b[31m ")
    assert " damaged: " in line or " unfinished; " in line
    assert "\x1b" not in output


def test_statuses_that_no_run_has(small_yaml: Path, command: Command) -> None:
    assert command("run", small_yaml, "sweep={seed: [0]}", "backend=numpy", *RUN, "results/s") == (0, "", "")
    table = Path("results/s/runs.csv")
    table.write_text(table.read_text(encoding="utf-8").replace("finished", "won"), encoding="utf-8")
    assert by_name()["s"]["state"] == "damaged: runs.csv: has the status 'won', which no run has"


def test_links_are_not_followed_and_no_code_is_run(
    small_yaml: Path, command: Command, own_server: Callable[..., str]
) -> None:
    code = own_server() + "\nopen('imported', 'w').close()\n"
    small_yaml.with_name("own_ls.py").write_text(code, encoding="utf-8")
    words = ("server={name: 'own_ls:Plain', lr: 0.1}", "sweep={seed: [0, 1]}")
    assert command("run", small_yaml, *words, *RUN, "results/own")[0] == 0
    Path("imported").unlink()
    Path("results/link").symlink_to("own")
    Path("results/round").symlink_to("..")
    Path("results/nowhere").symlink_to("gone")
    Path("results/file").symlink_to("own/sweep.yaml")
    found = by_name()
    states = {name: row["state"] for name, row in found.items()}
    linked = dict.fromkeys(("link", "round"), "a link, not followed")
    assert states == {"own": "2 runs: 2 finished", **linked}
    first = next(name for name in found if name in linked)
    assert command("ls")[1].splitlines()[-1] == f"to follow a link: fredsim ls results/{first}"
    assert [row["state"] for row in overview(Path("results/link"))] == ["2 runs: 2 finished"]
    assert not Path("imported").exists()


def test_a_long_name_of_the_best_run_takes_no_other_column_away(small_yaml: Path, command: Command) -> None:
    words = ("backend=numpy", "iterations=1", f"cases=[{{name: {'n' * 90}, seed: 1}}, {{name: {'m' * 90}}}]")
    assert command("run", small_yaml, *words, *RUN, f"results/{'long' * 10}") == (0, "", "")
    head, line, *_ = command("ls")[1].splitlines()
    assert head.split() == ["results", "when", "state", "best", "measure", "run"]
    assert " 2 runs: 2 finished " in line


def test_nothing_here(small_yaml: Path, command: Command, refused: Callable[..., None]) -> None:
    del small_yaml
    none = (0, "results: holds no results yet; `fredsim run quickstart` makes some\n", "")
    assert command("ls") == none  # the first that somebody may try
    refused("ls", "other", says=("other: is no folder; name one that holds results",))
    Path("results").mkdir()
    assert command("ls") == none
    Path("results").rmdir()
    Path("results").touch()
    refused("ls", says=("results: is no folder; name one that holds results",))


def test_too_many_folders_are_told(small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("run", small_yaml, "backend=numpy", *RUN, "results/z") == (0, "", "")
    for name in "abcd":
        (Path("results") / name).mkdir()
    assert command("ls")[2] == ""
    monkeypatch.setattr("fredsim.show.overview.MOST", 3)
    code, output, said = command("ls")
    assert code == 0
    assert "results/z" in output
    assert "results: has more than 3 folders, of which 3 are not looked into; name a folder in it" in said
