"""Results that are damaged, or were edited: a message that names file, line and value; never a number of theirs."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import fredsim
from fredsim.config.resolution import resolve
from fredsim.errors import OutputError
from fredsim.runs.folder.results import Result
from fredsim.runs.folder.run_files import file_digests, summary_text
from fredsim.runs.many.resuming import reason_to_run
from fredsim.runs.verify.differences import difference
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]


@pytest.fixture
def done(small_yaml: Path) -> Path:
    """A finished run in the current folder."""
    fredsim.run(small_yaml, out="done")
    return Path("done")


Change = Callable[[str], str]


def lines(text: str, *numbers: int) -> str:
    return "".join(text.splitlines(keepends=True)[number] for number in numbers)


def without_second_column(text: str) -> str:
    cells = [line.split(",") for line in text.splitlines()]
    return "".join(",".join([*row[:1], *row[2:]]) + "\n" for row in cells)


EDITS: dict[str, tuple[str, Change, str]] = {
    "a line cut off": ("metrics.csv", lambda text: text[:-1], "line 5 is cut off"),
    "a digest cut off": ("metrics.csv", lambda text: text[:-9] + "\n", "line 5: digest is '"),
    "cells cut off": (
        "metrics.csv",
        lambda text: text[: text.rindex(",")] + "\n",
        "line 5 has 16 values, the header 17",
    ),
    "a word": ("metrics.csv", lambda text: text.replace("\n40,40,40.0,", "\n40,40,none,"), "line 4: time is 'none'"),
    "no count": ("metrics.csv", lambda text: text.replace("\n40,40,", "\n40,4.5,"), "line 4: timestamp is '4.5'"),
    "an empty cell": ("metrics.csv", lambda text: text.replace("\n40,40,", "\n40,,"), "line 4: timestamp is ''"),
    "no such column": ("metrics.csv", without_second_column, "it has no column 'timestamp'"),
    "out of order": ("metrics.csv", lambda text: lines(text, 0, 1, 3, 2, 4), "line 4: time is 20.0 after 40"),
    "a row twice": ("metrics.csv", lambda text: lines(text, 0, 1, 2, 2, 3, 4), "line 4: time is 20.0 after 20"),
    "no last row": (
        "metrics.csv",
        lambda text: lines(text, 0, 1, 2, 3),
        "disagree (iterations is 50 in the one, 40 at",
    ),
    "another end": ("metrics.csv", lambda text: text[:-65] + "0" * 64 + "\n", "disagree (digest is "),
    "another digest": (
        "summary.json",
        lambda text: text.replace('"digest": "', '"digest": "0'),
        "disagree (digest is 0",
    ),
    "another experiment": ("config.yaml", lambda text: text.replace("lr: 0.1", "lr: 0.2"), "was edited after the run"),
    "another name": ("config.yaml", lambda text: text.replace("name: ", "name: not_", 1), "was edited after the run"),
}


#: So many names that comparing each with each would take hours.
MANY = [f"k{i}" for i in range(300_000)]


@pytest.mark.parametrize("file", ["summary.json", "staleness.csv"])
def test_one_of_many_names_is_there_twice(file: str, done: Path, refused: Refused) -> None:
    names = [*MANY, MANY[-1]]
    table = f"staleness,count,{','.join(names)}\n0,50,{','.join('0' * len(names))}\n"
    texts = {
        "summary.json": ("{" + ", ".join(f'"{name}": 0' for name in names) + "}", "the key 'k299999' twice"),
        "staleness.csv": (table, "it has several columns 'k299999'"),
    }
    text, says = texts[file]
    (done / file).write_text(text, encoding="utf-8")
    refused("verify", "done", says=(f"done/{file}", says))


@pytest.mark.parametrize(("file", "change", "says"), EDITS.values(), ids=EDITS)
def test_what_was_changed_is_no_result(
    file: str, change: Change, says: str, small_yaml: Path, refused: Refused
) -> None:
    """Not even compared with itself, nor run again."""
    fredsim.run(small_yaml, ["evaluation.every=20"], out="done")
    text = Path("done", file).read_text(encoding="utf-8")
    assert change(text) != text
    Path("done", file).write_text(change(text), encoding="utf-8")
    disagree = says.startswith("disagree")
    where = "done: summary.json and metrics.csv " if disagree else f"done/{file}: "
    for words in (("compare", "done", "done"), ("plot", "done"), ("verify", "done")):
        if file != "config.yaml" or words[0] != "verify":  # which runs what stands there, with a warning
            if (words[0], file) == ("plot", "summary.json"):
                refused(*words, says=("done/summary.json: is not as the run wrote it; run the experiment again",))
            else:
                refused(*words, says=(f"error: {where}", says))
    with pytest.raises(OutputError, match="run the"):
        _ = Result(Path("done")).config, Result(Path("done")).metrics
    if not disagree and file == "metrics.csv":  # nor that of a run which goes on still
        Path("done/summary.json").unlink()
        with pytest.raises(OutputError, match="run the experiment again"):
            _ = Result(Path("done")).metrics


@pytest.mark.parametrize(
    ("file", "changes"),
    {
        "staleness.csv": ("4,1\n4,1\n", "x,1\n", "5,\n", "5"),
        "probe.csv": ("10\n", "5,5,0,0,1.0,1.0,1.0\n"),
    }.items(),
)
def test_damage_of_other_tables(file: str, changes: tuple[str, ...], small_yaml: Path) -> None:
    fredsim.run(small_yaml, ["probe={every: 25}"], out="done")
    text = Path("done", file).read_text(encoding="utf-8")
    for change in changes:
        Path("done", file).write_text(text + change, encoding="utf-8")
        with pytest.raises(OutputError, match=rf"done/{file}: is damaged \(line \d+"):
            getattr(Result(Path("done")), Path(file).stem)


def test_compare_tells_that_either_run_was_changed(done: Path) -> None:
    """In what it does not compare."""
    shutil.copytree(done, "other")
    summary = json.loads(Path("other/summary.json").read_bytes())
    Path("other/summary.json").write_text(json.dumps(summary | {"seconds": 1.5}), encoding="utf-8")
    one, other = Result(done, as_found=True), Result(Path("other"), as_found=True)
    assert difference(one, other) == difference(other, one) == "other/summary.json is not as the run wrote it"


def test_what_has_a_finished_run_done_again(small_yaml: Path) -> None:
    """A file that is asked for only now; and one that no run wrote, whose digest was made again."""
    fredsim.run(small_yaml, ["probe={every: 10}", "evaluation.per_client=true"], out="done")
    folder, experiment = Path("done"), resolve(Result(Path("done")).config)
    assert reason_to_run(folder, experiment) is None
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    (folder / "config.yaml").write_text(f"{config}description: another\n", encoding="utf-8")
    assert reason_to_run(folder, experiment) == "done/config.yaml is not as the run wrote it"
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    later = resolve(Result(folder).config | {"events": True})
    assert later.digest == experiment.digest
    assert reason_to_run(folder, later) == "done/events.parquet is gone"
    for name in ("metrics.csv", "staleness.csv", "params.safetensors", "probe.csv", "clients.csv"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(b"x")
        seal(folder)
        assert f"done/{name}: " in (reason_to_run(folder, experiment) or ""), name
        (folder / name).write_bytes(whole)


def test_a_file_that_cannot_be_read(done: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for want of permission, or on a bad sector: the run is done again, which says why."""
    opened, path = os.open, done / "params.safetensors"

    def refuse(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if os.fspath(name) == os.fspath(path) and not flags & os.O_CREAT:
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(name))
        return opened(name, flags, *more, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        says = f"{path} cannot be read (Input/output error)"
        assert Result(done).changed_files == [says]
        with pytest.raises(OutputError, match=rf"{path}: cannot be read \(Input/output error\); run the experiment"):
            Result(done).check_files()
        assert reason_to_run(done, resolve(Result(done).config)) == says
        code, _, messages = command("plot", done, "-o", "x.png")
        assert (code, messages.count("\n"), f"{path}: cannot be read" in messages) == (2, 1, True)
    assert Result(done).changed_files == []


def test_parameters_are_compared_by_their_bits(done: Path, command: Command) -> None:
    """Zeros of two signs differ, and what is no number is like itself."""
    shutil.copytree(done, "other")
    for left, right, different in ((0.0, -0.0, True), (np.nan, np.nan, False)):
        for folder, value in ((done, left), (Path("other"), right)):
            params = load_file(folder / "params.safetensors")
            params["b1"][3] = value
            save_file(params, folder / "params.safetensors")
            summary = json.loads((folder / "summary.json").read_bytes()) | {"files": file_digests(folder)}
            (folder / "summary.json").write_text(summary_text(summary), encoding="utf-8")
        code, output, _ = command("compare", done, "other")
        assert (code, "params.safetensors: b1[3] is np.float32(0.0) and np.float32(-0.0)" in output) == (
            int(different),
            different,
        )


def test_numbers_of_the_summary_are_compared(done: Path, command: Command) -> None:
    shutil.copytree(done, "other")
    summary = json.loads((done / "summary.json").read_text(encoding="utf-8"))
    for key in ("updates", "test_error", "bytes_fetched"):
        Path("other/summary.json").write_text(json.dumps(summary | {key: 7}), encoding="utf-8")
        code, output, _ = command("compare", done, "other")
        assert (code, f"summary.json: {key} is {summary[key]} and 7\n" in output) == (1, True)


def test_a_probe_is_compared_where_both_have_one(
    done: Path, small_yaml: Path, command: Command, refused: Refused
) -> None:
    fredsim.run(small_yaml, ["probe={every: 5}"], out="probed")
    assert command("compare", done, "probed")[0] == 0
    shutil.copytree("probed", "other")
    text = Path("probed/probe.csv").read_text(encoding="utf-8")
    Path("other/probe.csv").write_text(text + "55,0,0,0,0.0,0.0,0.0\n", encoding="utf-8")
    for name in ("compare", "verify"):
        code, output, _ = command(name, *(["probed"] if name == "compare" else []), "other")
        assert (code, "different: probe.csv, line 12 is " in output) == (1, True)
    Path("other/probe.csv").unlink()
    for name in ("compare", "verify"):
        refused(name, *(["probed"] if name == "compare" else []), "other", says=("other/probe.csv: cannot be read",))


def test_verify_says_that_parameters_have_another_type(done: Path, command: Command) -> None:
    params = load_file(done / "params.safetensors")
    save_file(params | {"b1": params["b1"].astype(np.float64)}, done / "params.safetensors")
    code, output, _ = command("verify", done)
    assert (code, "different: params.safetensors: b1 is not in both with one shape and type" in output) == (1, True)


def test_verify_says_what_was_edited(done: Path, command: Command) -> None:
    """And runs what stands there."""
    path = done / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("lr: 0.1", "lr: 0.2"), encoding="utf-8")
    code, output, messages = command("verify", done)
    assert (code, "different: metrics.csv, line 3, iteration 50: digest is" in output) == (1, True)
    assert messages.startswith("warning: done: config.yaml was edited after the run\n")


