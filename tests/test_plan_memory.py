"""What `fredsim plan` says of the memory of a network's run, other than `mlp`'s, is what the run takes."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fredsim.config.document import dump_yaml

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process has had")

MODULES = """
from torch import nn


def wide(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 10))


def images(channels):
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * channels, 64), nn.ReLU(), nn.Linear(64, 10),
    )
"""
#: Runs `fredsim` with its arguments, then prints the most kilobytes that the process has had. (What getrusage says
#: begins with the memory of the process that started this one.)
MEASURED = """
import atexit, re, sys
from pathlib import Path
from fredsim.cli import main

atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
sys.argv[0] = "fredsim"
main()
"""
UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
CASES: dict[str, dict[str, Any]] = {
    "many clients of 3.2M parameters": {
        "model": {"name": "torch:sized:wide", "numerics": "native", "width": 1760},
        "clients": {"count": 24, "batch_size": 4},
        "server": {"name": "fasgd", "lr": 0.001},
    },
    "large minibatches of images": {
        "model": {"name": "torch:sized:images", "numerics": "native", "channels": 64},
        "clients": {"count": 8, "batch_size": 256},
        "server": {"name": "asgd", "lr": 0.01},
        "iterations": 4,
    },
    "a portable network, large minibatches": {
        "model": {"name": "vgg", "widths": [64, 64]},
        "clients": {"count": 8, "batch_size": 256},
        "server": {"name": "asgd", "lr": 0.01},
        "window": 1,
        "iterations": 4,
    },
    "a portable network, many clients": {
        "model": {"name": "resnet", "width": 64},
        "clients": {"count": 40, "batch_size": 2},
        "server": {"name": "ringleader", "lr": 0.01},
        "threads": 2,
    },
}


def in_a_process(words: list[str]) -> str:
    return subprocess.run([sys.executable, "-c", MEASURED, *words], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_what_a_run_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if CASES[name]["model"].get("numerics") == "native":
        pytest.importorskip("torch", reason="PyTorch is not installed: pip install .[torch]")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    Path("sized.py").write_text(MODULES, encoding="utf-8")
    every = {"dispatcher": {"name": "round_robin"}, "iterations": 4 + CASES[name]["clients"]["count"]}
    experiment = {"data": {"name": "digits"}, "threads": 1, **every, **CASES[name]}
    Path("sized.yaml").write_text(dump_yaml(experiment), encoding="utf-8")
    found = re.search(r" versions +([\d.]+) ([kMG]B) ", in_a_process(["plan", "sized.yaml"]))
    assert found is not None  # and kernels are compiled by now, which takes memory
    taken = 1024 * int(in_a_process(["run", "sized.yaml", "--quiet", "--out", "out"]).split()[-1])
    assert float(found[1]) * UNITS[found[2]] == pytest.approx(taken, rel=0.2)
