"""`fredsim new`: what it writes runs, explains every key, and replaces nothing."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fredsim.config.document import parse_override, read_document
from fredsim.config.experiment import Experiment
from fredsim.config.sweep.expansion import expand
from fredsim.runs.folder.result import Result
from fredsim.runs.single.execution import execute
from fredsim.servers import SERVERS
from fredsim.servers.fasgd import FASGD
from fredsim.show.own_templates import OWN

Command = Callable[..., tuple[int, str, str]]
SHORT = ("iterations=12", "evaluation.every=12", "backend=numpy")


@pytest.fixture(autouse=True)
def here(small_yaml: Path) -> None:
    """Work in a new folder."""
    small_yaml.unlink()


def resolved(path: str, *overrides: str) -> Experiment:
    (run,) = expand(read_document(Path(path)), overrides).runs
    return run.experiment


def test_it_runs(command: Command) -> None:
    assert command("new") == (0, "experiment.yaml\n", "")
    assert command("run", "experiment.yaml", *SHORT, "--quiet") == (0, "", "")
    assert Path("results/experiment/summary.json").is_file()
    assert "experiment: say here what you want to find out" in Path("results/experiment/config.yaml").read_text("utf-8")


@pytest.mark.parametrize("name", [".", "/", ".."])
def test_a_folder_is_no_name_of_a_file(name: str, command: Command) -> None:
    code, output, messages = command("new", name)
    assert (code, output) == (2, "")
    assert messages.startswith(f"error: {name} is a folder; name the file to write, such as ")


@pytest.mark.parametrize("server", [*SERVERS])
def test_it_runs_with_every_server(server: str, command: Command) -> None:
    assert command("new", "mine", "--server", server) == (0, "mine.yaml\n", "")
    experiment = resolved("mine.yaml", *SHORT)
    assert experiment.server.name == server
    execute(experiment, Path("run"))
    assert Result(Path("run")).summary["status"] == "finished"


@pytest.mark.parametrize("data", ["modular", "text:mine.txt"])
def test_sequences_are_for_a_transformer(data: str, command: Command) -> None:
    assert command("new", "mine.yaml", "--data", data) == (0, "mine.yaml\n", "")
    experiment = resolved("mine.yaml")
    assert (experiment.data.name, experiment.model.name) == (data, "gpt")


def test_drawn_images_are_for_a_residual_network(command: Command) -> None:
    assert command("new", "mine.yaml", "--data", "glyphs") == (0, "mine.yaml\n", "")
    experiment = resolved("mine.yaml")
    assert (experiment.data.name, experiment.model.name) == ("glyphs", "resnet")


@pytest.mark.parametrize("data", ["mnist", "least_squares", "quadratic", "mishchenko", "torchvision:CIFAR10"])
def test_it_fits_every_data_set(data: str, command: Command) -> None:
    assert command("new", "mine.yaml", "--data", data) == (0, "mine.yaml\n", "")
    experiment = resolved("mine.yaml")
    assert (experiment.data.name, experiment.model.name == "linear") == (
        data,
        data not in {"mnist", "torchvision:CIFAR10"},
    )


def test_every_key_is_explained_and_what_is_left_out_is_the_default(command: Command) -> None:
    command("new", "mine", "--server", "fasgd")
    lines = Path("mine.yaml").read_text(encoding="utf-8").splitlines()
    keys = {line.split(":")[0].strip() for line in lines if line.startswith(("  ", "i", "s")) and " # " not in line}
    assert keys >= {"iterations", "seed", "hidden", "count", "batch_size", "#sampling", "every", "lr", "#gamma"}
    assert {key.strip("#") for key in keys} >= {*FASGD.Hyper.model_fields}
    body = lines[lines.index("") :]
    for before, line in pairwise(body):
        if re.match(r" *#?[a-z_]+: ", line) and not line.startswith(("#  ", "#sweep")):
            assert before.strip().startswith("# "), line
    opened = re.sub(r"^( *)#(\w+: )", r"\1\2", "\n".join(lines), flags=re.MULTILINE)
    Path("opened.yaml").write_text(opened.replace("normalize: null", ""), encoding="utf-8")
    assert resolved("opened.yaml", "name=mine").plain() == resolved("mine.yaml", "name=mine").plain()
    swept = re.sub(r"^#(sweep:|  seed|  server)", r"\1", "\n".join(lines), flags=re.MULTILINE)
    Path("swept.yaml").write_text(swept, encoding="utf-8")
    assert len(expand(read_document(Path("swept.yaml"))).runs) == 9
    for command_line in re.findall(r"fredsim run mine.yaml (\S+=\S+) (\S+=\S+) ", "\n".join(lines)):
        assert [parse_override(text)[0] for text in command_line] == ["server.lr", "seed"]


def test_a_server_of_ones_own(command: Command, own_server: Callable[..., str]) -> None:
    Path("own_new.py").write_text(own_server(), encoding="utf-8")
    assert command("new", "mine", "--server", "own_new:Plain")[0] == 0
    assert command("run", "mine.yaml", *SHORT, "--quiet") == (0, "", "")


@pytest.mark.parametrize("kind", [*OWN])
def test_something_of_ones_own_learns_as_it_is(kind: str, command: Command) -> None:
    if kind == "network":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    assert command("new", "mine", "--own", kind) == (0, f"mine.yaml\nmy_{kind}.py\n", "")
    assert f"my_{kind}:{OWN[kind].name}" in Path("mine.yaml").read_text(encoding="utf-8")
    code, _, messages = command("run", "mine.yaml", "iterations=200", "evaluation.every=100", "--out", "out")
    found = Result(Path("out"))
    assert (code, found.summary["status"]) == (0, "finished"), messages
    assert f"my_{kind}" in found.summary["code"]
    first, last = (found.metrics[found.measure].iloc[row] for row in (0, -1))
    assert last < 0.7 * first


def test_a_module_that_is_there_is_not_replaced(refused: Callable[..., None]) -> None:
    Path("my_loss.py").write_text("kept", encoding="utf-8")
    refused("new", "mine", "--own", "loss", says=("my_loss.py: is there already, and is not overwritten",))
    refused("new", "mine", "--own", "losss", says=("--own is 'losss'; did you mean 'loss'? (known: server, loss,",))
    assert not Path("mine.yaml").exists()
    Path("mine.yaml").write_text("kept", encoding="utf-8")
    refused("new", "mine", "--own", "metric", says=("mine.yaml: is there already, and is not overwritten",))
    assert not Path("my_metric.py").exists()
    assert Path("my_loss.py").read_text(encoding="utf-8") == "kept"


def test_nothing_is_replaced(refused: Callable[..., None]) -> None:
    Path("mine.yaml").write_text("kept", encoding="utf-8")
    Path("linked.yaml").symlink_to("nowhere")
    for name in ("mine", "mine.yaml", "linked"):
        refused("new", name, says=(".yaml: is there already, and is not overwritten; choose another name",))
    assert Path("mine.yaml").read_text(encoding="utf-8") == "kept"
    assert not Path("nowhere").exists()


def test_what_does_not_exist_is_refused_and_nothing_is_written(refused: Callable[..., None]) -> None:
    refused("new", "mine", "--server", "fasdg", says=("server: unknown server 'fasdg'; did you mean 'fasgd'?",))
    refused("new", "mine", "--data", "minst", says=("data.name: unknown data set 'minst'",))
    refused("new", "no/folder/mine", says=("no/folder/mine.yaml: ", "No such file or directory"))
    refused("new", "-", "--data", "digits", says=("-",))
    assert not Path("mine.yaml").exists()