def test_verify_on_a_backend_that_lacks_the_recorded_path(small_yaml: Path, command: Command) -> None:
    fredsim.run(small_yaml, ["path=hand", "memory=1000"], out="done")
    assert command("verify", "done", "--backend", "numpy")[:2] == (0, "done: same bits\n")


def other_digit(content: bytes, place: int) -> bytes:
    """Make the first digit from a place on another one."""
    while not content[place : place + 1].isdigit():
        place += 1
    return content[:place] + (b"7" if content[place : place + 1] != b"7" else b"3") + content[place + 1 :]


CHANGED = {
    "metrics.csv": ("plot", "done"), "staleness.csv": ("plot", "done", "--kind", "staleness"),
    "probe.csv": ("plot", "done", "--kind", "probe"), "summary.json": ("report", "done"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "words"), CHANGED.items())
def test_no_number_is_drawn_that_the_run_did_not_write(
    file: str, words: tuple[str, ...], small_yaml: Path, command: Command, refused: Refused
) -> None:
    """A digit is another one: nothing but the digest tells."""
    if words[0] == "report":
        pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    fredsim.run(small_yaml, ["evaluation.every=20", "probe={every: 25}"], out="done")
    shutil.copytree("done", "whole")
    content = Path("done", file).read_bytes()
    place = (
        content.index(b'"test_error"')
        if file == "summary.json"
        else content.index(b"\n") + (3 if file == "staleness.csv" else 9)
    )
    Path("done", file).write_bytes(other_digit(content, place))
    refused(*words, "-o", "out.html" if words[0] == "report" else "out.svg", says=(
        f"done/{file}: is not as the run wrote it; run the experiment again",
    ))  # fmt: skip
    for read in (Path(file).stem, *(["ending"] if file == "metrics.csv" else [])):
        with pytest.raises(OutputError, match=f"done/{file}: is not as the run wrote it; run the experiment again"):
            getattr(Result(Path("done")), read)
    for again in (("verify", "done"), ("compare", "whole", "done")):
        code, output, messages = command(*again)
        assert (code, "same bits" in output, "Traceback" in messages) == (1, False, False)
    assert command("run", small_yaml, "evaluation.every=20", "probe={every: 25}", "--resume", "--out", "done")[0] == 0
    assert command("compare", "whole", "done")[0] == 0


