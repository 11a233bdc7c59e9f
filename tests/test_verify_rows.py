"""A table of runs is proved from the sweep beside it."""

import csv
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.config.document import read_document
from fredsim.runs.single.opening import open_expansion
from fredsim.runs.verify.sweep import rows_difference

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
SHIPPED: dict[str, str] = json.loads(
    Path(__file__).with_name("golden").joinpath("experiments.json").read_text(encoding="utf-8")
)
REFERENCE = sorted((Path(__file__).parents[1] / "results" / "reference").glob("*/*/runs.csv"))


@pytest.fixture
def table(small_yaml: Path, command: Command) -> Path:
    """The folder of a sweep, with its two files alone."""
    sweep = "sweep={seed: [0, 1], server.lr: [0.1, 0.05]}"
    assert command("run", small_yaml, sweep, "--quiet", "--out", "whole") == (0, "", "")
    Path("table").mkdir()
    for name in ("runs.csv", "sweep.yaml"):
        Path("table", name).write_bytes(Path("whole", name).read_bytes())
    return Path("table")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("words", [(), ("--jobs", 2), ("--backend", "numpy")], ids=str)
def test_same_bits(words: tuple[object, ...], table: Path, command: Command) -> None:
    names = [row["run"] for row in rows_of(table / "runs.csv")]
    code, output, messages = command("verify", table, *words)
    assert (code, output) == (0, "".join(f"table/{name}: same bits\n" for name in names))
    assert "finished before" not in messages  # all of them are done again


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("folder", ["whole", "table"])
def test_rows_that_are_missing_are_told(folder: str, command: Command) -> None:
    path = Path(folder, "runs.csv")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    assert command("verify", folder)[2].count("note:") == 0
    path.write_text("".join([lines[0], *lines[2:4]]), encoding="utf-8")
    code, output, errors = command("verify", folder)
    (note,) = [line for line in errors.splitlines() if line.startswith("note:")]
    first = lines[1].split('"')[1]
    assert note.startswith(f"note: {folder}: runs.csv lacks runs of the sweep (2, such as {first}), which are not")
    assert output.count("same bits") == 2
    lost = f"{folder}: different: runs.csv, line 2 is "  # of runs that have ended, whose folders are there
    assert (code, lost in output) == ((1, True) if folder == "whole" else (0, False))


@pytest.mark.parametrize("key", ["digest", "iterations", "validation_error", "bytes_pushed", "status"])
def test_a_number_that_was_changed(key: str, table: Path, command: Command) -> None:
    rows = rows_of(table / "runs.csv")
    before = rows[1][key]
    last = "1" if before[-1] == "0" else "0"
    rows[1][key] = "diverged" if key == "status" else before[:-1] + last
    write_rows(table / "runs.csv", rows)
    code, output, _ = command("verify", table)
    assert code == 1
    assert output.count("same bits") == len(rows) - 1
    assert (
        f"table/{rows[1]['run']}: different: runs.csv: {key} is {rows[1][key]} (recorded) and {before} (now)" in output
    )


def test_every_column_that_is_no_axis(small_yaml: Path, command: Command) -> None:
    """Those of single classes, too, which no list has: each may be another number, or be lost."""
    words = ("evaluation={metrics: [per_class, perplexity], test: true}", "sweep={seed: [0], iterations: [20]}")
    assert command("run", small_yaml, *words, "--quiet", "--out", "whole") == (0, "", "")
    Path("table").mkdir()
    Path("table/sweep.yaml").write_bytes(Path("whole/sweep.yaml").read_bytes())
    (row,) = rows_of(Path("whole/runs.csv"))
    assert len([key for key in row if "error_class_" in key]) == 20
    row_of = Path("table/runs.csv")
    write_rows(row_of, [row])
    assert command("verify", "table")[:2] == (0, f"table/{row['run']}: same bits\n")
    for key in ("error_class_3", "test_error_class_9", "perplexity", "test_perplexity", "iterations"):
        for value in ("0.125", ""):
            write_rows(row_of, [row | {key: value}])
            code, output, _ = command("verify", "table")
            told = f"table/{row['run']}: different: runs.csv: {key} is {value} (recorded) and {row[key]} (now)"
            assert (code, told in output) == (1, True), output
    write_rows(row_of, [{key: cell for key, cell in row.items() if key != "error_class_3"}])
    assert command("verify", "table")[0] == 1
    write_rows(row_of, [row | {"error_class_10": "0.0"}])
    assert command("verify", "table")[0] == 1


