"""Notes about what is allowed and perhaps not meant: of data, numbers, traces, results; none where all is well."""

import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import fredsim
from fredsim.config.document import dump_yaml
from fredsim.config.shipped import shipped
from fredsim.data.datasets import load_dataset, read_dataset
from fredsim.data.remarks import about_channels, about_samples
from fredsim.plugins.failures import channels_remedy
from fredsim.runs.folder.results import Results
from fredsim.runs.many.remarks import remark_before, runs_at_chance
from fredsim.runs.single.opening import open_expansion
from fredsim.show.plots import Options, plot
from fredsim.show.plots.drawing import available_y

Command = Callable[..., tuple[int, str, str]]
Arrays = dict[str, NDArray[Any]]
ROOT = Path(__file__).parents[1]


def arrays(**changes: NDArray[Any]) -> Arrays:
    """Two classes that a line divides: 120 + 30 rows of 12 values, without anything to remark on."""
    draw = np.random.default_rng(5)
    made: Arrays = {}
    for part, n in (("train", 120), ("test", 30)):
        y = np.arange(n) % 2
        made |= {f"x_{part}": draw.random((n, 12)) + y[:, None], f"y_{part}": y}
    return made | changes


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run an experiment on such arrays; return the notes."""
    monkeypatch.chdir(tmp_path)

    def run(changes: Mapping[str, Any] | None = None, **changed: NDArray[Any]) -> list[str]:
        np.savez("own.npz", **arrays(**changed))  # type: ignore[arg-type]  # an argument of savez is a flag
        experiment = {
            "iterations": 200,
            "data": {"name": "npz:own.npz"},
            "model": {"hidden": [8]},
            "clients": {"count": 2, "batch_size": 8},
            "server": {"name": "asgd", "lr": 0.1},
            "evaluation": {"every": 100},
        }
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            fredsim.run(experiment | dict(changes or {}), out=tmp_path / f"out{len(list(tmp_path.iterdir()))}")
        assert all(one.category is fredsim.FredsimWarning and one.filename == __file__ for one in found)
        return [str(one.message) for one in found]

    return run


def one(texts: list[str], *parts: str) -> None:
    assert len(texts) == 1, texts
    assert [part for part in parts if part not in texts[0]] == [], texts


def test_of_good_data_nothing_is_noted(notes: Callable[..., list[str]]) -> None:
    assert notes() == []
    x = {f"x_{part}": (arrays()[f"x_{part}"] * 100).astype(np.uint8) for part in ("train", "test")}
    assert notes(**x) == []  # bytes are scaled
    assert notes({"data": {"name": "npz:own.npz", "normalize": {"mean": 0.5, "std": 1.5}}}) == []


def test_labels_with_gaps(notes: Callable[..., list[str]]) -> None:
    from_one = {f"y_{part}": arrays()[f"y_{part}"] + 1 for part in ("train", "test")}
    twice = {"sweep": {"seed": [0, 1]}, "iterations": 20}  # it is said once
    one(notes(twice, **from_one), "no row has the label 0, so 1 of the 3 outputs", "number the labels 0, 1, 2")
    large = arrays()["y_train"].copy()
    large[:40:2] = 700
    found = notes({"iterations": 60}, y_train=large)
    assert any("no row has the label 2, 3, 4, 5, 6 and 693 more, so 698 of the 701 outputs" in text for text in found)


def test_one_class(notes: Callable[..., list[str]]) -> None:
    one(
        notes(y_train=np.ones(120, int), y_test=np.arange(30) % 2),
        "100 training rows have one label, 1",
        "random order",
    )


def test_rows_in_the_order_of_their_labels(notes: Callable[..., list[str]]) -> None:
    order = np.repeat(np.arange(3), [60, 40, 20])
    found = notes(x_train=np.random.default_rng(1).random((120, 12)) + order[:, None], y_train=order)
    assert any("validation rows have the label 2, which no training row has" in text for text in found), found


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.int16])
def test_integers_are_not_scaled(dtype: type, notes: Callable[..., list[str]]) -> None:
    x: Arrays = {f"x_{part}": np.rint(arrays()[f"x_{part}"]).astype(dtype) for part in ("train", "test")}
    of = f"x_train holds {np.dtype(dtype)} up to 2"
    one([text for text in notes(**x) if "ended with" not in text], of, "divide them, or give data.normalize")
    scaled = {"data": {"name": "npz:own.npz", "normalize": {"mean": 1.0, "std": 1.0}}}
    assert not [text for text in notes(scaled, **x) if "x_train holds" in text]
    assert not [text for text in notes(**{name: values.clip(0, 1) for name, values in x.items()}) if "holds" in text]


def test_rows_and_values_that_are_alike(notes: Callable[..., list[str]]) -> None:
    x = arrays()["x_train"]
    x[[3, 7]] = 0
    one(notes(x_train=x), "2 of the 100 training rows hold nothing but 0")
    x = arrays()["x_train"]
    x[:, 1:8] = 0.25
    one(notes(x_train=x), "7 of the 12 values of a sample are the same in all 100 training rows")
    both = arrays()
    both["x_test"][:3], both["y_test"][:3] = both["x_train"][:3], both["y_train"][:3]
    one(notes(x_test=both["x_test"]), "3 of the 30 test rows are training rows, too")


def test_how_many_rows_are_there_twice_by_chance(tmp_path: Path) -> None:
    """Less than one of a hundred."""
    x, y = np.random.default_rng(5).random((400, 3)), np.arange(200) % 2
    for again, notes in ((1, 0), (2, 1)):
        np.savez(tmp_path / f"{again}.npz", x_train=x[:200], y_train=y, x_test=x[200 - again : 400 - again], y_test=y)
        data = load_dataset(f"npz:{tmp_path}/{again}.npz", 200, 0, tmp_path)
        found = [text.partition(", so")[0] for text in about_samples("own", data, scaled=True)]
        assert found == ["own: 2 of the 200 test rows are training rows, too"] * notes


def test_targets_that_are_numbers_are_no_labels(tmp_path: Path) -> None:
    numbers = {f"y_{part}": arrays()[f"x_{part}"].sum(axis=1) for part in ("train", "test")}
    np.savez(tmp_path / "own.npz", **arrays(**numbers))  # type: ignore[arg-type]  # an argument of savez is a flag
    data = read_dataset(f"npz:{tmp_path}/own.npz", None, None, tmp_path)
    assert [*about_samples("own", data, scaled=True)] == []


def test_what_error_is_that_of_chance(digits_experiment: dict[str, Any]) -> None:
    """0.95 of that of always giving the most frequent label, and more."""
    counts = np.bincount(load_dataset("digits", None, None, Path()).validation.y)
    error = 1 - counts.max() / counts.sum()
    results: list[Any] = [
        SimpleNamespace(folder=Path("out"), ending="finished", summary={"validation_error": factor * error})
        for factor in (0.9499, 0.9501, 1.0)
    ]
    assert runs_at_chance(open_expansion(digits_experiment), results, None) == results[1:]


@pytest.mark.parametrize(
    ("shape", "doubtful"),
    [((3, 4, 1), False), ((3, 4), False), ((4, 3), True), ((3, 4, 3), True), ((4, 4, 3), True), ((2, 3, 2), True)],
)
def test_which_axis_is_the_channels(shape: tuple[int, ...], doubtful: bool, notes: Callable[..., list[str]]) -> None:
    draw, size = np.random.default_rng(2), int(np.prod(shape))
    x = {
        f"x_{part}": (draw.random((n, size)) + (np.arange(n) % 2)[:, None]).reshape(n, *shape)
        for part, n in (("train", 120), ("test", 30))
    }
    normalize = {"mean": [0.5 + i / 10 for i in range(shape[0])], "std": 1.0}
    found = notes({"data": {"name": "npz:own.npz", "normalize": normalize}}, **x)
    assert [f"a sample has the shape {shape}" in text for text in found] == [True] * doubtful
    assert notes({"data": {"name": "npz:own.npz", "normalize": {"mean": 0.5, "std": 1.0}}}, **x) == []


def test_which_axis_may_be_the_channels_by_its_length() -> None:
    """Grey images with their channels last are as doubtful as coloured ones, also if they are three rows high."""
    shapes = {(4, 5, 1): True, (3, 3, 4): True, (2, 3, 2): True, (4, 5, 6): False, (3, 5, 1): False, (1, 3, 3): False}
    assert {shape: any(about_channels("own", shape, shape[0])) for shape in shapes} == shapes


def test_which_images_seem_to_have_their_channels_last() -> None:
    seem = [(8, 6, 3), (28, 28, 1), (32, 32, 4)]
    others = [(3, 8, 6), (3, 8, 1), (1, 28, 1), (8, 3, 3), (8, 6, 5), (8, 3), (2, 8, 6, 3)]  # of images, of rows
    assert [bool(channels_remedy(shape)) for shape in (*seem, *others)] == [True] * len(seem) + [False] * len(others)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": {"name": "vgg", "widths": [8]}}, "model.name vgg"),
        ({"data": {"name": "npz:own.npz", "augment": {"flip": True}}}, "data.augment"),
        ({"data": {"name": "npz:own.npz", "augment": {"crop": 1}}}, "data.augment"),
        ({}, ""),  # a multilayer perceptron has no axes
    ],
)
def test_images_with_their_channels_last(
    changes: Any, key: str, digits_experiment: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(3)
    last = {f"x_{part}": draw.random((n, 8, 6, 3)) for part, n in (("train", 120), ("test", 30))}
    first = {name: x.transpose(0, 3, 1, 2) for name, x in last.items()}
    found = []
    for images in (first, last):
        np.savez("own.npz", **(arrays() | images))  # type: ignore[arg-type]  # an argument of savez is a flag
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            expansion = open_expansion(digits_experiment | {"data": {"name": "npz:own.npz"}} | changes)
            remark_before(expansion.runs, None)
        found.append([str(one.message) for one in caught])
    takes = f"npz:own.npz: a sample has the shape (8, 6, 3), which {key} takes as 8 channels of 6×3; if the channels"
    assert found[0] == []
    assert [text.startswith(takes) for text in found[1]] == [True] * bool(key)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"server": {"name": "asgd", "lr": 1e-46}}, "server.lr is 1e-46, which is 0 in float32"),
        ({"server": {"name": "asgd", "lr": 0.1, "weight_decay": 1e-50}}, "server.weight_decay is 1e-50, which is 0"),
        ({"server": {"name": "momentum", "lr": 0.1, "momentum": 1 - 1e-12}}, "which is 1 in float32"),
        (
            {"server": {"name": "asgd", "lr": {"name": "step", "base": 1e-60, "every": 5, "factor": 0.5}}},
            "server.lr.base is 1e-60",
        ),
        ({"compress": {"name": "top_k", "k": 1e-47}}, "compress.k is 1e-47"),
        ({"clients": {"prox": 1e-50}}, "clients.prox is 1e-50, which is 0 in float32"),
        ({"clients": {"clip": 1e-46}}, "clients.clip is 1e-46"),
        ({"clients": {"noise": 1e-46}}, "clients.noise is 1e-46"),
        (
            {"clients": {"optimizer": {"name": "momentum", "lr": 1e-46}}, "server": {"name": "slowmo", "lr": 0.1}},
            "clients.optimizer.lr is 1e-46",
        ),
    ],
)
def test_numbers_that_float32_does_not_have(
    changes: dict[str, Any], says: str, digits_experiment: dict[str, Any]
) -> None:
    if "clients" in changes:
        changes = changes | {"clients": digits_experiment["clients"] | {"local_steps": 2} | changes["clients"]}
    expansion = open_expansion(digits_experiment | changes)
    with pytest.warns(fredsim.FredsimWarning, match=says.replace(".", r"\.")) as found:
        remark_before(expansion.runs, None)
    assert len(found) == 1


def test_a_trace_with_other_columns(notes: Callable[..., list[str]], tmp_path: Path) -> None:
    assert notes({"events": True}) == []
    (recorded,) = tmp_path.glob("*/events.parquet")
    follow = {"dispatcher": {"name": "trace", "file": str(recorded)}}
    assert notes(follow) == []  # a run's own record has nothing that is unknown, and its staleness is right
    table = pd.read_parquet(recorded)[["client", "staleness"]]
    follow["dispatcher"]["file"] = str(tmp_path / "log.csv")
    table.to_csv("log.csv", index=False)
    assert notes(follow) == []
    table.assign(Tiem=1.0, host="a").to_csv("log.csv", index=False)
    one(notes(follow), "a trace has no column 'Tiem', 'host', which is not used; did you mean 'time'?")
    table.assign(time=[*range(len(table))], began_ns=0, done_ns=0).to_csv("log.csv", index=False)
    one(
        notes(follow), "log.csv: began_ns, done_ns are not used: the times of tasks take began_ns, done_ns, received_ns"
    )
    table.assign(done_client="[0]").to_csv("log.csv", index=False)
    one(notes(follow), "log.csv: done_client is not used: which gradients were done takes done_client and done_number")
    table.assign(time=[1.7e9 + row for row in range(len(table))]).to_csv("log.csv", index=False)
    one(notes(follow), f"first time is 1.7e+09 s, and all others follow within {len(table) - 1} s; subtract the first")
    table.assign(staleness=table["staleness"] + 1).to_csv("log.csv", index=False)
    had = table["staleness"].mean()
    one(notes(follow), f"its column staleness is {had + 1:.6g} on average, and in the run {had:.6g}")
    follow["dispatcher"]["check"] = False  # type: ignore[assignment]
    assert notes(follow) == []


def test_a_run_that_learned_nothing(notes: Callable[..., list[str]]) -> None:
    """20 rows validate, 10 of each label: to give one label is an error of a half."""
    nothing = {"server": {"name": "asgd", "lr": 1e-30}, "model": {"hidden": [8], "init": "zeros"}}
    one(notes(nothing), "ended with the validation error 0.5000, about that of always giving one label")
    sweep = {"sweep": {"seed": [0, 1], "model.init": ["he", "zeros"]}}
    one(notes(sweep), "2 of 4 runs (", "init=zeros", "about that of always giving one label")
    select = {"select": {"best": "validation_error", "over": ["seed"]}}
    assert notes(sweep | select) == []  # some are meant to fail
    one(notes(nothing | select | {"sweep": {"seed": [0, 1]}}), "about that of always giving one label")  # not all
    skewed = np.zeros(120, int)
    skewed[::10] = 1  # 18 of the 20 rows that validate are of label 0
    found = notes(nothing, y_train=skewed)
    assert any("the validation error 0.1000, about that of always giving one label" in text for text in found), found


def test_the_command_says_each_note_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = {
        "iterations": 40,
        "data": {"name": "digits"},
        "model": {"hidden": [8]},
        "clients": {"count": 2, "batch_size": 4},
        "server": {"name": "asgd", "lr": 1e-46},
        "evaluation": {"every": 20},
        "sweep": {"seed": [0, 1, 2]},
    }
    Path("dead.yaml").write_text(dump_yaml(experiment), encoding="utf-8")
    for action, *options in (("run", "--jobs", 1), ("run", "--jobs", 2, "--out", "again"), ("plan",)):
        code, output, messages = command(action, "dead.yaml", *options)
        notes = [line for line in messages.splitlines() if line.startswith("note: ")]
        assert (code, "note: " in output) == (0, False)
        of_what = [("in float32" in line, "3 of 3 runs" in line and " 0 more" not in line) for line in notes]
        assert of_what == [(True, False), (False, True)][: 1 if action == "plan" else 2], messages
    assert command("run", "dead.yaml", "--quiet", "--out", "quiet") == (0, "", "")


@pytest.mark.parametrize(("words", "noted"), [
    (("--jobs", "2"), "jobs is 2"), (("--jobs", "device"), "jobs is device"), (("--jobs", "1"), ""),
    (("sweep={seed: [0, 1]}", "--jobs", "2"), ""),
], ids=str)  # fmt: skip
def test_jobs_of_a_single_run(words: tuple[str, ...], noted: str, small_yaml: Path, command: Command) -> None:
    code, _, messages = command("run", small_yaml, "iterations=4", *words, "--out", "out")
    assert code == 0
    assert f"note: {noted}, and this is a single run, of which that changes nothing" in messages or not noted
    assert noted or "single run" not in messages


def test_python_is_warned_at_its_own_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import fredsim

        for seed in (0, 1):
            fredsim.run("quickstart", ["sweep=null", "select=null", "iterations=40", f"seed={seed}",
                "server={name: asgd, lr: 1e-46}"], out=f"out/{seed}")
        """),
        encoding="utf-8",
    )
    found = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [line for line in found.stderr.splitlines() if "FredsimWarning" in line]
    assert found.returncode == 0, found.stderr
    assert len([line for line in lines if "1e-46" in line]) == 2, found.stderr  # once for each call
    assert all(line.startswith(f"{script}:5: FredsimWarning: ") for line in lines), found.stderr


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_experiments_have_nothing_to_note(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they run: their numbers and traces, and, if it is there, their data."""
    monkeypatch.setattr("fredsim.data.idx.MIRRORS", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error", fredsim.FredsimWarning)
        expansion = open_expansion(name)
        data = {run.experiment.data.name for run in expansion.runs}
        if data <= {"digits", "least_squares", "quadratic", "mishchenko"} or "FREDSIM_DATA" in os.environ:
            remark_before(expansion.runs[:40], None)


def test_no_rows_to_test_on(notes: Callable[..., list[str]], tmp_path: Path) -> None:
    """Once for a sweep; what stays empty is neither drawn nor offered."""
    none = {"x_test": np.zeros((0, 12)), "y_test": np.zeros(0, int)}
    asked = {"evaluation": {"every": 100, "test": True, "metrics": ["perplexity"]}, "sweep": {"seed": [0, 1]}}
    assert notes(asked) == []
    one(notes(asked, **none), "evaluation.test is true", "npz:own.npz has no rows to test on", "leave it out")
    assert notes(asked | {"evaluation": {"every": 100}}, **none) == []
    (folder,) = (path for path in tmp_path.iterdir() if (path / "sweep.yaml").is_file() and has_no_test(path))
    results = fredsim.load(folder)
    assert isinstance(results, Results)
    known = ["validation_error", "validation_loss", "train_loss", "perplexity"]
    assert available_y([*results]) == known
    for y in ("test_error", "test_loss"):
        with pytest.raises(fredsim.ConfigError, match=f"'{y}', which is nan in every row of these runs") as found:
            plot([*results], tmp_path / "x.png", options=Options(y=y))
        assert str(found.value).endswith(f"(they have values of: {', '.join(known)})")
    plot([*results], tmp_path / "x.png", options=Options(y="perplexity"))


def has_no_test(folder: Path) -> bool:
    """Whether a sweep's runs were asked for a test error that they do not have."""
    metrics = [pd.read_csv(path) for path in folder.glob("*/metrics.csv")]
    return all("test_error" in one and one["test_error"].isna().all() for one in metrics)