@pytest.mark.parametrize("key", ["digest", "experiment", "config", "sha256", "files"])
def test_one_digit_of_a_recorded_digest(key: str, done: Path, command: Command) -> None:
    path = done / "summary.json"
    summary = json.loads(path.read_bytes())
    of, name = (summary["files"], "staleness.csv") if key == "files" else (summary, key)
    of[name] = ("0" if of[name][0] != "0" else "1") + of[name][1:]
    path.write_text(json.dumps(summary), encoding="utf-8")
    if key == "digest":  # metrics.csv has it, too
        assert command("verify", done)[0] == 2
        return
    code, output, _ = command("verify", done)
    assert (code, "different: done/" in output, "is not as the run wrote it" in output) == (1, True, True)


@pytest.mark.parametrize("value", [None, [1]])
@pytest.mark.parametrize("key", ["status", "digest", "iterations", "updates", "backend", "path", "versions"])
def test_a_summary_of_other_types(key: str, value: object, done: Path, refused: Refused) -> None:
    shutil.copytree(done, "other")
    summary = json.loads((done / "summary.json").read_bytes())
    (done / "summary.json").write_text(summary_text(summary | {key: value}), encoding="utf-8")
    for words in (("compare", "other"), ("verify",), ("plot",)):
        refused(*words, "done", says=(f"done/summary.json: is damaged ({key} is {value}); run the experiment again",))


