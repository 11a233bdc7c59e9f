"""`fredsim new`: what it writes runs, explains every key, and replaces nothing."""

import re
import sys
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


@pytest.mark.parametrize(
    "server", ["adagrad", "adam", "bfasgd", "dana", "fasgd", "momentum", "nadam", "rmsprop", "sign_majority"]
)
def test_the_server_learns_as_it_is(server: str, command: Command) -> None:
    """These need smaller learning rates than others do, with which they would leave most digits wrong."""
    assert command("new", "mine", "--server", server)[0] == 0
    execute(resolved("mine.yaml", "iterations=400", "evaluation.every=400", "backend=numpy"), Path("run"))
    assert Result(Path("run")).summary["validation_error"] < 0.6


@pytest.mark.parametrize("data", ["modular", "text:mine.txt"])
def test_sequences_are_for_a_transformer(data: str, command: Command) -> None:
    assert command("new", "mine.yaml", "--data", data) == (0, "mine.yaml\n", "")
    experiment = resolved("mine.yaml")
    assert (experiment.data.name, experiment.model.name) == (data, "gpt")
    assert command("new", "own", "--own", "server", "--data", data)[0] == 0  # its samples are any


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


def test_a_server_whose_defaults_are_no_plain_data(command: Command, own_server: Callable[..., str]) -> None:
    """They are left out, and so is what takes several lines: only a whole line can be a comment."""
    taken = "self, lr=0.1, beta=1j, where=os, table={'a': [{'b': [1]}]}, note='a\\nb', steps=3"
    Path("own_new.py").write_text(own_server().replace("self, lr", taken), encoding="utf-8")
    assert command("new", "mine", "--server", "own_new:Plain")[0] == 0
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert "\n  #lr: 0.1\n" in text
    assert "\n  #steps: 3\n" in text
    assert "#beta" not in text
    assert "#where" not in text
    assert command("run", "mine.yaml", *SHORT, "--quiet") == (0, "", "")


def test_a_server_of_which_nothing_is_known(command: Command, own_server: Callable[..., str]) -> None:
    """Of a class of C++ or Cython Python cannot tell what it takes."""
    Path("own_new.py").write_text(own_server() + "\n\n    __signature__ = 0\n", encoding="utf-8")
    assert command("new", "mine", "--server", "own_new:Plain")[0] == 0
    assert command("run", "mine.yaml", "server.lr=0.1", *SHORT, "--quiet") == (0, "", "")


@pytest.mark.parametrize("kind", [*OWN])
def test_something_of_ones_own_learns_as_it_is(kind: str, command: Command) -> None:
    if kind == "network":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    assert command("new", "mine", "--own", kind) == (0, f"mine.yaml\nmine_{kind}.py\n", "")
    assert f"mine_{kind}:{OWN[kind].name}" in Path("mine.yaml").read_text(encoding="utf-8")
    code, _, messages = command("run", "mine.yaml", "iterations=200", "evaluation.every=100", "--out", "out")
    found = Result(Path("out"))
    assert (code, found.summary["status"]) == (0, "finished"), messages
    assert f"mine_{kind}" in found.summary["code"]
    first, last = (found.metrics[found.measure].iloc[row] for row in (0, -1))
    assert last < 0.7 * first
    (said,) = re.findall(rf", {found.measure.replace('_', ' ')} (\S+), digest", messages)
    assert float(said) == pytest.approx(last, rel=0.01)  # it has a few digits


def test_one_of_each(refused: Callable[..., None]) -> None:
    for kind, option, value in (
        ("server", "server", "sync"),
        ("dataset", "data", "digits"),
        ("problem", "data", "mnist"),
    ):
        says = f"--{option} is given, and --own {kind} writes what takes its place; leave one of them out"
        refused("new", "mine", "--own", kind, f"--{option}", value, says=(says,))
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--own", "metric", "--data", "modular"), "those of --data modular have many; choose other data"),
        (("--own", "loss", "--data", "text:x.txt"), "--own loss writes one for samples with a label each"),
        (("--own", "network", "--data", "modular"), "--own network writes one for samples with a label each"),
        (("--own", "optimizer", "--server", "dcasgd"), "clients take steps of their own"),
        (("--own", "optimizer", "--server", "easgd"), "clients.local_steps is 4; the server easgd sets 10"),
    ],
)
def test_nothing_is_written_that_would_not_run(words: tuple[str, ...], says: str, refused: Callable[..., None]) -> None:
    Path("x.txt").write_text("abc" * 1000, encoding="utf-8")
    refused("new", "mine", *words, says=(says,))
    assert [path.name for path in Path().glob("*.*")] == ["x.txt"]


def test_a_module_that_is_there_is_not_replaced(refused: Callable[..., None]) -> None:
    Path("mine_loss.py").write_text("kept", encoding="utf-8")
    refused("new", "mine", "--own", "loss", says=("mine_loss.py: is there already, and is not overwritten",))
    refused("new", "mine", "--own", "losss", says=("--own is 'losss'; did you mean 'loss'? (known: server, loss,",))
    assert not Path("mine.yaml").exists()
    Path("mine.yaml").write_text("kept", encoding="utf-8")
    refused("new", "mine", "--own", "metric", says=("mine.yaml: is there already, and is not overwritten",))
    assert not Path("mine_metric.py").exists()
    assert Path("mine_loss.py").read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(
    ("name", "module"), [("a", "a_server"), ("my-sgd", "my_sgd_server"), ("1", "_1_server"), ("x.1.yaml", "x_1_server")]
)
def test_one_of_ones_own_for_each_experiment(name: str, module: str, command: Command) -> None:
    """So a second one in the same folder is another."""
    assert command("new", "first", "--own", "server")[0] == 0
    code, output, _ = command("new", name, "--own", "server")
    path, written = output.split()
    assert (code, written) == (0, f"{module}.py")
    assert resolved(path).server.name == f"{module}:RootStaleness"


@pytest.mark.parametrize("taken", ["a_server.py", "a_server/__init__.py", "b/a_server/__init__.py"])
def test_a_module_that_would_not_be_imported_is_not_written(taken: str, refused: Callable[..., None]) -> None:
    """In the current folder, or as a package, another is found before it."""
    Path("b/a_server").mkdir(parents=True)
    Path("a_server").mkdir()
    Path(taken).touch()
    says = ("b/a_server.py: another module would be imported in its place, ", taken, "choose another name for the exp")
    refused("new", "b/a", "--own", "server", says=says)
    assert not Path("b/a.yaml").exists()
    assert not Path("b/a_server.py").exists()


def test_of_two_modules_of_one_name_the_one_that_is_used_is_told(command: Command) -> None:
    """Whoever edits the one beside the experiment is told that the one in the current folder is what runs."""
    Path("b").mkdir()
    for name in ("b/c", "c"):
        assert command("new", name, "--own", "server")[0] == 0
    run = ("run", "b/c.yaml", *SHORT, "--out", "out")
    assert "the module c_server is" not in command(*run)[2]  # they are the same
    with Path("b/c_server.py").open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    del sys.modules["c_server"]
    code, _, messages = command(*run)
    here = Path.cwd()
    said = f"the module c_server is {here / 'c_server.py'}, and not {here / 'b/c_server.py'}, which differs"
    assert (code, messages.count(said)) == (0, 1)


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
