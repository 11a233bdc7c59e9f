"""Which path a run takes: `auto` the quickest; one that cannot be taken is refused with the reason; digests stay."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from fredsim.config.choices import PathName
from fredsim.config.resolution import resolve
from fredsim.errors import ConfigError
from fredsim.runs.folder.results import Result
from fredsim.runs.single.backend_choice import chosen_backend
from fredsim.runs.single.prepared import prepare

Simulate = Callable[..., Result]
Command = Callable[..., tuple[int, str, str]]
Refused = Callable[..., None]
QUICK = ["hand", "fused"]

OWN = """
import numpy as np

from fredsim.servers import ASGD


class Watching(ASGD):
    def apply_update(self, grad, client_id, timestamp):
        return super().apply_update(grad, client_id, timestamp)


class Plain:
    def __init__(self, lr):
        self.lr = lr

    def init(self, params, clients):
        self.params = params

    def apply_update(self, grad, client_id, timestamp):
        self.params = self.params - np.float32(self.lr) * grad


class Told(Plain):
    def begins(self, client_id, params, timestamp):
        pass


class Counting(Plain):
    timestamp = 0

    def apply_update(self, grad, client_id, timestamp):
        super().apply_update(grad, client_id, timestamp)
        self.timestamp += 1


def squared(z, y):
    e = z - np.eye(z.shape[1], dtype=np.float32)[y]
    return (e * e).sum(axis=1) / np.float32(2), e


