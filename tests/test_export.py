"""`fredsim export`: what the libraries of TensorBoard and MLflow read back is what the runs' files say."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

import fredsim
from fredsim.config.document import dump_yaml, flatten
from fredsim.runs.folder.results import Result
from fredsim.show.export.recorded import Point, read_run

Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
TENSORBOARD = "TensorBoard is not installed: pip install .[tensorboard]"


def needs_mlflow() -> None:
    for library in ("mlflow", "sqlalchemy", "alembic"):
        pytest.importorskip(library, reason=f"{library} is not installed: pip install .[mlflow]")


@pytest.fixture
def runs(small_yaml: Path, digits_experiment: dict[str, Any], command: Command) -> dict[str, Result]:
    """A sweep with a clock, and a run without one, by the names that they are exported under."""
    changes = {
        "dispatcher": {"name": "clock", "compute": {"noise": {"name": "exponential"}}},
        "evaluation": {"every": 10},
    }
    sweep = {"name": "tries", "sweep": {"server.lr": [0.1, 1.0e30]}}
    small_yaml.write_text(dump_yaml(digits_experiment | changes | sweep), encoding="utf-8")
    assert command("run", small_yaml, "--quiet", "--out", "sweep") == (0, "", "")
    alone = ["sweep=null", "dispatcher={name: uniform}", "server={name: sasgd, lr: 0.05}"]
    assert command("run", small_yaml, *alone, "--quiet", "--out", "alone") == (0, "", "")
    found = {f"sweep/{run.folder.name}": run for run in fredsim.load("sweep")}  # type: ignore[union-attr]
    return found | {"alone": Result(Path("alone"))}


#: Keys that these runs' config.yaml leaves out, with their defaults as text.
LEFT_OUT = {
    "clients.partition.name": "iid", "clients.partition.shards": "false", "clients.fraction": "1.0",
    "clients.current": "false", "clients.prox": "0.0", "clients.control_variates": "false", "clients.noise": "0.0",
    "evaluation.test": "false", "evaluation.per_client": "false", "evaluation.gradient_norm": "false",
    "evaluation.metrics": "[]", "events": "false",
}  # fmt: skip


def expected(run: Result, name: str) -> list[tuple[int, float, float]]:
    """Return iteration, simulated second and value of a column's cells that are not empty."""
    table = pd.read_csv(run.folder / "metrics.csv", keep_default_na=False, na_values=["nan"])
    table = table[table[name].astype(str) != ""].astype({name: float})
    seconds = table["time"] if "clock" in str(run.config["dispatcher"]) else 0 * table["time"]
    return list(zip(table["iteration"], seconds, table[name], strict=True))


def columns(run: Result) -> list[str]:
    table = pd.read_csv(run.folder / "metrics.csv").drop(columns=["iteration", "digest"]).dropna(axis=1, how="all")
    return [str(name) for name in table if name != "time" or "clock" in str(run.config["dispatcher"])]


def numbers(run: Result) -> list[str]:
    """Return the numbers of summary.json that metrics.csv has no column for."""
    known = pd.read_csv(run.folder / "metrics.csv").columns
    return [key for key, value in run.summary.items() if isinstance(value, int | float) and key not in known]


