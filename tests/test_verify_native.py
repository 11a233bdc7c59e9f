"""Of a PyTorch module `fredsim verify` says that its bits are not promised elsewhere, and what is elsewhere."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fredsim.system.machine import processor_name

pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")

Command = Callable[..., tuple[int, str, str]]


def test_what_verify_says_where_the_bits_differ(
    small_yaml: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "model={name: 'torch:own_modules:images', numerics: native}", "iterations=10", "--quiet"
    promise = "  the model is a PyTorch module: its bits are promised on the same machine, device, versions, threads"

    def verified(folder: str, file: str) -> list[str]:
        """What it prints of a folder whose first digest was changed."""
        path = Path(folder, file)
        with path.open(newline="", encoding="utf-8") as opened:
            digest = next(csv.DictReader(opened))["digest"]
        path.write_text(path.read_text(encoding="utf-8").replace(digest, digest[::-1], 1), encoding="utf-8")
        code, output, _ = command("verify", folder)
        assert code == 1
        return output.splitlines()

    monkeypatch.syspath_prepend(Path(__file__).parent)  # own_modules.py, as a user's
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("fredsim.runs.single.provenance.processor_name", lambda: "Another processor")
        assert command("run", small_yaml, *words, "--out", "out")[0] == 0
    first, second, third = verified("out", "metrics.csv")
    assert first.startswith("out: different: metrics.csv, line 2, iteration 0: digest is ")
    assert second.startswith(promise)
    assert third == f"  processor was Another processor and is {processor_name()}"
    assert command("run", small_yaml, *words, "--out", "here")[0] == 0
    assert [line.startswith(promise) for line in verified("here", "metrics.csv")] == [False, True]
    assert command("run", small_yaml, *words, "sweep={seed: [0, 1]}", "--out", "sweep")[0] == 0
    for folder in Path("sweep").iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    different, said, same = verified("sweep", "runs.csv")
    assert ": different: runs.csv: digest is " in different
    assert said.startswith(promise)
    assert same.endswith(": same bits")
    assert command("run", small_yaml, "iterations=10", "--quiet", "--out", "mlp")[0] == 0
    assert len(verified("mlp", "metrics.csv")) == 1