def test_a_summary_that_no_run_writes(done: Path, refused: Refused) -> None:
    summary = json.loads((done / "summary.json").read_bytes())
    for change, says in (
        ({"time": 1e10}, "time is 10000000000.0"),  # its nanoseconds have more than 64 bits
        ({"metrics": {"top5": "x"}}, "metrics is {'top5': 'x'}"),
        ({"measured_by": "<b>"}, "measured_by names '<b>'"),
        ({"larger_is_better": ["profit", "<b>"]}, "larger_is_better names '<b>'"),
    ):
        (done / "summary.json").write_text(summary_text(summary | change), encoding="utf-8")
        refused("plot", "done", says=(f"done/summary.json: is damaged ({says}); run the experiment again",))
    del summary["test_error"]
    (done / "summary.json").write_text(summary_text(summary), encoding="utf-8")
    refused("plot", "done", says=("done/summary.json: is damaged (it has no test_error); run the experiment again",))


def test_a_configuration_that_was_edited_is_not_run_over_the_results(
    done: Path, command: Command, refused: Refused
) -> None:
    """The folder itself is the experiment then: one bit that a disk lost would replace what is there."""
    path = done / "config.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("lr: 0.1", "lr: 0.2"), encoding="utf-8")
    before = (done / "metrics.csv").read_bytes()
    for more in ((), ("--resume",)):
        refused(
            "run", done, "--out", done, *more, says=("done/config.yaml: was edited after the run", "take the change")
        )
    assert (done / "metrics.csv").read_bytes() == before
    assert command("run", done, "--out", "other", "--quiet")[0] == 0
    path.write_text(text.replace("threads: null", "threads: 1"), encoding="utf-8")
    assert command("run", done, "--out", done, "--quiet")[0] == 0
    assert (done / "metrics.csv").read_bytes() == before


def test_a_report_says_that_a_file_is_gone(small_yaml: Path, refused: Refused) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install .[report]")
    fredsim.run(small_yaml, ["probe={every: 25}"], out="done")
    Path("done/probe.csv").unlink()
    refused("report", "done", says=("done/probe.csv: is gone; run the experiment again",))


def test_a_run_that_was_killed_with_half_a_configuration(done: Path, refused: Refused) -> None:
    (done / "summary.json").unlink()
    text = (done / "config.yaml").read_text(encoding="utf-8")
    for half, says in {"name: x\n": "has no seed", text[: text.index("server")]: "has no server"}.items():
        (done / "config.yaml").write_text(half, encoding="utf-8")
        refused("plot", done, "-o", "out.svg", says=("done/config.yaml: is damaged (it ", says))


def test_damage_of_a_later_run_is_said_first(small_yaml: Path, refused: Refused) -> None:
    fredsim.run(small_yaml, ["sweep={seed: [0, 1]}"], out="swept")
    shutil.copytree("swept", "whole")
    last = max(path for path in Path("swept").iterdir() if path.is_dir())
    (last / "params.safetensors").write_bytes(b"")
    refused("compare", "whole", "swept", says=(f"{last}/params.safetensors: cannot be read",))