def test_tensorboard_reads_the_numbers(runs: dict[str, Result], command: Command) -> None:
    pytest.importorskip("tensorboard", reason=TENSORBOARD)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    code, output, messages = command("export", "sweep", "alone", "--to", "tensorboard", "--output", "out/tb")
    assert (code, messages) == (0, "")
    assert output.splitlines() == [f"new: {name}" for name in runs]
    for name, run in runs.items():
        found = EventAccumulator(f"out/tb/{name}", size_guidance={"scalars": 0, "tensors": 0}).Reload()
        assert set(found.Tags()["scalars"]) == {*columns(run), *(f"summary/{key}" for key in numbers(run))}
        for column in columns(run):
            wanted = [(step, second, float(np.float32(value))) for step, second, value in expected(run, column)]
            rows = [(one.step, one.wall_time, one.value) for one in found.Scalars(column)]
            np.testing.assert_array_equal(rows, wanted)
        for key in numbers(run):
            (one,) = found.Scalars(f"summary/{key}")
            end = expected(run, "validation_loss")[-1][:2]
            assert (one.step, one.wall_time, one.value) == (*end, np.float32(run.summary[key]))
        text = found.Tensors("summary")[0].tensor_proto.string_val[0].decode()
        assert f"| digest | {run.summary['digest']} |" in text
        assert f"| status | {run.summary['status']} |" in text
        plugin = found.PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
        assert start.hparams["server.lr"].number_value == run.config["server"]["lr"]
        assert start.hparams["server.name"].string_value == run.config["server"]["name"]
        assert start.hparams["dispatcher.wait"].bool_value is True
        assert set(start.hparams) == {*flatten(run.config), *LEFT_OUT}
        assert start.hparams["clients.prox"].number_value == 0.0
        end = metadata.parse_session_end_info_plugin_data(plugin[metadata.SESSION_END_INFO_TAG])
        assert end.status == {"finished": 1, "diverged": 2}[run.summary["status"]]


def test_tensorboard_gets_all_that_float32_holds(runs: dict[str, Result]) -> None:
    pytest.importorskip("tensorboard", reason=TENSORBOARD)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from fredsim.show.export.to_tensorboard import write

    largest = float(np.finfo(np.float32).max)
    points = [Point(step, 0.0, value) for step, value in enumerate((largest, -largest, 2 * largest))]
    list(write([replace(read_run("large", runs["alone"]), points={"x": points})], Path("out")))
    found = EventAccumulator("out/large").Reload()
    assert [one.value for one in found.Scalars("x")] == [largest, -largest]
    text = found.Tensors("summary")[0].tensor_proto.string_val[0].decode()
    assert f"| not_exported | it exceeds float32: x: {2 * largest:g} at 2 |" in text


