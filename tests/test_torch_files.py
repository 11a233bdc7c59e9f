"""The files that a PyTorch module is built from are recorded, compared, and part of what a checkpoint belongs to."""

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fredsim.runs.checkpoint.checkpoints import Checkpoints
from fredsim.runs.folder.run_files import summary_text
from fredsim.system.files import content_digest, named_as
from fredsim.system.opened_files import files_opened

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # whatever importing it says
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

Command = Callable[..., tuple[int, str, str]]

READERS = {
    "torch": "torch.load(file)['w']",
    "torch_mapped": "torch.load(file, mmap=True)['w']",
    "safetensors": "load_file(file)['w']",
    "safetensors_open": "opened(file)",
    "npy": "torch.from_numpy(np.load(file))",
    "npz": "torch.from_numpy(np.load(file)['w'])",
    "bytes": "torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.float32).reshape(10, 64)",
    "text": "torch.tensor(json.loads(Path(file).read_text()))",
    "script": "torch.jit.load(file).weight.detach()",
    "kept": "kept(file)",
}
MODULE = """
import functools, json, tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn


def opened(file):
    with safe_open(file, framework="pt") as found:
        return found.get_tensor("w")


@functools.cache
def kept(file):
    return torch.load(file)["w"]


def pretrained(file="weights/pretrained.bin"):
    with tempfile.TemporaryFile() as scratch, open("written.txt", "w") as log:
        log.write("a file that is written is none that is read")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        module[1].weight.copy_({reader})
    return module
"""


def write(reader: str, file: Path, scale: float = 1.0) -> None:
    """Write the weights that a reader of READERS reads."""
    w = (np.arange(640, dtype=np.float32).reshape(10, 64) % 7 - 3) * np.float32(scale / 20)
    file.parent.mkdir(exist_ok=True)
    if reader.startswith("torch") or reader == "kept":
        torch.save({"w": torch.from_numpy(w)}, file)
    elif reader.startswith("safetensors"):
        save_file({"w": w}, file)
    elif reader == "npy":
        with file.open("wb") as opened:
            np.save(opened, w)
    elif reader == "npz":
        with file.open("wb") as opened:
            np.savez(opened, w=w)
    elif reader == "bytes":
        file.write_bytes(w.tobytes())
    elif reader == "text":
        file.write_text(json.dumps(w.tolist()), encoding="utf-8")
    else:
        module = torch.nn.Linear(64, 10)
        module.weight.data.copy_(torch.from_numpy(w))
        torch.jit.save(torch.jit.script(module), file)


WORDS = (
    "model={name: 'torch:reading:pretrained', numerics: native}",
    "iterations=40",
    "evaluation={every: 20}",
    "threads=1",
)


@pytest.fixture
def reading(small_yaml: Path) -> Callable[[str], Path]:
    """Write a module that reads a file, and the file; return the path of the experiment."""

    def make(reader: str, **options: Any) -> Path:
        Path("reading.py").write_text(MODULE.replace("{reader}", READERS[reader]), encoding="utf-8")
        write(reader, Path("weights/pretrained.bin"), **options)
        return small_yaml

    return make


def anew() -> None:
    """Import the user's module again, as another process would."""
    sys.modules.pop("reading", None)


def test_what_is_there_no_longer_is_no_file_of_a_module(tmp_path: Path) -> None:
    kept, scratch = tmp_path / "kept.bin", tmp_path / "scratch.bin"
    with files_opened() as found:
        for path in (kept, scratch):
            path.write_bytes(b"x")
            path.read_bytes()
        scratch.unlink()
    assert [*found] == [str(kept)]


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_is_recorded_and_verified(reader: str, reading: Callable[..., Path], command: Command) -> None:
    experiment = reading(reader)
    assert command("run", experiment, *WORDS, "--quiet", "--out", "out")[0] == 0
    summary = json.loads(Path("out/summary.json").read_text(encoding="utf-8"))
    assert summary["model_files"] == {"weights/pretrained.bin": content_digest("weights/pretrained.bin")}
    anew()
    assert command("verify", "out")[:2] == (0, "out: same bits\n")
    write(reader, Path("weights/pretrained.bin"), scale=2.0)
    anew()
    code, output, messages = command("verify", "out")
    assert code == 1
    assert output.startswith("out: different: ")
    assert "out: the file weights/pretrained.bin that the model reads has changed (SHA-256 " in messages


def test_a_file_that_changes_no_bit_differs_too(reading: Callable[..., Path], command: Command) -> None:
    experiment = reading("npz")
    assert command("run", experiment, *WORDS, "--quiet", "--out", "out")[0] == 0
    np.savez("other.npz", w=np.load("weights/pretrained.bin")["w"], more=np.zeros(3))
    Path("other.npz").replace("weights/pretrained.bin")
    code, output, _ = command("verify", "out")
    said = "out: different: summary.json: the file weights/pretrained.bin that the model reads has changed (SHA-256 "
    assert (code, output[: len(said)]) == (1, said)