class Slow:
    def seconds(self, client, task):
        return 1.0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_choice.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_package_that_is_damaged_leaves_numba(tmp_path: Path) -> None:
    """Importing it may raise anything."""
    (tmp_path / "cuda").mkdir()
    damaged = "raise OSError('libnvrtc.so.13: cannot open shared object file')\n"
    (tmp_path / "cuda" / "bindings.py").write_text(damaged, "utf-8")
    program = """
from fredsim.errors import ConfigError
from fredsim.simulation.paths.backends import resolve_backend
print(resolve_backend("auto"))
try:
    import fredsim.cuda
except ConfigError as error:
    print(error)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "FREDSIM_EMULATE": "0"}
    words = [sys.executable, "-c", program]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[0] == "numba"
    assert found[1].startswith("backend is cuda; it needs NVIDIA's cuda-bindings and NVRTC (libnvrtc.so.13")


def test_auto_takes_the_quickest(simulate: Simulate) -> None:
    refusing = {"fetch": {"every": 2}}
    for changes, path in (
        ({}, "hand"),
        ({"dispatcher": {"name": "uniform", "wait": False}}, "hand"),
        ({"dispatcher": refusing}, "fused"),
        ({"server": {"name": "sync", "lr": 0.1}}, "snapshots"),
        ({"backend": "numpy"}, "snapshots"),
    ):
        assert simulate({"iterations": 5, **changes}).summary["path"] == path


GATED: dict[str, Any] = {"dispatcher": {"name": "uniform", "push": {"every": 2}}}
BY_SECONDS: dict[str, Any] = {"iterations": None, "dispatcher": {"name": "clock", "compute": {"seconds": 2.0}}}
VGG: dict[str, Any] = {"model": {"name": "vgg", "widths": [2]}}


@pytest.mark.usefixtures("own", "device")
@pytest.mark.parametrize(
    ("changes", "size", "wanted"),
    [
        ({}, 700, "cuda"),
        ({"server": {"name": "fasgd", "lr": 0.01}, "dispatcher": {"name": "clock"}}, 700, "cuda"),
        (GATED, 700, "numba"),
        (GATED, 999_999, "numba"),
        (GATED, 1_000_000, "cuda"),
        ({"dispatcher": {"name": "uniform", "fetch": {"every": 2}}}, 700, "numba"),
        ({"server": {"name": "sync", "lr": 0.1}}, 700, "numba"),
        ({"compress": {"name": "ternary"}}, 700, "numba"),
        ({"probe": {"every": 5}}, 700, "numba"),
        ({"dispatcher": {"name": "clock", "compute": {"limit": 2.0}}}, 700, "numba"),
        ({"dispatcher": {"name": "clock", "compute": {"limit": 2.0}}}, 1_000_000, "cuda"),
        ({"iterations": None, "updates": 10_000_000}, 700, "cuda"),
        ({"iterations": None, "updates": 10_000_001}, 700, "numba"),
        ({"iterations": None, "epochs": 25_000}, 700, "cuda"),  # of 400 iterations each
        ({"iterations": None, "epochs": 25_001}, 700, "numba"),
        (BY_SECONDS | {"seconds": 2_500_000}, 700, "cuda"),  # of 4 arrivals each
        (BY_SECONDS | {"seconds": 2_500_001}, 700, "numba"),
        (BY_SECONDS | {"seconds": 2_500_001}, 1_000_000, "cuda"),
        (BY_SECONDS | {"seconds": 10**8, "dispatcher": {"name": "own_choice:Slow"}}, 700, "cuda"),
        ({"path": "queued"}, 700, "cuda"),
        ({"path": "hand"}, 2_000_000, "numba"),
        ({"path": "snapshots"}, 700, "numba"),
        ({"path": "snapshots"}, 2_000_000, "cuda"),
        ({"stages": {"cuts": ["W2"], "delay": "pipedream"}}, 2_000_000, "numba"),
        ({"memory": "1GB"}, 2_000_000, "numba"),
        ({"backend": "cuda", "server": {"name": "sync", "lr": 0.1}}, 700, "cuda"),
        ({"backend": "numpy"}, 2_000_000, "numpy"),
        # What the graph and the data rule out, of any size: here all else is as if it were queued.
        (VGG, 700, "cuda"),
        ({"loss": "own_choice:squared"}, 700, "numba"),
        ({"loss": "own_choice:squared"}, 2_000_000, "numba"),
        ({"model": VGG["model"] | {"buffers": "averaged"}}, 2_000_000, "numba"),
        (VGG | {"clients": {"count": 2, "batch_size": 2_100}, "data": {"name": "glyphs", "train": 2_200}},
         2_000_000, "numba"),
        # What is computed on a device, but not queued there.
        ({"model": {"hidden": [4], "trainable": ["W1"]}}, 700, "numba"),
        ({"model": {"hidden": [4], "trainable": ["W1"]}}, 2_000_000, "cuda"),
        (VGG | {"data": {"name": "digits", "augment": {"flip": True}}}, 700, "numba"),
        (VGG | {"data": {"name": "digits", "augment": {"flip": True}}}, 2_000_000, "cuda"),
    ],
)  # fmt: skip
def test_what_auto_takes_where_there_is_a_device(
    changes: dict[str, Any], size: int, wanted: str, digits_experiment: dict[str, Any]
) -> None:
    """`size`: as if the network had so many parameters."""
    experiment = resolve({**digits_experiment, "backend": "auto", **changes})
    prepared = prepare(experiment, None)
    assert chosen_backend(experiment, size, prepared.model.graph, prepared.dataset, prepared.length) == wanted


@pytest.mark.usefixtures("own", "device")
@pytest.mark.parametrize(("rows", "block", "wanted"), [(12, 512, "cuda"), (13, 512, "numba"), (20, 10, "cuda")])
def test_auto_asks_whether_a_device_computes_the_gradient_norm(
    rows: int, block: int, wanted: str, digits_experiment: dict[str, Any], simulate: Simulate, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It takes many training rows together, for which there may be no kernels where there are for minibatches."""
    a_sample = 24  # the most numbers of one at one place of the network
    monkeypatch.setattr("fredsim.cuda.networks.plan.MOST_NUMBERS", 12 * a_sample)
    monkeypatch.setattr("fredsim.compute.objectives.BLOCK", block)
    changes = {
        "backend": "auto",
        "model": {"name": "gpt", "width": 2, "heads": 1, "layers": 1},
        "data": {"name": "modular", "p": 5, "train": rows, "validation": 2},
        "clients": {"count": 2, "batch_size": 2},
    }
    for measured, choice in ((False, "cuda"), (True, wanted)):
        evaluation = {"every": 5, "gradient_norm": measured}
        experiment = resolve({**digits_experiment, **changes, "evaluation": evaluation})
        made = prepare(experiment, None)
        assert chosen_backend(experiment, 700, made.model.graph, made.dataset, made.length) == choice
    if wanted == "numba":  # and where it was asked for, it is refused before anything is written
        with pytest.raises(ConfigError, match=f"gradient_norm is true, and takes {rows} training rows together"):
            simulate({**changes, "evaluation": {"every": 5, "gradient_norm": True}, "backend": "cuda"})
        assert not list(tmp_path.glob("**/config.yaml"))