def test_exporting_again_to_tensorboard(runs: dict[str, Result], command: Command, refused: Refused) -> None:
    pytest.importorskip("tensorboard", reason=TENSORBOARD)
    words = ["export", "sweep", "alone", "--to", "tensorboard"]
    command(*words)
    before = {path: path.read_bytes() for path in Path("tensorboard").rglob("*") if path.is_file()}
    assert command(*words)[1].splitlines() == [f"unchanged: {name}" for name in runs]
    assert {path: path.read_bytes() for path in Path("tensorboard").rglob("*") if path.is_file()} == before
    command("run", "small.yaml", "sweep=null", "seed=1", "--quiet", "--out", "other/alone")
    assert command("export", "other/alone", "--to", "tensorboard")[1] == "replaced: alone\n"
    refused("export", "alone", "other/alone", "--to", "tensorboard", says=["two runs would be named alone"])
    Path("tensorboard/alone/events.out.tfevents.1.theirs").touch()
    refused("export", "alone", "--to", "tensorboard", says=["events.out.tfevents.1.theirs", "name another folder"])
    Path("file").touch()
    refused("export", "alone", "--to", "tensorboard", "-o", "file", says=["file/alone", "cannot be written"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
def test_mlflow_reads_the_numbers(runs: dict[str, Result], command: Command) -> None:
    needs_mlflow()
    from mlflow.tracking import MlflowClient

    assert command("export", "sweep", "alone", "--to", "mlflow", "--output", "out/runs.db")[::2] == (0, "")
    client = MlflowClient(tracking_uri=f"sqlite:///{Path('out/runs.db').resolve()}")

    def recorded() -> dict[str, Any]:
        (experiment,) = client.search_experiments(filter_string="name = 'tries'")
        found = client.search_runs([experiment.experiment_id])
        assert len(found) == len(runs)
        return {one.info.run_name: one for one in found}

    for name, run in runs.items():
        found = recorded()[name]
        assert set(found.data.metrics) == {*columns(run), *(f"summary/{key}" for key in numbers(run))}
        for column in columns(run):
            rows = sorted(client.get_metric_history(found.info.run_id, column), key=lambda one: one.step)
            wanted = [(step, round(1000 * second), value) for step, second, value in expected(run, column)]
            np.testing.assert_array_equal([(one.step, one.timestamp, one.value) for one in rows], wanted)
        assert found.data.metrics["summary/seconds"] == run.summary["seconds"]
        assert found.data.tags["fredsim.digest"] == run.summary["digest"]
        assert found.data.tags["fredsim.status"] == run.summary["status"]
        assert found.info.status == {"finished": "FINISHED", "diverged": "FAILED"}[run.summary["status"]]
        assert found.data.params["server.lr"] == repr(run.config["server"]["lr"])
        assert found.data.params["dispatcher.wait"] == "true"
        assert set(found.data.params) == {*flatten(run.config), *LEFT_OUT}
        assert {key: found.data.params[key] for key in LEFT_OUT} == LEFT_OUT
    identities = {one.info.run_id for one in recorded().values()}
    again = command("export", "alone", "sweep", "--to", "mlflow", "--output", "out/runs.db")
    assert sorted(again[1].splitlines()) == sorted(f"unchanged: {name}" for name in runs)
    assert {one.info.run_id for one in recorded().values()} == identities

    client.delete_tag(recorded()["alone"].info.run_id, "fredsim.sha256")  # as after a kill
    for folder, became in (("alone", "replaced: alone\n"), ("alone", "unchanged: alone\n")):
        assert command("export", folder, "--to", "mlflow", "-o", "out/runs.db")[1] == became
    assert len(identities & {one.info.run_id for one in recorded().values()}) == len(runs) - 1


NAMES = "it's", 'a "b"', "'\"", "`' OR 1=1 --", 'it\'s "%" and \\ _', "λ' \""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
@pytest.mark.usefixtures("runs")
def test_names_with_quotes_are_found_again(command: Command) -> None:
    needs_mlflow()
    for name in NAMES:
        shutil.copytree("alone", name)
        for became in ("new", "unchanged"):
            assert command("export", name, "--to", "mlflow", "-o", "out/runs.db")[:2] == (0, f"{became}: {name}\n")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
@pytest.mark.usefixtures("runs")
def test_a_store_that_was_left_half_made(command: Command, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow can neither use nor mend what a killed export left of its tables, so it is made apart."""
    needs_mlflow()
    words = ("export", "alone", "--to", "mlflow", "-o", "out/half.db")
    with monkeypatch.context() as patched:
        patched.setattr("alembic.command.upgrade", Mock(side_effect=RuntimeError("ended")))
        refused(*words, says=["out/half.db: MLflow cannot write it (RuntimeError: ended)"])
    assert [*Path("out").iterdir()] == []
    Path("out", f"half.db.{0:016}.part").touch()  # as after a kill
    assert command(*words)[:2] == (0, "new: alone\n")
    assert [path.name for path in Path("out").iterdir()] == ["half.db"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
def test_odd_names_end_no_export_to_mlflow(runs: dict[str, Result]) -> None:
    """Of files and arguments that users name: MLflow takes some letters, 250 of them, and plain paths."""
    needs_mlflow()
    from mlflow.tracking import MlflowClient

    from fredsim.show.export.to_mlflow import write

    names = ["weights (1).pt", "weights [1].pt", "weights _1_.pt", "a//b", "a/../b", "x/", "λ.pt", "p" * 300, "p" * 301]
    one = read_run("alone", runs["alone"])
    odd = {f"model_files.{name}": f"digest {number}" for number, name in enumerate(names)}
    one = replace(one, facts={**one.facts, **odd}, params={**one.params, "../k+1": 7, "plain": 8})
    file = Path("odd%20name.db")  # in the address of a database, %20 is a blank
    assert [*write([one], file)] == [("alone", "new")]
    assert [path.name for path in Path().glob("odd*")] == [file.name]
    file.rename("odd.db")
    client = MlflowClient(tracking_uri=f"sqlite:///{Path('odd.db').resolve()}")
    (experiment,) = (found for found in client.search_experiments() if found.name == one.experiment)
    (found,) = client.search_runs([experiment.experiment_id])
    tags = found.data.tags
    texts = [text for text in tags.values() if "digest " in text]
    assert len(texts) == len(names)
    for name, text in odd.items():
        key = f"fredsim.{name}"
        as_it_is = name.endswith(("weights _1_.pt", "λ.pt"))
        assert (tags[key] == text) if as_it_is else (f"{key}: {text}" in texts)
    assert tags["fredsim.model_files.weights _1_.pt_2"] == "fredsim.model_files.weights (1).pt: digest 0"
    assert (found.data.params["plain"], found.data.params["_.._k_1"]) == ("8", "../k+1: 7")
    assert [*write([one], Path("odd.db"))] == [("alone", "unchanged")]


@pytest.mark.usefixtures("runs")
def test_what_is_refused(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("export", "alone", "--to", "tensorbord", says=["--to: is 'tensorbord'; did you mean 'tensorboard'?"])
    if find_spec("tensorboard"):
        refused("export", "nothing", "--to", "tensorboard", says=["nothing: is no folder"])
    for target in ("tensorboard", "mlflow"):
        monkeypatch.delitem(sys.modules, f"fredsim.show.export.to_{target}", raising=False)
        for name in [name for name in sys.modules if name.startswith(f"{target}.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, target, None)  # all of it: what is imported half would stay behind
        refused(
            "export",
            "alone",
            "--to",
            target,
            says=[f"needs {target}", f'-m pip install -c constraints.txt -e ".[{target}]"'],
        )
    assert not Path("tensorboard").exists()
    assert not Path("mlflow.db").exists()


class Damaged:
    """Finds a package that raises what a damaged installation does, or one beside versions that do not fit it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, *more: object) -> None:
        if name == self.name:
            raise TypeError("Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, …")


@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("plotly", ("report", "alone"), "report"),
        ("tensorboard", ("export", "alone", "--to", "tensorboard"), "tensorboard"),
        ("mlflow", ("export", "alone", "--to", "mlflow"), "mlflow"),
        ("pyarrow.parquet", ("run", "small.yaml", "events=true"), "events"),
        ("distributed", ("run", "small.yaml", "sweep={seed: [0, 1]}", "--dask", "tcp://127.0.0.1:1"), "cluster"),
        ("distributed", ("live", "small.yaml", "sweep=null", "--workers", 1), "cluster"),
        ("torch", ("run", "small.yaml", "model={name: 'torch:fredsim.zoo:lenet'}"), "torch"),
        ("torchvision", ("run", "small.yaml", "data.name=torchvision:FashionMNIST"), "torch"),
    ],
)
@pytest.mark.usefixtures("runs")
def test_a_damaged_library(
    package: str, words: tuple[object, ...], extra: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an export, and of all else that needs one: its error of any type is told in one line."""
    if package == "distributed" and find_spec("dask") is None:
        pytest.skip("dask is not installed, whose absence is told first")
    half, before = (f"{package}.", "fredsim.show.export.to_"), {*sys.modules}
    for name in [name for name in sys.modules if name == package or name.startswith(half)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Damaged(package), *sys.meta_path])
    what = "cannot be imported (TypeError: Descriptors cannot be created directly.); in the checkout, run "
    refused(*words, says=(what, f'".[{extra}]"'))
    for name in {*sys.modules} - before:  # half of it was imported
        if name == package or name.startswith(half):
            del sys.modules[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy among themselves
@pytest.mark.usefixtures("runs")
def test_a_damaged_store_is_told(refused: Refused) -> None:
    needs_mlflow()
    Path("runs.db").write_text("no database " * 1000, encoding="utf-8")
    refused("export", "alone", "--to", "mlflow", "-o", "runs.db", says=["runs.db: MLflow cannot write it"])
    assert Path("runs.db").read_text(encoding="utf-8").startswith("no database")