def test_a_cell_that_is_no_number(small_yaml: Path, refused: Refused, command: Command) -> None:
    """The choice would be made by it."""
    words = ("sweep={server.lr: [0.1, 0.05]}", "select={over: server.lr}")
    assert command("run", small_yaml, *words, "--quiet", "--out", "whole") == (0, "", "")
    Path("table").mkdir()
    for name in ("runs.csv", "best.csv", "sweep.yaml"):
        Path("table", name).write_bytes(Path("whole", name).read_bytes())
    rows = rows_of(Path("table/runs.csv"))
    for key in ("validation_error", "validation_loss", "updates"):
        for value in ("x", "--1", "1e9999", "0x1", " "):
            write_rows(Path("table/runs.csv"), [rows[0], rows[1] | {key: value}])
            says = f"table/runs.csv: is damaged ({key} of '{rows[1]['run']}' is '{value}'); run the experiment again"
            refused("plot", "table", "-o", "x.svg", says=(says,))
            code, _, messages = command("verify", "table")
            assert (code, says in messages) == (2, True)


def test_runs_that_measure_less_than_others(small_yaml: Path, table: Path, command: Command) -> None:
    sweep = "sweep={evaluation.gradient_norm: [true, false]}"
    assert command("run", small_yaml, sweep, "--quiet", "--out", "mixed") == (0, "", "")
    for name in ("runs.csv", "sweep.yaml"):
        (table / name).write_bytes(Path("mixed", name).read_bytes())
    code, output, _ = command("verify", table)
    assert (code, output.count("same bits")) == (0, 2)


def test_runs_that_failed_are_left_out(small_yaml: Path, own_server: Callable[..., str], command: Command) -> None:
    small_yaml.with_name("own_failing_row.py").write_text(own_server("raise ValueError('no')\n"), encoding="utf-8")
    sweep = "sweep={server: [{name: 'own_failing_row:Plain', lr: 0.1}, {name: asgd, lr: 0.1}]}"
    assert command("run", small_yaml, sweep, "--quiet", "--out", "some")[0] == 2
    Path("table").mkdir()
    for name in ("runs.csv", "sweep.yaml"):
        Path("table", name).write_bytes(Path("some", name).read_bytes())
    code, output, _ = command("verify", "table")
    assert (code, output.count("same bits"), output.count("\n")) == (0, 1, 1)


def test_a_table_without_rows(table: Path, refused: Refused) -> None:
    text = (table / "runs.csv").read_text(encoding="utf-8")
    (table / "runs.csv").write_text(text.partition("\n")[0] + "\n", encoding="utf-8")
    refused("verify", table, says=("table/runs.csv: names no run that ended; run the experiment again",))


def test_a_table_of_another_sweep(table: Path, refused: Refused) -> None:
    text = (table / "sweep.yaml").read_text(encoding="utf-8")
    (table / "sweep.yaml").write_text(text.replace("0.05", "0.06"), encoding="utf-8")
    refused("verify", table, says=("sweep.yaml has no run ", "put the two back"))


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_the_reference_can_be_proved(path: Path) -> None:
    """Each table's sweep.yaml is that of the experiment that comes with fredsim, and gives its runs.

    tests/golden/test_experiments.py shows of which runs those are, by the digest of their digests.
    """
    rows = [row["run"] for row in rows_of(path)]
    expansion = open_expansion(str(path.parent))
    assert sorted(rows) == sorted(run.folder_name for run in expansion.runs)
    assert expansion.source == read_document(path.parent / "sweep.yaml").data
    assert rows_difference(path.parent, expansion) is None  # each byte of its tables follows from the rows
    digests = "".join(run.experiment.digest for run in expansion.runs)
    assert hashlib.sha256(digests.encode()).hexdigest() == SHIPPED["/".join(path.parts[-3:-1])]
