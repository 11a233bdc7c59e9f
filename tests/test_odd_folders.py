"""Results that somebody else may have made: what is no regular file, leads outside, or is no number is refused.

The random cases (tests/odd_folders.py) have each kind of thing in the place of each file; the others are those that
once did harm.
"""

import contextlib
import json
import math
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import fredsim
from fredsim.config.document import dump_yaml, read_document
from fredsim.errors import ConfigError, OutputError
from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.checkpoint.format import json_with_digest
from fredsim.runs.folder.result import Result
from fredsim.runs.folder.run_files import FILES, too_large
from fredsim.system.csv_files import COUNT, FINITE, NUMBER, OPTIONAL
from fredsim.system.files import open_growing, open_regular, read_bytes, write_atomic
from fredsim.system.json_files import parse_json
from tests.bad_results import SWEEP, results
from tests.odd_folders import a_case, fault
from tests.sealing import seal

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
SECRET = "s3cr3t-0f-s0meb0dy"
RUN = "outside-0123abcd"  # as the folder of a run is called
OUTSIDE = (f"../{RUN}", f"/{RUN}", "..", ".", f"sub/../../{RUN}", f"..\\{RUN}", f"C:\\{RUN}", "x\ny")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recorded(name: str, folder: str = "out") -> Path:
    """Write the files of a whole run, or of a sweep, into a folder."""
    for file, content in results()[name].items():
        path = Path(folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return Path(folder)


@pytest.mark.parametrize("number", range(40))
def test_random_ones(number: int, place: Path) -> None:
    del place
    rng = random.Random(f"0 {number}")
    case = a_case(rng)
    assert fault(case, rng) == "", case


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_random_ones(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.odd_folders", str(tmp_path), "--count", "1000", "--seed", "1"]
    ended = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    *failed, last = ended.stdout.splitlines() or [""]
    assert failed == []
    assert json.loads(last)["tried"] == 1000


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("words", [("plot",), ("verify",), ("compare", "out"), ("export", "--to", "tensorboard")])
def test_a_run_outside_its_sweep(name: str, words: tuple[str, ...], place: Path, refused: Refused) -> None:
    """There is a whole run where the name leads to; it is not looked at."""
    del place
    if "export" in words:
        pytest.importorskip("tensorboard")
    recorded("one", RUN)
    text = recorded("sweep").joinpath("runs.csv").read_text(encoding="utf-8")
    Path("out/runs.csv").write_text(text.replace(text.splitlines()[1].split('",')[0] + '"', f'"{name}"'), "utf-8")
    refused(*words, "out", says=("out/runs.csv", "run the experiment again" if "verify" not in words else "the run"))
    with pytest.raises(OutputError, match="no run's folder has such a name"):
        fredsim.load("out")


def test_a_run_of_a_sweep_that_is_a_link(place: Path, refused: Refused) -> None:
    """Nothing is read or written where it leads to, by whichever command."""
    del place
    run = min(path for path in recorded("sweep").iterdir() if path.is_dir())
    run.rename("elsewhere")
    run.symlink_to(Path("elsewhere").absolute())
    before = {path.name: path.read_bytes() for path in Path("elsewhere").iterdir()}
    says = (f"{run}: is a symbolic link, and links in a folder of results are not followed; put the folder itself",)
    for words in (("plot", "out"), ("verify", "out"), ("run", "out", "--out", "out", "--resume")):
        refused(*words, says=says)
    rows = Path("out/runs.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("out/runs.csv").write_text("".join(row for row in rows if run.name not in row), encoding="utf-8")
    refused("compare", "out", "out", says=says)
    assert {path.name: path.read_bytes() for path in Path("elsewhere").iterdir()} == before


def test_a_run_of_a_sweep_whose_folder_is_gone(place: Path) -> None:
    del place
    run = min(path for path in recorded("sweep").iterdir() if path.is_dir())
    shutil.rmtree(run)
    results = fredsim.load("out")
    says = f"{Path('out/runs.csv').absolute()} names the run {run.name} whose folder is gone; resume=True does it again"
    with pytest.raises(OutputError, match=f"^{re.escape(says)}$"):
        list(results)  # type: ignore[arg-type]


def test_a_link_that_the_user_names(place: Path, small_yaml: Path, command: Command) -> None:
    """The folder itself, and an experiment, may be links; so may the folder of `--out`."""
    del place
    recorded("one")
    for name, target in {"link": "out", "other": "new", "x.yaml": str(small_yaml)}.items():
        Path(name).symlink_to(target)
    Path("new").mkdir()
    assert command("plot", "link", "-o", "x.svg")[0] == 0
    assert command("verify", "link")[:2] == (0, "link: same bits\n")
    assert command("run", "x.yaml", "--quiet", "--out", "other")[0] == 0
    assert Path("new/summary.json").is_file()


@pytest.mark.parametrize("name", ["error.png", "error-table.csv", "error-table.md"])
def test_what_is_drawn_replaces_a_link(name: str, place: Path, command: Command) -> None:
    del place
    recorded("one")
    Path("canary").write_text(SECRET, encoding="utf-8")
    Path("out", name).unlink(missing_ok=True)
    Path("out", name).symlink_to(Path("canary").absolute())
    assert command("plot", "out", "-o", "out/error.png")[0] == 0
    assert Path("canary").read_text(encoding="utf-8") == SECRET
    assert not Path("out", name).is_symlink()
    assert Path("out", name).stat().st_size > 0


def test_a_run_writes_through_no_link(place: Path, small_yaml: Path, command: Command) -> None:
    """Neither through one that has the name of a file, nor of a file that was once being written."""
    del place
    Path("canary").write_text(SECRET, encoding="utf-8")
    fredsim.run(small_yaml, out="out")
    names = ["summary.json", "metrics.csv", "staleness.csv", "params.safetensors", "params_raw.safetensors"]
    for name in (*names, *(f"{name}.part" for name in (*names, "config.yaml"))):
        Path("out", name).unlink(missing_ok=True)
        Path("out", name).symlink_to(Path("canary").absolute())
    assert command("run", small_yaml, "--quiet", "--out", "out")[0] == 0
    assert Path("canary").read_text(encoding="utf-8") == SECRET
    assert [path for path in Path("out").iterdir() if path.is_symlink()] == []
    assert command("verify", "out")[0] == 0


def test_a_link_that_comes_during_a_run(
    place: Path, small_yaml: Path, own_server: Callable[..., str], command: Command
) -> None:
    """It is no file of the run, which keeps its results."""
    del place
    lines = "if not os.path.lexists('out/probe.csv'):\n    os.symlink(os.path.abspath(__file__), 'out/probe.csv')\n"
    Path("own_linking.py").write_text(own_server(lines), encoding="utf-8")
    words = ("server.name=own_linking:Plain", "backend=numpy", "iterations=5", "--quiet", "--out", "out")
    assert command("run", small_yaml, *words)[0] == 0
    assert Path("out/probe.csv").exists()
    assert "probe.csv" not in fredsim.Result("out").summary["files"]


def test_checkpoints_that_are_a_link(place: Path, small_yaml: Path, refused: Refused) -> None:
    """Files of the form of checkpoints are neither removed from where it leads to, nor written there."""
    del place
    fredsim.run(small_yaml, out="out")
    Path("out/summary.json").unlink()
    Path("elsewhere").mkdir()
    for kind in ("json", "safetensors"):
        Path(f"elsewhere/000000000010.{kind}").write_text(SECRET, encoding="utf-8")
    Path("out/checkpoint").symlink_to(Path("elsewhere").absolute())
    says = ("out/checkpoint: is a symbolic link, and links in a folder of results are not followed",)
    refused("run", small_yaml, "--out", "out", says=says)
    found = sorted(path.read_text(encoding="utf-8") for path in Path("elsewhere").iterdir())
    assert found == [SECRET, SECRET]


def test_a_report_has_only_what_was_named(place: Path, command: Command, refused: Refused) -> None:
    """What is called sweep.yaml beside a run is no part of it; a link, or bytes that are no text, are refused."""
    pytest.importorskip("plotly")
    del place
    recorded("one", "runs/out")
    Path("runs/sweep.yaml").write_text(SECRET, encoding="utf-8")
    assert command("report", "runs/out", "-o", "x.html")[0] == 0
    assert SECRET not in Path("x.html").read_text(encoding="utf-8")
    recorded("sweep")
    secret = Path("secret")
    secret.write_bytes(Path("out/sweep.yaml").read_bytes() + f"# {SECRET}\n".encode())
    Path("out/sweep.yaml").unlink()
    Path("out/sweep.yaml").symlink_to(secret.absolute())
    refused("report", "out", "-o", "y.html", says=("out/sweep.yaml: cannot be read (it is a symbolic link",))
    Path("out/sweep.yaml").unlink()
    Path("out/sweep.yaml").write_bytes(b"\xff\xfe")
    refused("report", "out", "-o", "y.html", says=("out/sweep.yaml: cannot be read (", "save it as UTF-8"))
    assert not Path("y.html").exists()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["params.safetensors", "events.parquet", "clients.csv", "metrics.csv", "config.yaml"])
def test_a_pipe(name: str, place: Path, refused: Refused) -> None:
    """Nobody ever writes into it."""
    del place
    recorded("clock")
    Path("out", name).unlink()
    os.mkfifo(Path("out", name))
    for words in (("plot", "out", "-o", "x.svg"), ("verify", "out")):
        refused(*words, says=(f"out/{name}", "it is a pipe"))
    with pytest.raises(OSError, match="it is a pipe"):
        open_regular(Path("out", name))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "says"), [("pipe", "it is a pipe"), ("link", "Too many levels of symbolic links")])