def test_files_elsewhere_are_named_without_their_folder(
    reading: Callable[..., Path], command: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    experiment, elsewhere = reading("torch"), tmp_path_factory.mktemp("elsewhere") / "w.pt"
    write("torch", elsewhere)
    model = f"model={{name: 'torch:reading:pretrained', numerics: native, file: '{elsewhere}'}}"
    assert command("run", experiment, model, *WORDS[1:], "--quiet", "--out", "out")[0] == 0
    summary = json.loads(Path("out/summary.json").read_text(encoding="utf-8"))
    assert summary["model_files"] == {"w.pt": content_digest(str(elsewhere))}


def test_a_module_that_reads_nothing_has_no_entry(small_yaml: Path, command: Command) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    model = "model={name: 'torch:own_modules:images', numerics: native}"
    assert command("run", small_yaml, model, "iterations=4", "--quiet", "--out", "out")[0] == 0
    assert "model_files" not in json.loads(Path("out/summary.json").read_text(encoding="utf-8"))


def test_a_record_of_an_earlier_version_lacks_the_entry(reading: Callable[..., Path], command: Command) -> None:
    assert command("run", reading("torch"), *WORDS, "--quiet", "--out", "out")[0] == 0
    path = Path("out/summary.json")
    summary = json.loads(path.read_text(encoding="utf-8"))
    del summary["model_files"], summary["sha256"]
    summary["versions"]["fredsim"] = "1.0.0"
    path.write_text(summary_text(summary), encoding="utf-8")
    code, output, messages = command("verify", "out")
    assert (code, output) == (0, "out: same bits\n")
    assert "the model now reads the file weights/pretrained.bin, of which the record has no digest" in messages


def test_a_run_does_not_continue_with_another_file(reading: Callable[..., Path], command: Command) -> None:
    """Neither from a checkpoint nor as one that has ended; with the same file it does both."""
    experiment = reading("torch")
    words = (*WORDS, "--checkpoint", "0.0001", "--keep-checkpoints", "--out", "out")
    assert command("run", experiment, *words, "--quiet")[0] == 0
    assert "finished before, and is not run again" in command("run", experiment, *words, "--resume")[2]
    assert Checkpoints(Path("out")).iterations
    whole = Path("out/metrics.csv").read_bytes()
    Path("out/summary.json").unlink()
    anew()
    assert "continues from the checkpoint" in command("run", experiment, *words)[2]
    assert Path("out/metrics.csv").read_bytes() == whole
    write("torch", Path("weights/pretrained.bin"), scale=2.0)
    anew()
    said = command("run", experiment, *words, "--resume")[2]
    assert "out is done again: the file weights/pretrained.bin that the model reads has changed" in said
    assert "continues from the checkpoint" not in said
    assert Path("out/metrics.csv").read_bytes() != whole
    Path("out/summary.json").unlink()
    write("torch", Path("weights/pretrained.bin"))
    anew()
    said = command("run", experiment, *words)[2]
    assert "continues from the checkpoint" not in said
    assert "its model_files is " in said
    assert Path("out/metrics.csv").read_bytes() == whole


def test_a_file_is_the_same_wherever_a_command_is_given(
    reading: Callable[..., Path],
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its name is a path below the current folder, which is another one later."""
    experiment, there = reading("torch").resolve(), Path.cwd()
    file, out = there / "weights/pretrained.bin", there / "out"
    model = f"model={{name: 'torch:reading:pretrained', numerics: native, file: '{file}'}}"
    words = (model, *WORDS[1:], "--checkpoint", "0.0001", "--keep-checkpoints", "--out", out)
    assert command("run", experiment, *words, "--quiet")[0] == 0
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["model_files"] == {"weights/pretrained.bin": content_digest(str(file))}
    whole = (out / "metrics.csv").read_bytes()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    anew()
    assert command("verify", out)[:2] == (0, f"{out}: same bits\n")
    assert "finished before, and is not run again" in command("run", experiment, *words, "--resume")[2]
    (out / "summary.json").unlink()
    anew()
    assert "continues from the checkpoint" in command("run", experiment, *words)[2]
    assert (out / "metrics.csv").read_bytes() == whole
    write("torch", file, scale=2.0)
    anew()
    assert command("verify", out)[0] == 1
    assert "out is done again: the file pretrained.bin that" in command("run", experiment, *words, "--resume")[2]


@pytest.mark.parametrize(
    ("found", "known", "named"),
    [
        ({"a/w": "1"}, {"w": "1"}, {"w": "1"}),
        ({"w": "1"}, {"/a/b/w": "1", "v": "2"}, {"/a/b/w": "1"}),
        ({"w": "1"}, {"a/v": "1"}, {"w": "1"}),
        ({"w": "2"}, {"a/w": "1"}, {"w": "2"}),
        ({"a/w": "1", "b/w": "1"}, {"w": "1", "c/w": "1"}, {"w": "1", "c/w": "1"}),
        ({"a/w": "1", "b/w": "2"}, {"b/w": "1", "a/w": "2"}, {"b/w": "1", "a/w": "2"}),
        ({"a/w": "1", "w": "2"}, {"w": "2", "v": "1"}, {"a/w": "1", "w": "2"}),
        ({"a/w": "1"}, {"a/w": "1", "b/w": "1"}, {"a/w": "1"}),
    ],
)
def test_files_by_the_names_of_before(found: dict[str, str], known: dict[str, str], named: dict[str, str]) -> None:
    assert named_as(found, known) == named