@pytest.mark.usefixtures("own", "device")
@pytest.mark.parametrize(
    ("changes", "backend"),
    [({}, "cuda"), ({"loss": "own_choice:squared"}, "numba"), ({"probe": {"every": 5}}, "numba")],
)
def test_a_run_says_what_auto_has_taken(changes: dict[str, Any], backend: str, simulate: Simulate) -> None:
    assert simulate({"iterations": 5, "backend": "auto", **changes}).summary["backend"] == backend


def test_no_more_than_ten_million_iterations_are_drawn_ahead(small_yaml: Path, command: Command) -> None:
    code, output, _ = command("plan", small_yaml, "iterations=10000001")
    assert code == 0
    assert "fused: the order of more than 10,000,000 iterations is not kept in memory" in output


def both(why: str) -> dict[str, str]:
    return dict.fromkeys(QUICK, why)


CANNOT: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    # overrides, and why they rule paths out
    "a server of one's own": (("server.name=own_choice:Plain",), {"fused": "the server sees whole gradients"}),
    "a push that is watched": (("server.name=own_choice:Watching",), {"fused": "Watching does more with a push"}),
    "a server that holds": (
        ("server.name=sync",), {"hand": "decides which clients continue", "fused": "Sync does more with a push"},
    ),
    "a server that hands out": (
        ("server.name=dana",), {"hand": "says what a client fetches", "fused": "DANA gives clients other parameters"},
    ),
    "a server that is told": (
        ("server.name=dcasgd", "dispatcher.wait=false"),
        {"hand": "notes what clients compute from", "fused": "DCASGD does more with a push"},
    ),
    "a server of one's own that is told": (
        ("server.name=own_choice:Told",),
        {"hand": "notes what clients compute from", "fused": "the server sees whole gradients"},
    ),
    "arrays for each client": (("server.name=ia2sgd",), {"fused": "IA2SGD does more with a push"}),
    "updates that a server counts": (
        ("server.name=own_choice:Plain", "iterations=null", "updates=9"), {"fused": "the server sees whole gradients"},
    ),
    "updates that a server of one's own counts": (
        ("server.name=own_choice:Counting", "iterations=null", "updates=9"),
        {"hand": "only the server knows how many pushes make an update", "fused": "the server sees whole gradients"},
    ),
    "decay": (("server.weight_decay=0.1",), {"fused": "weights decay"}),
    "a window's average": (("average={name: window}",), {"fused": "needs the parameters after every update"}),
    "parameters pushed": (("server.name=fedasync",), both("push params")),
    "numpy": (("backend=numpy",), both("numpy")),
    "a push gate": (("dispatcher={push: {every: 2}}",), both("push")),
    "a fetch gate": (("dispatcher={fetch: {every: 2}}",), {"hand": "fetch"}),
    "gates of the server's": (("server.name=bfasgd",), both("push")),
    "a replica": (("server.name=downpour",), both("push")),
    "compression": (("compress={name: sign}",), both("compressed")),
    "local steps": (("clients.local_steps=2",), both("local steps")),
}  # fmt: skip


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", CANNOT)
@pytest.mark.parametrize("path", QUICK)
def test_a_path_that_cannot_be_taken(
    name: str, path: str, small_yaml: Path, refused: Refused, command: Command
) -> None:
    overrides, ruled_out = CANNOT[name]
    words = ("run", small_yaml, f"path={path}", *overrides, "--quiet", "--out", "out")
    if path in ruled_out:
        refused(*words, says=(f"path is {path}", ruled_out[path]))
        assert not Path("out").exists()
        words = ("run", small_yaml, *overrides, "--quiet", "--out", "out")
    assert command(*words) == (0, "", "")


def test_a_path_of_another_backend(small_yaml: Path, refused: Refused) -> None:
    refused("run", small_yaml, "path=queued", says=("path is queued; the backend numba has no such path",))


def test_a_path_that_there_is_not(small_yaml: Path, refused: Refused) -> None:
    refused("show", small_yaml, "path=fast", says=("path: is 'fast'", *(f"'{path}'" for path in get_args(PathName))))


def test_a_path_makes_no_other_experiment(small_yaml: Path, command: Command) -> None:
    """A folder's run may be repeated, and verified, on another."""
    digests = set()
    for path in ("auto", *QUICK, "snapshots"):
        assert command("run", small_yaml, f"path={path}", "--quiet", "--out", "out") == (0, "", "")
        digests.add(Result(Path("out")).summary["digest"])
        assert command("verify", "out")[:2] == (0, "out: same bits\n")
    assert len(digests) == 1