def test_what_comes_there_after_the_look(kind: str, says: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for, and not followed."""
    del place
    Path("canary").write_text(SECRET, encoding="utf-8")
    if kind == "pipe":
        os.mkfifo("x")
    else:
        Path("x").symlink_to("canary")
    monkeypatch.setattr("fredsim.system.files.irregular_kind", lambda *_, **__: "")
    ways: tuple[Callable[..., Any], ...] = (open_regular, partial(open_growing, anew=False))
    for way in ways:
        with pytest.raises(OSError, match=says):
            way("x")


@pytest.mark.parametrize("kind", ["BF16", "F8_E4M3", "F8_E5M2", "F4", "F128"])
def test_tensors_of_another_type(kind: str, place: Path, refused: Refused) -> None:
    del place
    recorded("one")
    path = Path("out/params.safetensors")
    size = 2 if kind == "BF16" else 1
    header = {"w": {"dtype": kind, "shape": [16 // size], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    seal(Path("out"))
    refused("compare", "out", "out", says=("out/params.safetensors: ",))
    with pytest.raises(OutputError, match=r"out/params\.safetensors: cannot be read"):
        _ = fredsim.load("out").params  # type: ignore[union-attr]


def test_parameters_of_doubles_are_none(place: Path) -> None:
    del place
    recorded("one")
    save_file({"w": np.zeros(3)}, "out/params.safetensors")
    seal(Path("out"))
    with pytest.raises(OutputError, match=r"out/params\.safetensors: is damaged \('w' has the type float64, not floa"):
        _ = fredsim.load("out").params  # type: ignore[union-attr]


NOT_NUMBERS = (
    "1_000",
    "٣",
    "9" * 400,
    "1" + "0" * 19,
    " 1",
    "1 ",
    "+1",
    "0x10",
    "1e",
    "1.",
    ".5",
    "True",
    "1e1000",
    "1,0",
)


@pytest.mark.parametrize("cell", NOT_NUMBERS)
def test_what_is_no_number(cell: str) -> None:
    assert [bool(check(cell)) for check in (COUNT, FINITE, NUMBER, OPTIONAL)] == [False] * 4


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1e-300, 5e-324, 1.7976931348623157e308, 1 / 3, -123456.789, 1e16, 123456789012345.6, 1e-05]
)
def test_what_is_a_number(value: float) -> None:
    assert all(check(str(value)) for check in (FINITE, NUMBER, OPTIONAL))


def test_special_numbers() -> None:
    assert [[bool(check(cell)) for cell in ("", "nan", "inf", "-inf", "-3", "7")] for check in (OPTIONAL, NUMBER)] == [
        [True] * 6, [False, *[True] * 5],
    ]  # fmt: skip
    assert [bool(FINITE(cell)) for cell in ("", "nan", "inf", "7")] == [False, False, False, True]


@pytest.mark.parametrize("cell", ["nan", "1_000", "٣", "9" * 400])
def test_a_time_that_is_no_number(cell: str, place: Path, refused: Refused) -> None:
    del place
    header, first, *rest = recorded("clock").joinpath("metrics.csv").read_text(encoding="utf-8").splitlines()
    cells = first.split(",")
    cells[header.split(",").index("time")] = cell
    Path("out/metrics.csv").write_text("\n".join([header, ",".join(cells), *rest, ""]), encoding="utf-8")
    seal(Path("out"))
    for words in (("plot", "out", "-o", "x.svg"), ("plot", "out", "--kind", "waits", "-o", "x.svg")):
        refused(*words, says=("out/metrics.csv: is damaged (line 2: time is ",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "the key 'b' twice"),
        ("[NaN]", "out of range"),
        ("[-Infinity]", "out of range"),
        ("[1e999]", "out of range"),
        (f"[{'9' * 400}]", "400 characters"),
        (f"[{'9' * 5000}]", "5000 characters"),
        ("[18446744073709551616]", "out of range"),
        ("[" * 100_000, "nested too deep"),
        ("[1_000]", "delimiter"),
        (b"\xff", "utf-8"),
    ],
)
def test_json_that_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_json(text)


@pytest.mark.parametrize("cell", ["abc", "1_000", ""])
def test_a_last_row_that_is_forged(cell: str, place: Path, refused: Refused) -> None:
    """The seal is right; the loss decides whether the run has diverged, which the table of the sweep says."""
    del place
    run = min(path for path in recorded("sweep").iterdir() if path.is_dir())
    *rows, last = run.joinpath("metrics.csv").read_text(encoding="utf-8").splitlines()
    cells = last.split(",")
    cells[rows[0].split(",").index("validation_loss")] = cell
    run.joinpath("metrics.csv").write_text("\n".join([*rows, ",".join(cells), ""]), encoding="utf-8")
    seal(run)
    refused(
        "plot", "out", "-o", "x.svg", says=(f"{run}/metrics.csv: is damaged (line 5: validation_loss is {cell!r})",)
    )


def test_json_that_is_read() -> None:
    assert parse_json('{"a": [-9223372036854775808, 18446744073709551615, 0.1, true, null, "é"]}'.encode()) == {
        "a": [-(2**63), 2**64 - 1, 0.1, True, None, "é"]
    }


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "0x1_0"])
def test_a_number_with_a_line_in_it(text: str, small_yaml: Path, refused: Refused) -> None:
    """Readers of YAML 1.1 take it for a number, those of 1.2 for a text."""
    refused("show", small_yaml, f"server.lr={text}", says=(f"is '{text}'; write a number without _",))


@pytest.mark.parametrize("cell", ["1_0", "٣", "9" * 400])
@pytest.mark.parametrize("column", ["client", "time"])
def test_a_trace_with_what_is_no_number(cell: str, column: str, small_yaml: Path, refused: Refused) -> None:
    cells = {"client": "0", "time": "1.0"} | {column: cell}
    Path("trace.csv").write_text(f"client,time\n{cells['client']},{cells['time']}\n", encoding="utf-8")
    words = ("dispatcher={name: trace, file: trace.csv}", "iterations=1")
    refused("show", small_yaml, *words, says=(f"trace.csv, row 0: {column} is ",))


def test_a_written_file(place: Path) -> None:
    """It has the permissions that the umask gives, whatever was there; nothing else is left."""
    del place
    before = os.umask(0o027)
    try:
        Path("x").touch(mode=0o600)
        write_atomic(Path("x"), "1")
        write_atomic(Path("é" * 120), "2")  # a name of 240 bytes
        write_atomic(Path(os.fsdecode(b"a\xff.txt")), "3")  # one that is no UTF-8
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("x").stat().st_mode) == 0o640
    assert sorted(os.listdir(b".")) == [b"a\xff.txt", b"x", b"\xc3\xa9" * 120]
    os.unlink(b"a\xff.txt")
    Path("folder").mkdir()
    with pytest.raises(OSError, match="it is a folder"):
        write_atomic(Path("folder"), "3")
    os.mkfifo("pipe")
    with pytest.raises(OSError, match="it is a pipe"):
        write_atomic(Path("pipe"), "3")
    assert sorted(os.listdir()) == ["folder", "pipe", "x", "é" * 120]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
def test_outputs_that_are_no_files(place: Path, refused: Refused, command: Command) -> None:
    del place
    recorded("one")
    os.mkfifo("pipe.svg")
    says = ("pipe.svg: cannot be written (it is a pipe); choose another place for it",)
    refused("plot", "out", "-o", "pipe.svg", says=says)
    if sys.platform == "linux":  # where names of files are bytes
        assert command("plot", "out", "-o", os.fsdecode(b"a\xff.png"))[0] == 0
        assert Path(os.fsdecode(b"a\xff.png")).read_bytes()[:4] == b"\x89PNG"
    for library in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(library)
    refused(
        "export", "out", "--to", "mlflow", "-o", "pipe.svg", says=("pipe.svg: is a pipe, and MLflow writes a file",)
    )


def test_a_file_that_is_too_large(place: Path) -> None:
    del place
    with Path("x").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and 1,000 at most are read"):
        read_bytes("x", most=1000)
    recorded("one")
    shutil.move("x", "out/summary.json")
    with pytest.raises(OutputError, match=r"out/summary\.json: cannot be read \(it has 1,099"):
        _ = fredsim.load("out").summary  # type: ignore[union-attr]


def test_events_may_be_larger_than_memory_but_no_hole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fredsim.system.memory.FEW", 1000)
    monkeypatch.setattr("fredsim.system.memory.machine_memory", lambda: 1000)
    for name in ("events.parquet", "metrics.csv"):
        (place / name).write_bytes(bytes(range(256)) * 20)
    assert too_large(place) == "metrics.csv"
    (place / "metrics.csv").unlink()
    assert too_large(place) == ""
    os.truncate(place / "events.parquet", 2**33)
    assert too_large(place) == "events.parquet"


@pytest.mark.parametrize("words", ["verify", "verify --jobs 2", "compare whole", "load", "run --out out --resume"])
def test_a_hole_in_the_place_of_each_file(words: str, place: Path, command: Command) -> None:
    """Also one at the end of a file that begins as it should: nothing of it is read."""
    del place
    recorded("kept", "whole")
    files = [Path("whole", name).relative_to("whole") for name in (*FILES, "summary.json", "config.yaml")]
    files = [path for path in files if Path("whole", path).exists()]
    of_checkpoint = sorted(path.relative_to("whole") for path in Path("whole/checkpoint").iterdir())[2:4]
    assert len(files) > 8
    for file in [*files, *of_checkpoint] if words != "verify --jobs 2" else of_checkpoint:
        recorded("kept")
        os.truncate(Path("out", file), 2**40)
        if words == "load":
            loaded = fredsim.load("out")
            assert isinstance(loaded, Result)
            for name in ("summary", "metrics", "staleness", "params", "probe", "clients", "events", "changed_files"):
                with contextlib.suppress(OutputError, ConfigError):
                    getattr(loaded, name)
        else:
            first, *more = words.split()
            code, output, messages = command(first, "out", *more)
            told = code in (1, 2) and file.stem in output + messages
            assert told or first == "run" or (first == "compare" and file in of_checkpoint), (file, output, messages)
        shutil.rmtree("out")


def test_a_checkpoint_of_a_hole(place: Path, command: Command) -> None:
    """It says that a growing file had 2^40 bytes, and the file has."""
    del place
    folder = recorded("kept")
    for path in Path("out/checkpoint").glob("*.json"):
        data = json.loads(path.read_bytes())
        data["files"]["events.parquet"]["size"] = 2**40
        path.write_bytes(json_with_digest(data))
    os.truncate(folder / "events.parquet", 2**40)
    faults = list(Checkpoints(folder).faults())
    assert len(faults) > 2
    assert all(fault.startswith("out/events.parquet: is not as it was at iteration ") for fault in faults)
    assert command("verify", "out")[0] == 2


def test_files_that_are_larger_than_memory(place: Path, refused: Refused) -> None:
    """The disk holds nothing of them; their digest would take hours."""
    del place
    recorded("one")
    for name, says in {
        "metrics.csv": "cannot be read (it has 8,796,093,022,208 bytes, and",
        "staleness.csv": "cannot be read (it has 8,796,093,022,208 bytes, and",
        "params.safetensors": "is larger than this machine's memory; run the experiment again",
    }.items():
        whole = Path("out", name).read_bytes()
        try:
            os.truncate(f"out/{name}", 2**43)
        except OSError:
            pytest.skip("this file system has no files as large")
        refused("plot", "out", says=(f"out/{name}: {says}",))
        with pytest.raises(OutputError, match="cannot be read"):
            getattr(fredsim.load("out"), Path(name).stem)
        Path("out", name).write_bytes(whole)


#: What an experiment may name, each as a hole, and what is then said.
HOLES = {
    "data={name: 'npz:hole.npz'}": "is no NPZ file",
    "data={name: 'text:hole.npz'}": "give a shorter text",
    "data={name: 'npy:folder'}": "bytes are a hole larger than memory",
    "dispatcher={name: trace, file: hole.npz}": "no CSV file, as it holds NUL bytes",
    "dispatcher={name: scripted, order: {csv: hole.npz}}": "bytes are a hole larger than memory",
    "clients.partition={name: lists, file: hole.npz}": "is no NPZ file",
    "model.initial=hole.npz": "bytes do not fit into memory",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", HOLES)
def test_a_hole_that_an_experiment_names(word: str, small_yaml: Path, refused: Refused) -> None:
    """Such a file may come with an experiment: neither it nor its digest is read for hours."""
    Path("folder").mkdir()
    for name, shape in (("x_train", (2**40, 8)), ("y_train", (2**40,))):
        with Path(f"folder/{name}.npy").open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.truncate(file.tell() + math.prod(shape))
    with Path("hole.npz").open("wb") as file:
        file.truncate(2**43)
    refused("run", small_yaml, word, "--out", "out", says=(HOLES[word],))


POINTS = {"where": {"seed": 0}, "points": [[20, 0.5]]}
#: Changes of a configuration that an experiment may have, but that no run writes so; and what is drawn of it.
SHORT: dict[str, Callable[[dict[str, Any]], object]] = {
    "a loss by its name": lambda config: config.update(loss="mse"),
    "published points without axes": lambda config: config.update(published={"source": "x", "series": [POINTS]}),
    "no key wait": lambda config: config["dispatcher"].pop("wait"),
    "a goal of no column": lambda config: config.update(until={"height": 1}),
}


@pytest.mark.parametrize("change", SHORT)
def test_a_configuration_with_keys_left_out(change: str, place: Path, command: Command) -> None:
    """`published` needs no seal: anybody may add it to what a run has written."""
    del place
    path = recorded("clock") / "config.yaml"
    config = read_document(path).data
    SHORT[change](config)
    path.write_text(dump_yaml(config), encoding="utf-8")
    seal(path.parent)
    words = [("plot", "out", "--kind", kind, "-o", "a.svg") for kind in ("curves", "ends")]
    for one in (*words, ("report", "out", "-o", "a.html"), ("calibrate", "out")):
        code, _, messages = command(*one)
        assert (code in (0, 2), "Traceback" in messages) == (True, False), one
    whole = fredsim.Result("out").config
    assert whole["dispatcher"]["wait"] is True
    assert whole.get("published", {"x": "iterations"})["x"] == "iterations"
    assert whole.get("loss", {"name": "mse"})["name"] == "mse"


def test_a_configuration_with_other_words(place: Path, refused: Refused, command: Command) -> None:
    """Most readers only show it; one that makes shards of it says which word is wrong."""
    del place
    path = recorded("one") / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("sequential", "sometimes"), encoding="utf-8")
    seal(path.parent)
    assert command("plot", "out", "-o", "a.svg")[0] == 0
    says = ("out/config.yaml:", "clients.sampling: is 'sometimes'; it must be 'sequential', 'iid' or 'shuffled'")
    refused("plot", "out", "--kind", "shards", "-o", "a.svg", says=says)
    path.write_text(re.sub("count: [0-9]+", "count: many", path.read_text(encoding="utf-8")), encoding="utf-8")
    seal(path.parent)
    refused("plot", "out", "-o", "a.svg", says=("out/config.yaml:", "clients.count: is 'many'; it should be a valid"))


def test_a_sweep_that_no_longer_asks_for_what_its_runs_have(place: Path, refused: Refused, command: Command) -> None:
    del place
    fredsim.run(SWEEP | {"select": None, "evaluation": {"every": 10, "metrics": ["top5"]}}, out="out")
    shutil.copytree("out", "whole")
    path = Path("out/sweep.yaml")
    path.write_text(path.read_text(encoding="utf-8").replace("top5", "perplexity"), encoding="utf-8")
    says = ("out: a table was changed after the runs (runs.csv: top5 is of the runs, and sweep.yaml does not ask",)
    for words in (("plot", "out"), ("compare", "out", "whole"), ("compare", "whole", "out")):
        refused(*words, says=says)
    code, output, messages = command("verify", "out")
    assert (code in (1, 2), "Traceback" in messages) == (True, False)
    assert "sweep.yaml" in output + messages


def test_links_in_a_circle(place: Path, refused: Refused) -> None:
    """In the place of a folder that is given, of which nobody knows what it leads to."""
    del place
    recorded("clock")
    Path("loop").symlink_to("loop")
    refused("show", "loop/x.yaml", says=("loop/x.yaml: no such file",))
    refused("new", "loop/x", says=("loop/x.yaml: cannot be written (Too many levels of symbolic links)",))
    refused("calibrate", "out", "--predict", "loop", says=("error: ",))


def test_events_that_unpack_to_more_than_memory(place: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few megabytes may have billions of rows; here memory is small instead."""
    del place
    recorded("clock")
    monkeypatch.setattr("fredsim.runs.folder.result.machine_memory", lambda: 2000)
    monkeypatch.setattr("fredsim.runs.folder.result.fills_memory", lambda size: size >= 2000)
    rows = (len(results()["clock"]["metrics.csv"].splitlines()) - 2) * 10  # a row each ten events
    table = pq.ParquetFile("out/events.parquet").metadata
    assert table.num_rows == rows
    says = f"out/events.parquet: its {rows} rows take {8 * rows * table.num_columns / 1000:.3g} kB, and this machine"
    for words in (("plot", "out", "--kind", "timeline", "-o", "a.svg"), ("calibrate", "out")):
        refused(*words, says=(says, "has 2 kB of memory; read a part at a time"))
